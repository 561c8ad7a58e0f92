"""The blocking faces: Producer, Consumer, Admin over their asyncio cores.

All of them share one background event loop in one daemon thread: gRPC's asyncio driver wakes every
loop of a process for each event, so one loop serves ten clients better than ten loops would. The
faces are safe to call from any thread but the loop's own.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
from collections import deque
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from tidemark.client.admin import AsyncAdmin
from tidemark.client.batch import RECORD_OVERHEAD_BYTES
from tidemark.client.closing import Closes
from tidemark.client.consumer import AsyncConsumer
from tidemark.client.delivery import ArrowDelivery, Delivery
from tidemark.client.errors import BufferExhaustedError, ClientClosedError
from tidemark.client.models import (
    AlterConfigOp,
    BatchMetadata,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    FeatureDescription,
    Header,
    LogDirDescription,
    NewTopic,
    NodeFeatures,
    OffsetAndTimestamp,
    OffsetSpec,
    PartitionReassignment,
    QuorumDescription,
    RecordMetadata,
    TopicDescription,
    TopicListing,
    TopicPartitionReplica,
)
from tidemark.client.producer import AsyncProducer
from tidemark.client.records import RawBatches, Records
from tidemark.errors import ApiError, TidemarkError
from tidemark.types import Endpoint, TopicPartition

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_quietly)
        self._thread = threading.Thread(target=self._run, name="tidemark-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Runs `work` on the loop and waits for it; TimeoutError after `timeout_s`, which cancels
        it.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking client can not be called from its own event loop")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise
        except KeyboardInterrupt:
            future.cancel()
            raise

    def stop(self) -> None:
        """Ends the thread; for the end of the process."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)


def _quietly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """gRPC's poller tells every loop of the process of an event; those that come too late find
    nothing to read.
    """
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)


_shared: LoopThread | None = None
_shared_lock = threading.Lock()


def shared_loop() -> LoopThread:
    """The loop thread of this process, started on first use and stopped at exit."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = LoopThread()
            atexit.register(_shared.stop)
        return _shared


class _Face(Closes):
    """What the three faces have in common."""

    def __init__(self, make: Any) -> None:
        self._thread = shared_loop()

        async def on_loop() -> Any:
            return make()

        self._core = self._thread.run(on_loop())

    def _call(self, function: Any, *arguments: Any) -> Any:
        """A plain call of the core, made on its loop."""

        async def on_loop() -> Any:
            return function(*arguments)

        return self._thread.run(on_loop())


class SyncDelivery:
    """The promise of a RecordMetadata, for any thread."""

    __slots__ = ("_delivery", "_thread")

    def __init__(self, delivery: Delivery, thread: LoopThread) -> None:
        self._delivery = delivery
        self._thread = thread

    def done(self) -> bool:
        """Whether the record is acknowledged or has failed."""
        return self._delivery.done()

    def exception(self) -> BaseException | None:
        """What the record failed with so far."""
        return self._delivery.exception()

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Waits; raises what the record failed with, or TimeoutError (it stays on its way)."""
        if self._delivery.done():
            return self._delivery.metadata()

        async def wait() -> RecordMetadata:
            return await self._delivery

        return self._thread.run(wait(), timeout_s)


class SyncArrowDelivery:
    """The promise of the BatchMetadata of one `send_arrow`, for any thread."""

    __slots__ = ("_delivery", "_thread")

    def __init__(self, delivery: ArrowDelivery, thread: LoopThread) -> None:
        self._delivery = delivery
        self._thread = thread

    def done(self) -> bool:
        """Whether every record is acknowledged or has failed."""
        return self._delivery.done()

    def result(self, timeout_s: float | None = None) -> list[BatchMetadata]:
        """Waits; raises what a batch failed with, or TimeoutError (they stay on their way)."""

        async def wait() -> list[BatchMetadata]:
            return await self._delivery

        return self._thread.run(wait(), timeout_s)


