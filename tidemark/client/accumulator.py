"""The producer's pure core: batches per partition, sequences, retries, limits. No IO, clock,
threads.

A partition's batches form a queue, and only its head is ever in flight. Order therefore holds
through retries with and without idempotence, and a batch that is sent twice is sent before its
successors. While the head is in flight the tail fills: batches grow with load up to `batch_size`,
without a setting that trades latency for throughput.

    open -> closed (full, lingered, flushed) -> encoding -> ready -> in flight -> done
                                                              ^          |   |
                                                              +- retry --+   +-> cutting -> cut

A step looks only at queues that changed, or whose time has come (`waiting_queues`).

Each batch has one explicit state (`batch.State`). A batch that has no answer in time is taken from
its request: it expires, or goes to another leader. A late answer changes nothing.

Idempotence (KIP-98, KIP-360): each queue stamps its batches with producer id, epoch and sequence.
If a batch fails for good, or the leader reports a missing sequence, the sequences after it would
leave a gap. Then this partition's epoch is bumped and its waiting batches are stamped again from 0.
The epoch is kept per partition: the log compares epochs within a partition only.

In a transaction there is one epoch for all partitions, of its coordinator (KIP-890). Each lost
batch is reported to `lost`, and the whole transaction ends in an abort instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from random import Random

from tidemark.client.batch import (
    NO_STAMP,
    RECORD_OVERHEAD_BYTES,
    Batch,
    PartitionQueue,
    Stamp,
    State,
    header_bytes,
)
from tidemark.client.models import Header
from tidemark.client.retry import RetryPolicy
from tidemark.client.waiting_queues import ReadyQueues, Timers, is_ready
from tidemark.errors import (
    ConcurrentTransactionsError,
    DuplicateSequenceNumberError,
    MessageTooLargeError,
    OutOfOrderSequenceNumberError,
    RecordListTooLargeError,
    RequestTimedOutError,
    UnknownProducerIdError,
)
from tidemark.records.header import HEADER_BYTES, sequence_after
from tidemark.types import TopicPartition

_MAX_EPOCH = 2**15 - 1
_SEQUENCE_GAPS = (OutOfOrderSequenceNumberError, UnknownProducerIdError)
# The wait until the last transaction's markers are there: mostly short.
_MARKERS_MS = 20
_MARKERS_TRIES = 10  # then the usual backoff: a leader that is away may be away for long
_AT_HEAD = (State.IN_FLIGHT, State.CUTTING)
_TOO_LARGE = (MessageTooLargeError, RecordListTooLargeError)


class Accumulator:
    """Batches of all partitions. Sizes in bytes, times in ms of the caller's clock.

    `buffered_bytes` counts every record from its append until its batch is done.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        linger_ms: float,
        retry: RetryPolicy,
        idempotent: bool,
        rng: Random,
        max_record_size: float = inf,
        lost: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`lost` is called with the error of each batch that fails; it makes batches those of
        transactions."""
        self._lost = lost
        self._batch_size = batch_size
        self._max_record_size = max_record_size
        self._linger_ms = linger_ms
        self._retry = retry
        self._idempotent = idempotent
        self._rng = rng
        self._identity: tuple[int, int] | None = None
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._busy: dict[TopicPartition, PartitionQueue] = {}  # those with batches
        self._filling: dict[TopicPartition, PartitionQueue] = {}  # those with an open batch
        self._changed: dict[TopicPartition, PartitionQueue] = {}  # since the last `drain`
        self._anonymous: dict[TopicPartition, PartitionQueue] = {}  # busy, without a producer id
        self._lingers = Timers(lambda head: head.state is State.OPEN)
        self._retries = Timers(is_ready)
        self._ready = ReadyQueues()
        self._no_expiry_before_ms = inf  # a lower bound: most batches are done long before
        self.buffered_bytes = 0
        self.lost_records = 0

    # Filling.

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """The queue of a partition, created on first use."""
        found = self._queues.get(topic_partition)
        if found is None:
            found = self._queues[topic_partition] = PartitionQueue(topic_partition)
        return found

    def append(
        self,
        queue: PartitionQueue,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: tuple[Header, ...],
        now_ms: float,
    ) -> Batch:
        """Adds a record to the open batch; its row is `batch.count - 1` afterwards.

        `now_ms` is the time of its send: the delivery timeout counts from it. Raises
        MessageTooLargeError for a record that no request may carry.
        """
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers:
            size += header_bytes(headers)
        if size > self._max_record_size:
            text = f"{size} bytes; max.request.size={self._max_record_size}"
            raise MessageTooLargeError(text)
        batch = queue.open
        if batch is None:
            batch = self._open(queue, now_ms)
        elif batch.size_bytes + size > self._batch_size:
            self._close(queue)
            batch = self._open(queue, now_ms)
        if headers:
            batch.headers[batch.count] = headers
        batch.keys.append(key)
        batch.values.append(value)
        batch.timestamps.append(timestamp_ms)
        batch.count += 1
        batch.size_bytes += size
        self.buffered_bytes += size
        return batch

    def append_closed(
        self, queue: PartitionQueue, source: object, count: int, size_bytes: int, now_ms: float
    ) -> Batch:
        """Adds a whole batch whose records `source` holds."""
        if queue.open is not None:
            self._close(queue)
        batch = self._open(queue, now_ms)
        self._close(queue)
        batch.source, batch.count = source, count
        batch.size_bytes += size_bytes
        self.buffered_bytes += size_bytes
        return batch

    def _open(self, queue: PartitionQueue, now_ms: float) -> Batch:
        batch = queue.open = Batch(queue.topic_partition, now_ms)
        queue.batches.append(batch)
        key = queue.topic_partition
        self._busy[key] = self._filling[key] = self._changed[key] = queue
        if queue.producer_id < 0:
            self._anonymous[key] = queue
        if queue.batches[0] is batch:
            self._lingers.add(now_ms + self._linger_ms, queue, batch)
        self.buffered_bytes += HEADER_BYTES
        self._no_expiry_before_ms = min(self._no_expiry_before_ms, self._expiry_ms(batch))
        return batch

    # Closing, stamping, encoding.

    def _close(self, queue: PartitionQueue) -> None:
        assert queue.open is not None
        queue.open.move(State.CLOSED)
        queue.open = None
        del self._filling[queue.topic_partition]
        self._look_at(queue)

    def _look_at(self, queue: PartitionQueue) -> None:
        """Has the next step look at a queue that changed."""
        self._changed[queue.topic_partition] = queue

    def close_due(self, now_ms: float, *, everything: bool = False) -> None:
        """Closes open batches that are next in their queue and have lingered, or all if
        `everything`.
        """
        for due in self._lingers.due(now_ms):
            self._close(self._queues[due.topic_partition])
        if everything:
            for queue in list(self._filling.values()):
                self._close(queue)

    @property
    def needs_identity(self) -> bool:
        """Whether batches wait for a producer id."""
        return self._idempotent and self._identity is None and bool(self._anonymous)

    def without_identity(self) -> list[Batch]:
        """Batches of queues that have no producer id yet."""
        return [batch for queue in self._anonymous.values() for batch in queue.batches]

    def set_identity(self, producer_id: int, producer_epoch: int) -> None:
        """Applies the answer of InitProducerId to queues without an id; in transactions to all."""
        self._identity = (producer_id, producer_epoch)
        self._changed |= self._anonymous

    def take_encodable(self) -> list[Batch]:
        """Closed batches to encode now, stamped. Each is returned once, until `encoded` is called
        for it.
        """
        found: list[Batch] = []
        for queue in self._changed.values():
            for batch in queue.batches:
                if batch.state is State.OPEN or not self._stamp(queue, batch):
                    break
                if batch.state is State.CLOSED:
                    batch.move(State.ENCODING)
                    found.append(batch)
        return found

    def _stamp(self, queue: PartitionQueue, batch: Batch) -> bool:
        if batch.stamp is not None:
            return True
        if not self._idempotent:
            batch.stamp = NO_STAMP
            return True
        is_outdated = self._lost and (queue.producer_id, queue.epoch) != self._identity
        if queue.producer_id < 0 or is_outdated:
            if self._identity is None:
                return False
            (queue.producer_id, queue.epoch), queue.next_sequence = self._identity, 0
            self._anonymous.pop(queue.topic_partition, None)
        batch.stamp = Stamp(queue.producer_id, queue.epoch, queue.next_sequence)
        queue.next_sequence = sequence_after(queue.next_sequence, batch.count)
        return True

    def encoded(self, batch: Batch, payload: bytes, stamp: Stamp) -> None:
        """Takes the encoded bytes of a batch and the stamp they carry, which may be outdated
        already.
        """
        if batch.done:
            return
        batch.move(State.READY)
        batch.payload, batch.payload_stamp = payload, stamp
        batch.keys, batch.values, batch.timestamps, batch.headers = [], [], [], {}
        batch.source = None
        self._look_at(self._queues[batch.topic_partition])

    # Sending.

    def drain(
        self,
        now_ms: float,
        leader_of: Callable[[TopicPartition], int | None],
        room: Callable[[int], bool],
        max_request_size: int,
    ) -> dict[int, list[Batch]]:
        """The batches to send now: one request per leader with room, at most one batch per
        partition.

        The batches are in flight from here on. A request has at most `max_request_size` bytes
        unless its first batch alone is larger.
        """
        for due in self._retries.due(now_ms):
            self._ready.add(due, leader_of(due.topic_partition))
        changed, self._changed = self._changed, {}
        for queue in [*self._ready.take_leaderless(), *changed.values()]:
            head = queue.head
            if head is None or head.state >= State.IN_FLIGHT:
                continue
            leader = leader_of(queue.topic_partition)
            if leader is None or is_ready(head):
                self._ready.add(queue, leader)
        requests: dict[int, list[Batch]] = {}
        leaders = deque(self._ready.leaders())
        while leaders:
            leader = leaders.popleft()
            if leader not in requests and room(leader):
                batches = self._fill(leader, now_ms, leader_of, max_request_size, leaders)
                if batches:
                    requests[leader] = batches
        return requests

    def _fill(
        self,
        leader: int,
        now_ms: float,
        leader_of: Callable[[TopicPartition], int | None],
        max_request_size: int,
        leaders: deque[int],
    ) -> list[Batch]:
        """The batches of one request. Those whose leader is another one by now go there."""
        found: list[Batch] = []
        size = 0
        while (queue := self._ready.take(leader)) is not None:
            batch = queue.head
            if batch is None or not is_ready(batch) or now_ms < batch.tries.retry_at_ms:
                continue  # it comes back when it changes, or its time has come
            now_at = leader_of(queue.topic_partition)
            if now_at != leader:
                self._ready.add(queue, now_at)
                if now_at is not None:
                    leaders.append(now_at)
                continue
            assert batch.payload is not None
            size += len(batch.payload)
            if found and size > max_request_size:
                self._ready.put_back(queue, leader)
                break
            batch.move(State.IN_FLIGHT)
            batch.tries.count += 1
            found.append(batch)
        return found

    def waiting_without_leader(
        self, leader_of: Callable[[TopicPartition], int | None]
    ) -> list[TopicPartition]:
        """Partitions that have batches and no known leader: a reason to refresh the metadata."""
        return [key for key in self._ready.leaderless() if leader_of(key) is None]

    # Answers.

    def succeeded(self, batch: Batch, base_offset: int, log_append_time_ms: int = -1) -> None:
        """Ends a batch that the leader has acknowledged."""
        if batch.done:
            return
        batch.base_offset, batch.log_append_time_ms = base_offset, log_append_time_ms
        self._finish([batch])

    def failed(
        self, batch: Batch, error: BaseException, now_ms: float, *, at_once: bool = False
    ) -> bool:
        """Handles a refused batch or a lost answer. Returns True if the batch is sent again.

        It is False if the batch is done, or if it is to be cut. A batch that is too large and has
        several records is in state CUTTING then, and waits for `cut`. `at_once` skips the backoff,
        because the answer named the leader.
        """
        if batch.done:
            return False
        if isinstance(error, DuplicateSequenceNumberError):
            self.succeeded(batch, -1)  # an earlier try was written; its offset is unknown
            return False
        if batch.count > 1 and isinstance(error, _TOO_LARGE):
            batch.move(State.CUTTING)  # KIP-126
            return False
        elapsed_ms = now_ms - batch.created_ms
        if self._idempotent and not self._lost and isinstance(error, _SEQUENCE_GAPS):
            wait_ms: int | None = self._retry.backoff(batch.tries.count, self._rng)
            if elapsed_ms + (wait_ms or 0) >= self._retry.timeout_ms:
                wait_ms = None
            else:
                batch.move(State.READY)
                self._restart_sequences(self.queue(batch.topic_partition))
        else:
            wait_ms = self._retry.next_wait_ms(error, batch.tries.count, elapsed_ms, self._rng)
        if wait_ms is None:
            self.give_up(batch, error)
            return False
        is_early = batch.tries.count <= _MARKERS_TRIES
        if isinstance(error, ConcurrentTransactionsError) and is_early:
            wait_ms = min(wait_ms, _MARKERS_MS)
        if batch.state is State.IN_FLIGHT:
            batch.move(State.READY)
        batch.tries.refusal = error
        batch.tries.retry_at_ms = now_ms + (0 if at_once else wait_ms)
        queue = self.queue(batch.topic_partition)
        self._retries.add(batch.tries.retry_at_ms, queue, batch)
        self._look_at(queue)
        return True

    def leaders_known(self, now_ms: float, epoch_of: Callable[[TopicPartition], int]) -> None:
        """Ends the backoff of batches whose partition has a newer leader than their last try went
        to (KIP-951).
        """
        for partition, queue in self._busy.items():
            tries = queue.batches[0].tries
            if tries.retry_at_ms > now_ms and epoch_of(partition) > tries.leader_epoch:
                tries.retry_at_ms = now_ms
                self._look_at(queue)
        for waiting in self._ready.take_all():
            self._look_at(self._queues[waiting.topic_partition])

    def give_up(self, batch: Batch, error: BaseException) -> None:
        """Ends a batch that is lost for good; its successors must not leave a gap in the
        sequences.
        """
        self.give_up_all([(batch, error)])

    def give_up_all(self, lost: Iterable[tuple[Batch, BaseException]]) -> None:
        """Ends batches, which are in the order of their queues, with an error for each."""
        by_partition: dict[TopicPartition, list[Batch]] = {}
        for batch, error in lost:
            if not batch.done:
                batch.error = error
                self.lost_records += batch.count
                if self._lost is not None:
                    self._lost(error)
                by_partition.setdefault(batch.topic_partition, []).append(batch)
        for partition, batches in by_partition.items():
            queue, first = self.queue(partition), batches[0]
            was_sent = any(batch.tries.count and batch.stamp is not None for batch in batches)
            place = queue.batches.index(first)
            self._finish(batches)
            if not self._idempotent or first.stamp is None:
                continue
            if was_sent and self._lost is not None:
                continue  # nothing more is sent in this epoch
            if was_sent:
                self._restart_sequences(queue)
            else:
                # Never sent: their sequences are free. The head may be in flight and keeps its own.
                behind = list(queue.batches)[place:]
                self._stamp_anew(queue, behind, first.stamp.base_sequence)

    def cut(self, batch: Batch, parts: Iterable[tuple[bytes, int, Stamp]]) -> None:
        """Replaces a batch that was too large by smaller ones (payload, count, stamp carried).

        Together they keep its sequences, so the batches behind them do not change.
        """
        if batch.done:
            return  # it expired meanwhile
        queue = self.queue(batch.topic_partition)
        assert queue.batches[0] is batch
        batch.move(State.CUT)
        queue.batches.popleft()
        sequence = batch.stamp.base_sequence if batch.stamp else -1
        for payload, count, stamp in parts:
            child = Batch(batch.topic_partition, batch.created_ms, State.READY)
            child.count, child.size_bytes = count, len(payload)
            child.payload, child.payload_stamp = payload, stamp
            child.stamp = NO_STAMP
            if batch.stamp is not None and batch.stamp.producer_id >= 0:
                child.stamp = batch.stamp._replace(base_sequence=sequence)
                sequence = sequence_after(sequence, count)
            batch.children.append(child)
            self.buffered_bytes += child.size_bytes
        assert sum(child.count for child in batch.children) == batch.count
        queue.batches.extendleft(reversed(batch.children))
        self._look_at(queue)
        self.buffered_bytes -= batch.size_bytes
        batch.payload = None
        batch.notify()

    def _finish(self, batches: list[Batch]) -> None:
        """Removes batches of one queue: its head, or whichever expired while they waited."""
        queue = self.queue(batches[0].topic_partition)
        for batch in batches:
            batch.move(State.DONE)
            self.buffered_bytes -= batch.size_bytes
            batch.payload, batch.source = None, None
            batch.keys, batch.values, batch.timestamps, batch.headers = [], [], [], {}
        if queue.open is not None and queue.open.done:
            queue.open = None
            del self._filling[queue.topic_partition]
        if len(batches) == 1 and queue.batches[0] is batches[0]:
            queue.batches.popleft()
        else:
            queue.batches = deque(batch for batch in queue.batches if not batch.done)
        self._look_at(queue)
        if not queue.batches:
            for found in (self._busy, self._anonymous, self._changed):
                found.pop(queue.topic_partition, None)
        elif (head := queue.batches[0]) is queue.open:
            self._lingers.add(head.created_ms + self._linger_ms, queue, head)
        for batch in batches:
            batch.notify()

    def _restart_sequences(self, queue: PartitionQueue) -> None:
        """Starts a new epoch for this partition; after the last epoch, clears the producer id."""
        if queue.epoch < _MAX_EPOCH:
            queue.epoch += 1
        else:
            if self._identity is not None and self._identity[0] == queue.producer_id:
                self._identity = None
            queue.producer_id = queue.epoch = -1
            if queue.batches:
                self._anonymous[queue.topic_partition] = queue
        assert not any(batch.state is State.IN_FLIGHT for batch in queue.batches)
        self._stamp_anew(queue, list(queue.batches), 0)

    def _stamp_anew(self, queue: PartitionQueue, batches: list[Batch], sequence: int) -> None:
        queue.next_sequence = sequence
        for batch in batches:
            if batch.stamp is None:
                break
            batch.stamp = None
            if queue.producer_id >= 0:
                self._stamp(queue, batch)

    # Time.

    def expire(self, now_ms: float) -> list[Batch]:
        """Fails batches older than the delivery timeout, and returns them; those in flight, too
        (KIP-91).

        The error is that of their last try, or RequestTimedOutError.
        """
        if now_ms < self._no_expiry_before_ms:
            return []
        lost: list[tuple[Batch, BaseException]] = []
        for batch in self.pending():
            if now_ms < self._expiry_ms(batch):
                continue
            partition, limit = batch.topic_partition, self._retry.timeout_ms
            text = f"not acknowledged in delivery.timeout.ms={limit}"
            if batch.tries.refusal is None:
                kind: type[BaseException] = RequestTimedOutError
                text = f"{batch.count} record(s) for {partition} were {text}"
            else:
                kind = type(batch.tries.refusal)
                text = f"{batch.tries.refusal} ({batch.count} record(s) were {text})"
            lost.append((batch, kind(text)))
        self.give_up_all(lost)
        self._no_expiry_before_ms = min(map(self._expiry_ms, self.pending()), default=inf)
        return [batch for batch, _ in lost]

    def expiry_ms(self, batches: Iterable[Batch]) -> float:
        """The latest expiry of these batches: no request for them needs to last longer."""
        return max(self._expiry_ms(batch) for batch in batches)

    def next_deadline_ms(self, now_ms: float) -> float | None:
        """The time to call `close_due`, `expire` and `drain` again, if nothing else happens.

        A batch that only lacks a leader sets no deadline but its expiry.
        """
        if not self._busy:
            return None
        times = (self._no_expiry_before_ms, self._lingers.first_ms(), self._retries.first_ms())
        return min(at_ms for at_ms in times if at_ms is not None)

    @property
    def is_empty(self) -> bool:
        """Whether every batch is done."""
        return not self._busy

    def pending(self) -> list[Batch]:
        """All batches that are not done, by partition, oldest first."""
        return [batch for queue in self._busy.values() for batch in queue.batches]

    def _expiry_ms(self, batch: Batch) -> float:
        return batch.created_ms + self._retry.timeout_ms

    def validate(self) -> None:
        """Asserts the invariants that hold between calls."""
        total = 0
        for partition, queue in self._queues.items():
            assert (partition in self._busy) == bool(queue.batches)
            assert queue.open is None or queue.open is queue.batches[-1]
            assert (partition in self._filling) == (queue.open is not None)
            assert (partition in self._anonymous) == (bool(queue.batches) and queue.producer_id < 0)
            if partition not in self._changed:
                self._validate_unchanged(queue)
            sequence = None
            for place, batch in enumerate(queue.batches):
                assert not batch.done
                assert (batch.state is State.OPEN) == (batch is queue.open)
                assert batch.state not in _AT_HEAD or place == 0
                assert (batch.payload is None) == (batch.state < State.READY)
                assert self._no_expiry_before_ms <= self._expiry_ms(batch)
                total += batch.size_bytes
                if batch.stamp is not None and batch.stamp.producer_id >= 0:
                    assert sequence is None or batch.stamp.base_sequence == sequence
                    sequence = sequence_after(batch.stamp.base_sequence, batch.count)
            assert sequence is None or sequence == queue.next_sequence
        assert total == self.buffered_bytes

    def _validate_unchanged(self, queue: PartitionQueue) -> None:
        """A queue at which the next step does not look waits for something that will come."""
        head, is_known = queue.head, not self._idempotent or queue.producer_id >= 0
        waits = self._ready.has(queue) or self._retries.has(queue) or self._lingers.has(queue)
        assert waits or head is None or head.state not in (State.OPEN, State.READY) or not is_known
        for batch in queue.batches:
            assert batch.state is not State.CLOSED or not is_known, "it would not be encoded"
