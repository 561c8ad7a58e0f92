"""Runs the state machines of the partitions that this broker leads (Kafka's CoordinatorRuntime).

    (none)  --leading-->  loading  --log replayed-->  active  --resigned-->  (none)

A decision is made on the state with all appended records, committed or not, so decisions follow
each other without waiting. Their answers wait: for the commit of the own records, or if there are
none, of the last ones. When the leadership goes, all waiting answers fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from coordinator.records.types import RecordTypes
from coordinator.runtime.batches import Replayed, TransactionalProducer, decode, encode
from coordinator.runtime.now import Now
from coordinator.runtime.result import CoordinatorResult
from coordinator.runtime.shard import CoordinatorShard
from tidemark.errors import (
    ApiError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    ErrorCode,
    KafkaStorageError,
    NotCoordinatorError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    TidemarkError,
    UnknownTopicOrPartitionError,
    error_for,
)

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=CoordinatorShard)
A = TypeVar("A")

_SLICE_RECORDS = 500  # replayed in one turn of the loop
_LOADS = 2  # partitions that are loaded at a time, so that others have their turns
_RETRY_MS = 1_000  # of a decision by deadline that could not be appended


class PartitionLog(Protocol):
    """A partition of the internal topic that this broker leads."""

    @property
    def leader_epoch(self) -> int: ...

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def append(self, batch: bytes, *, verified: bool = False) -> None:
        """Appends one batch. Raises ApiError, and then has appended nothing."""
        ...

    def when_committed(self, end_offset: int, answer: Callable[[ErrorCode], None]) -> None:
        """Calls `answer` once everything below the offset is committed, or never will be here."""
        ...

    async def read(self, offset: int) -> tuple[bytes, int]:
        """Whole batches from an offset on, and the offset behind them."""
        ...


@dataclass(slots=True)
class _Context(Generic[S]):
    """One partition; `shard` is None while it is loaded."""

    partition: int
    log: PartitionLog
    load: asyncio.Task[None] | None = None
    shard: S | None = None
    failed: str = ""
    timer: asyncio.TimerHandle | None = None
    due_ms: int | None = None  # the deadline that the timer is set for
    waiting: dict[int, dict[asyncio.Future[None], None]] = field(default_factory=dict)
    """Answers that wait for a commit, by the end offset."""

    def committed(self, end_offset: int, code: ErrorCode) -> None:
        """Gives the answers that wait for an end offset."""
        for waits in self.waiting.pop(end_offset, ()):
            _end(waits, code)


class CoordinatorRuntime(Generic[S]):
    """The coordinators of one internal topic on one broker. Used by the event loop alone."""

    def __init__(
        self,
        topic: str,
        types: RecordTypes,
        make_shard: Callable[[], S],
        now: Callable[[], Now],
        timeout_ms: int,
        on_change: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`timeout_ms`: how long an answer waits for the commit. `on_change` is called with the
        partition after its load and after each replay."""
        self.topic = topic
        self._types = types
        self._make_shard = make_shard
        self._now = now
        self._timeout_ms = timeout_ms
        self._on_change = on_change
        self._contexts: dict[int, _Context[S]] = {}
        self._loads = asyncio.Semaphore(_LOADS)
        self._is_stopped = False

    # --- leadership

    def leading(self, partition: int, log: PartitionLog) -> None:
        """This broker leads a partition in a new epoch: loads its records."""
        self.resigned(partition)
        if self._is_stopped:
            return
        context: _Context[S] = _Context(partition, log)
        self._contexts[partition] = context
        context.load = asyncio.get_running_loop().create_task(
            self._load(context), name=f"load {self.topic}-{partition}"
        )

    def resigned(self, partition: int) -> None:
        """This broker does not lead a partition any more: its state is dropped."""
        context = self._contexts.pop(partition, None)
        if context is None:
            return
        if context.load is not None:
            context.load.cancel()
        if context.timer is not None:
            context.timer.cancel()
        for waits in [waits for some in context.waiting.values() for waits in some]:
            if not waits.done():
                waits.set_exception(self._not_coordinator(partition))

    def stop(self) -> None:
        """Drops all partitions, and takes no others."""
        self._is_stopped = True
        for partition in list(self._contexts):
            self.resigned(partition)

    async def _load(self, context: _Context[S]) -> None:
        async with self._loads:
            shard = await self._loaded(context)
        if shard is not None:
            shard.loaded(context.log.leader_epoch, self._now())
            context.shard = shard
            self._on_change(context.partition)
            self._after(context)

    async def _loaded(self, context: _Context[S]) -> S | None:
        """The state machine after all records of the log; None if they can not be read."""
        shard, log = self._make_shard(), context.log
        offset, count = log.start_offset, 0
        try:
            while offset < log.end_offset:
                batches, next_offset = await log.read(offset)
                for found in decode(self._types, batches):
                    if found.offset < offset:
                        continue
                    if isinstance(found, Replayed):
                        shard.replay(found.key, found.value, found.offset, found.producer_id)
                    else:
                        shard.end_transaction(found.producer_id, found.committed)
                    count += 1
                    if count % _SLICE_RECORDS == 0:
                        await asyncio.sleep(0)
                offset = next_offset
        except TidemarkError as error:
            context.failed = str(error)
            logger.error("%s-%d could not be loaded: %s", self.topic, context.partition, error)
            return None
        logger.info("%s-%d: loaded %d records", self.topic, context.partition, count)
        return shard

    # --- requests

    def shard_of(self, partition: int) -> S:
        """The state machine of a partition. Raises NotCoordinatorError, and
        CoordinatorLoadInProgressError while it is loaded."""
        return self._shard(self._context(partition))

    def shards(self) -> Iterator[tuple[int, S]]:
        """All that are loaded, with their partitions."""
        for partition, context in list(self._contexts.items()):
            if context.shard is not None:
                yield partition, context.shard

    @property
    def is_loading(self) -> bool:
        """Whether a partition is being loaded."""
        return any(c.shard is None and not c.failed for c in self._contexts.values())

    def _context(self, partition: int) -> _Context[S]:
        context = self._contexts.get(partition)
        if context is None:
            raise self._not_coordinator(partition)
        return context

    def _shard(self, context: _Context[S]) -> S:
        if context.failed:
            raise CoordinatorNotAvailableError(context.failed)
        if context.shard is None:
            raise CoordinatorLoadInProgressError(
                f"{self.topic}-{context.partition} is being read; try again"
            )
        return context.shard

    def _not_coordinator(self, partition: int) -> NotCoordinatorError:
        return NotCoordinatorError(
            f"this broker does not lead {self.topic}-{partition}; find the coordinator again"
        )

    async def write(
        self,
        partition: int,
        decide: Callable[[S], CoordinatorResult[A]],
        producer: TransactionalProducer | None = None,
    ) -> A:
        """Decides, appends and replays; returns the answer once it is committed.

        Raises what `decide` raises, NotCoordinatorError, CoordinatorLoadInProgressError, and
        CoordinatorNotAvailableError if the records are not committed in time: they may be later.
        """
        context = self._context(partition)
        try:
            result = decide(self._shard(context))
            self._append(context, result, producer)
        finally:
            self._after(context)
        await self._committed(context)
        return result.answer

    async def read(self, partition: int, look: Callable[[S], A]) -> A:
        """As `write`, without records: what it tells is committed when it is told."""
        return await self.write(partition, lambda shard: CoordinatorResult(look(shard)))

    def end_transaction(
        self, partition: int, append: Callable[[], None], producer_id: int, committed: bool
    ) -> None:
        """Appends a marker by `append`, and applies it. It counts once it is committed. Raises what
        `append` raises, NotCoordinatorError and CoordinatorLoadInProgressError."""
        context = self._context(partition)
        shard = self._shard(context)
        append()
        shard.end_transaction(producer_id, committed)
        self._after(context)

    def _append(
        self,
        context: _Context[S],
        result: CoordinatorResult[A],
        producer: TransactionalProducer | None = None,
    ) -> None:
        if not result.records:
            return
        assert context.shard is not None, "it decided"
        log = context.log
        batch = encode(self._types, result.records, self._now().wall_ms, producer)
        offset = log.end_offset
        try:
            log.append(batch, verified=producer is not None)
        except ApiError as error:
            raise _told(error) from error
        producer_id = -1 if producer is None else producer.producer_id
        for number, (key, value) in enumerate(result.records):
            context.shard.replay(key, value, offset + number, producer_id)
        self._on_change(context.partition)

    async def _committed(self, context: _Context[S]) -> None:
        """Waits until all that was appended so far is committed."""
        loop = asyncio.get_running_loop()
        waits: asyncio.Future[None] = loop.create_future()
        end_offset = context.log.end_offset
        some = context.waiting.get(end_offset)
        if some is not None:  # the log is asked once, however many come while nothing is committed
            some[waits] = None
        else:
            some = context.waiting[end_offset] = {waits: None}
            context.log.when_committed(end_offset, partial(context.committed, end_offset))
            if waits.done():
                return waits.result()
        timer = loop.call_later(self._timeout_ms / 1000, _end, waits, ErrorCode.REQUEST_TIMED_OUT)
        try:
            await waits
        finally:
            timer.cancel()
            some.pop(waits, None)

    # --- deadlines

    def _after(self, context: _Context[S]) -> None:
        """Sets the timer for the next deadline."""
        shard = context.shard
        if shard is None or self._contexts.get(context.partition) is not context:
            return
        due_ms = shard.next_deadline_ms()
        if due_ms == context.due_ms:
            return
        if context.timer is not None:
            context.timer.cancel()
            context.timer = None
        context.due_ms = due_ms
        if due_ms is not None:
            self._set_timer(context, due_ms - self._now().mono_ms)

    def _set_timer(self, context: _Context[S], in_ms: int) -> None:
        loop = asyncio.get_running_loop()
        context.timer = loop.call_later(max(0, in_ms) / 1000, self._due, context)

    def _due(self, context: _Context[S]) -> None:
        context.due_ms = None
        if context.shard is None:
            return
        try:
            for result in context.shard.on_deadline(self._now()):
                self._append(context, result)
        except ApiError as error:
            logger.warning("%s-%d: %s", self.topic, context.partition, error)
            self._set_timer(context, _RETRY_MS)
            return
        self._after(context)


def _end(waits: asyncio.Future[None], code: ErrorCode) -> None:
    if waits.done():
        return
    if code == ErrorCode.NONE:
        waits.set_result(None)
    else:
        waits.set_exception(_told(error_for(code)))


def _told(error: ApiError) -> ApiError:
    """An error of the log as a coordinator's client is told it."""
    match error:
        case NotLeaderOrFollowerError() | KafkaStorageError():
            return NotCoordinatorError(str(error))
        case (
            NotEnoughReplicasError()
            | NotEnoughReplicasAfterAppendError()
            | RequestTimedOutError()
            | UnknownTopicOrPartitionError()
        ):
            return CoordinatorNotAvailableError(str(error))
        case _:
            return error
