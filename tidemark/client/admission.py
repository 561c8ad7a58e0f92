"""The door of the producer's core: records and tables that wait for metadata or for room. Pure.

A record goes straight into its batch if its topic is known, the buffer has room, and none of its
topic waits before it. Otherwise it is parked in the lane of its topic. Order therefore holds per
topic, and a topic that is not known holds up no other one. Lanes whose heads only lack room are
served in the order of their sends. Each parked record fails by itself after max.block.ms.

Tables of `send_arrow` have lanes of their own. A thread splits an admitted table into batches; its
lane waits for the result, and the table's bytes are reserved until then.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, SupportsIndex

from tidemark.client.accumulator import Accumulator
from tidemark.client.batch import RECORD_OVERHEAD_BYTES, Batch, PartitionQueue, header_bytes
from tidemark.client.delivery import ArrowSend, Delivery
from tidemark.client.errors import BufferExhaustedError, ClientClosedError
from tidemark.client.models import Header
from tidemark.client.partitioner import TopicPartitioner
from tidemark.client.retry import is_retriable
from tidemark.errors import (
    ApiError,
    InvalidPartitionsError,
    InvalidTimestampError,
    InvalidTopicError,
    MessageTooLargeError,
    UnknownTopicOrPartitionError,
)
from tidemark.types import TopicPartition
from tidemark.v1 import common_pb2

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TIMESTAMP_END = 2**63


class View(Protocol):
    """The part of the cluster's metadata that a producer's core looks at, without waiting."""

    @property
    def is_stale(self) -> bool: ...
    def leader(self, partition: TopicPartition) -> int | None: ...
    def leader_epoch(self, partition: TopicPartition) -> int: ...
    def address(self, node_id: int) -> str | None: ...
    def partition_count(self, topic: str) -> int | None: ...
    def topic_error(self, topic: str) -> ApiError | None: ...
    def hint_leader(self, partition: TopicPartition, leader_id: int, leader_epoch: int) -> None: ...
    def hint_nodes(self, nodes: Iterable[common_pb2.Node]) -> None: ...
    def topic_id(self, topic: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of a producer; sizes in bytes, times in ms."""

    batch_size: int
    max_request_size: int
    buffer_memory: int
    max_block_ms: float
    max_in_flight: int = 5
    acks: int = -1


class Topic:
    """A known topic: its partitioner, and the queue of each partition."""

    __slots__ = ("partitioner", "queues")

    def __init__(self, partitioner: TopicPartitioner, queues: list[PartitionQueue]) -> None:
        self.partitioner = partitioner
        self.queues = queues


class ParkedRecord:
    """A record that waits; `number` orders all that is parked."""

    __slots__ = (
        "delivery", "headers", "key", "number", "partition", "refresh", "since_ms", "size_bytes",
        "timestamp_ms", "value",
    )  # fmt: skip

    def __init__(
        self,
        delivery: Delivery,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int,
        headers: tuple[Header, ...],
    ) -> None:
        self.delivery = delivery
        self.value = value
        self.key = key
        self.partition = partition
        self.timestamp_ms = timestamp_ms
        self.headers = headers
        self.size_bytes = len(value or b"") + len(key or b"") + RECORD_OVERHEAD_BYTES
        self.size_bytes += header_bytes(headers)
        self.number = self.refresh = 0
        self.since_ms = 0.0

    def fail(self, error: BaseException) -> None:
        self.delivery.fail(error)


class ParkedTable:
    """A record batch of Arrow that waits, or that a thread splits."""

    __slots__ = (
        "known", "number", "partition", "refresh", "send", "since_ms", "size_bytes", "table",
        "topic",
    )  # fmt: skip

    def __init__(self, send: ArrowSend, topic: str, table: Any, partition: int | None) -> None:
        self.send = send
        self.topic = topic
        self.table = table
        self.partition = partition
        self.size_bytes: int = table.nbytes
        self.number = self.refresh = 0
        self.since_ms = 0.0
        self.known: Topic | None = None  # as it was when the table was admitted

    def fail(self, error: BaseException) -> None:
        self.send.fail(error)


