"""Placement of the replicas of new partitions: striped over racks, then over brokers of a rack.

Kafka's StripedReplicaPlacer, restated. Promises of `place`:

- no two replicas of a partition are on one broker; too few brokers raise;
- racks take turns, those with the fewest replicas per broker first and at random among equals;
- so each rack gets its share, and a partition has as many racks as possible;
- within a rack each broker is dealt once before any is dealt again, brokers in service first;
- the order within a rack is shuffled for each deal;
- the leader (first) is in service, and leaderships are even over the brokers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidemark.errors import InvalidReplicationFactorError

# Share of an earlier imbalance that new partitions make up for.
_CATCH_UP_ROUNDS_MAX = 1_000


class UsableBroker(NamedTuple):
    """A broker that may get replicas; one that is shutting down is not usable at all."""

    broker_id: int
    rack: str | None
    fenced: bool


class _Deck:
    """Deals brokers so that each comes once per round, whatever is skipped."""

    def __init__(self, brokers: list[int], rng: random.Random, burden: Counter[int]) -> None:
        self._brokers = brokers
        self._rng = rng
        self._left: list[int] = []
        # Brokers with fewer replicas of the topic are dealt first, until all have the same.
        most = max((burden[broker] for broker in brokers), default=0)
        for level in range(max(0, most - _CATCH_UP_ROUNDS_MAX), most):
            behind = [broker for broker in brokers if burden[broker] <= level]
            rng.shuffle(behind)
            self._left.extend(behind)

    def draw(self, used: set[int]) -> int | None:
        """The next broker that is not in `used`, or None if there is none."""
        chosen = self._take(used)
        if chosen is None and any(broker not in used for broker in self._brokers):
            fresh = list(self._brokers)
            self._rng.shuffle(fresh)
            self._left.extend(fresh)
            chosen = self._take(used)
        return chosen

    def _take(self, used: set[int]) -> int | None:
        for position, broker in enumerate(self._left):
            if broker not in used:
                del self._left[position]
                return broker
        return None


class _Rack:
    def __init__(
        self, brokers: list[UsableBroker], rng: random.Random, burden: Counter[int]
    ) -> None:
        self._size = len(brokers)
        self._replicas = sum(burden[b.broker_id] for b in brokers)
        self._in_service = _Deck([b.broker_id for b in brokers if not b.fenced], rng, burden)
        self._fenced = _Deck([b.broker_id for b in brokers if b.fenced], rng, burden)

    @property
    def burden(self) -> float:
        """Replicas per broker."""
        return self._replicas / self._size

    def draw_in_service(self, used: set[int]) -> int | None:
        chosen = self._in_service.draw(used)
        self._replicas += chosen is not None
        return chosen

    def draw(self, used: set[int]) -> int | None:
        chosen = self.draw_in_service(used)
        if chosen is None:
            chosen = self._fenced.draw(used)
            self._replicas += chosen is not None
        return chosen


class StripedReplicaPlacer:
    """Places one topic after another; `rng` makes every random choice."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def place(
        self,
        brokers: Iterable[UsableBroker],
        num_partitions: int,
        replication_factor: int,
        existing: Sequence[tuple[int, ...]] = (),
    ) -> list[tuple[int, ...]]:
        """Returns the replicas of each partition, preferred leader first.

        `existing` are the topic's partitions: the new ones continue them, so that all together are
        even.

        Raises InvalidReplicationFactorError for a factor below 1 or above the number of brokers, or
        if no broker is in service.
        """
        usable = sorted(brokers)
        _check(usable, replication_factor)
        in_service = {b.broker_id for b in usable if not b.fenced}
        racks = self._racks(usable, Counter(b for replicas in existing for b in replicas))
        leads = Counter(replicas[0] for replicas in existing)
        placed: list[tuple[int, ...]] = []
        for _ in range(num_partitions):
            # Racks with the fewest replicas have their turn first, at random among equals.
            self._rng.shuffle(racks)
            racks.sort(key=lambda rack: rack.burden)
            chosen = _place_one(racks, replication_factor)
            # The least burdened leads; at a tie the first, which is in service.
            leader = min((b for b in chosen if b in in_service), key=lambda b: leads[b])
            leads[leader] += 1
            placed.append((leader, *(b for b in chosen if b != leader)))
        return placed

    def _racks(self, usable: list[UsableBroker], burden: Counter[int]) -> list[_Rack]:
        by_rack: dict[str, list[UsableBroker]] = {}
        for broker in usable:
            by_rack.setdefault(broker.rack or "", []).append(broker)
        return [_Rack(by_rack[name], self._rng, burden) for name in sorted(by_rack)]


def _check(usable: list[UsableBroker], replication_factor: int) -> None:
    if replication_factor < 1:
        raise InvalidReplicationFactorError(
            f"the replication factor {replication_factor} is below 1"
        )
    if not any(not broker.fenced for broker in usable):
        raise InvalidReplicationFactorError("no broker is in service: all are fenced, or none is")
    if replication_factor > len(usable):
        raise InvalidReplicationFactorError(
            f"the replication factor {replication_factor} is above the number of brokers that can "
            f"take replicas, {len(usable)}"
        )


def _place_one(racks: list[_Rack], replication_factor: int) -> list[int]:
    """Brokers of one partition, rack after rack in rounds; the first is in service."""
    used: set[int] = set()
    chosen: list[int] = []
    first_rack = 0
    for position, rack in enumerate(racks):
        leader = rack.draw_in_service(used)
        if leader is not None:
            chosen.append(leader)
            used.add(leader)
            first_rack = position
            break
    # Racks passed over on the way to a leader have their turn at the end of the first round.
    order = racks[first_rack + 1 :] + racks[: first_rack + 1]
    position = 0
    while len(chosen) < replication_factor:
        broker = order[position % len(order)].draw(used)
        position += 1
        if broker is not None:
            chosen.append(broker)
            used.add(broker)
    return chosen
