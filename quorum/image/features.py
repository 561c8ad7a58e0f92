"""Feature levels: what this version can work with, and what a new cluster begins with (KIP-584).

A level in effect is a record of the metadata log. Whoever reads a log with a level it does not
support stops with an error that says so, before it misreads what follows; brokers and controllers
register with the ranges they support, and are refused when they miss a level in effect. So a level
may be raised once every registered node, and every voter, supports it.

kraft.version is a level of the quorum itself: a control record of the Raft log, not of the image
(KIP-853).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from quorum.image.image import (
    CONTROLLERS_REGISTER_LEVEL,
    ELR_VERSION,
    METADATA_VERSION,
    MetadataImage,
)
from tidemark.errors import ConfigError, UnsupportedVersionError
from tidemark.v1 import common_pb2

KRAFT_VERSION = "kraft.version"


class LevelRange(NamedTuple):
    """Levels that are supported, both ends inclusive; level 0 (off) is everybody's but for
    metadata.version."""

    lowest: int
    highest: int

    def supports(self, level: int) -> bool:
        return self.lowest <= level <= self.highest


SUPPORTED: Mapping[str, LevelRange] = {
    METADATA_VERSION: LevelRange(1, 2),
    ELR_VERSION: LevelRange(0, 1),
}
"""By name. A new kind of record, or a new meaning of an old one, needs a new metadata.version."""

KRAFT_SUPPORTED = LevelRange(0, 1)
"""Of kraft.version: 0 static voters, 1 voters in the log."""

METADATA_RELEASES: Mapping[int, str] = {1: "0.1-IV0", 2: "0.1-IV1"}
"""Names of the levels of metadata.version: the release they came with, and a count within it. 1:
the records of KIP-631; 2: controllers register themselves (KIP-919)."""

FIRST_LEVELS: Mapping[str, int] = {METADATA_VERSION: 2}
"""What a new cluster begins with unless `storage format` says otherwise; others are switched on by
UpdateFeatures."""

# A node that does not tell is of the first version.
_UNTOLD: Mapping[str, LevelRange] = {METADATA_VERSION: LevelRange(1, 1)}

Ranges = Mapping[str, tuple[int, int]]


def ranges_to_wire() -> list[common_pb2.FeatureRange]:
    """What this version supports, as brokers and controllers register with it."""
    told = {**SUPPORTED, KRAFT_VERSION: KRAFT_SUPPORTED}
    return [
        common_pb2.FeatureRange(name=name, min_level=r.lowest, max_level=r.highest)
        for name, r in sorted(told.items())
    ]


def supported_level(supported: Ranges, name: str, level: int) -> bool:
    """Whether who supports these ranges can work in a cluster with the level in effect."""
    found = supported.get(name, _UNTOLD.get(name))
    return level == 0 if found is None else LevelRange(*found).supports(level)


def check_supported(levels: Mapping[str, int | None], supported: Ranges, who: str) -> None:
    """Raises UnsupportedVersionError for levels in effect (None: off) that `who` can not follow."""
    for name, level in sorted(levels.items()):
        if level is not None and not supported_level(supported, name, level):
            raise UnsupportedVersionError(
                f"the cluster has {name} at level {level}, {who} supports {_reach(supported, name)}"
                " of it: install a version that supports it"
            )


def _reach(supported: Ranges, name: str) -> str:
    found = supported.get(name, _UNTOLD.get(name))
    return f"levels {found[0]} to {found[1]}" if found else "no level"


def obstacles(
    image: MetadataImage, voters: Collection[int], name: str, level: int
) -> Iterator[str]:
    """Why the cluster can not have `name` at `level`: nodes that do not support it, and voters
    nobody knows that of. Before controllers register (metadata.version 1) they can not be asked."""
    for controller_id, controller in sorted(image.controllers.items()):
        if not supported_level(controller.feature_ranges, name, level):
            role = "controller" if controller_id in voters else "controller (no voter)"
            yield f"{role} {controller_id} supports {_reach(controller.feature_ranges, name)}"
    if image.features.get(METADATA_VERSION, 0) >= CONTROLLERS_REGISTER_LEVEL:
        for voter in sorted(set(voters) - set(image.controllers)):
            yield f"controller {voter} is not registered: start it, or remove it from the voters"
    for broker_id, broker in sorted(image.brokers.items()):
        if not supported_level(broker.feature_ranges, name, level):
            yield f"broker {broker_id} supports {_reach(broker.feature_ranges, name)}"


def release_levels(release: str) -> dict[str, int]:
    """The levels of a release: `0.1-IV0`, or `0.1` for the last of it. Raises ConfigError."""
    found = [
        level
        for level, name in METADATA_RELEASES.items()
        if release in (name, name.partition("-")[0])
    ]
    if not found:
        known = ", ".join(METADATA_RELEASES.values())
        raise ConfigError(f"there is no release {release!r}; there are {known}")
    return {METADATA_VERSION: max(found)}


def first_levels(release: str | None, features: Mapping[str, int]) -> dict[str, int]:
    """The levels that `storage format` writes down; raises ConfigError for one that can not be."""
    levels = dict(FIRST_LEVELS) if release is None else release_levels(release)
    for name, level in features.items():
        supported = SUPPORTED.get(name)
        if supported is None:
            raise ConfigError(f"there is no feature {name!r}; there are {', '.join(SUPPORTED)}")
        if not supported.supports(level):
            raise ConfigError(f"{name}: level {level} is not {_reach(SUPPORTED, name)}")
        if release is not None and name == METADATA_VERSION:
            raise ConfigError(f"{name} and a release were both named: one of them is enough")
        levels[name] = level
    return {name: level for name, level in levels.items() if level}
