"""Random histories of producers with one transactional id: lost requests and answers, zombies,
moved coordinators, appends that fail, markers that are late or come twice.

After every event replaying the log gives the same state. A partition takes writes that the
coordinator knows, as a leader does. Once all is quiet every transaction has one outcome in all its
partitions, and it is the one that its producer was told.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from coordinator.transactions.shard import TransactionSettings
from coordinator.transactions.transaction import PREPARED, PendingMarkers, ProducerIdAndEpoch
from tests.coordinator.transactions.driver import TIMEOUT_MS, AppendFailedError, Driver
from tidemark.errors import (
    ApiError,
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from tidemark.types import TopicPartition

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
A = TypeVar("A")

IDS = ("a", "b")


@dataclass
class Leader:
    """A partition: open writes by producer id, and the outcomes of those that are over."""

    open: dict[int, tuple[int, str]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    outcomes: dict[str, bool] = field(default_factory=dict)

    def write(self, producer: ProducerIdAndEpoch, transaction: str) -> None:
        if producer.producer_epoch < self.epochs.get(producer.producer_id, -1):
            return  # as a leader refuses an old epoch
        known = self.open.get(producer.producer_id, (producer.producer_epoch, transaction))
        assert known == (producer.producer_epoch, transaction), "two transactions in one"
        self.open[producer.producer_id] = known
        self.epochs[producer.producer_id] = producer.producer_epoch

    def mark(self, markers: PendingMarkers) -> None:
        if markers.producer_epoch < self.epochs.get(markers.producer_id, -1):
            return
        self.epochs[markers.producer_id] = markers.producer_epoch
        found = self.open.pop(markers.producer_id, None)
        if found is not None:
            assert found[0] < markers.producer_epoch
            assert found[1] not in self.outcomes, "two outcomes"
            self.outcomes[found[1]] = markers.committed


class Process:
    """A producer; it retries what had no answer, and stops when it is fenced."""

    def __init__(self, world: World, transactional_id: str) -> None:
        self.world, self.id = world, transactional_id
        self.producer: ProducerIdAndEpoch | None = None
        self.transaction = ""
        self.wants: bool | None = None  # the outcome that is asked for
        self.is_fenced = False

    def step(self) -> None:
        if self.is_fenced:
            return
        try:
            self._step()
        except ConcurrentTransactionsError:
            return
        except (ProducerFencedError, InvalidProducerIdMappingError):
            self.is_fenced = True
        except InvalidTxnStateError:
            assert self.wants is not None
            assert not (self.wants and self.world.was_told.get(self.transaction)), "told before"
            self.is_fenced = True
        except (AppendFailedError, TimeoutError):
            return

    def _step(self) -> None:
        world, choose = self.world, self.world.choose
        if self.producer is None:
            found = world.call(lambda driver: driver.try_init(transactional_id=self.id))
            if found is not None:
                world.given(self, found)
                self.producer = found
        elif self.wants is None and (not self.transaction or choose.random() < 0.6):
            self._write()
        else:
            if self.wants is None:
                self.wants = choose.random() < 0.6
            self._end(self.wants)

    def _write(self) -> None:
        world, producer = self.world, self.producer
        assert producer is not None
        if not self.transaction:
            self.transaction = f"{self.id} {producer.producer_id} {producer.producer_epoch}"
        partition = world.choose.choice(PARTITIONS)
        world.call(lambda driver: driver.add(producer, partition, transactional_id=self.id))
        world.writes.append((self, producer, partition, self.transaction))

    def _end(self, committed: bool) -> None:
        producer = self.producer
        assert producer is not None
        found = self.world.call(lambda driver: driver.end(producer, committed, self.id))
        self.world.was_told[self.transaction] = committed
        self.producer, self.transaction, self.wants = found, "", None


class World:
    """Time, the coordinator, leaders, and processes."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.driver = Driver(TransactionSettings(transactional_id_expiration_ms=10 * TIMEOUT_MS))
        self.leaders = {partition: Leader() for partition in PARTITIONS}
        self.processes = [Process(self, name) for name in IDS]
        self.writes: list[tuple[Process, ProducerIdAndEpoch, TopicPartition, str]] = []
        self.late: list[tuple[PendingMarkers, TopicPartition]] = []
        self.was_told: dict[str, bool] = {}
        self.owners: dict[tuple[int, int], Process] = {}

    def call(self, request: Callable[[Driver], A]) -> A:
        """Carries out a request. Raises TimeoutError where it, or its answer, is lost."""
        luck = self.choose.random()
        if luck < 0.1:
            raise TimeoutError
        self.driver.appends_fail = 0.1 < luck < 0.15
        try:
            answer = request(self.driver)
        finally:
            self.driver.appends_fail = False
        if luck > 0.9:
            raise TimeoutError
        return answer

    def given(self, process: Process, producer: ProducerIdAndEpoch) -> None:
        key = (producer.producer_id, producer.producer_epoch)
        assert self.owners.setdefault(key, process) is process, "one epoch for two producers"

    def step(self) -> None:
        match self.choose.randrange(12):
            case 0:
                self._reload()
            case 1:
                name = self.choose.choice(IDS)
                self.processes.append(Process(self, name))  # the one before is a zombie now
            case 2 | 3 | 4:
                self._markers()
            case 5:
                self.driver.advance(self.choose.choice([10, 1_000, TIMEOUT_MS // 2]))
            case 6 | 7:
                self._write_one()
            case _:
                self.choose.choice(self.processes[-4:]).step()
        self._check_replay()

    def _write_one(self) -> None:
        """A write arrives, after any time: the leader asks the coordinator, then appends."""
        if not self.writes:
            return
        number = self.choose.randrange(len(self.writes))
        process, producer, partition, transaction = self.writes.pop(number)
        try:
            missing = self.driver.shard.missing_partitions(process.id, producer, [partition])
        except ApiError:
            return
        if not missing:
            self.leaders[partition].write(producer, transaction)

    def _markers(self) -> None:
        for markers in self.driver.shard.pending_markers():
            for partition in sorted(markers.partitions):
                if self.choose.random() < 0.5:
                    self.leaders[partition].mark(markers)
                    self.late.append((markers, partition))
        self.choose.shuffle(self.late)
        for markers, partition in self.late[: self.choose.randrange(4)]:
            self._written(markers, [partition])
        self.late = self.late[self.choose.randrange(3) :]

    def _written(self, markers: PendingMarkers, partitions: list[TopicPartition]) -> None:
        result = self.driver.shard.markers_written(markers, partitions, self.driver.now)
        self.driver.apply(result)

    def _reload(self) -> None:
        self.driver.wall_ahead_ms += self.choose.choice([-5_000, 0, 5_000])
        self.driver.reload(compacted=self.choose.random() < 0.5)

    def _check_replay(self) -> None:
        before = self.driver.shard
        self.driver.reload()
        after, self.driver.shard = self.driver.shard, before
        assert after.transactions == before.transactions
        assert [m.transactional_id for m in after.pending_markers()] == [
            m.transactional_id for m in before.pending_markers()
        ]

    def settle(self) -> None:
        """Nobody asks for anything any more; transactions that are open time out."""
        self.driver.advance(TIMEOUT_MS)
        for markers in self.driver.shard.pending_markers():
            for partition in markers.partitions:
                self.leaders[partition].mark(markers)
            self._written(markers, list(markers.partitions))

    def check_outcomes(self) -> int:
        seen = dict(self.was_told)
        for leader in self.leaders.values():
            assert not leader.open, "a transaction hangs"
            for name, committed in leader.outcomes.items():
                assert seen.setdefault(name, committed) == committed, "two outcomes"
        assert not self.driver.shard.pending_markers()
        assert all(
            state.transaction_status not in PREPARED
            for state in self.driver.shard.transactions.values()
        )
        return sum(len(leader.outcomes) for leader in self.leaders.values())


@pytest.mark.parametrize("seed", range(25))
def test_a_transaction_has_one_outcome_whatever_happens(seed: int) -> None:
    world = World(seed)
    for _ in range(200):
        world.step()
    world.settle()
    assert world.check_outcomes() > 0
