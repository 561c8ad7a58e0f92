"""The producer's edge: drives the accumulator with the clock, encoding threads, and requests.

`_pump` runs after every event. It closes batches that are due and has closed ones encoded. It sends
one request to each leader that has room, and sets a timer for the accumulator's next deadline.
Everything but encoding runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from tidemark import wire
from tidemark.client.accumulator import Accumulator, must_cut
from tidemark.client.batch import Batch, Stamp
from tidemark.client.connections import Connections
from tidemark.client.metadata import MetadataCache
from tidemark.client.records import kernels_loaded
from tidemark.client.retry import RetryPolicy, is_retriable
from tidemark.client.watch import unless_moved
from tidemark.errors import (
    ApiError,
    ClusterAuthorizationFailedError,
    ErrorCode,
    InvalidRequestError,
    NetworkError,
    TidemarkError,
    UnknownServerError,
    UnsupportedVersionError,
    error_for,
    raise_for,
)
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2

logger = logging.getLogger(__name__)

INIT_PRODUCER_ID = "/tidemark.v1.Log/InitProducerId"

# Errors that every node would answer. All others are a matter of that node, such as a broker that
# has not registered with the controller yet.
_NO_PRODUCER_ID = (ClusterAuthorizationFailedError, InvalidRequestError, UnsupportedVersionError)

# Below this size a batch is encoded on the loop: a hop to a thread costs more.
_INLINE_BYTES = 16 << 10
_ENCODE_THREADS = 2


class Sender:
    """Sends the batches of `accumulator`; calls `on_progress` when room in the buffer may be
    free.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        connections: Connections,
        metadata: MetadataCache,
        *,
        acks: int,
        compression_type: str,
        max_request_size: int,
        max_in_flight: int,
        retry: RetryPolicy,
        rng: Random,
        on_progress: Callable[[], None],
    ) -> None:
        self._accumulator = accumulator
        self._connections = connections
        self._metadata = metadata
        self._acks = acks
        self._compression_type = compression_type
        self._max_request_size = max_request_size
        self._max_in_flight = max_in_flight
        self._retry = retry
        self._rng = rng
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(_ENCODE_THREADS, "tidemark-encode")
        self._in_flight: dict[int, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._identifying: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0.0
        self._scheduled = False
        self._flushing = 0
        self._closed = False

    def now_ms(self) -> float:
        return self._loop.time() * 1000

    # Events.

    def schedule(self) -> None:
        """Runs the pump soon, once for all changes until then."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def linger(self, deadline_ms: float) -> None:
        """Runs the pump at the deadline of a new batch at the latest."""
        if self._timer is None or deadline_ms < self._timer_at_ms:
            self._set_timer(deadline_ms)

    async def flush(self) -> None:
        """Sends all present batches, without linger; returns when each of them is done."""
        from tidemark.client.delivery import until_notified

        self._accumulator.close_due(self.now_ms(), everything=True)
        batches = self._accumulator.pending()
        self._flushing += 1
        self.schedule()
        try:
            for batch in batches:
                while open_leaves := [leaf for leaf in batch.leaves() if not leaf.done]:
                    await until_notified(open_leaves[0])
        finally:
            self._flushing -= 1

    async def close(self) -> None:
        """Stops at once; records without an acknowledgement stay so. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # The pump.

    def _pump(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        now_ms, accumulator = self.now_ms(), self._accumulator
        for batch in accumulator.expire(now_ms):
            logger.warning("gave up: %s", batch.error)
        accumulator.close_due(now_ms, everything=self._flushing > 0)
        if accumulator.needs_identity and self._identifying is None:
            self._identifying = self._spawn(self._identify())
        self._encode(accumulator.take_encodable())
        requests = accumulator.drain(
            now_ms, self._metadata.leader, self._has_room, self._max_request_size
        )
        for leader, batches in requests.items():
            self._in_flight[leader] = self._in_flight.get(leader, 0) + 1
            self._spawn(self._produce(leader, batches))
        self._look_after_metadata()
        self._on_progress()
        deadline_ms = accumulator.next_deadline_ms(now_ms)
        if deadline_ms is not None:
            self._set_timer(deadline_ms)

    def _set_timer(self, deadline_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        self._timer = self._loop.call_at(deadline_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.schedule()

    def _has_room(self, leader: int) -> bool:
        return self._in_flight.get(leader, 0) < self._max_in_flight

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Fails all batches if a task ended by an unforeseen error.

        Examples are a library that cannot be loaded, or no memory. Otherwise the callers would
        wait for delivery.timeout.ms and get a timeout.
        """
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        logger.error("the producer failed: %r", error, exc_info=error)
        for batch in self._accumulator.pending():
            self._accumulator.give_up(batch, error)
        self.schedule()

    # Encoding.

    def _encode(self, batches: list[Batch]) -> None:
        if not batches:
            return
        from tidemark.client.encoding import EncodeJob, encode

        for batch in batches:
            job = EncodeJob.of(batch)
            if batch.size_bytes <= _INLINE_BYTES and kernels_loaded():
                try:
                    payload = encode(job, self._compression_type)
                except Exception as error:  # any error ends the batch
                    self._accumulator.give_up(batch, error)
                    continue
                self._accumulator.encoded(batch, payload, job.stamp)
                continue
            future = self._loop.run_in_executor(self._pool, encode, job, self._compression_type)
            self._spawn(self._await_encoded(batch, job.stamp, future))

    async def _await_encoded(
        self, batch: Batch, stamp: Stamp, encoding: asyncio.Future[bytes]
    ) -> None:
        try:
            self._accumulator.encoded(batch, await encoding, stamp)
        except Exception as error:  # any error ends the batch
            self._accumulator.give_up(batch, error)
        self.schedule()

    def _stamped(self, batch: Batch) -> bytes:
        """The payload, with the batch's current stamp."""
        assert batch.payload is not None and batch.stamp is not None
        if batch.payload_stamp != batch.stamp:
            from tidemark.client.encoding import restamp

            batch.payload = restamp(batch.payload, batch.stamp)
            batch.payload_stamp = batch.stamp
        return batch.payload

    # Requests.

    async def _produce(self, leader: int, batches: list[Batch]) -> None:
        timeout_ms = min(
            self._connections.request_timeout_ms,
            self._accumulator.expiry_ms(batches) - self.now_ms(),
        )
        payload = wire.encode_produce_request(
            wire.ProduceRequest(
                acks=self._acks,
                timeout_ms=max(1, int(timeout_ms)),
                partition_data=[
                    wire.PartitionProduceData(
                        topic=batch.topic_partition.topic,
                        index=batch.topic_partition.partition,
                        records=self._stamped(batch),
                    )
                    for batch in batches
                ],
            )
        )
        try:
            address = self._metadata.address(leader)
            if address is None:
                raise NetworkError(f"broker {leader} is not alive")
            answer = await unless_moved(
                self._connections.exchange(
                    address,
                    wire.PRODUCE_STREAM,
                    payload,
                    log_pb2.ProduceResponse.FromString,
                    timeout_ms,
                ),
                lambda: all(self._moved(batch, leader) for batch in batches),
                self._ask_metadata,
            )
        except TidemarkError as error:
            for batch in batches:
                named = type(error)(f"{batch.topic_partition}: {error}")
                self._failed(batch, named)
        else:
            self._take(batches, answer)
        finally:
            self._in_flight[leader] -= 1
            self.schedule()

    def _moved(self, batch: Batch, leader: int) -> bool:
        now = self._metadata.leader(batch.topic_partition)
        return now is not None and now != leader

    def _ask_metadata(self) -> None:
        self._metadata.mark_stale()
        self.schedule()

    def _take(self, batches: list[Batch], answer: log_pb2.ProduceResponse) -> None:
        answers = {(r.topic, r.index): r for r in answer.responses}
        for batch in batches:
            response = answers.get(batch.topic_partition)
            if self._acks == 0:
                self._accumulator.succeeded(batch, -1)
            elif response is None:
                error = UnknownServerError(f"the answer says nothing of {batch.topic_partition}")
                self._failed(batch, error)
            elif not response.error_code:
                self._accumulator.succeeded(
                    batch, response.base_offset, response.log_append_time_ms
                )
            else:
                message = response.error_message or ErrorCode(response.error_code).name
                self._failed(
                    batch,
                    error_for(response.error_code, f"{batch.topic_partition}: {message}"),
                    self._hinted(batch.topic_partition, response),
                )

    def _hinted(self, partition: TopicPartition, response: Any) -> bool:
        """Whether the answer named a leader that is newer than the cached one (KIP-951)."""
        if not response.HasField("current_leader"):
            return False
        before = self._metadata.leader_epoch(partition)
        hint = response.current_leader
        self._metadata.hint_leader(partition, hint.leader_id, hint.leader_epoch)
        return hint.leader_epoch > before and self._metadata.address(hint.leader_id) is not None

    def _failed(self, batch: Batch, error: BaseException, hinted: bool = False) -> None:
        if self._acks == 0:
            self._accumulator.succeeded(batch, -1)
            return
        again = self._accumulator.failed(batch, error, self.now_ms(), at_once=hinted)
        if is_retriable(error) and not hinted:
            self._metadata.mark_stale()
        if again:
            logger.debug("%s: retry after %s", batch.topic_partition, error)
        elif not batch.done and must_cut(batch, error):
            self._spawn(self._cut(batch))
        elif batch.error is not None:
            logger.warning("%s: gave up: %s", batch.topic_partition, error)

    async def _cut(self, batch: Batch) -> None:
        from tidemark.client.encoding import halve

        assert batch.payload is not None
        batch.in_flight = True  # keeps it from being sent meanwhile
        try:
            parts = await self._loop.run_in_executor(
                self._pool, halve, batch.payload, batch.payload_stamp, self._compression_type
            )
        finally:
            batch.in_flight = False
        self._accumulator.cut(batch, parts)
        self.schedule()

    # Identity and metadata.

    async def _identify(self) -> None:
        """Requests a producer id until a node returns one; batches that wait for it may expire
        meanwhile.
        """
        request = log_pb2.InitProducerIdRequest(producer_id=-1, producer_epoch=-1)
        attempt = 0
        try:
            while self._accumulator.needs_identity:
                attempt += 1
                try:
                    answer = await self._connections.call(
                        self._metadata.candidates()[0],
                        INIT_PRODUCER_ID,
                        request,
                        log_pb2.InitProducerIdResponse.FromString,
                    )
                    raise_for(answer.error_code, answer.error_message)
                except ApiError as error:
                    if isinstance(error, _NO_PRODUCER_ID):
                        for batch in self._accumulator.pending():
                            self._accumulator.give_up(batch, error)
                        return
                    await asyncio.sleep(self._retry.backoff(attempt, self._rng) / 1000)
                    continue
                self._accumulator.set_identity(answer.producer_id, answer.producer_epoch)
        finally:
            self._identifying = None
            self.schedule()

    def _look_after_metadata(self) -> None:
        if self._refreshing is not None:
            return
        if self._metadata.is_stale and not self._accumulator.is_empty:
            self._refreshing = self._spawn(self._refresh())
        elif self._accumulator.waiting_without_leader(self._metadata.leader):
            self._metadata.mark_stale()
            self._refreshing = self._spawn(self._refresh())

    async def _refresh(self) -> None:
        try:
            await self._metadata.refresh()
        except TidemarkError as error:
            logger.debug("metadata: %s", error)
        # At most one refresh per backoff, whatever the answer: an election takes time.
        await asyncio.sleep(self._retry.backoff(1, self._rng) / 1000)
        self._refreshing = None
        self.schedule()
