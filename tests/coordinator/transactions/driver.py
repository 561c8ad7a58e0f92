"""A transaction shard with a log in memory: what is decided is appended and replayed at once."""

from __future__ import annotations

from typing import TypeVar

from coordinator.records.transactions import TRANSACTION_RECORDS, TransactionState
from coordinator.runtime.now import Now
from coordinator.runtime.result import CoordinatorResult
from coordinator.transactions.shard import TransactionSettings, TransactionShard
from coordinator.transactions.transaction import PendingMarkers, ProducerIdAndEpoch
from tidemark.types import TopicPartition

A = TypeVar("A")

TXN = "payments"
TIMEOUT_MS = 60_000
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class AppendFailedError(Exception):
    """The log took nothing."""


class Driver:
    """One partition of `__transaction_state`; time moves by `advance` alone."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.mono_ms = 1_000_000
        self.wall_ahead_ms = 1_700_000_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.next_producer_id = 1_000
        self.appends_fail = False
        self.epoch = -1
        self.reload()

    @property
    def now(self) -> Now:
        return Now(self.mono_ms + self.wall_ahead_ms, self.mono_ms)

    def new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    def apply(self, result: CoordinatorResult[A]) -> A:
        """Appends and replays; through their bytes, as the runtime does at a load."""
        if result.records and self.appends_fail:
            raise AppendFailedError
        for key, value in result.records:
            data = TRANSACTION_RECORDS.encode(key, value)
            self.log.append(data)
            self.shard.replay(*TRANSACTION_RECORDS.decode(*data), len(self.log) - 1, -1)
        return result.answer

    def reload(self, compacted: bool = False) -> None:
        """The coordinator moves: another shard replays the log, as the cleaner may have left it."""
        last = {key: number for number, (key, _) in enumerate(self.log)}
        self.shard = TransactionShard(self.settings)
        self.epoch += 1
        for number, (key, value) in enumerate(self.log):
            if not compacted or last[key] == number:
                self.shard.replay(*TRANSACTION_RECORDS.decode(key, value), number, -1)
        self.shard.loaded(self.epoch, self.now)

    def advance(self, by_ms: int) -> None:
        """Moves the time on, and carries out what is due."""
        end_ms = self.mono_ms + by_ms
        while (due_ms := self.shard.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.mono_ms = max(self.mono_ms, due_ms)
            for result in self.shard.on_deadline(self.now):
                self.apply(result)
        self.mono_ms = end_ms

    # --- what a producer asks

    def try_init(
        self,
        expected: ProducerIdAndEpoch | None = None,
        transactional_id: str = TXN,
        keep_open: bool = False,
    ) -> ProducerIdAndEpoch | None:
        result = self.shard.init_producer_id(
            *(transactional_id, TIMEOUT_MS, expected, self.new_producer_id, self.now),
            keep_open=keep_open,
        )
        return self.apply(result)

    def init(
        self, expected: ProducerIdAndEpoch | None = None, transactional_id: str = TXN
    ) -> ProducerIdAndEpoch:
        found = self.try_init(expected, transactional_id)
        assert found is not None, "no transaction was open"
        return found

    def add(
        self,
        producer: ProducerIdAndEpoch,
        *partitions: TopicPartition,
        transactional_id: str = TXN,
    ) -> None:
        self.apply(self.shard.add_partitions(transactional_id, producer, partitions, self.now))

    def end(
        self,
        producer: ProducerIdAndEpoch,
        committed: bool = True,
        transactional_id: str = TXN,
        *,
        keep_prepared: bool = False,
        by_force: bool = False,
    ) -> ProducerIdAndEpoch:
        result = self.shard.end_txn(
            *(transactional_id, producer, committed, self.new_producer_id, self.now),
            keep_prepared=keep_prepared,
            by_force=by_force,
        )
        return self.apply(result)

    # --- what the broker does with markers

    def markers(self) -> PendingMarkers:
        """The only ones that are pending."""
        (found,) = self.shard.pending_markers()
        return found

    def written(self, *partitions: TopicPartition) -> None:
        """These partitions have the marker; all of them, if none is named."""
        markers = self.markers()
        self.apply(self.shard.markers_written(markers, partitions or markers.partitions, self.now))

    def ended(self, producer: ProducerIdAndEpoch, committed: bool = True) -> ProducerIdAndEpoch:
        """A whole transaction of one partition."""
        self.add(producer, P0)
        found = self.end(producer, committed)
        self.written()
        return found

    def status(self, transactional_id: str = TXN) -> TransactionState:
        return TransactionState(self.shard.describe(transactional_id).transaction_status)
