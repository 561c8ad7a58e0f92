"""The blocking classes: Producer, Consumer and Admin over their asyncio cores.

All of them share one background event loop in one daemon thread (`loop_thread`). They may be called
from any thread but the loop's own.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from tidemark.client.admin import AsyncAdmin
from tidemark.client.admin_nodes import NodeAdmin
from tidemark.client.admin_security import SecurityAdmin
from tidemark.client.admission import check_record
from tidemark.client.batch import RECORD_OVERHEAD_BYTES, header_bytes
from tidemark.client.consumer import AsyncConsumer
from tidemark.client.consuming.reading import Handed
from tidemark.client.delivery import ArrowDelivery, Delivery
from tidemark.client.errors import (
    BufferExhaustedError,
    ClientClosedError,
    TransactionAbortedError,
)
from tidemark.client.groups.member import RebalanceListener
from tidemark.client.groups.sync_admin import GroupAdmin
from tidemark.client.loop_thread import Face, LoopThread, check_fork
from tidemark.client.loop_thread import shared_loop as shared_loop
from tidemark.client.models import (
    BatchMetadata,
    ConsumerGroupMetadata,
    Header,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RecordMetadata,
)
from tidemark.client.producer import AsyncProducer
from tidemark.client.records import RawBatches, Records
from tidemark.client.transactions.core import Identity
from tidemark.client.transactions.sync_admin import TransactionAdmin
from tidemark.types import TopicPartition

T = TypeVar("T")
P = ParamSpec("P")


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
        """The record's error; None while it has not failed."""
        return self._delivery.exception()

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Waits for the outcome. Raises the record's error, or TimeoutError (the record is still
        sent).
        """
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
        """Waits for the outcome. Raises a batch's error, or TimeoutError (the records are still
        sent).
        """

        async def wait() -> list[BatchMetadata]:
            return await self._delivery

        return self._thread.run(wait(), timeout_s)


class Producer(Face):
    """Sends records; see AsyncProducer for the settings.

    `send` and `send_arrow` block while the buffer is full.
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
        self._transactions = self._core.transactions

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
        """Queues a record; `.result()` waits for its RecordMetadata. Errors are those of
        AsyncProducer.send.
        """
        if self._closed:
            raise ClientClosedError("the producer is closed")
        check_fork()
        if self._transactions is not None:
            self._transactions.core.check_send()
        checked = check_record(topic, value, key, partition, timestamp_ms, headers)
        size = len(value or b"") + len(key or b"") + RECORD_OVERHEAD_BYTES + header_bytes(checked)
        if self._core.buffered_bytes + self._staged_bytes + size > self._core.buffer_memory:
            self._wait_for_room()
        delivery = Delivery()
        with self._lock:
            self._staged.append(
                (size, delivery, topic, value, key, partition, timestamp_ms, checked)
            )
            self._staged_bytes += size
            # One wake-up for all records staged until the loop runs. The flag is set behind it: an
            # interrupt between the two costs another wake-up, not all later ones.
            if not self._waking:
                self._thread.loop.call_soon_threadsafe(self._unstage)
                self._waking = True
        return SyncDelivery(delivery, self._thread)

    def _unstage(self) -> None:
        """Runs on the loop: passes staged records to the core while it has room; a task passes the
        rest.
        """
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
            except Exception as error:  # the caller waits for it, whatever it is
                if self._transactions is not None:
                    self._transactions.core.failed(error)
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
        """Queues the rows of an Arrow RecordBatch or Table, and returns when they fit.

        As AsyncProducer.send_arrow otherwise.
        """

        async def accept() -> ArrowDelivery:
            await self._unstage_all()
            delivery = self._core.send_arrow(topic, data, partition=partition)
            await delivery.accepted()
            return delivery

        return SyncArrowDelivery(self._thread.run(accept()), self._thread)

    def metrics(self) -> dict[str, float]:
        """Rates, sizes in bytes and times in ms of this producer, by Kafka's names."""
        return self._core.metrics()

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until all records sent before are acknowledged or have failed. Raises
        TimeoutError.
        """

        async def flush() -> None:
            await self._unstage_all()
            await self._core.flush()

        self._thread.run(flush(), timeout_s)

    # Transactions.

    def init_transactions(
        self, timeout_ms: float | None = None, *, keep_open: bool = False
    ) -> None:
        """Fences earlier producers of the transactional id."""
        self._thread.run(self._core.init_transactions(timeout_ms, keep_open=keep_open))

    def begin_transaction(self) -> None:
        """Opens a transaction, to which all sends belong until it is committed or aborted."""
        self._call(self._core.begin_transaction)

    def commit_transaction(self, timeout_ms: float | None = None) -> None:
        """Flushes, and commits the transaction."""

        async def commit() -> None:
            await self._unstage_all()
            await self._core.commit_transaction(timeout_ms)

        self._thread.run(commit())

    def hand_over_transaction(self) -> Identity | None:
        """Flushes, and leaves the transaction open for another process to end."""

        async def hand_over() -> Identity | None:
            await self._unstage_all()
            return await self._core.hand_over_transaction()

        return self._thread.run(hand_over())

    def abort_transaction(self, timeout_ms: float | None = None) -> None:
        """Drops records that are not acknowledged, and aborts the transaction."""

        async def abort() -> None:
            self._drop_staged()
            await self._core.abort_transaction(timeout_ms)

        self._thread.run(abort())

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: ConsumerGroupMetadata,
        timeout_ms: float | None = None,
    ) -> None:
        """Commits offsets of a group with the transaction (KIP-447)."""
        self._thread.run(self._core.send_offsets_to_transaction(offsets, group, timeout_ms))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """`with producer.transaction():` begins a transaction and commits it at the end; see
        AsyncProducer.transaction."""
        transactions = self._core.required_transactions()
        is_begun = False  # a transaction of another thread is not this block's

        async def enter() -> None:
            nonlocal is_begun
            await transactions.enter()
            is_begun = True

        async def leave() -> None:
            try:
                await self._unstage_all()
            except BaseException:
                await leave_after_error()
                raise
            await transactions.leave()

        async def leave_after_error() -> None:
            if is_begun:
                self._drop_staged()
                await transactions.leave_after_error()

        try:
            self._thread.run(enter())
            yield
        except BaseException:
            self._thread.run(leave_after_error())
            raise
        self._thread.run(leave())

    def _drop_staged(self) -> None:
        """On the loop: fails records that did not reach the core."""
        with self._lock:
            staged, self._staged = self._staged, deque()
            self._staged_bytes = 0
        for _, delivery, *_ in staged:
            delivery.fail(TransactionAbortedError("its transaction was aborted"))

    def close(self, timeout_ms: float | None = None) -> None:
        """Flushes for at most `timeout_ms`, then closes. An open transaction is aborted."""

        async def close() -> None:
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    if self._transactions is not None:
                        self._drop_staged()
                        await self._transactions.close()
                    await self._unstage_all()
                    await self._core.flush()
            except TimeoutError:
                pass
            finally:
                await self._core.close(0)
                self._unstage()  # the rest fails: the core is closed

        self._closed = True
        self._thread.run(close())

    def partitions_for(self, topic: str, timeout_ms: float | None = None) -> list[TopicPartition]:
        """The partitions of a topic."""
        return self._thread.run(self._core.partitions_for(topic, timeout_ms))


class _InThread:
    """A listener whose methods run in a thread, so that they may call a blocking client."""

    def __init__(self, listener: object) -> None:
        self._listener = listener

    def __getattr__(self, name: str) -> Any:
        return functools.partial(asyncio.to_thread, getattr(self._listener, name))


class _LookUps(Face):
    """Questions about partitions that need no assignment."""

    _core: AsyncConsumer

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

    def partitions_for(self, topic: str, timeout_ms: float | None = None) -> list[TopicPartition]:
        """The partitions of a topic."""
        return self._thread.run(self._core.partitions_for(topic, timeout_ms))


class Consumer(_LookUps):
    """Reads assigned partitions; see AsyncConsumer for settings, meanings and errors."""

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Any) -> None:
        super().__init__(lambda: AsyncConsumer(bootstrap_servers, **settings))
        self._core: AsyncConsumer
        self._polling = threading.Lock()

    def close(self) -> None:
        """Stops fetching and closes the connections."""
        self._thread.run(self._core.close())

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Reads these partitions and no others from now on."""
        self._call(self._core.assign, partitions)

    def assignment(self) -> list[TopicPartition]:
        """The partitions read now."""
        return self._core.assignment()

    def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str = "",
        listener: RebalanceListener | None = None,
    ) -> None:
        """Joins the group; the listener is called within a poll, and may call the consumer."""
        told: Any = None if listener is None else _InThread(listener)
        self._call(functools.partial(self._core.subscribe, pattern=pattern, listener=told), topics)

    def unsubscribe(self) -> None:
        """Leaves the group, and reads nothing."""
        self._thread.run(self._core.unsubscribe())

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Stores offsets of the group: by default behind all records that polls returned."""
        self._thread.run(self._core.commit(offsets, timeout_ms))

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's offset of each partition; None where there is none."""
        return self._thread.run(self._core.committed(partitions))

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that `commit` stores by default, for `send_offsets_to_transaction`."""
        found: dict[TopicPartition, OffsetAndMetadata] = self._call(self._core.positions)
        return found

    def group_metadata(self) -> ConsumerGroupMetadata:
        """This consumer as a member of its group, for `send_offsets_to_transaction`."""
        found: ConsumerGroupMetadata = self._call(self._core.group_metadata)
        return found

    def seek(
        self,
        partition: TopicPartition,
        offset: int,
        leader_epoch: int | None = None,
        *,
        topic_id: UUID | None = None,
    ) -> None:
        """Sets the position: the next record of `partition` is the first at or after `offset`."""
        self._call(
            functools.partial(self._core.seek, topic_id=topic_id), partition, offset, leader_epoch
        )

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Moves these partitions, or all, to their log start."""
        self._call(self._core.seek_to_beginning, *partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Moves these partitions, or all, to their high watermark."""
        self._call(self._core.seek_to_end, *partitions)

    def seek_to_timestamp(self, timestamps: int | Mapping[TopicPartition, int]) -> None:
        """Moves partitions to the first record at or after a time (ms)."""
        self._thread.run(self._core.seek_to_timestamp(timestamps))

    def metrics(self) -> dict[str, float]:
        """Rates, sizes in bytes and times in ms of this consumer, by Kafka's names."""
        return self._core.metrics()

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record."""
        return self._thread.run(self._core.position(partition, timeout_ms))

    def position_and_epoch(
        self, partition: TopicPartition, timeout_ms: float | None = None
    ) -> tuple[int, int | None]:
        """The position, and the leader epoch of the record before it."""
        return self._thread.run(self._core.position_and_epoch(partition, timeout_ms))

    def pause(self, *partitions: TopicPartition) -> None:
        """Stops returning records of these partitions until `resume`."""
        self._call(self._core.pause, *partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Ends `pause`."""
        self._call(self._core.resume, *partitions)

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return self._core.paused()

    def poll(self, timeout_ms: float = 1000, max_records: int = 500) -> Records:
        """Returns up to `max_records` records, or none after `timeout_ms`."""
        return self._poll(self._core.reader.records, timeout_ms, max_records)

    def poll_arrow(self, timeout_ms: float = 1000) -> dict[TopicPartition, Any]:
        """Returns one pyarrow.RecordBatch per partition that has records."""
        return self._poll(self._core.reader.arrow, timeout_ms)

    def fetch_batches(self, timeout_ms: float = 1000) -> list[RawBatches]:
        """Returns raw record batches."""
        return self._poll(self._core.reader.raw, timeout_ms)

    def _poll(self, read: Callable[..., Coroutine[Any, Any, Handed[T]]], *arguments: Any) -> T:
        """Polls, and moves the positions when the result has reached this thread.

        An interrupt (KeyboardInterrupt) while it waits therefore loses nothing.
        """
        check_fork()  # a thread of the parent may hold the lock
        with self._polling:
            handed = self._thread.run(read(*arguments))
            self._thread.loop.call_soon_threadsafe(handed.deliver)
            return handed.result


def _blocking(
    method: Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Admin, P], T]:
    """The blocking form of a method of AsyncAdmin, with its signature and documentation."""

    @functools.wraps(method)
    def call(self: Admin, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._thread.run(method(self._core, *arguments, **options))

    call.__module__, call.__qualname__ = __name__, f"Admin.{call.__name__}"  # pickle finds it
    return call


class Admin(Face):
    """Administers a cluster; see AsyncAdmin for settings, meanings and errors."""

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Any) -> None:
        super().__init__(lambda: AsyncAdmin(bootstrap_servers, **settings))
        self._core: AsyncAdmin
        self.groups = GroupAdmin(self._core.groups, self._thread.run)
        self.transactions = TransactionAdmin(self._core.transactions, self._thread.run)
        self.nodes = NodeAdmin(self._core.nodes, self._thread.run)
        self.security = SecurityAdmin(self._core.security, self._thread.run)

    close = _blocking(AsyncAdmin.close)

    create_topics = _blocking(AsyncAdmin.create_topics)
    delete_topics = _blocking(AsyncAdmin.delete_topics)
    list_topics = _blocking(AsyncAdmin.list_topics)
    describe_topics = _blocking(AsyncAdmin.describe_topics)
    wait_until_topics_known = _blocking(AsyncAdmin.wait_until_topics_known)
    create_partitions = _blocking(AsyncAdmin.create_partitions)
    alter_partition_reassignments = _blocking(AsyncAdmin.alter_partition_reassignments)
    list_partition_reassignments = _blocking(AsyncAdmin.list_partition_reassignments)
    wait_until_reassigned = _blocking(AsyncAdmin.wait_until_reassigned)
    elect_leaders = _blocking(AsyncAdmin.elect_leaders)

    incremental_alter_configs = _blocking(AsyncAdmin.incremental_alter_configs)
    describe_configs = _blocking(AsyncAdmin.describe_configs)
    describe_features = _blocking(AsyncAdmin.describe_features)
    describe_node_features = _blocking(AsyncAdmin.describe_node_features)
    update_features = _blocking(AsyncAdmin.update_features)

    describe_client_quotas = _blocking(AsyncAdmin.describe_client_quotas)
    alter_client_quotas = _blocking(AsyncAdmin.alter_client_quotas)

    describe_cluster = _blocking(AsyncAdmin.describe_cluster)
    describe_cluster_everywhere = _blocking(AsyncAdmin.describe_cluster_everywhere)
    unregister_broker = _blocking(AsyncAdmin.unregister_broker)
    describe_quorum = _blocking(AsyncAdmin.describe_quorum)
    add_raft_voter = _blocking(AsyncAdmin.add_raft_voter)
    remove_raft_voter = _blocking(AsyncAdmin.remove_raft_voter)

    delete_records = _blocking(AsyncAdmin.delete_records)
    list_offsets = _blocking(AsyncAdmin.list_offsets)
    describe_log_dirs = _blocking(AsyncAdmin.describe_log_dirs)
    alter_replica_log_dirs = _blocking(AsyncAdmin.alter_replica_log_dirs)
