"""Plans of replica assignments: reads and writes Kafka's JSON, and makes plans. Pure.

A plan maps partitions to broker ids, the preferred leader first. `spread` keeps as many replicas as
possible, because each move copies a whole partition. Then it fills up and evens out: racks first,
then the number of replicas per broker, then that of preferred leaders.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tidemark.errors import ConfigError
from tidemark.types import TopicPartition

Plan = dict[TopicPartition, tuple[int, ...]]

_VERSION = 1


def parse_partition(text: str) -> TopicPartition:
    """Parses `flights-0`. Raises ConfigError."""
    topic, dash, number = text.rpartition("-")
    if not dash or not topic or not (number.isascii() and number.isdigit()):
        raise ConfigError(f"{text!r} is no partition: write it as TOPIC-NUMBER, e.g. flights-0")
    return TopicPartition(topic, int(number))


def parse_ids(text: str) -> tuple[int, ...]:
    """Parses `4,5,6`: distinct broker ids. Raises ConfigError."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"{text!r} are no broker ids: write them as 4,5,6")
    found = tuple(map(int, parts))
    if len(set(found)) != len(found):
        raise ConfigError(f"{text!r} names a broker twice")
    return found


def parse_move(text: str) -> tuple[TopicPartition, tuple[int, ...]]:
    """Parses `flights-0=4,5,6`. Raises ConfigError."""
    partition, equals, ids = text.partition("=")
    if not equals:
        raise ConfigError(f"{text!r} is no move: write it as flights-0=4,5,6")
    return parse_partition(partition), parse_ids(ids)


def parse_plan(text: str) -> Plan:
    """Parses a plan in the JSON of Kafka's tools. Raises ConfigError."""
    try:
        document = json.loads(text)
        if document.get("version", _VERSION) != _VERSION:
            raise ConfigError(f"version {document['version']} of a plan is not known, only 1")
        plan: Plan = {}
        for item in document["partitions"]:
            partition = TopicPartition(str(item["topic"]), int(item["partition"]))
            if partition in plan:
                raise ConfigError(f"the plan names {partition} twice")
            plan[partition] = parse_ids(",".join(str(int(i)) for i in item["replicas"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            'a plan is {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": '
            f"[4, 5]}}, ...]}}: {type(error).__name__} {error}"
        ) from error
    if not plan:
        raise ConfigError("the plan names no partition")
    return plan


def plan_document(plan: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    """The plan in the JSON of Kafka's tools."""
    return {
        "version": _VERSION,
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "replicas": list(replicas),
                "log_dirs": ["any"] * len(replicas),
            }
            for partition, replicas in sorted(plan.items())
        ],
    }


# --- making a plan ------------------------------------------------------------------------------


def spread(
    current: Mapping[TopicPartition, Sequence[int]],
    brokers: Mapping[int, str | None],
    *,
    replication_factor: int | None = None,
) -> Plan:
    """Places the partitions of `current` on `brokers` (id to rack), evenly and with few moves.

    Returns the partitions that change. Raises ConfigError if there are fewer brokers than replicas.
    """
    planner = _Planner(current, brokers, replication_factor)
    planner.fill()
    planner.even_out()
    planner.spread_leaders()
    return {p: tuple(r) for p, r in planner.placed.items() if tuple(r) != tuple(current[p])}


def drain(
    current: Mapping[TopicPartition, Sequence[int]],
    brokers: Mapping[int, str | None],
    leaving: Collection[int],
) -> Plan:
    """Moves the replicas on the `leaving` brokers to the others, and nothing else."""
    staying = {broker: rack for broker, rack in brokers.items() if broker not in leaving}
    present = Counter(r for replicas in current.values() for r in replicas if r in staying)
    touched = {p: r for p, r in current.items() if set(r) & set(leaving)}
    planner = _Planner(touched, staying, None)
    planner.load.update(present - planner.load)
    planner.fill()
    return {p: tuple(r) for p, r in planner.placed.items()}


class _Planner:
    """Placements under way; `load` counts replicas per broker."""

    def __init__(
        self,
        current: Mapping[TopicPartition, Sequence[int]],
        brokers: Mapping[int, str | None],
        replication_factor: int | None,
    ) -> None:
        self._brokers = brokers
        # A partition has at least one replica, even if its assignment is empty.
        self._wanted = {p: replication_factor or max(1, len(r)) for p, r in current.items()}
        most = max(self._wanted.values(), default=0)
        if most > len(brokers):
            raise ConfigError(f"{most} replicas need {most} brokers; there are {len(brokers)}")
        self.placed: dict[TopicPartition, list[int]] = {
            p: [b for b in replicas if b in brokers][: self._wanted[p]]
            for p, replicas in sorted(current.items())
        }
        self.load = Counter(b for replicas in self.placed.values() for b in replicas)

    def fill(self) -> None:
        """Adds the missing replicas: in a new rack, on the emptiest broker."""
        for partition, replicas in self.placed.items():
            while len(replicas) < self._wanted[partition]:
                chosen = min(
                    (b for b in self._brokers if b not in replicas),
                    key=lambda b: (self._rack_uses(b, replicas), self.load[b], b),
                )
                replicas.append(chosen)
                self.load[chosen] += 1

    def even_out(self) -> None:
        """Moves replicas from the fullest broker to emptier ones until they differ by at most one.

        Racks may forbid a move. Each move brings the loads closer, so the loop ends.
        """
        while self._move_one():
            continue

    def _move_one(self) -> bool:
        ordered = sorted(self._brokers, key=lambda b: (self.load[b], b))
        for fullest in reversed(ordered):
            for emptiest in ordered:
                if self.load[fullest] - self.load[emptiest] < 2:
                    break
                for replicas in self.placed.values():
                    if fullest in replicas and self._may_replace(replicas, fullest, emptiest):
                        replicas[replicas.index(fullest)] = emptiest
                        self.load[fullest] -= 1
                        self.load[emptiest] += 1
                        return True
        return False

    def _may_replace(self, replicas: list[int], old: int, new: int) -> bool:
        rest = [b for b in replicas if b != old]
        return new not in rest and self._rack_uses(new, rest) <= self._rack_uses(old, rest)

    def _rack_uses(self, broker: int, replicas: Iterable[int]) -> int:
        """The number of `replicas` in the broker's rack; 0 without racks."""
        rack = self._brokers[broker]
        return 0 if rack is None else sum(self._brokers[b] == rack for b in replicas)

    def spread_leaders(self) -> None:
        """Puts another replica first where a broker is preferred too often; no data moves."""
        leads: Counter[int] = Counter(r[0] for r in self.placed.values())
        changed = True
        while changed:  # each change brings two brokers closer, so it ends
            changed = False
            for replicas in self.placed.values():
                best = min(replicas, key=lambda b: (leads[b], replicas.index(b)))
                if leads[replicas[0]] - leads[best] >= 2:
                    leads[replicas[0]] -= 1
                    leads[best] += 1
                    replicas.remove(best)
                    replicas.insert(0, best)
                    changed = True