class Producer(_Face):
    """Sends records; see AsyncProducer for the settings. `send` and `send_arrow` block while the
    buffer is full.
    """

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Any) -> None:
        super().__init__(lambda: AsyncProducer(bootstrap_servers, **settings))
        self._core: AsyncProducer
        self._staged: deque[tuple[Any, ...]] = deque()
        self._staged_bytes = 0
        self._lock = threading.Lock()
        self._following: asyncio.Task[None] | None = None
        self._waking = False
        self._closed = False

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> SyncDelivery:
        """Puts a record on its way; `.result()` waits for its RecordMetadata. Errors as
        AsyncProducer.send.
        """
        if self._closed:
            raise ClientClosedError("the producer is closed")
        if not isinstance(value, bytes | None) or not isinstance(key, bytes | None):
            raise TypeError("key and value are bytes or None")
        size = len(value or b"") + len(key or b"") + RECORD_OVERHEAD_BYTES
        if self._core.buffered_bytes + self._staged_bytes + size > self._core.buffer_memory:
            self._wait_for_room()
        delivery = Delivery()
        with self._lock:
            self._staged_bytes += size
            self._staged.append(
                (size, delivery, topic, value, key, partition, timestamp_ms, headers)
            )
            # One wake-up for all that is staged until the loop gets to it.
            wake, self._waking = not self._waking, True
        if wake:
            self._thread.loop.call_soon_threadsafe(self._unstage)
        return SyncDelivery(delivery, self._thread)

    def _unstage(self) -> None:
        """On the loop: what is staged goes to the core while that has room; the rest follows."""
        with self._lock:
            self._waking = False
        while self._staged:
            if self._core.buffered_bytes >= self._core.buffer_memory:
                if self._following is None or self._following.done():
                    self._following = self._thread.loop.create_task(self._unstage_all())
                return
            with self._lock:
                size, delivery, *fields = self._staged.popleft()
                self._staged_bytes -= size
            try:
                self._core.enqueue(delivery, *fields)
            except TidemarkError as error:
                delivery.fail(error)

    async def _unstage_all(self) -> None:
        while self._staged:
            await self._core.drain()
            self._unstage()

    def _wait_for_room(self) -> None:
        async def room() -> None:
            limit_s = self._core.max_block_ms / 1000
            try:
                async with asyncio.timeout(limit_s):
                    await self._unstage_all()
                    await self._core.drain()
            except TimeoutError:
                raise BufferExhaustedError(
                    f"buffer.memory stayed full for max.block.ms={limit_s * 1000:.0f}"
                ) from None

        self._thread.run(room())

    def send_arrow(
        self, topic: str, data: Any, *, partition: int | None = None
    ) -> SyncArrowDelivery:
        """Puts the rows of an Arrow RecordBatch or Table on their way, as AsyncProducer.send_arrow;
        returns when they fit.
        """

        async def accept() -> ArrowDelivery:
            await self._unstage_all()
            delivery = self._core.send_arrow(topic, data, partition=partition)
            await delivery.accepted()
            return delivery

        return SyncArrowDelivery(self._thread.run(accept()), self._thread)

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until all that was sent is acknowledged or has failed; TimeoutError."""

        async def flush() -> None:
            await self._unstage_all()
            await self._core.flush()

        self._thread.run(flush(), timeout_s)

    def close(self, timeout_ms: float | None = None) -> None:
        """Flushes for at most `timeout_ms`, then closes."""

        async def close() -> None:
            if timeout_ms is None:
                await self._unstage_all()
            await self._core.close(timeout_ms)
            self._unstage()

        self._closed = True
        self._thread.run(close())

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic."""
        return self._thread.run(self._core.partitions_for(topic))


