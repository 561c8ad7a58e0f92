"""The producer's edge: carries the core's effects out with the clock, encoding threads, requests.

`_pump` runs soon after every event and takes a step of the core. Small batches are encoded on the
loop, large ones and tables in threads. Each request is a task. A timer waits for the core's next
deadline. Every end of an effect is passed to the core, an unforeseen error as well. That error
fails what it concerns, is logged, and the pump goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tidemark import wire
from tidemark.client.admission import Limits, ParkedTable
from tidemark.client.batch import Batch, Stamp
from tidemark.client.connections import Connections
from tidemark.client.delivery import until_notified
from tidemark.client.metadata import MetadataCache
from tidemark.client.producer_core import ProduceCall, ProducerCore
from tidemark.client.records import kernels_loaded
from tidemark.errors import ApiError, NetworkError, TidemarkError, raise_for
from tidemark.v1 import log_pb2

logger = logging.getLogger(__name__)

INIT_PRODUCER_ID = "/tidemark.v1.Log/InitProducerId"

# Below this size a batch is encoded on the loop: a hop to a thread costs more.
_INLINE_BYTES = 16 << 10
_ENCODE_THREADS = 2

# A node that hangs must not hold a new producer up: another one is asked after this time.
_IDENTIFY_TIMEOUT_MS = 5_000


class Sender:
    """Drives `core`. Belongs to one event loop."""

    def __init__(
        self,
        core: ProducerCore,
        connections: Connections,
        metadata: MetadataCache,
        limits: Limits,
        compression_type: str,
        transactional_id: str,
    ) -> None:
        self._core = core
        self._connections = connections
        self._metadata = metadata
        self._acks = limits.acks
        self._compression_type = compression_type
        self._batch_size = limits.batch_size
        self._transactional_id = transactional_id
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(_ENCODE_THREADS, "tidemark-encode")
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._calls: dict[ProduceCall, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0.0
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
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
        """Sends all present records, without linger; returns when each has its outcome."""
        core, mark = self._core, self._core.admission.next_number
        self._flushing += 1
        self.schedule()
        try:
            await self.until(lambda: not core.admission.has_older_than(mark))
            for batch in core.accumulator.pending():
                while open_leaves := [leaf for leaf in batch.leaves() if not leaf.done]:
                    await until_notified(open_leaves[0])
        finally:
            self._flushing -= 1

    def drop(self, error: BaseException) -> None:
        """Fails all records without an outcome; goes on with those that come."""
        self._core.abort(error)
        self.schedule()

    def begin_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Numbers batches from 0 with the identity of the next transaction."""
        self._core.accumulator.set_identity(producer_id, producer_epoch)
        self.schedule()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when the condition holds after a step of the pump, or when this is closed."""
        if self._closed or condition():
            return
        future = self._loop.create_future()
        self._waiting.append((condition, future))
        self.schedule()
        await future

    async def close(self, error: BaseException) -> None:
        """Stops at once; records without an outcome fail with `error`. Idempotent."""
        self._closed = True
        self._core.abort(error)
        self._wake()
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(*tasks, return_exceptions=True)

    # The pump.

    def _pump(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        try:
            self._step(self.now_ms())
        except Exception as error:
            # Nothing tells which records it concerns: none of them may wait for ever.
            logger.exception("the producer failed: %r", error)
            self._core.abort(error)
            for call in self._calls.values():
                call.cancel()
        self._wake()

    def _step(self, now_ms: float) -> None:
        core = self._core
        prepared = core.prepare(now_ms, flush=self._flushing > 0)
        self._gave_up(prepared.expired)
        for batch in prepared.encode:
            self._encode(batch)
        for table in prepared.split:
            self._spawn(self._split(table))
        effects = core.dispatch(now_ms)
        for request in effects.requests:
            self._calls[request] = self._spawn(self._produce(request))
        for request in effects.cancelled:
            if (call := self._calls.get(request)) is not None:
                call.cancel()
        for batch in effects.cut:
            self._spawn(self._cut(batch))
        if effects.identify:
            self._spawn(self._identify())
        if effects.refresh is not None:
            self._metadata.want(effects.refresh)
            self._spawn(self._refresh())
        deadline_ms = core.next_deadline_ms(now_ms)
        if deadline_ms is not None:
            self._set_timer(deadline_ms)

    def _wake(self) -> None:
        still_waiting = []
        for condition, future in self._waiting:
            if future.done():
                continue
            if self._closed or condition():
                future.set_result(None)
            else:
                still_waiting.append((condition, future))
        self._waiting = still_waiting

    def _set_timer(self, deadline_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        self._timer = self._loop.call_at(deadline_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.schedule()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the producer failed: %r", error, exc_info=error)
        self.schedule()

    def _gave_up(self, batches: list[Batch]) -> None:
        for batch in batches:
            if isinstance(batch.error, TidemarkError):
                logger.warning("gave up: %s", batch.error)

    # Encoding.

    def _encode(self, batch: Batch) -> None:
        try:
            from tidemark.client.encoding import EncodeJob, encode

            job = EncodeJob.of(batch, transactional=bool(self._transactional_id))
            if batch.size_bytes > _INLINE_BYTES or not kernels_loaded():
                encoding = self._loop.run_in_executor(
                    self._pool, encode, job, self._compression_type
                )
                self._spawn(self._await_encoded(batch, job.stamp, encoding))
                return
            self._core.encoded(batch, encode(job, self._compression_type), job.stamp)
        except Exception as error:
            self._batch_failed(batch, error)

    async def _await_encoded(
        self, batch: Batch, stamp: Stamp, encoding: asyncio.Future[bytes]
    ) -> None:
        try:
            self._core.encoded(batch, await encoding, stamp)
        except Exception as error:
            self._batch_failed(batch, error)

    async def _split(self, table: ParkedTable) -> None:
        assert table.known is not None
        partitioner = table.known.partitioner
        try:
            from tidemark.client.encoding import split

            pieces = await self._loop.run_in_executor(
                None,  # beside the threads that encode what was split before
                split,
                table.table,
                partitioner.partition_count,
                self._batch_size,
                partitioner.for_null_key(self._batch_size),
                table.partition,
            )
            self._core.admission.split_done(table, pieces)
        except Exception as error:
            self._core.admission.split_failed(table, error)

    async def _cut(self, batch: Batch) -> None:
        from tidemark.client.encoding import halve

        payload = batch.payload
        try:
            assert payload is not None
            parts = await self._loop.run_in_executor(
                self._pool, halve, payload, batch.payload_stamp, self._compression_type
            )
            self._core.cut(batch, parts)
        except Exception as error:
            self._batch_failed(batch, error)

    def _batch_failed(self, batch: Batch, error: Exception) -> None:
        logger.error("%s: a batch can not be encoded: %r", batch.topic_partition, error)
        self._core.batch_failed(batch, error)

    # Requests.

    async def _produce(self, request: ProduceCall) -> None:
        core = self._core
        try:
            address = self._metadata.address(request.leader)
            if address is None:
                raise NetworkError(f"broker {request.leader} is not alive")
            answer = await self._connections.exchange(
                address,
                wire.PRODUCE_STREAM,
                self._payload_of(request),
                log_pb2.ProduceResponse.FromString,
                request.timeout_ms,
                alone=wire.PRODUCE,
            )
            self._gave_up(core.answered(request, answer, self.now_ms()))
        except TidemarkError as error:
            self._gave_up(core.request_failed(request, error, self.now_ms()))
        except Exception as error:
            logger.exception("the producer failed: %r", error)
            core.request_failed(request, error, self.now_ms())
        finally:
            self._calls.pop(request, None)

    def _payload_of(self, request: ProduceCall) -> bytes:
        return wire.encode_produce_request(
            wire.ProduceRequest(
                transactional_id=self._transactional_id,
                acks=self._acks,
                timeout_ms=max(1, int(request.timeout_ms)),
                partition_data=[
                    wire.PartitionProduceData(
                        topic=batch.topic_partition.topic,
                        index=batch.topic_partition.partition,
                        records=_stamped(batch),
                        topic_id=self._metadata.topic_id(batch.topic_partition.topic),
                    )
                    for batch in request.open_batches
                ],
            )
        )

    # Identity and metadata.

    async def _identify(self) -> None:
        """Requests a producer id from the next node; the core decides on another try."""
        request = log_pb2.InitProducerIdRequest(producer_id=-1, producer_epoch=-1)
        try:
            answer = await self._connections.call(
                self._metadata.candidates()[0],
                INIT_PRODUCER_ID,
                request,
                log_pb2.InitProducerIdResponse.FromString,
                timeout_ms=min(_IDENTIFY_TIMEOUT_MS, self._connections.request_timeout_ms),
            )
            raise_for(answer.error_code, answer.error_message)
            self._core.identified(answer.producer_id, answer.producer_epoch, self.now_ms())
        except Exception as error:
            if not isinstance(error, TidemarkError):
                logger.exception("the producer failed: %r", error)
            self._core.not_identified(error, self.now_ms())

    async def _refresh(self) -> None:
        problem: ApiError | None = None
        try:
            await self._metadata.refresh()
        except ApiError as error:
            logger.debug("metadata: %s", error)
            problem = error
        except Exception as error:
            logger.exception("the producer failed: %r", error)
            problem = NetworkError(f"the metadata can not be read: {error!r}")
        self._core.refreshed(problem, self.now_ms())


def _stamped(batch: Batch) -> bytes:
    """The payload, with the batch's current stamp."""
    assert batch.payload is not None and batch.stamp is not None
    if batch.payload_stamp != batch.stamp:
        from tidemark.client.encoding import restamp

        batch.payload = restamp(batch.payload, batch.stamp)
        batch.payload_stamp = batch.stamp
    return batch.payload
