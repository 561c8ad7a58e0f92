"""Feature levels: the ranges this version supports, and the levels of a new cluster (KIP-584).

A level in effect is a record of the metadata log. A reader that does not support it stops with an
error that says so, before it misreads the records that follow. Brokers and controllers register
with the ranges they support, and are refused if a level in effect is outside. So a level may be
raised once every registered node, and every voter, supports it.

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
    """Supported levels, both ends inclusive.

    Every node supports level 0 (off), except of metadata.version.
    """

    lowest: int
    highest: int

    def supports(self, level: int) -> bool:
        return self.lowest <= level <= self.highest


SUPPORTED: Mapping[str, LevelRange] = {
    METADATA_VERSION: LevelRange(1, 4),
    ELR_VERSION: LevelRange(0, 1),
}
"""Ranges by name.

A new kind of record, or a new meaning of an old one, needs a new metadata.version.
"""

KRAFT_SUPPORTED = LevelRange(0, 1)
"""Range of kraft.version: 0 static voters, 1 voters in the log."""

METADATA_RELEASES: Mapping[int, str] = {1: "0.1-IV0", 2: "0.1-IV1", 3: "0.1-IV2", 4: "0.1-IV3"}
"""Names of the levels of metadata.version: the release that introduced them, and a count in it.

1 has the records of KIP-631. From 2 on, controllers register themselves (KIP-919).
From 3 on there are client quotas (KIP-546), from 4 on ACLs (KIP-801) and users (KIP-900).
"""

_RELEASES_ELR: Mapping[int, int] = {1: 0, 2: 1, 3: 1, 4: 1}
"""Level of eligible.leader.replicas.version in a cluster that begins with that metadata.version."""

FIRST_LEVELS: Mapping[str, int] = {METADATA_VERSION: 4, ELR_VERSION: 1}
"""Levels of a new cluster unless `storage format` sets others; UpdateFeatures raises them later.

An existing cluster keeps its own.
"""

# Range of a node that reports none: it is of the first version.
_UNTOLD: Mapping[str, LevelRange] = {METADATA_VERSION: LevelRange(1, 1)}

Ranges = Mapping[str, tuple[int, int]]


def ranges_to_wire() -> list[common_pb2.FeatureRange]:
    """The ranges this version supports, as brokers and controllers register with them."""
    told = {**SUPPORTED, KRAFT_VERSION: KRAFT_SUPPORTED}
    return [
        common_pb2.FeatureRange(name=name, min_level=r.lowest, max_level=r.highest)
        for name, r in sorted(told.items())
    ]


def supported_level(supported: Ranges, name: str, level: int) -> bool:
    """Whether a node with these ranges can work in a cluster with the level in effect."""
    found = supported.get(name, _UNTOLD.get(name))
    return level == 0 if found is None else LevelRange(*found).supports(level)


def check_supported(levels: Mapping[str, int | None], supported: Ranges, who: str) -> None:
    """Checks levels in effect (None: off).

    Raises UnsupportedVersionError for one that `who` does not support.
    """
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
    """Reasons why the cluster can not have `name` at `level`.

    They are nodes that do not support it, and voters whose ranges are unknown. Voters are not
    checked before controllers register (metadata.version 1).
    """
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
    """Levels of a release: `0.1-IV0`, or `0.1` for the last of it. Raises ConfigError."""
    found = [
        level
        for level, name in METADATA_RELEASES.items()
        if release in (name, name.partition("-")[0])
    ]
    if not found:
        known = ", ".join(METADATA_RELEASES.values())
        raise ConfigError(f"there is no release {release!r}; there are {known}")
    level = max(found)
    return {METADATA_VERSION: level, ELR_VERSION: _RELEASES_ELR[level]}


def first_levels(release: str | None, features: Mapping[str, int]) -> dict[str, int]:
    """Levels that `storage format` writes; raises ConfigError for an invalid one."""
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
