"""Transactional producers' pure cores, leaders' logs, and the coordinator's pure core in one world.

`Cluster` has the logs and the coordinator. A `Process` is one producer, whose requests and answers
a test loses and repeats. `Cluster.check` compares each transaction with the logs as read_committed
shows them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from coordinator.transactions.transaction import ProducerIdAndEpoch
from tests.client.producer_world import Log, Sent, World
from tests.coordinator.transactions.driver import TIMEOUT_MS, TXN, Driver
from tidemark.client.batch import Stamp
from tidemark.client.transactions.core import TransactionCore, TransactionState
from tidemark.errors import ApiError, ErrorCode, TidemarkError, code_of
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2
from tidemark.v1 import transaction_pb2 as pb

OUTCOMES = ("committed", "aborted", "unknown")


class Leader(Log):
    """A partition with the rules of transactions: verified before the first append, ended by a
    marker that has the next epoch."""

    def __init__(self, partition: TopicPartition, coordinator: Driver) -> None:
        super().__init__()
        self._partition = partition
        self._coordinator = coordinator
        self._open: dict[int, int] = {}  # epochs of producers with an open transaction
        self._pending: dict[int, list[int]] = {}
        self.committed: list[int] = []

    def append(self, stamp: Stamp, ids: list[int]) -> tuple[ErrorCode, int]:
        producer, epoch, _ = stamp
        if epoch < self.epochs.get(producer, 0):
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if self._open.get(producer) != epoch and stamp not in self.seen:
            try:
                self._coordinator.add(ProducerIdAndEpoch(producer, epoch), self._partition)
            except ApiError as error:
                return code_of(error), -1
        before = len(self.records)
        code, base = super().append(stamp, ids)
        if code == ErrorCode.NONE:
            self._open[producer] = epoch
            self._pending.setdefault(producer, []).extend(self.records[before:])
        return code, base

    def end(self, producer: int, epoch: int, *, committed: bool) -> None:
        """Takes a marker."""
        if epoch < self.epochs.get(producer, 0):
            return
        if committed:
            self.committed += self._pending.get(producer, [])
        self._open.pop(producer, None)
        self._pending.pop(producer, None)
        self.epochs[producer], self.next_sequence[producer] = epoch, 0


@dataclass
class Transaction:
    """The records of one transaction, and its outcome as the producer was told."""

    sent: list[Sent] = field(default_factory=list)
    outcome: str = "open"

    @property
    def ids(self) -> list[int]:
        return [one for sent in self.sent for one in sent.ids]


class Cluster:
    """The coordinator, the leaders, and the processes that ever used the transactional id."""

    def __init__(self, seed: int, partitions: int = 3) -> None:
        self.rng = Random(seed)
        self.coordinator = Driver()
        names = [TopicPartition("a", number) for number in range(partitions)]
        self.leaders = {name: Leader(name, self.coordinator) for name in names}
        self.truth = {name: self.rng.choice([1, 2]) for name in names}
        self.processes: list[Process] = []

    def start(self) -> Process:
        process = Process(self, self.rng.getrandbits(32))
        self.processes.append(process)
        return process

    def tell(self, share: float = 1.0) -> None:
        """Leaders get markers that are pending, each with this probability."""
        shard = self.coordinator.shard
        for markers in shard.pending_markers():
            told = [p for p in sorted(markers.partitions) if self.rng.random() < share]
            for partition in told:
                self.leaders[partition].end(
                    markers.producer_id, markers.producer_epoch, committed=markers.committed
                )
            if told or not markers.partitions:
                now = self.coordinator.now
                self.coordinator.apply(shard.markers_written(markers, told, now))

    def check(self) -> None:
        """To be called when nothing is open. Each transaction is visible as it was told."""
        visible = [one for leader in self.leaders.values() for one in leader.committed]
        assert len(set(visible)) == len(visible), "a record twice"
        for leader in self.leaders.values():
            assert leader.committed == sorted(leader.committed), "out of order"
        shown = set(visible)
        for process in self.processes:
            for transaction in process.transactions:
                ids = set(transaction.ids)
                assert transaction.outcome in OUTCOMES
                if transaction.outcome == "committed":
                    assert ids <= shown, "committed, and not visible"
                elif transaction.outcome == "aborted":
                    assert not ids & shown, "aborted, and visible"
                else:
                    assert ids <= shown or not ids & shown, "a part of a transaction"


class Process(World):
    """One producer; its verbs do what the edge does."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.opened: list[bool] = []
        self.transaction = TransactionCore(TXN, TIMEOUT_MS, self.opened.append)
        super().__init__(seed, transaction=self.transaction)
        self.logs = dict(cluster.leaders)
        self.truth = cluster.truth
        self.next_id = 1_000_000 * len(cluster.processes)
        self.transactions: list[Transaction] = []
        self.wants = ""  # "commit" or "abort" once the application has called it
        self.refresh_now()

    @property
    def state(self) -> TransactionState:
        return self.transaction.state

    def refresh_now(self) -> None:
        self.is_refreshing = True
        self.refresh()

    def init(self, lose: str = "") -> None:
        request = self.transaction.init_request()
        assert request.transactional_id == TXN
        if lose == "request":
            return
        try:
            found = self.cluster.coordinator.try_init()
        except ApiError as error:
            assert error.retriable
            return
        if found is not None and lose != "answer":
            self.transaction.initialized(
                log_pb2.InitProducerIdResponse(
                    producer_id=found.producer_id, producer_epoch=found.producer_epoch
                )
            )
            self._number_anew()

    def begin(self) -> None:
        self.transaction.begin()
        self.transactions.append(Transaction())
        self.wants = ""

    def put(self, size: int = 10) -> None:
        """A send of the application."""
        self.transaction.check_send()
        before = len(self.sent)
        self.send("a", size, self.rng.randrange(len(self.cluster.leaders)))
        self.transactions[-1].sent += self.sent[before:]

    def commit(self) -> None:
        """Called by the application; `go_on` does the rest."""
        self.transaction.begin_commit()
        self.wants = "commit"

    def abort(self) -> None:
        """The same."""
        self.transaction.begin_abort()
        self.core.abort(RuntimeError("aborted"))
        self.wants = "abort"

    def go_on(self, lose: str = "") -> None:
        """One try of the call that the application waits for."""
        if self.wants == "commit" and self.core.is_empty:
            self._end(lose, committed=True)
        elif self.wants == "abort":
            self._end(lose, committed=False)

    def _end(self, lose: str, *, committed: bool) -> None:
        core = self.transaction
        try:
            request = core.commit_request() if committed else core.abort_request()
        except TidemarkError:
            self.wants = ""  # the application is told, and has to abort
            return
        if request is None:
            self._ended(committed)
            return
        if lose == "request":
            return
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        try:
            found = self.cluster.coordinator.end(producer, request.committed)
        except ApiError as error:
            if lose != "answer" and not error.retriable:
                core.not_ended(error)
                self.wants = ""
            return
        if lose != "answer":
            core.ended(
                pb.EndTxnResponse(
                    producer_id=found.producer_id, producer_epoch=found.producer_epoch
                )
            )
            self._number_anew()
            self._ended(committed)

    def _ended(self, committed: bool) -> None:
        assert self.state is TransactionState.READY
        self.transactions[-1].outcome = "committed" if committed else "aborted"
        self.wants = ""

    def _number_anew(self) -> None:
        assert self.transaction.identity is not None
        self.core.accumulator.set_identity(*self.transaction.identity)

    def give_up(self) -> None:
        """The process is killed, or was fenced."""
        self.core.abort(RuntimeError("killed"))
        if self.transactions and self.transactions[-1].outcome == "open":
            self.transactions[-1].outcome = "unknown"

    def _check_logs(self) -> None:
        """`Cluster.check` does it, once transactions have ended."""