class Consumer(_Face):
    """Reads assigned partitions; see AsyncConsumer for settings, meanings and errors."""

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Any) -> None:
        super().__init__(lambda: AsyncConsumer(bootstrap_servers, **settings))
        self._core: AsyncConsumer

    def close(self) -> None:
        """Stops fetching and closes the connections."""
        self._thread.run(self._core.close())

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Reads these partitions and no others from now on."""
        self._call(self._core.assign, partitions)

    def assignment(self) -> list[TopicPartition]:
        """The partitions read now."""
        return self._core.assignment()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next record of `partition` is the first at or after `offset`."""
        self._call(self._core.seek, partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """To the log start of these partitions, or of all."""
        self._call(self._core.seek_to_beginning, *partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """To the high watermark of these partitions, or of all."""
        self._call(self._core.seek_to_end, *partitions)

    def seek_to_timestamp(self, timestamps: int | Mapping[TopicPartition, int]) -> None:
        """To the first record at or after a time (ms)."""
        self._thread.run(self._core.seek_to_timestamp(timestamps))

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record."""
        return self._thread.run(self._core.position(partition, timeout_ms))

    def pause(self, *partitions: TopicPartition) -> None:
        """Gives nothing of these partitions until `resume`."""
        self._call(self._core.pause, *partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """The end of `pause`."""
        self._call(self._core.resume, *partitions)

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return self._core.paused()

    def poll(self, timeout_ms: float = 1000, max_records: int = 500) -> Records:
        """Up to `max_records` records, none after `timeout_ms`."""
        return self._thread.run(self._core.poll(timeout_ms, max_records))

    def poll_arrow(self, timeout_ms: float = 1000) -> dict[TopicPartition, Any]:
        """One pyarrow.RecordBatch per partition that has something."""
        return self._thread.run(self._core.poll_arrow(timeout_ms))

    def fetch_batches(self, timeout_ms: float = 1000) -> list[RawBatches]:
        """Raw record batches."""
        return self._thread.run(self._core.fetch_batches(timeout_ms))

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Log start offsets."""
        return self._thread.run(self._core.beginning_offsets(partitions))

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """High watermarks."""
        return self._thread.run(self._core.end_offsets(partitions))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each timestamp (ms)."""
        return self._thread.run(self._core.offsets_for_times(timestamps))

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic."""
        return self._thread.run(self._core.partitions_for(topic))


class Admin(_Face):
    """Administers a cluster; see AsyncAdmin for settings, meanings and errors."""

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Any) -> None:
        super().__init__(lambda: AsyncAdmin(bootstrap_servers, **settings))
        self._core: AsyncAdmin

    def close(self) -> None:
        """Closes the connections."""
        self._thread.run(self._core.close())

    def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        timeout_ms: int | None = None,
        validate_only: bool = False,
    ) -> list[TopicListing]:
        """Creates topics; they can be produced to when this returns."""
        return self._thread.run(
            self._core.create_topics(topics, timeout_ms=timeout_ms, validate_only=validate_only)
        )

    def delete_topics(self, names: Sequence[str], *, timeout_ms: int | None = None) -> None:
        """Deletes topics."""
        self._thread.run(self._core.delete_topics(names, timeout_ms=timeout_ms))

    def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """All topics by name."""
        return self._thread.run(self._core.list_topics(include_internal=include_internal))

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """Topics by name."""
        return self._thread.run(self._core.describe_topics(names))

    def describe_cluster(self) -> ClusterDescription:
        """The cluster."""
        return self._thread.run(self._core.describe_cluster())

    def describe_quorum(self) -> QuorumDescription:
        """The metadata quorum."""
        return self._thread.run(self._core.describe_quorum())

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes the records below offsets; gives the low watermarks."""
        return self._thread.run(self._core.delete_records(offsets, timeout_ms=timeout_ms))

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int | OffsetSpec],
        *,
        read_committed: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Offsets by timestamp or OffsetSpec."""
        work = self._core.list_offsets(wanted, read_committed=read_committed, timeout_ms=timeout_ms)
        return self._thread.run(work)

    def add_raft_voter(
        self,
        voter_id: int,
        directory_id: UUID,
        endpoint: Endpoint | Mapping[str, Endpoint],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Makes a controller a voter of the metadata quorum."""
        self._thread.run(
            self._core.add_raft_voter(voter_id, directory_id, endpoint, timeout_ms=timeout_ms)
        )

    def remove_raft_voter(
        self, voter_id: int, directory_id: UUID, *, timeout_ms: int | None = None
    ) -> None:
        """Makes a voter of the metadata quorum an observer."""
        self._thread.run(
            self._core.remove_raft_voter(voter_id, directory_id, timeout_ms=timeout_ms)
        )

    def describe_log_dirs(
        self, brokers: Sequence[int] | None = None, topics: Sequence[str] = ()
    ) -> dict[int, list[LogDirDescription]]:
        """Log directories by broker."""
        return self._thread.run(self._core.describe_log_dirs(brokers, topics))

    def alter_replica_log_dirs(
        self, moves: Mapping[TopicPartitionReplica, str]
    ) -> dict[TopicPartitionReplica, ApiError | None]:
        """Begins to move replicas to other directories of their brokers."""
        return self._thread.run(self._core.alter_replica_log_dirs(moves))

    def wait_until_topics_known(self, names: Sequence[str], timeout_ms: int | None = None) -> None:
        """Returns when every live broker can serve the topics."""
        self._thread.run(self._core.wait_until_topics_known(names, timeout_ms))

    def describe_cluster_everywhere(self) -> dict[int, frozenset[int]]:
        """For each live broker the live brokers that it knows itself."""
        return self._thread.run(self._core.describe_cluster_everywhere())

    def incremental_alter_configs(
        self,
        changes: Mapping[ConfigResource, Sequence[AlterConfigOp]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Changes settings."""
        self._thread.run(
            self._core.incremental_alter_configs(
                changes, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def describe_configs(
        self, resources: Collection[ConfigResource], names: Sequence[str] = (), **include: bool
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Settings by resource and name."""
        return self._thread.run(self._core.describe_configs(resources, names, **include))

    def create_partitions(self, counts: Mapping[str, int], **options: Any) -> None:
        """Grows topics."""
        self._thread.run(self._core.create_partitions(counts, **options))

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Begins or cancels moves of partitions."""
        self._thread.run(
            self._core.alter_partition_reassignments(reassignments, timeout_ms=timeout_ms)
        )

    def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Moves under way."""
        return self._thread.run(self._core.list_partition_reassignments(partitions))

    def wait_until_reassigned(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int]],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Returns when the moves of these partitions are done."""
        self._thread.run(self._core.wait_until_reassigned(reassignments, timeout_ms=timeout_ms))

    def elect_leaders(
        self,
        election_type: str = "PREFERRED",
        partitions: Collection[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ApiError | None]:
        """Elects leaders; what became of each partition."""
        return self._thread.run(
            self._core.elect_leaders(election_type, partitions, timeout_ms=timeout_ms)
        )

    def describe_features(self) -> dict[str, FeatureDescription]:
        """Features by name."""
        return self._thread.run(self._core.describe_features())

    def describe_node_features(self) -> list[NodeFeatures]:
        """What each registered node supports."""
        return self._thread.run(self._core.describe_node_features())

    def update_features(self, levels: Mapping[str, int], **options: Any) -> None:
        """Sets levels of features."""
        self._thread.run(self._core.update_features(levels, **options))

    def unregister_broker(self, broker_id: int, *, timeout_ms: int | None = None) -> None:
        """Forgets a broker."""
        self._thread.run(self._core.unregister_broker(broker_id, timeout_ms=timeout_ms))
