"""AsyncProducer: records in, acknowledgements out, in Kafka's terms and with Kafka's guarantees.

`send` is a plain call that puts a record into a batch and returns an awaitable. A program can send
thousands without a context switch. `send_arrow` takes whole Arrow tables and touches no record in
Python. The sender handles retries, leader changes and duplicates. With the default idempotence,
every acknowledged record is in the log exactly once, in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from tidemark.client.accumulator import Accumulator, PartitionQueue
from tidemark.client.batch import RECORD_OVERHEAD_BYTES, Batch
from tidemark.client.closing import AsyncCloses
from tidemark.client.connections import Connections, parse_bootstrap_servers
from tidemark.client.delivery import ArrowDelivery, Delivery
from tidemark.client.errors import BufferExhaustedError, ClientClosedError
from tidemark.client.metadata import MetadataCache, TopicMetadata
from tidemark.client.models import Header
from tidemark.client.partitioner import TopicPartitioner
from tidemark.client.retry import RetryPolicy
from tidemark.client.sender import Sender
from tidemark.errors import (
    ConfigError,
    InvalidPartitionsError,
    MessageTooLargeError,
    TidemarkError,
)
from tidemark.surroundings import surroundings
from tidemark.types import TopicPartition

_ACKS = {"all": -1, "-1": -1, -1: -1, "0": 0, 0: 0, "1": 1, 1: 1}
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class _Topic:
    """A topic as `send` needs it: its partitioner, and the queue of each partition."""

    __slots__ = ("partitioner", "queues")

    def __init__(self, partitioner: TopicPartitioner, queues: list[PartitionQueue]) -> None:
        self.partitioner = partitioner
        self.queues = queues


class _Parked(NamedTuple):
    """A send that waits for its topic's metadata or for room; sends are resumed in order."""

    delivery: Delivery
    topic: str
    size_bytes: int
    since_ms: float
    fields: tuple[Any, ...]


