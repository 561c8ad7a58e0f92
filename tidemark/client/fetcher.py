"""The consumer's edge: fetches from every leader, a little ahead of the reader.

Each assigned partition has a state. `_pump` sends one Fetch to every leader that has fetchable
partitions, with all of them in one request. A partition is not fetchable while it is in flight,
paused, backing off, or has enough in the buffer. Memory is therefore bounded by `buffer_bytes` plus
one answer per leader. Answers to requests from before a seek carry an old generation and are
dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from tidemark import wire
from tidemark.client.connections import Connections
from tidemark.client.errors import NoOffsetForPartitionError
from tidemark.client.metadata import MetadataCache
from tidemark.client.offsets import OffsetLookup
from tidemark.client.records import RawBatches
from tidemark.client.retry import RetryPolicy, is_retriable
from tidemark.client.watch import SLOW_CALL_S, unless_moved
from tidemark.errors import (
    ApiError,
    CorruptMessageError,
    ErrorCode,
    NetworkError,
    OffsetOutOfRangeError,
    TidemarkError,
    error_for,
)
from tidemark.records.extent import Extent, extent_of
from tidemark.records.header import read_header
from tidemark.types import OffsetSpec, TopicPartition
from tidemark.v1 import log_pb2

logger = logging.getLogger(__name__)

# Two, not one: a long poll on idle partitions must not delay busy ones of the same node.
_REQUESTS_PER_NODE = 2
_RESETS = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}


class PartitionState:
    """An assigned partition: the reader's position, the fetcher's, and the records between them."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.position: int | None = None  # offset of the next record to return
        self.fetch_offset: int | None = None  # offset of the next fetch
        self.reset_to: int | None = None  # EARLIEST or LATEST, to be looked up first
        self.boundary: int | None = None  # end of the last batch fetched: another begins there
        self.generation = 0
        self.in_flight = False
        self.paused = False
        self.attempts = 0
        self.retry_at_ms = 0.0
        self.error: TidemarkError | None = None
        self.buffered: deque[RawBatches] = deque()
        self.buffered_bytes = 0
        self.decoded: Any = None  # rest of a decoded batch, and
        self.decoded_next = 0  # the position after it

    def seek(self, offset: int | None, reset_to: int | None = None) -> None:
        """Moves to `offset`, or to the result of looking up `reset_to`; drops the fetched
        records.
        """
        self.position = self.fetch_offset = offset
        self.reset_to = reset_to
        self.generation += 1
        self.in_flight = False
        self.attempts, self.retry_at_ms, self.error = 0, 0.0, None
        self.buffered.clear()
        self.buffered_bytes = 0
        self.decoded = self.boundary = None


