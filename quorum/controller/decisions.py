"""Lines for the log about what a controller decided, from committed deltas (pure).

Brokers, topics, leaders and levels of features are INFO. Elections from outside of the in-sync
replicas are WARNING, changes of in-sync replicas DEBUG. A delta of thousands of partitions has few
lines. Values of settings are not told: they may be secrets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from quorum.image import (
    BrokerRegistration,
    MetadataDelta,
    PartitionRegistration,
)

_NAMED_MAX = 10


class Line(NamedTuple):
    """A line with its level, as `logging` numbers it."""

    level: int
    text: str


def decisions(delta: MetadataDelta, level: int) -> Iterator[Line]:
    """The lines of at least `level` about a change, which `delta.image` does not have yet."""
    for line in _decisions(delta, level):
        if line.level >= level:
            yield line


def _decisions(delta: MetadataDelta, level: int) -> Iterator[Line]:
    for broker_id, after in sorted(delta.brokers_changed.items()):
        text = _of_broker(delta.image.brokers.get(broker_id), after)
        if text:
            yield Line(logging.INFO, f"broker {broker_id} {text}")
    for feature, number in sorted(delta.features_changed.items()):
        what = "is removed" if number is None else f"is at level {number}"
        yield Line(logging.INFO, f"feature {feature} {what}")
    for resource, settings in delta.configs_changed.items():
        whose = f"{resource.kind} {resource.name}" if resource.name else "all brokers"
        yield Line(logging.INFO, f"settings of {whose} change: {', '.join(sorted(settings))}")
    created = [
        f"{topic.name} ({len(topic.partitions)} partitions)"
        for topic in delta.topics_changed.values()
        if topic.is_new
    ]
    deleted = [topic.name for topic in delta.topics_deleted.values()]
    for what, names in (("created", created), ("deleted", deleted)):
        if names:
            yield Line(logging.INFO, f"{what} {_some(names)}")
    yield from _of_partitions(delta, level)


def _of_broker(before: BrokerRegistration | None, after: BrokerRegistration | None) -> str:
    if after is None:
        return "is unregistered"
    if before is None or before.epoch != after.epoch:
        state = "fenced" if after.fenced else "unfenced"
        return f"registers with epoch {after.epoch}, {state}"
    if before.fenced != after.fenced:
        return "is fenced" if after.fenced else "is unfenced"
    if after.in_controlled_shutdown and not before.in_controlled_shutdown:
        return "shuts down in an orderly way"
    lost = set(before.log_dirs) - set(after.log_dirs)
    return f"lost {len(lost)} log directories" if lost else ""


def _of_partitions(delta: MetadataDelta, level: int) -> Iterator[Line]:
    elected: list[str] = []
    leaderless: list[str] = []
    unclean: list[str] = []
    for topic in delta.topics_changed.values():
        known = {} if topic.before is None else topic.before.partitions
        for index, after in topic.partitions.items():
            before = known.get(index)
            if before is None:
                continue
            name = f"{topic.name}-{index}"
            if before.leader != after.leader:
                move = f"{name} {_shown(before.leader)} to {_shown(after.leader)}"
                leaderless.append(name) if after.leader is None else elected.append(move)
                if _is_unclean(before, after):
                    unclean.append(move)
            if level <= logging.DEBUG and before.isr != after.isr:
                isrs = f"{list(before.isr)} to {list(after.isr)}"
                yield Line(logging.DEBUG, f"{name}: in-sync replicas {isrs}")
    if elected:
        yield Line(logging.INFO, f"leaders: {_some(elected)}")
    if leaderless:
        yield Line(logging.WARNING, f"without a leader: {_some(leaderless)}")
    if unclean:
        yield Line(logging.WARNING, f"unclean elections, records may be lost: {_some(unclean)}")


def _is_unclean(before: PartitionRegistration, after: PartitionRegistration) -> bool:
    return after.leader is not None and after.leader not in (*before.isr, *before.elr)


def _shown(leader: int | None) -> str:
    return "nobody" if leader is None else str(leader)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more
