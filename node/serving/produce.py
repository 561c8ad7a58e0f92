"""Produce: append to the leader's log, then wait as `acks` says.

Path of a request:

1. The leader and, for acks=all, the ISR are checked. The first batch of a transaction waits until
   its coordinator has added the partition (KIP-890).
2. `Log.append_as_leader` checks sizes, CRC and sequences, and assigns offsets; it decodes no
   record.
3. Where flush.messages is reached, a thread flushes the log; the records count once it did.
4. Followers' parked fetches wake; their next fetches move the high watermark.
5. The request is answered, each partition with its own outcome.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from commitlog.types import AppendOrigin
from coordinator.runtime.batches import TransactionalProducer
from node.partition.flushes import LogFlushes
from node.partition.hosted import HostedPartition, PendingAck
from node.partition.registry import PartitionRegistry
from node.runtime.clock import Clock
from node.serving.plain_records import to_batch
from tidemark.errors import (
    ApiError,
    ErrorCode,
    FatalError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    KafkaStorageError,
    StorageError,
    code_of,
)
from tidemark.records.header import read_header
from tidemark.types import COORDINATOR_TOPICS, TopicPartition
from tidemark.wire import PartitionProduceData

logger = logging.getLogger(__name__)

ACKS_ALL = -1
_ACKS = (0, 1, ACKS_ALL)


@dataclass(slots=True)
class ProduceResult:
    """The answer for one partition; offsets are -1 if there is none."""

    topic: str
    index: int
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    current_leader: tuple[int, int] | None = None
    topic_id: bytes = b""  # of a request that names no topic


def result_of(item: PartitionProduceData) -> ProduceResult:
    """An answer that names the partition as the request does."""
    result = ProduceResult(item.topic, item.index)
    if not item.topic:
        result.topic_id = item.topic_id
    return result


class Verifier(Protocol):
    """Adds partitions to transactions at their coordinators."""

    def is_open(self, partition: TopicPartition, producer: TransactionalProducer) -> bool: ...

    def add(
        self, transactional_id: str, producer: TransactionalProducer, partition: TopicPartition
    ) -> asyncio.Future[None]: ...


class Produced:
    """An appended request: its results in order, and the partitions that still wait for replicas.

    The results are final once it `is_done`.
    """

    __slots__ = ("_end", "_timer", "results", "verifies", "waiting")

    def __init__(self, results: list[ProduceResult]) -> None:
        self.results = results
        self.waiting: set[int] = set()
        self.verifies = False  # whether batches are kept for a coordinator's answer
        self._end: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_done(self) -> bool:
        return not self.waiting

    def when_done(self, timeout_ms: int, end: Callable[[], None]) -> None:
        """Calls `end` when all replicas have answered, or after `timeout_ms`."""
        self._end = end
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0, timeout_ms) / 1000, self._expire, timeout_ms)

    def verify(
        self, position: int, added: asyncio.Future[None], append: Callable[[], None]
    ) -> None:
        """Has one partition wait for its transaction's coordinator, and then appends, unless nobody
        waits for the answer any more."""
        self.verifies = True
        self.waiting.add(position)

        def ended(_: asyncio.Future[None]) -> None:
            if position not in self.waiting:
                return
            result = self.results[position]
            try:
                added.result()
                append()
            except ApiError as error:
                _fail(result, error)
            except Exception as error:
                logger.exception("append to %s-%d: %r", result.topic, result.index, error)
                result.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
            if result.error_code != ErrorCode.NONE:
                self.waiting.discard(position)
                self._look_for_end()

        added.add_done_callback(ended)

    def abandon(self) -> None:
        """Stops waiting for replicas; the appended records are kept."""
        self.waiting.clear()
        self._end = None
        if self._timer is not None:
            self._timer.cancel()

    def answered(self, position: int, code: ErrorCode) -> None:
        """Ends the wait of one partition: its replicas have the records, or never will."""
        if position not in self.waiting:
            return
        if code != ErrorCode.NONE:
            result = self.results[position]
            result.error_code = code
            result.base_offset = -1
        self.waiting.discard(position)
        self._look_for_end()

    def _look_for_end(self) -> None:
        if not self.waiting and self._end is not None:
            end = self._end
            self.abandon()
            end()

    def _expire(self, timeout_ms: int) -> None:
        for position in self.waiting:
            result = self.results[position]
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.error_message = f"{result.topic}-{result.index}: " + (
                f"the in-sync replicas did not all have the records after {timeout_ms} ms; they may"
                " still get them"
                if result.base_offset >= 0
                else f"the coordinator of the transaction did not answer in {timeout_ms} ms;"
                " nothing was appended"
            )
            result.base_offset = -1
        self.waiting.clear()
        self._look_for_end()


class ProduceHandler:
    """The produce side of a node's partitions."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        clock: Clock,
        flushes: Executor | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        """Flushes of flush.messages are done in `flushes`, if there is one. Without a `verifier`
        transactional batches are refused."""
        self._partitions = partitions
        self._verifier = verifier
        self._clock = clock
        self._flushes = LogFlushes(flushes, clock, partitions.fatal)

    async def stop(self) -> None:
        """Waits for flushes under way; nothing is appended any more."""
        await self._flushes.stop()

    async def produce(
        self, acks: int, timeout_ms: int, data: Sequence[PartitionProduceData]
    ) -> list[ProduceResult]:
        """Returns one result per partition, in order. With acks=all, waits for the replicas at most
        `timeout_ms`."""
        produced = self.begin(acks, data)
        if not produced.is_done:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            produced.when_done(timeout_ms, functools.partial(_resolve, done))
            try:
                await done
            finally:
                produced.abandon()
        return produced.results

    def begin(
        self, acks: int, data: Sequence[PartitionProduceData], transactional_id: str = ""
    ) -> Produced:
        """Appends; the result is not done while it waits for replicas, or for the coordinator of
        the transaction."""
        results = [result_of(item) for item in data]
        produced = Produced(results)
        if acks not in _ACKS:
            for result in results:
                _fail(result, InvalidRequiredAcksError(f"acks={acks}: use 0, 1 or -1 (all)"))
            return produced
        if transactional_id and acks != ACKS_ALL:
            for result in results:
                _fail(result, InvalidRequiredAcksError("a transaction needs acks=-1 (all)"))
            return produced
        for position, item in enumerate(data):
            self._append(position, item, acks, produced, transactional_id)
        return produced

    def _append(
        self,
        position: int,
        item: PartitionProduceData,
        acks: int,
        produced: Produced,
        transactional_id: str = "",
        *,
        verified: bool = False,
    ) -> None:
        """Appends, or has the coordinator asked first, and then comes back `verified`."""
        result = produced.results[position]
        try:
            hosted = self._partitions.get(item.topic, item.index, item.topic_id)
            _check_clients_write(hosted)
            if transactional_id and not verified:
                added = self._adding(hosted, item, transactional_id)
                if added is not None:
                    again = functools.partial(self._append, position, item, acks, produced)
                    produced.verify(position, added, functools.partial(again, verified=True))
                    return
                verified = self._verifier is not None
            self._append_to(hosted, position, item, acks, produced, verified)
        except FatalError as error:
            self._partitions.fatal(error)
            _fail(result, KafkaStorageError(str(error)))
        except ApiError as error:
            _fail(result, error)
            result.current_leader = self._partitions.leader_of(
                item.topic, item.index, item.topic_id
            )
        except (OSError, StorageError) as error:
            logger.error("append to %s-%d failed: %s", item.topic, item.index, error)
            _fail(result, KafkaStorageError(f"{item.topic}-{item.index}: {error}"))

    def _adding(
        self, hosted: HostedPartition, item: PartitionProduceData, transactional_id: str
    ) -> asyncio.Future[None] | None:
        """Asks the coordinator to add the partition; None if it was added before."""
        if item.plain_records:
            raise InvalidRequestError(
                "plain records are in no transaction: send batches that are transactional"
            )
        hosted.core.check_leader()
        header = read_header(item.records)
        if not header.is_transactional or header.end_position != len(item.records):
            raise InvalidRequestError(
                "a request with a transactional id has one batch of a partition, a transactional"
                " one"
            )
        if self._verifier is None:
            return None
        producer = TransactionalProducer(header.producer_id, header.producer_epoch)
        if self._verifier.is_open(hosted.topic_partition, producer):
            return None
        return self._verifier.add(transactional_id, producer, hosted.topic_partition)

    def append(
        self,
        hosted: HostedPartition,
        batch: bytes,
        origin: AppendOrigin,
        *,
        verified: bool = False,
    ) -> int:
        """Appends a batch of this node itself, as acks=all does; returns the offset behind it.

        Raises ApiError, and then nothing was appended.
        """
        try:
            hosted.core.check_leader()
            hosted.core.check_enough_replicas()
            epoch, now_ms = hosted.core.leader_epoch, self._clock.wall_ms()
            info = hosted.log.append_as_leader(
                batch, epoch, now_ms, origin=origin, verified=verified
            )
            self._flushes.begin(hosted)
        except FatalError as error:
            self._partitions.fatal(error)
            raise KafkaStorageError(str(error)) from error
        except (OSError, StorageError) as error:
            logger.error("append to %s failed: %s", hosted.topic_partition, error)
            raise KafkaStorageError(f"{hosted.topic_partition}: {error}") from error
        hosted.appended(self._clock.mono_ms())
        hosted.answer_acks()
        return info.last_offset + 1

    def _append_to(
        self,
        hosted: HostedPartition,
        position: int,
        item: PartitionProduceData,
        acks: int,
        produced: Produced,
        verified: bool,
    ) -> None:
        core, result = hosted.core, produced.results[position]
        core.check_leader()
        if acks == ACKS_ALL:
            core.check_enough_replicas()
        now_ms = self._clock.wall_ms()
        records = item.records
        if item.plain_records:
            records = to_batch(item, now_ms)
        info = hosted.log.append_as_leader(records, core.leader_epoch, now_ms, verified=verified)
        hosted.traffic.bytes_in += len(records)
        hosted.traffic.records_in += info.last_offset - info.first_offset + 1
        result.base_offset = info.first_offset
        result.log_append_time_ms = info.log_append_time_ms
        result.log_start_offset = hosted.log.log_start_offset
        self._flushes.begin(hosted)
        if acks == ACKS_ALL:
            park(hosted, _ack_of(hosted, position, info.last_offset + 1, produced))
        elif acks == 1 and hosted.is_flushing and info.last_offset >= hosted.flushed_end:
            hosted.flush_acks.append(_ack_of(hosted, position, info.last_offset + 1, produced))
        hosted.appended(self._clock.mono_ms())
        if acks == ACKS_ALL:
            hosted.answer_acks()


def _check_clients_write(hosted: HostedPartition) -> None:
    topic = hosted.topic_partition.topic
    if topic in COORDINATOR_TOPICS:
        raise InvalidTopicError(f"{topic} is written by coordinators alone")


def _ack_of(hosted: HostedPartition, position: int, required: int, wait: Produced) -> PendingAck:
    wait.waiting.add(position)
    answer = functools.partial(wait.answered, position)
    return PendingAck(required, hosted.core.leader_epoch, answer)


def park(hosted: HostedPartition, pending: PendingAck) -> None:
    """Has a produce wait for the in-sync replicas; `answer_acks` answers it."""
    required = pending.required_offset
    if hosted.acks and hosted.acks[-1].required_offset > required:
        # A duplicate of an idempotent producer requires offsets below the newest.
        hosted.acks = type(hosted.acks)(
            sorted([*hosted.acks, pending], key=lambda ack: ack.required_offset)
        )
    else:
        hosted.acks.append(pending)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(result: ProduceResult, error: ApiError) -> None:
    result.error_code = code_of(error)
    result.error_message = str(error)