class AsyncProducer(AsyncCloses):
    """Sends records; made and used on one running event loop.

    Names and meanings of the settings are Kafka's. `acks` is "all" (default), 1 or 0.
    `enable_idempotence` of None means on if acks is all. `batch_size` limits the bytes of a batch.
    `linger_ms` is the longest wait for more records if no batch of the partition is under way.
    `buffer_memory` limits the bytes not yet acknowledged; beyond it, sends wait up to
    `max_block_ms`. `delivery_timeout_ms` limits the time of a record from send to acknowledgement,
    retries included. Raises ConfigError for settings that contradict each other.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        acks: str | int = "all",
        enable_idempotence: bool | None = None,
        compression_type: str = "none",
        batch_size: int = 1_000_000,
        linger_ms: float = 5,
        max_request_size: int = 4 << 20,
        max_in_flight_requests_per_connection: int = 5,
        buffer_memory: int = 64 << 20,
        max_block_ms: float = 60_000,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        random_seed: int | None = None,
    ) -> None:
        _check_settings(acks, enable_idempotence, compression_type)
        _check_limits(
            batch_size, max_request_size, buffer_memory, max_in_flight_requests_per_connection
        )
        self._loop = asyncio.get_running_loop()
        self._wall_ms = surroundings().wall_ms
        self._batch_size = batch_size
        self._linger_ms = linger_ms
        self._max_request_size = max_request_size
        self._buffer_memory = buffer_memory
        self._max_block_ms = max_block_ms
        self._rng = Random(random_seed)
        retry = RetryPolicy(delivery_timeout_ms, retry_backoff_ms, retry_backoff_max_ms)
        self._connections = Connections(request_timeout_ms=request_timeout_ms)
        self._metadata = MetadataCache(
            self._connections,
            parse_bootstrap_servers(bootstrap_servers),
            retry=retry,
            rng=self._rng,
            metadata_max_age_ms=metadata_max_age_ms,
            on_update=self._on_metadata,
        )
        self._accumulator = Accumulator(
            batch_size=batch_size,
            linger_ms=linger_ms,
            retry=retry,
            idempotent=_ACKS[acks] == -1 if enable_idempotence is None else enable_idempotence,
            rng=self._rng,
        )
        self._sender = Sender(
            self._accumulator,
            self._connections,
            self._metadata,
            acks=_ACKS[acks],
            compression_type=compression_type,
            max_request_size=max_request_size,
            max_in_flight=max_in_flight_requests_per_connection,
            retry=retry,
            rng=self._rng,
            on_progress=self._on_progress,
        )
        self._topics: dict[str, _Topic] = {}
        self._parked: deque[_Parked] = deque()
        self._parked_bytes = 0
        self._unparking: asyncio.Task[None] | None = None
        self._room: list[asyncio.Future[None]] = []
        self._arrow_turn = asyncio.Lock()
        self._arrow_tasks: set[asyncio.Task[list[Batch]]] = set()
        self._closed = False

    # Sending.

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> Delivery:
        """Queues a record; `await` the result for its RecordMetadata.

        `timestamp_ms` is the current time by default.

        The delivery fails with the leader's error (MessageTooLargeError, InvalidTimestampError,
        ...), RequestTimedOutError after delivery.timeout.ms, or UnknownTopicOrPartitionError or
        BufferExhaustedError after max.block.ms.

        Raises ClientClosedError, and TypeError for a key or value that is not bytes. Raises
        BufferExhaustedError if twice buffer.memory is taken: `await drain()` from time to time.
        """
        delivery = Delivery()
        self.enqueue(delivery, topic, value, key, partition, timestamp_ms, headers)
        return delivery

    def enqueue(
        self,
        delivery: Delivery,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header],
    ) -> None:
        """`send` for a delivery that the blocking class made in another thread."""
        if not isinstance(value, bytes | None) or not isinstance(key, bytes | None):
            raise TypeError("key and value are bytes or None")
        if timestamp_ms is None:
            timestamp_ms = self._wall_ms()
        known = self._topics.get(topic)
        if (
            known is None
            or self._parked
            or self._closed
            or (partition is not None and partition >= len(known.queues))
            or self._accumulator.buffered_bytes >= self._buffer_memory
        ):
            size = len(value or b"") + len(key or b"") + RECORD_OVERHEAD_BYTES
            self._park(delivery, topic, size, (value, key, partition, timestamp_ms, headers))
            return
        self._append(known, delivery, value, key, partition, timestamp_ms, headers)

    def _append(
        self,
        topic: _Topic,
        delivery: Delivery,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int,
        headers: Sequence[Header],
    ) -> None:
        if partition is None:
            if key is not None:
                partition = topic.partitioner.for_key(key)
            else:
                size = RECORD_OVERHEAD_BYTES + (len(value) if value is not None else 0)
                partition = topic.partitioner.for_null_key(size)
        elif not 0 <= partition < len(topic.queues):
            delivery.fail(
                InvalidPartitionsError(
                    f"partition {partition} is not in 0..{len(topic.queues) - 1}"
                )
            )
            return
        if value is not None and len(value) > self._max_request_size:
            delivery.fail(
                MessageTooLargeError(
                    f"{len(value)} bytes; max.request.size={self._max_request_size}"
                )
            )
            return
        queue = topic.queues[partition]
        before = queue.open
        now_ms = self._sender.now_ms() if before is None else before.created_ms
        batch = self._accumulator.append(
            queue, key, value, timestamp_ms, tuple(headers) if headers else (), now_ms
        )
        delivery.resolve_to(batch, batch.count - 1, timestamp_ms)
        if batch is not before:
            if before is not None:
                batch.created_ms = self._sender.now_ms()
                self._sender.schedule()
            self._sender.linger(batch.created_ms + self._linger_ms)

    def send_arrow(self, topic: str, data: Any, *, partition: int | None = None) -> ArrowDelivery:
        """Queues the rows of a pyarrow RecordBatch or Table; `await` the result for
        list[BatchMetadata].

        The columns are:

        - value, and optionally key: binary or string
        - timestamp, optional: int64 ms or a timestamp; the current time by default
        - headers, optional: list of struct<key, value>
        - partition, optional: int; null means by key

        Order holds per partition within each call and among calls of `send_arrow`; records of
        `send` may overtake them. To be slowed down while the buffer is full, await `.accepted()`
        before the next call.

        Errors are those of `send`, and InvalidRecordError for columns of other names or types.
        """
        if self._closed:
            raise ClientClosedError("the producer is closed")
        accepted: asyncio.Future[None] = self._loop.create_future()
        task = self._loop.create_task(self._send_arrow(topic, data, partition))
        self._arrow_tasks.add(task)

        def settle(done: asyncio.Task[list[Batch]]) -> None:
            self._arrow_tasks.discard(done)
            if accepted.done():
                return
            if done.cancelled():
                accepted.cancel()
            elif (error := done.exception()) is not None:
                accepted.set_exception(error)
                accepted.exception()  # the delivery raises it; this future may never be awaited
            else:
                accepted.set_result(None)

        task.add_done_callback(settle)
        return ArrowDelivery(task, accepted)

    async def _send_arrow(self, topic: str, data: Any, partition: int | None) -> list[Batch]:
        from tidemark.client.encoding import EncodedPiece, split

        async with self._arrow_turn:
            known = await self._topic(topic, partition)
            batches: list[Batch] = []
            tables = _batches_of(data) if hasattr(data, "to_batches") else [data]
            for table in tables:
                await self._until_room(table.nbytes)
                partitioner = known.partitioner
                pieces: list[EncodedPiece] = await self._loop.run_in_executor(
                    None,
                    split,
                    table,
                    partitioner.partition_count,
                    self._batch_size,
                    partitioner.for_null_key(self._batch_size),
                    partition,
                )
                now_ms = self._sender.now_ms()
                batches += [
                    self._accumulator.append_closed(
                        known.queues[piece.partition],
                        piece.columns,
                        piece.record_count,
                        piece.size_bytes,
                        now_ms,
                    )
                    for piece in pieces
                ]
                self._sender.schedule()
            return batches

    async def flush(self) -> None:
        """Returns when all records sent before are acknowledged or have failed; raises none of
        their errors.
        """
        if self._arrow_tasks:
            await asyncio.wait(list(self._arrow_tasks))
        while self._unparking is not None and self._parked:
            self._accumulator.close_due(self._sender.now_ms(), everything=True)
            self._sender.schedule()
            await asyncio.wait([self._unparking])
        await self._sender.flush()

    async def drain(self) -> None:
        """Returns when the buffer has room and no send waits for it."""
        while self._parked or self._accumulator.buffered_bytes >= self._buffer_memory:
            future = self._loop.create_future()
            self._room.append(future)
            self._sender.schedule()
            await future

    async def close(self, timeout_ms: float | None = None) -> None:
        """Flushes for at most `timeout_ms` (None: until every delivery has an outcome), then
        closes.

        Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self.flush()
        except TimeoutError:
            pass_error = ClientClosedError("the producer was closed before this was acknowledged")
            for batch in self._accumulator.pending():
                self._accumulator.give_up(batch, pass_error)
        for task in list(self._arrow_tasks):
            task.cancel()
        if self._unparking is not None:
            self._unparking.cancel()
        await self._sender.close()
        await self._connections.close()

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are not acknowledged yet, those waiting for room included."""
        return self._accumulator.buffered_bytes + self._parked_bytes

    @property
    def buffer_memory(self) -> int:
        """The limit of `buffered_bytes` beyond which sends wait."""
        return self._buffer_memory

    @property
    def max_block_ms(self) -> float:
        """The longest wait of a send for room or for its topic's metadata."""
        return self._max_block_ms

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic. Raises UnknownTopicOrPartitionError after max.block.ms."""
        found = await self._metadata.topic(topic, self._max_block_ms)
        return [TopicPartition(topic, number) for number in sorted(found.partitions)]

    # Waiting for metadata and room.

    async def _topic(self, name: str, partition: int | None = None) -> _Topic:
        """The topic; its metadata is refreshed if `partition` is unknown, because the topic may
        have grown.
        """
        found = self._topics.get(name)
        if found is None:
            metadata: TopicMetadata = await self._metadata.topic(name, self._max_block_ms)
            # Another caller, or a metadata update, may have made it meanwhile.
            found = self._topics.get(name)
            if found is None:
                found = self._topics[name] = self._made(name, len(metadata.partitions))
        if partition is not None and partition >= len(found.queues):
            await self._metadata.refresh()
            found = self._topics[name]
        return found

    def _made(self, name: str, count: int) -> _Topic:
        queues = [self._accumulator.queue(TopicPartition(name, p)) for p in range(count)]
        return _Topic(TopicPartitioner(count, self._batch_size, self._rng), queues)

    def _on_metadata(self) -> None:
        """Applies the present number of partitions to the choice for keys (KIP-195)."""
        for name, topic in self._topics.items():
            count = self._metadata.partition_count(name)
            if count and count != len(topic.queues):
                self._topics[name] = self._made(name, count)

    def _park(self, delivery: Delivery, topic: str, size: int, fields: tuple[Any, ...]) -> None:
        if self._closed:
            raise ClientClosedError("the producer is closed")
        if self._parked_bytes + size > self._buffer_memory:
            raise BufferExhaustedError(
                f"{self._parked_bytes} bytes wait beyond buffer.memory={self._buffer_memory}; "
                "await drain() between sends"
            )
        self._parked_bytes += size
        self._parked.append(_Parked(delivery, topic, size, self._sender.now_ms(), fields))
        if self._unparking is None or self._unparking.done():
            self._unparking = self._loop.create_task(self._unpark())

    async def _unpark(self) -> None:
        while self._parked:
            parked = self._parked[0]
            try:
                await self._admit(parked)
            except TidemarkError as error:
                parked.delivery.fail(error)
            self._parked.popleft()
            self._parked_bytes -= parked.size_bytes
        self._on_progress()

    async def _admit(self, parked: _Parked) -> None:
        partition: int | None = parked.fields[2]
        topic = await self._topic(parked.topic, partition)
        left_ms = parked.since_ms + self._max_block_ms - self._sender.now_ms()
        await self._until_room(parked.size_bytes, max(0.0, left_ms))
        self._append(topic, parked.delivery, *parked.fields)

    async def _until_room(self, size_bytes: int, timeout_ms: float | None = None) -> None:
        """Returns when `size_bytes` fit, or nothing is buffered. Raises BufferExhaustedError."""
        limit_ms = self._max_block_ms if timeout_ms is None else timeout_ms
        buffered = self._accumulator
        if not buffered.buffered_bytes or (
            buffered.buffered_bytes + size_bytes <= self._buffer_memory
        ):
            return
        # Lingering batches are closed: nothing else would make room.
        buffered.close_due(self._sender.now_ms(), everything=True)
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while buffered.buffered_bytes + size_bytes > self._buffer_memory:
                    if not buffered.buffered_bytes:
                        return
                    future = self._loop.create_future()
                    self._room.append(future)
                    self._sender.schedule()
                    await future
        except TimeoutError:
            raise BufferExhaustedError(
                f"buffer.memory={self._buffer_memory} stayed full for max.block.ms={limit_ms:.0f}"
            ) from None

    def _on_progress(self) -> None:
        """Wakes the waiters for room; each checks again."""
        if self._accumulator.buffered_bytes >= self._buffer_memory:
            return
        waiting, self._room = self._room, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


def _check_settings(acks: str | int, idempotence: bool | None, compression_type: str) -> None:
    if acks not in _ACKS:
        raise ConfigError(f"acks={acks!r} is none of all, 1, 0")
    if compression_type not in _CODECS:
        raise ConfigError(f"compression.type={compression_type!r} is none of {_CODECS}")
    if idempotence and _ACKS[acks] != -1:
        raise ConfigError("enable.idempotence needs acks=all")


def _check_limits(
    batch_size: int, max_request_size: int, buffer_memory: int, max_in_flight: int
) -> None:
    if min(batch_size, max_request_size, buffer_memory) < 1:
        raise ConfigError("batch.size, max.request.size and buffer.memory are above zero")
    if max_in_flight < 1:
        raise ConfigError("max.in.flight.requests.per.connection is above zero")


def _batches_of(table: Any) -> list[Any]:
    """A Table as few RecordBatches as possible, because each call of the kernels has a fixed
    cost.
    """
    return list(table.combine_chunks().to_batches()) if table.num_rows else []