class Fetcher:
    """Fetches for the partitions in `states`; belongs to one event loop."""

    def __init__(
        self,
        connections: Connections,
        metadata: MetadataCache,
        lookup: OffsetLookup,
        *,
        retry: RetryPolicy,
        rng: Random,
        auto_offset_reset: str,
        isolation_level: int,
        fetch_max_wait_ms: int,
        fetch_min_bytes: int,
        fetch_max_bytes: int,
        max_partition_fetch_bytes: int,
        buffer_bytes: int,
    ) -> None:
        self._connections = connections
        self._metadata = metadata
        self._lookup = lookup
        self._retry = retry
        self._rng = rng
        self._auto_offset_reset = auto_offset_reset
        self._isolation_level = isolation_level
        self._fetch_max_wait_ms = fetch_max_wait_ms
        self._fetch_min_bytes = fetch_min_bytes
        self._fetch_max_bytes = fetch_max_bytes
        self._max_partition_fetch_bytes = max_partition_fetch_bytes
        self._buffer_bytes = buffer_bytes
        self._loop = asyncio.get_running_loop()
        self.states: dict[TopicPartition, PartitionState] = {}
        self._in_flight: dict[int, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._resetting: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.version = 0  # counts fetches and failures
        self._news: list[asyncio.Future[None]] = []
        self._scheduled = False
        self._closed = False

    def now_ms(self) -> float:
        return self._loop.time() * 1000

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are fetched and not yet taken."""
        return sum(state.buffered_bytes for state in self.states.values())

    # For the consumer.

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Fetches these partitions and no others; those that stay keep their positions and
        buffers.
        """
        self.states = {
            partition: self.states.get(partition) or self._fresh(partition)
            for partition in partitions
        }
        self._metadata.want({partition.topic for partition in partitions})
        self.schedule()

    def _fresh(self, partition: TopicPartition) -> PartitionState:
        state = PartitionState(partition)
        self._reset_by_policy(
            state,
            NoOffsetForPartitionError(
                f"{partition} has no position, and auto_offset_reset is none: seek first"
            ),
        )
        return state

    def take(self, state: PartitionState) -> RawBatches | None:
        """Removes the oldest fetched batches of a partition from the buffer and returns them."""
        if not state.buffered or state.paused:
            return None
        raw = state.buffered.popleft()
        state.buffered_bytes -= len(raw.buffer)
        self.schedule()
        return raw

    def raise_errors(self) -> None:
        """Raises a partition's error once the records fetched before it are taken."""
        for state in self.states.values():
            if state.error is not None and not state.buffered and state.decoded is None:
                error = state.error
                if state.fetch_offset is not None or state.reset_to is not None:
                    state.error = None  # the next fetch may succeed
                    self.schedule()
                raise error

    async def news(self, seen: int, timeout_s: float) -> None:
        """Returns when `version` is beyond `seen`, or after `timeout_s`."""
        if self.version != seen:
            return
        future = self._loop.create_future()
        self._news.append(future)
        self.schedule()
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return

    async def close(self) -> None:
        """Cancels the requests under way."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tell()

    # The pump.

    def schedule(self) -> None:
        """Runs the pump soon, because something has changed."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        now_ms = self.now_ms()
        if self._resetting is None and any(map(_wants_reset, self.states.values())):
            self._resetting = self._spawn(self._reset())
        leaderless = False
        wake_ms: float | None = None
        room = self._buffer_bytes - self.buffered_bytes
        by_leader: dict[int, list[PartitionState]] = {}
        for state in self.states.values():
            if not self._is_fetchable(state):
                continue
            if state.retry_at_ms > now_ms:
                wake_ms = min(state.retry_at_ms, wake_ms or state.retry_at_ms)
                continue
            leader = self._metadata.leader(state.topic_partition)
            if leader is None:
                leaderless = True
            elif room > 0 and self._in_flight.get(leader, 0) < _REQUESTS_PER_NODE:
                by_leader.setdefault(leader, []).append(state)
        for leader, states in by_leader.items():
            self._in_flight[leader] = self._in_flight.get(leader, 0) + 1
            for state in states:
                state.in_flight = True
            self._spawn(self._fetch(leader, states))
        if self._refreshing is None and (leaderless or self._metadata.is_stale) and self.states:
            if leaderless:
                self._metadata.mark_stale()
            self._refreshing = self._spawn(self._refresh())
        if wake_ms is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(wake_ms / 1000, self.schedule)

    def _is_fetchable(self, state: PartitionState) -> bool:
        return (
            state.fetch_offset is not None
            and not state.in_flight
            and not state.paused
            and state.error is None
            and state.buffered_bytes < self._max_partition_fetch_bytes
        )

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _tell(self) -> None:
        self.version += 1
        waiting, self._news = self._news, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # Requests.

    async def _fetch(self, leader: int, states: list[PartitionState]) -> None:
        asked = {s.topic_partition: (s, s.generation, s.fetch_offset or 0) for s in states}
        request = log_pb2.FetchRequest(
            max_wait_ms=self._fetch_max_wait_ms,
            min_bytes=self._fetch_min_bytes,
            max_bytes=self._fetch_max_bytes,
            isolation_level=self._isolation_level,
            partitions=[
                log_pb2.FetchRequest.FetchPartition(
                    topic=partition.topic,
                    partition=partition.partition,
                    current_leader_epoch=self._metadata.leader_epoch(partition),
                    fetch_offset=offset,
                    last_fetched_epoch=-1,
                    log_start_offset=-1,
                    partition_max_bytes=self._max_partition_fetch_bytes,
                    high_watermark=-1,
                )
                for partition, (_, _, offset) in asked.items()
            ],
        )
        try:
            address = self._metadata.address(leader)
            if address is None:
                raise NetworkError(f"broker {leader} is not alive")
            answer = await unless_moved(
                self._connections.call(
                    address,
                    wire.FETCH,
                    request,
                    wire.decode_fetch_response,
                    timeout_ms=self._connections.request_timeout_ms + self._fetch_max_wait_ms,
                ),
                lambda: all(self._moved(partition, leader) for partition in asked),
                self._ask_metadata,
            )
            if answer.error_code != ErrorCode.NONE:
                raise error_for(answer.error_code, f"{address}: {answer.error_message}")
        except ApiError as error:
            for state, generation, _ in asked.values():
                if state.generation == generation:
                    state.in_flight = False
                    self._back_off(state, error)
        except TidemarkError as error:
            logger.debug("fetch from %s: %s", leader, error)
        else:
            for data in answer.responses:
                found = asked.pop(TopicPartition(data.topic, data.partition_index), None)
                if found is not None and found[0].generation == found[1]:
                    found[0].in_flight = False
                    self._take_answer(found[0], found[2], data)
            for state, generation, _ in asked.values():
                if state.generation == generation:
                    state.in_flight = False  # the answer was full before this partition
        finally:
            self._in_flight[leader] -= 1
            self._rotate(states)
            self.schedule()

    def _moved(self, partition: TopicPartition, leader: int) -> bool:
        now = self._metadata.leader(partition)
        return now is not None and now != leader

    def _ask_metadata(self) -> None:
        # A long poll is slow by design.
        if self._fetch_max_wait_ms < SLOW_CALL_S * 1000:
            self._metadata.mark_stale()
            self.schedule()

    def _rotate(self, states: list[PartitionState]) -> None:
        """Moves the partitions of a request to the back.

        A node fills an answer in the order of the request (KIP-74).
        """
        for state in states:
            if self.states.get(state.topic_partition) is state:
                self.states[state.topic_partition] = self.states.pop(state.topic_partition)

    def _take_answer(
        self, state: PartitionState, offset: int, data: wire.FetchPartitionData
    ) -> None:
        if data.error_code != ErrorCode.NONE:
            message = data.error_message or ErrorCode(data.error_code).name
            error = error_for(data.error_code, f"{state.topic_partition}: {message}")
            if data.current_leader is not None:
                self._metadata.hint_leader(state.topic_partition, *data.current_leader)
            if isinstance(error, OffsetOutOfRangeError):
                self._reset_by_policy(
                    state, OffsetOutOfRangeError(f"{state.topic_partition} at {offset}: {error}")
                )
            elif isinstance(error, CorruptMessageError):
                self._fail(state, error)
            else:
                self._back_off(state, error)
            return
        state.attempts = 0
        buffer = memoryview(data.payload)
        if not buffer:
            return
        try:
            least_offset = offset if offset == state.boundary else 0
            extent = _extent_of_answer(buffer, offset, least_offset, data.high_watermark)
        except CorruptMessageError as error:
            state.boundary = None
            self._fail(state, CorruptMessageError(f"{state.topic_partition} at {offset}: {error}"))
            return
        raw = RawBatches(
            state.topic_partition,
            buffer[: extent.size_bytes],
            offset,
            extent.next_offset,
            data.high_watermark,
            data.log_start_offset,
            data.aborted_transactions if self._isolation_level else (),
        )
        state.buffered.append(raw)
        state.buffered_bytes += extent.size_bytes
        state.fetch_offset = state.boundary = extent.next_offset
        self._tell()

    def _fail(self, state: PartitionState, error: TidemarkError) -> None:
        """Passes an error to the reader; no fetch is sent until it was raised."""
        state.error = error
        self._tell()

    def _back_off(self, state: PartitionState, error: ApiError) -> None:
        """Delays the next fetch after a retriable error; passes any other error to the reader."""
        if not is_retriable(error):
            self._fail(state, error)
            return
        logger.debug("%s: %s", state.topic_partition, error)
        state.attempts += 1
        state.retry_at_ms = self.now_ms() + self._retry.backoff(state.attempts, self._rng)
        self._metadata.mark_stale()

    # Positions and metadata.

    def _reset_by_policy(self, state: PartitionState, error: TidemarkError) -> None:
        reset_to = _RESETS.get(self._auto_offset_reset)
        if reset_to is None:
            self._fail(state, error)
        else:
            state.seek(None, reset_to)

    async def _reset(self) -> None:
        """Looks up the start or end of all partitions that wait for it."""
        waiting = {
            s.topic_partition: (s, s.generation, s.reset_to)
            for s in self.states.values()
            if _wants_reset(s)
        }
        try:
            found = await self._lookup.list_offsets(
                {partition: reset_to or 0 for partition, (_, _, reset_to) in waiting.items()}
            )
        except TidemarkError as error:
            for state, generation, _ in waiting.values():
                if state.generation == generation:
                    state.error = error
        else:
            for partition, (state, generation, _) in waiting.items():
                answer = found[partition]
                if state.generation == generation:
                    state.seek(0 if answer is None else answer.offset)
        finally:
            self._resetting = None
            self._tell()
            self.schedule()

    async def _refresh(self) -> None:
        try:
            await self._metadata.refresh()
        except TidemarkError as error:
            logger.debug("metadata: %s", error)
        await asyncio.sleep(self._retry.backoff(1, self._rng) / 1000)
        self._refreshing = None
        self.schedule()


def _extent_of_answer(
    buffer: memoryview, offset: int, least_offset: int, high_watermark: int
) -> Extent:
    """Returns the extent of the batches that answer a fetch from `offset`.

    No CRC covers their offsets, so they are compared. The first batch begins at `least_offset` or
    above and holds `offset` or a later one. The last one ends below the high watermark. Raises
    CorruptMessageError.
    """
    extent = extent_of(buffer, least_offset=least_offset)
    if not extent.size_bytes:
        raise CorruptMessageError(f"{len(buffer)} bytes came that are no whole batch")
    first = read_header(buffer)
    if first.last_offset < offset:
        raise CorruptMessageError(
            f"the answer begins with a batch that ends at {first.last_offset}"
        )
    if extent.next_offset > high_watermark >= 0:
        raise CorruptMessageError(
            f"the answer reaches to offset {extent.next_offset - 1}; the high watermark is"
            f" {high_watermark}"
        )
    return extent


def _wants_reset(state: PartitionState) -> bool:
    return state.reset_to is not None and state.error is None