Parked = ParkedRecord | ParkedTable


class Lane:
    """Records, or tables, of one topic that wait, oldest first."""

    __slots__ = ("parked", "splitting", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.parked: deque[Parked] = deque()
        self.splitting: ParkedTable | None = None


class Admission:
    """Lanes of all topics. `waits_for_room` says whether sends that could go lack room only."""

    def __init__(
        self,
        accumulator: Accumulator,
        view: View,
        limits: Limits,
        rng: Random,
        lost: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        """`lost` is called with the error of each record that fails here."""
        self._lost = lost
        self._accumulator = accumulator
        self._view = view
        self._limits = limits
        self._rng = rng
        self._topics: dict[str, Topic] = {}
        self._records: dict[str, Lane] = {}
        self._tables: dict[str, Lane] = {}
        self._refreshes = 0  # that were begun
        self._missed: dict[str, None] = {}  # topics whose records failed before anyone asked
        self._problem: ApiError | None = None  # of the last refresh
        self._is_closed = False
        self.next_number = 1
        self.parked_bytes = 0
        self.reserved_bytes = 0  # of tables that are being split
        self.waits_for_room = False
        self.lost_records = 0

    # Sends.

    def send(
        self,
        delivery: Delivery,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int,
        headers: tuple[Header, ...],
        now_ms: float,
    ) -> Batch | ParkedRecord | None:
        """Appends a record, or parks it. Returns the batch that was opened for it, if one was, or
        the parked record.

        Raises ClientClosedError, and BufferExhaustedError if the parked records fill as much as
        the buffer.
        """
        known = self._topics.get(topic)
        if known is None:
            check_topic(topic)
            known = self._learned(topic)
        if (
            known is not None
            and self._accumulator.buffered_bytes + self.reserved_bytes < self._limits.buffer_memory
            and not self.waits_for_room
            and (not self._records or topic not in self._records)
            and (partition is None or partition < len(known.queues))
            and not self._is_closed
        ):
            return self._append(
                known, delivery, value, key, partition, timestamp_ms, headers, now_ms
            )
        parked = ParkedRecord(delivery, value, key, partition, timestamp_ms, headers)
        self._check_open()
        if self.parked_bytes >= self._limits.buffer_memory:
            raise BufferExhaustedError(
                f"{self.parked_bytes} bytes wait beyond buffer.memory="
                f"{self._limits.buffer_memory}; await drain() between sends"
            )
        self.parked_bytes += parked.size_bytes
        self._park(self._records, topic, parked, now_ms)
        return parked

    def send_tables(
        self,
        send: ArrowSend,
        topic: str,
        tables: Sequence[Any],
        partition: int | None,
        now_ms: float,
    ) -> None:
        """Parks the tables of one `send_arrow`. Raises ClientClosedError and InvalidTopicError."""
        self._check_open()
        check_topic(topic)
        for table in tables:
            self._park(self._tables, topic, ParkedTable(send, topic, table, partition), now_ms)

    def _park(self, lanes: dict[str, Lane], topic: str, parked: Parked, now_ms: float) -> None:
        lane = lanes.get(topic)
        if lane is None:
            lane = lanes[topic] = Lane(topic)
        parked.number, self.next_number = self.next_number, self.next_number + 1
        parked.since_ms = now_ms
        parked.refresh = self._refreshes + 1  # the first one that may know more than its caller
        lane.parked.append(parked)
        if topic in self._topics:
            self.waits_for_room = True

    def _append(
        self,
        topic: Topic,
        delivery: Delivery,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int,
        headers: tuple[Header, ...],
        now_ms: float,
    ) -> Batch | None:
        """Appends a record, or fails its delivery. Returns the batch if it is a new one."""
        if partition is None:
            if key is not None:
                partition = topic.partitioner.for_key(key)
            else:
                size = RECORD_OVERHEAD_BYTES + (len(value) if value is not None else 0)
                partition = topic.partitioner.for_null_key(size)
        elif not 0 <= partition < len(topic.queues):
            self._lost(error := _no_partition(partition, topic))
            delivery.fail(error)
            return None
        queue = topic.queues[partition]
        before = queue.open
        try:
            batch = self._accumulator.append(queue, key, value, timestamp_ms, headers, now_ms)
        except MessageTooLargeError as too_large:
            self._lost(too_large)
            delivery.fail(too_large)
            return None
        delivery.resolve_to(batch, batch.count - 1, timestamp_ms)
        return None if batch is before else batch

    # Metadata.

    def wanted_topics(self) -> list[str]:
        """Topics to ask for: their heads wait for metadata, or would not wait (max.block.ms=0)."""
        lanes = [*self._records.values(), *self._tables.values()]
        waiting = [lane for lane in lanes if lane.parked and not self._is_known(lane)]
        return list(dict.fromkeys([*(lane.topic for lane in waiting), *self._missed]))

    def _is_known(self, lane: Lane) -> bool:
        topic = self._topics.get(lane.topic)
        partition = lane.parked[0].partition
        return topic is not None and (partition is None or partition < len(topic.queues))

    def refresh_begins(self) -> None:
        """Notes that the metadata is asked for: its answer knows all that existed until now."""
        self._refreshes += 1
        self._missed.clear()

    def refreshed(self, problem: ApiError | None) -> None:
        """Applies the metadata: topics that are known now, that grew, and that can not be had."""
        self._problem = problem
        self.update_topics()
        if problem is not None:
            return
        for lanes in (self._records, self._tables):
            for lane in list(lanes.values()):
                self._fail_hopeless(lane)
                self._drop_if_empty(lanes, lane)

    @property
    def topics(self) -> Iterable[str]:
        """Topics that records were sent to."""
        return self._topics

    def update_topics(self) -> None:
        """Applies the present numbers of partitions to the choice for keys (KIP-195)."""
        wanted = [lane.topic for lane in (*self._records.values(), *self._tables.values())]
        for name in dict.fromkeys([*self._topics, *wanted]):
            self._learned(name)

    def _learned(self, name: str) -> Topic | None:
        """The topic with its present number of partitions, if it is known."""
        count = self._view.partition_count(name)
        known = self._topics.get(name)
        if count and (known is None or count != len(known.queues)):
            queues = [self._accumulator.queue(TopicPartition(name, p)) for p in range(count)]
            partitioner = TopicPartitioner(count, self._limits.batch_size, self._rng)
            known = self._topics[name] = Topic(partitioner, queues)
        return known

    def _fail_hopeless(self, lane: Lane) -> None:
        """Fails records that no later metadata will help."""
        error = self._view.topic_error(lane.topic)
        if error is not None and not is_retriable(error):
            while lane.parked:
                self._fail(lane.parked.popleft(), error)
        topic = self._topics.get(lane.topic)
        while topic is not None and lane.parked and not self._is_known(lane):
            head = lane.parked[0]
            if head.refresh > self._refreshes:
                return  # sent after this refresh began: the topic may have grown
            assert head.partition is not None
            self._fail(lane.parked.popleft(), _no_partition(head.partition, topic))

    # Admission.

    def admit(self, now_ms: float) -> list[ParkedTable]:
        """Appends parked records that can go, and fails those whose time is up.

        Returns admitted tables: `split_done` or `split_failed` is to be called for each.
        """
        self.waits_for_room = False
        if not self._records and not self._tables:
            return []
        admitted: list[ParkedTable] = []
        ready: list[tuple[int, bool, Lane]] = []
        for is_table, lanes in ((False, self._records), (True, self._tables)):
            for lane in list(lanes.values()):
                self._expire(lane, now_ms)
                self._drop_if_empty(lanes, lane)
                if lane.parked and self._can_go(lane):
                    ready.append((lane.parked[0].number, is_table, lane))
        heapq.heapify(ready)
        while ready:
            _, is_table, lane = ready[0]
            if not self._has_room(lane.parked[0].size_bytes):
                self.waits_for_room = True
                break
            heapq.heappop(ready)
            parked = lane.parked.popleft()
            if isinstance(parked, ParkedTable):
                lane.splitting, parked.known = parked, self._topics[lane.topic]
                self.reserved_bytes += parked.size_bytes
                admitted.append(parked)
            else:
                self._admit_record(lane.topic, parked)
            if lane.parked and self._can_go(lane):
                heapq.heappush(ready, (lane.parked[0].number, is_table, lane))
            self._drop_if_empty(self._tables if is_table else self._records, lane)
        return admitted

    def _can_go(self, lane: Lane) -> bool:
        return lane.splitting is None and self._is_known(lane)

    def _has_room(self, size_bytes: int) -> bool:
        buffered = self._accumulator.buffered_bytes + self.reserved_bytes
        return not buffered or buffered + size_bytes <= self._limits.buffer_memory

    def _admit_record(self, topic: str, parked: ParkedRecord) -> None:
        self.parked_bytes -= parked.size_bytes
        try:
            self._append(
                self._topics[topic], parked.delivery, parked.value, parked.key, parked.partition,
                parked.timestamp_ms, parked.headers, parked.since_ms,
            )  # fmt: skip
        except Exception as error:  # any error concerns this record alone
            self._lost(error)
            parked.fail(error)

    def _expire(self, lane: Lane, now_ms: float) -> None:
        limit_ms = self._limits.max_block_ms
        while lane.parked and now_ms >= lane.parked[0].since_ms + limit_ms:
            error: Exception
            if not self._is_known(lane):
                if lane.parked[0].refresh > self._refreshes:
                    self._missed[lane.topic] = None  # a later send finds it
                unknown = UnknownTopicOrPartitionError(f"topic {lane.topic!r} is unknown")
                error = self._problem or self._view.topic_error(lane.topic) or unknown
            else:
                error = BufferExhaustedError(
                    f"buffer.memory={self._limits.buffer_memory} stayed full for "
                    f"{limit_ms:.0f} ms (max.block.ms, at most delivery.timeout.ms)"
                )
            self._fail(lane.parked.popleft(), error)

    def split_done(
        self, table: ParkedTable, pieces: Sequence[tuple[int, object, int, int]]
    ) -> None:
        """Takes the batches of an admitted table: (partition, columns, records, bytes) of each."""
        if not self._release(table):
            return
        assert table.known is not None
        batches = [
            self._accumulator.append_closed(
                table.known.queues[partition], columns, count, size, table.since_ms
            )
            for partition, columns, count, size in pieces
        ]
        table.send.add(batches)

    def split_failed(self, table: ParkedTable, error: BaseException) -> None:
        """Fails the send of a table that can not be split, with the tables it has left."""
        if self._release(table):
            self._lost(error)
            table.fail(error)

    def _release(self, table: ParkedTable) -> bool:
        lane = self._tables.get(table.topic)
        if lane is None or lane.splitting is not table:
            return False  # closed meanwhile
        lane.splitting = None
        self.reserved_bytes -= table.size_bytes
        self._drop_if_empty(self._tables, lane)
        return True

    def _fail(self, parked: Parked, error: BaseException) -> None:
        if isinstance(parked, ParkedRecord):
            self.parked_bytes -= parked.size_bytes
        self._lose(parked, error)

    def _lose(self, parked: Parked, error: BaseException) -> None:
        self.lost_records += 1 if isinstance(parked, ParkedRecord) else parked.table.num_rows
        self._lost(error)
        parked.fail(error)

    def _drop_if_empty(self, lanes: dict[str, Lane], lane: Lane) -> None:
        # Tables of a send that failed are dropped: nothing would wait for their outcome.
        while lane.parked and isinstance(head := lane.parked[0], ParkedTable) and head.send.error:
            lane.parked.popleft()
        if not lane.parked and lane.splitting is None:
            lanes.pop(lane.topic, None)

    # Ends.

    def close(self) -> None:
        """Refuses sends from now on."""
        self._is_closed = True

    def abort(self, error: BaseException) -> None:
        """Fails all that is parked or being split."""
        for lanes in (self._records, self._tables):
            for lane in lanes.values():
                parked = (
                    [*lane.parked] if lane.splitting is None else [lane.splitting, *lane.parked]
                )
                lane.parked.clear()
                lane.splitting = None
                for one in parked:
                    self._lose(one, error)
            lanes.clear()
        self._missed.clear()
        self.parked_bytes = self.reserved_bytes = 0
        self.waits_for_room = False

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the producer is closed")

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits here."""
        return not self._records and not self._tables

    def has_older_than(self, number: int) -> bool:
        """Whether something with a lower number waits here, or is being split."""
        lanes = (*self._records.values(), *self._tables.values())
        return any((lane.splitting or lane.parked[0]).number < number for lane in lanes)

    def next_deadline_ms(self) -> float | None:
        """The time at which the first record that waits here fails."""
        lanes = (*self._records.values(), *self._tables.values())
        found = [lane.parked[0].since_ms for lane in lanes if lane.parked]
        return min(found) + self._limits.max_block_ms if found else None

    def validate(self, owns: Callable[[object], None] = lambda _: None) -> None:
        """Asserts the invariants that hold between calls; calls `owns` with each delivery here."""
        parked_bytes = reserved_bytes = 0
        for lanes in (self._records, self._tables):
            for name, lane in lanes.items():
                assert lane.topic == name
                assert lane.parked or lane.splitting is not None
                numbers = [parked.number for parked in lane.parked]
                assert numbers == sorted(set(numbers))
                for parked in lane.parked:
                    if isinstance(parked, ParkedRecord):
                        parked_bytes += parked.size_bytes
                        owns(parked.delivery)
                    else:
                        owns(parked.send)
                if lane.splitting is not None:
                    assert lanes is self._tables
                    reserved_bytes += lane.splitting.size_bytes
                    owns(lane.splitting.send)
        assert parked_bytes == self.parked_bytes
        assert reserved_bytes == self.reserved_bytes


def _no_partition(partition: int, topic: Topic) -> InvalidPartitionsError:
    return InvalidPartitionsError(f"partition {partition} is not in 0..{len(topic.queues) - 1}")


def check_topic(topic: str) -> None:
    """Raises TypeError or InvalidTopicError for a name that no topic can have."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is a str, not {type(topic).__name__}")
    if not _TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
        raise InvalidTopicError(f"a topic can not be named {topic!r}")


def check_record(
    topic: str,
    value: bytes | None,
    key: bytes | None,
    partition: int | None,
    timestamp_ms: int | None,
    headers: Iterable[Header],
) -> tuple[Header, ...]:
    """Checks a record alone, before it can spoil a batch; returns its headers.

    Raises TypeError for a field of a wrong type, InvalidTimestampError and InvalidTopicError.
    """
    if not isinstance(value, bytes | None) or not isinstance(key, bytes | None):
        raise TypeError("key and value are bytes or None")
    if not isinstance(topic, str):
        check_topic(topic)
    if partition is not None and not _is_integer(partition):
        raise TypeError(f"partition is an int or None, not {type(partition).__name__}")
    if timestamp_ms is not None:
        if not _is_integer(timestamp_ms):
            raise TypeError(f"timestamp_ms is an int or None, not {type(timestamp_ms).__name__}")
        if not 0 <= timestamp_ms < _TIMESTAMP_END:  # then any two fit one batch
            raise InvalidTimestampError(f"timestamp_ms={timestamp_ms} is not in 0..2**63-1")
    return _checked_headers(headers) if headers else ()


def _is_integer(number: object) -> bool:
    """Whether it is an int, or compares like one, such as those of NumPy."""
    return isinstance(number, int) or (
        isinstance(number, SupportsIndex) and hasattr(type(number), "__int__")
    )


def _checked_headers(headers: Iterable[Header]) -> tuple[Header, ...]:
    found: list[Header] = []
    for header in headers:
        text = f"headers are a sequence of (str, bytes or None), not of {header!r}"
        if not isinstance(header, tuple | list) or len(header) != 2:
            raise TypeError(text)
        name, content = header
        if not isinstance(name, str) or not isinstance(content, bytes | None):
            raise TypeError(text)
        try:
            name.encode()
        except UnicodeEncodeError:
            raise TypeError(f"the header name {name!r} is no UTF-8") from None
        found.append((name, content))  # its own: the caller may change a list later
    return tuple(found)
