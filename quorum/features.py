"""Feature levels: what this version can work with, and how a cluster's levels change (KIP-584).

A level in effect is a record of the metadata log. Whoever reads a log with a level it does not
support stops with an error that says so, before it misreads what follows; a broker registers with
the ranges it supports and is refused when they miss a level in effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from quorum.image.image import ELR_VERSION, METADATA_VERSION
from tidemark.errors import UnsupportedVersionError
from tidemark.v1 import common_pb2


class LevelRange(NamedTuple):
    """Levels that are supported, both ends inclusive; level 0 (off) is everybody's but for
    metadata.version."""

    lowest: int
    highest: int

    def supports(self, level: int) -> bool:
        return self.lowest <= level <= self.highest


SUPPORTED: Mapping[str, LevelRange] = {
    # The records of proto/tidemark/v1/metadata.proto.
    METADATA_VERSION: LevelRange(1, 1),
    ELR_VERSION: LevelRange(0, 1),
}
"""By name. A new kind of record, or a new meaning of an old one, needs a new metadata.version."""

FIRST_LEVELS: Mapping[str, int] = {METADATA_VERSION: 1}
"""What a new cluster begins with; others are switched on by UpdateFeatures."""

# A broker that does not tell is of the first version.
_UNTOLD: Mapping[str, LevelRange] = {METADATA_VERSION: LevelRange(1, 1)}


def ranges_to_wire() -> list[common_pb2.FeatureRange]:
    """What this version supports."""
    return [
        common_pb2.FeatureRange(name=name, min_level=r.lowest, max_level=r.highest)
        for name, r in sorted(SUPPORTED.items())
    ]


def supported_level(supported: Mapping[str, tuple[int, int]], name: str, level: int) -> bool:
    """Whether who supports these ranges can work in a cluster with the level in effect."""
    found = supported.get(name, _UNTOLD.get(name))
    return level == 0 if found is None else LevelRange(*found).supports(level)


def check_supported(
    levels: Mapping[str, int | None], supported: Mapping[str, tuple[int, int]], who: str
) -> None:
    """Raises UnsupportedVersionError for levels in effect (None: off) that `who` can not follow."""
    for name, level in sorted(levels.items()):
        if level is not None and not supported_level(supported, name, level):
            found = supported.get(name, _UNTOLD.get(name))
            reach = f"levels {found[0]} to {found[1]}" if found else "no level"
            raise UnsupportedVersionError(
                f"the cluster has {name} at level {level}, {who} supports {reach} of it: install a "
                "version that supports it"
            )
