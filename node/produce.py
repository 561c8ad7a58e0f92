"""Produce: append to the leader's log, then wait as `acks` says.

Path of a request: check the leader, the ISR (acks=all) and the sizes -> `Log.append_as_leader`
(CRC, sequences, offsets: no record is decoded) -> followers' parked fetches wake -> their next
fetch moves the high watermark -> the request is answered. The outcome of each partition is its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from node.clock import Clock
from node.hosted import HostedPartition, PendingAck
from node.plain_records import to_batch
from node.registry import PartitionRegistry
from tidemark.errors import (
    ApiError,
    ErrorCode,
    FatalError,
    InvalidRequiredAcksError,
    KafkaStorageError,
    StorageError,
    code_of,
)
from tidemark.wire import PartitionProduceData

log = logging.getLogger(__name__)

ACKS_ALL = -1
_ACKS = (0, 1, ACKS_ALL)


@dataclass(slots=True)
class ProduceResult:
    """What the answer says of one partition; offsets are -1 where there is none."""

    topic: str
    index: int
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    current_leader: tuple[int, int] | None = None


class _AckWait:
    """Counts the partitions of one request that still wait for their replicas."""

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(self, position: int) -> None:
        self.waiting.discard(position)
        if not self.waiting and not self.future.done():
            self.future.set_result(None)


class Producer:
    """The produce side of a node's partitions."""

    def __init__(self, partitions: PartitionRegistry, clock: Clock) -> None:
        self._partitions = partitions
        self._clock = clock

    async def produce(
        self, acks: int, timeout_ms: int, data: Sequence[PartitionProduceData]
    ) -> list[ProduceResult]:
        """One result per partition, in order. With acks=all it waits at most `timeout_ms` for the
        replicas."""
        results = [ProduceResult(item.topic, item.index) for item in data]
        if acks not in _ACKS:
            for result in results:
                _fail(result, InvalidRequiredAcksError(f"acks={acks}: use 0, 1 or -1 (all)"))
            return results
        wait = _AckWait() if acks == ACKS_ALL else None
        for position, item in enumerate(data):
            self._append(position, item, acks, results[position], wait)
        if wait is not None and wait.waiting:
            await self._wait(wait, timeout_ms, results)
        return results

    def _append(
        self,
        position: int,
        item: PartitionProduceData,
        acks: int,
        result: ProduceResult,
        wait: _AckWait | None,
    ) -> None:
        try:
            hosted = self._partitions.get(item.topic, item.index, item.topic_id)
            self._append_to(hosted, position, item, result, wait)
        except FatalError as error:
            self._partitions.fatal(error)
            _fail(result, KafkaStorageError(str(error)))
        except ApiError as error:
            _fail(result, error)
            result.current_leader = self._partitions.leader_of(item.topic, item.index)
        except (OSError, StorageError) as error:
            log.error("append to %s-%d failed: %s", item.topic, item.index, error)
            _fail(result, KafkaStorageError(f"{item.topic}-{item.index}: {error}"))

    def _append_to(
        self,
        hosted: HostedPartition,
        position: int,
        item: PartitionProduceData,
        result: ProduceResult,
        wait: _AckWait | None,
    ) -> None:
        core = hosted.core
        core.check_leader()
        if wait is not None:
            core.check_enough_replicas()
        now_ms = self._clock.wall_ms()
        records = item.records
        if item.plain_records:
            records = to_batch(item.plain_records, now_ms)
        info = hosted.log.append_as_leader(records, core.leader_epoch, now_ms)
        result.base_offset = info.first_offset
        result.log_append_time_ms = info.log_append_time_ms
        result.log_start_offset = hosted.log.log_start_offset
        required = info.last_offset + 1
        if wait is not None:
            self._park(hosted, position, required, result, wait)
        hosted.appended(self._clock.mono_ms())
        if wait is not None:
            hosted.answer_acks()

    def _park(
        self,
        hosted: HostedPartition,
        position: int,
        required: int,
        result: ProduceResult,
        wait: _AckWait,
    ) -> None:
        wait.waiting.add(position)

        def answer(code: ErrorCode) -> None:
            if position in wait.waiting:
                result.error_code = code
                if code != ErrorCode.NONE:
                    result.base_offset = -1
                wait.answered(position)

        pending = PendingAck(required, hosted.core.leader_epoch, answer)
        if hosted.acks and hosted.acks[-1].required_offset > required:
            # A duplicate of an idempotent producer asks for offsets that are older than the newest.
            hosted.acks = type(hosted.acks)(
                sorted([*hosted.acks, pending], key=lambda ack: ack.required_offset)
            )
        else:
            hosted.acks.append(pending)

    async def _wait(self, wait: _AckWait, timeout_ms: int, results: list[ProduceResult]) -> None:
        loop = asyncio.get_running_loop()
        handle = loop.call_later(max(0, timeout_ms) / 1000, _expire, wait)
        try:
            await wait.future
        finally:
            handle.cancel()
            left, wait.waiting = wait.waiting, set()
        for position in left:
            result = results[position]
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.error_message = (
                f"{result.topic}-{result.index}: the in-sync replicas did not all have the records "
                f"after {timeout_ms} ms; they may still get them"
            )
            result.base_offset = -1


def _expire(wait: _AckWait) -> None:
    if not wait.future.done():
        wait.future.set_result(None)


def _fail(result: ProduceResult, error: ApiError) -> None:
    result.error_code = code_of(error)
    result.error_message = str(error)
