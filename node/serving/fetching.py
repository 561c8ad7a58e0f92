"""Fetch: reads for consumers and followers, with long poll, and from the tier where the local log
no longer reaches.

A fetch reads all its partitions; when they give fewer than `min_bytes` it parks until one of them
moves (followers: the log's end,
consumers: the high watermark) or `max_wait_ms` is over. Errors, diverging epochs and changes of
role answer at once. The first partition with data always gives at least one batch, however large
(KIP-74). Below the local log start of a tiered partition a consumer is answered from the tier
(KIP-405); a follower is told OFFSET_MOVED_TO_TIERED_STORAGE.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from node.partition.hosted import HostedPartition, Wakeable
from node.partition.registry import PartitionRegistry
from node.replication.isr import IsrKeeper
from node.runtime.clock import Clock
from node.serving.fetch_session import FetchingReplica, FetchPartition, FetchSession, set_positions
from node.serving.tier_reads import TierReads
from tidemark.errors import (
    ApiError,
    ErrorCode,
    FatalError,
    KafkaStorageError,
    OffsetMovedToTieredStorageError,
    OffsetOutOfRangeError,
    StorageError,
    code_of,
)
from tidemark.types import TopicPartition
from tidemark.wire import FetchPartitionData

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchParams:
    """What holds for all partitions of a fetch."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    replica: FetchingReplica | None = None
    read_committed: bool = False


@dataclass(slots=True)
class _Round:
    """One pass over the partitions of a fetch."""

    budget: int
    data: list[FetchPartitionData] = field(default_factory=list)
    size_bytes: int = 0
    answer_now: bool = False
    remote: list[tuple[int, HostedPartition, FetchPartition]] = field(default_factory=list)
    parked_on: list[HostedPartition] = field(default_factory=list)
    session: FetchSession | None = None
    watched: list[FetchPartition] = field(default_factory=list)  # of a session: look again


class FetchHandler:
    """The fetch side of a node's partitions."""

    def __init__(
        self, partitions: PartitionRegistry, isr: IsrKeeper, remote: TierReads, clock: Clock
    ) -> None:
        self._partitions = partitions
        self._isr = isr
        self._remote = remote
        self._clock = clock

    async def fetch_changes(
        self, params: FetchParams, session: FetchSession
    ) -> list[FetchPartitionData]:
        """A follower's fetch within a session that has just taken its request: what is new."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(0, params.max_wait_ms) / 1000
        session.pulse.last_request_ms = self._clock.mono_ms()
        looked_at: dict[TopicPartition, FetchPartitionData] = {}
        first = True
        while True:
            wanted = session.take()
            found = self._read_all(params, wanted, acknowledge=first, session=session)
            first = False
            looked_at |= {i.key: a for i, a in zip(wanted, found.data, strict=True)}
            now = loop.time()
            if found.answer_now or found.size_bytes >= params.min_bytes or now >= deadline:
                for item in found.watched:
                    session.look_again(item)
                return session.answers(looked_at)
            await session.wait(deadline)
            for item in found.watched:
                session.look_again(item)

    async def fetch(
        self, params: FetchParams, wanted: Sequence[FetchPartition]
    ) -> list[FetchPartitionData]:
        """One answer per partition, in order."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(0, params.max_wait_ms) / 1000
        first = True
        while True:
            found = self._read_all(params, wanted, acknowledge=first)
            first = False
            if found.remote:
                await self._read_remote(found, params)
                return found.data
            remaining = deadline - loop.time()
            if found.answer_now or found.size_bytes >= params.min_bytes or remaining <= 0:
                return found.data
            await _park(found.parked_on, params.replica is not None, loop.time() + remaining)

    def _read_all(
        self,
        params: FetchParams,
        wanted: Sequence[FetchPartition],
        acknowledge: bool,
        session: FetchSession | None = None,
    ) -> _Round:
        found = _Round(params.max_bytes, session=session)
        for item in wanted:
            answer = FetchPartitionData(item.topic, item.partition)
            found.data.append(answer)
            try:
                self._read_one(params, item, answer, found, acknowledge)
            except FatalError as error:
                self._partitions.fatal(error)
                self._failed(answer, item, KafkaStorageError(str(error)), found)
            except ApiError as error:
                self._failed(answer, item, error, found)
            except (OSError, StorageError) as error:
                logger.error("read of %s-%d failed: %s", item.topic, item.partition, error)
                self._failed(answer, item, KafkaStorageError(str(error)), found)
        return found

    def _failed(
        self, answer: FetchPartitionData, item: FetchPartition, error: ApiError, found: _Round
    ) -> None:
        answer.error_code = int(code_of(error))
        answer.error_message = str(error)
        answer.current_leader = self._partitions.leader_of(item.topic, item.partition)
        found.answer_now = True

    def _read_one(
        self,
        params: FetchParams,
        item: FetchPartition,
        answer: FetchPartitionData,
        found: _Round,
        acknowledge: bool,
    ) -> None:
        hosted = self._partitions.get(item.topic, item.partition, item.topic_id)
        core, local = hosted.core, hosted.log
        answer.topic = hosted.topic_partition.topic
        core.check_leader_epoch(item.current_leader_epoch)
        core.check_leader()
        replica = params.replica
        if replica is not None:
            core.check_follower(replica.node_id, replica.broker_epoch)
        if found.session is None:
            found.parked_on.append(hosted)
        else:
            found.session.watch(item, hosted)
        diverging = _diverging_epoch(hosted, item)
        if diverging is not None:
            answer.diverging_epoch = diverging
            found.answer_now = True
            set_positions(answer, hosted)
            return
        if item.fetch_offset < local.local_log_start_offset or (
            item.fetch_offset > local.log_end_offset
        ):
            self._beyond_local(params, item, answer, found, hosted)
            return
        if replica is not None and acknowledge:
            self._isr.on_follower_fetch(
                hosted, replica, item.fetch_offset, item.log_start_offset, self._clock.mono_ms()
            )
        if replica is not None and replica.node_id not in core.isr:
            found.watched.append(item)  # it may come into the ISR without another record
        limit = _read_limit(hosted, params)
        if item.fetch_offset < limit and (found.budget > 0 or not found.size_bytes):
            size = min(item.max_bytes, max(0, found.budget))
            result = local.read(
                item.fetch_offset,
                size,
                max_offset=None if replica is not None else limit,
                min_one=not found.size_bytes,
            )
            answer.records = (result.records,)
            found.size_bytes += len(result.records)
            found.budget -= len(result.records)
        elif item.fetch_offset < limit:
            found.watched.append(item)  # the next answer has room for it
        set_positions(answer, hosted)

    def _beyond_local(
        self,
        params: FetchParams,
        item: FetchPartition,
        answer: FetchPartitionData,
        found: _Round,
        hosted: HostedPartition,
    ) -> None:
        """The offset is not in the local log: in the tier, or nowhere."""
        local = hosted.log
        tiered = hosted.config.remote_storage_enable and self._remote.enabled
        below = item.fetch_offset < local.local_log_start_offset
        if tiered and below and item.fetch_offset >= local.log_start_offset:
            if params.replica is not None:
                raise OffsetMovedToTieredStorageError(
                    f"{hosted.topic_partition}: offset {item.fetch_offset} is in the tier; "
                    f"the local log starts at {local.local_log_start_offset}"
                )
            found.remote.append((len(found.data) - 1, hosted, item))
            set_positions(answer, hosted)
            return
        set_positions(answer, hosted)
        raise OffsetOutOfRangeError(
            f"{hosted.topic_partition}: offset {item.fetch_offset} is not within "
            f"{local.log_start_offset} and {local.log_end_offset}"
        )

    async def _read_remote(self, found: _Round, params: FetchParams) -> None:
        """Adds what the tier has; all partitions at once, in the pool of remote reads."""
        share = max(1, found.budget) // len(found.remote)
        outcomes = await self._remote.read_many(
            [
                (hosted, item.fetch_offset, min(item.max_bytes, share))
                for _, hosted, item in found.remote
            ],
            has_other_data=found.size_bytes > 0,
        )
        for (position, _, item), outcome in zip(found.remote, outcomes, strict=True):
            if isinstance(outcome, ApiError):
                self._failed(found.data[position], item, outcome, found)
            elif outcome is not None:
                found.data[position].records = (outcome,)


def _diverging_epoch(hosted: HostedPartition, item: FetchPartition) -> tuple[int, int] | None:
    """(epoch, end offset) where the fetcher's log left ours, or None if it did not (KIP-595)."""
    if item.last_fetched_epoch is None:
        return None
    known = hosted.log.end_offset_for_epoch(item.last_fetched_epoch)
    if known is None:
        raise OffsetOutOfRangeError(
            f"{hosted.topic_partition}: the fetch's epoch {item.last_fetched_epoch} is unknown"
        )
    epoch, end_offset = known
    if epoch < item.last_fetched_epoch or end_offset < item.fetch_offset:
        return epoch, end_offset
    return None


def _read_limit(hosted: HostedPartition, params: FetchParams) -> int:
    """The offset a reader must stay below."""
    if params.replica is not None:
        return hosted.log.log_end_offset
    if params.read_committed:
        return min(hosted.log.last_stable_offset, hosted.core.high_watermark)
    return hosted.core.high_watermark


async def _park(partitions: list[HostedPartition], replica: bool, until: float) -> None:
    """Waits until one of the partitions moves, or the loop's time is `until`."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    handle = loop.call_at(until, _wake, waiter)
    sets = [hosted.data_waiters if replica else hosted.commit_waiters for hosted in partitions]
    for waiters in sets:
        waiters.add(waiter)
    try:
        await waiter
    finally:
        handle.cancel()
        for waiters in sets:
            waiters.discard(waiter)


def _wake(waiter: Wakeable) -> None:
    if not waiter.done():
        waiter.set_result(None)


def errors_of(answers: Sequence[FetchPartitionData]) -> list[ErrorCode]:
    """The codes of an answer, for logs and tests."""
    return [ErrorCode(answer.error_code) for answer in answers]
