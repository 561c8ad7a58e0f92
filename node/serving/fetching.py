"""Fetch: reads for consumers and followers, with long poll; from the tier below the local log.

A fetch reads its partitions. If they give fewer than `min_bytes`, it waits until one of them moves
or `max_wait_ms` is over. A follower waits for the log's end, a consumer for the high watermark.
Errors, diverging epochs and changes of role are answered at once. The first partition with data
gives at least one batch, however large (KIP-74).

Below the local log start of a tiered partition a consumer is answered from the tier (KIP-405). A
follower gets OFFSET_MOVED_TO_TIERED_STORAGE.

A consumer that names its rack may read from a follower, and the leader names the closest replica
instead of records (KIP-392).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from commitlog.types import (
    CorruptLogError,
    FetchResult,
    NotCachedError,
    TransactionsUncheckedError,
)
from node.partition.hosted import HostedPartition
from node.partition.registry import PartitionRegistry
from node.quotas.replication import ReplicationThrottle
from node.replication.isr import IsrKeeper
from node.runtime.clock import Clock
from node.serving.closest_replica import closest_replica
from node.serving.fetch_session import FetchContext, FetchingReplica, FetchPartition, set_positions
from node.serving.tier_reads import TierRead, TierReads, named
from tidemark.errors import (
    ApiError,
    FatalError,
    KafkaStorageError,
    OffsetMovedToTieredStorageError,
    OffsetOutOfRangeError,
    StorageError,
    set_error,
)
from tidemark.types import TopicPartition
from tidemark.wire import FetchPartitionData
from tidemark.wire.metering import Timing

logger = logging.getLogger(__name__)

TURN_BYTES = 8 << 20
"""Records that one turn of the loop reads, some 10 ms; at most as many of one partition."""

TURN_PARTITIONS = 100
"""Partitions that one turn looks at."""


@dataclass(frozen=True, slots=True)
class FetchParams:
    """Parameters of a fetch that hold for all its partitions."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    replica: FetchingReplica | None = None
    read_committed: bool = False
    rack: str = ""  # of a consumer that may read from followers
    room: Callable[[], int] | None = None  # bytes that the answer may have now
    timing: Timing | None = None  # learns how long the fetch waited for news


@dataclass(slots=True)
class _Found:
    """The outcome of one pass over the partitions of a fetch."""

    max_bytes: int
    size_bytes: int = 0
    answer_now: bool = False
    unchecked: list[tuple[FetchPartitionData, HostedPartition, FetchPartition]] = field(
        default_factory=list
    )
    reads: list[TierRead] = field(default_factory=list)  # of the tier, not finished
    throttled: bool = False  # a read of the tier did not begin
    loads: list[asyncio.Future[None]] = field(default_factory=list)  # of records not in memory

    @property
    def waits_for_tier(self) -> bool:
        return self.throttled or bool(self.reads)


class FetchHandler:
    """The fetch side of a node's partitions. With `selects_closest` it sends consumers that name
    their rack to the closest replica, and tells followers each high watermark at once."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        isr: IsrKeeper,
        remote: TierReads,
        clock: Clock,
        *,
        selects_closest: bool = False,
        throttle: ReplicationThrottle | None = None,
        cold_reads: Executor | None = None,
    ) -> None:
        """Records that the page cache lacks are read in `cold_reads`, if there is one."""
        self._cold_reads = cold_reads
        self._loads: dict[tuple[TopicPartition, int], asyncio.Future[None]] = {}
        self.selects_closest = selects_closest
        self._partitions = partitions
        self._isr = isr
        self._remote = remote
        self._clock = clock
        self._throttle = throttle

    async def fetch(self, params: FetchParams, context: FetchContext) -> list[FetchPartitionData]:
        """Returns the context's answers: one per partition, in order; in a session, the news."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        deadline = begun + max(0, params.max_wait_ms) / 1000
        if params.replica is not None:
            context.asked_at(self._clock.mono_ms())
        acknowledge, waits = True, self._cold_reads is None
        while True:
            found = await self._read_all(params, context, acknowledge, waits)
            acknowledge, waits = False, self._cold_reads is None
            if found.unchecked:
                await self._name_aborted(found)
            if found.waits_for_tier:
                deadline = min(deadline, begun + self._remote.max_wait_ms / 1000)
            least = min(params.min_bytes, max(1, found.max_bytes))
            enough = found.size_bytes >= (max(1, least) if found.waits_for_tier else least)
            answers = found.answer_now or enough or context.ends_now()
            if found.loads and not answers:
                await asyncio.wait(found.loads)
                waits = True  # even if the memory was needed for something else meanwhile
                continue
            if answers or loop.time() >= deadline:
                return context.answers()
            if all(read.outcome is None for read in found.reads):
                waits_since = loop.time()
                await context.wait(deadline, [read.waiters for read in found.reads])
                if params.timing is not None:
                    params.timing.remote_s += loop.time() - waits_since

    async def stop(self) -> None:
        """Waits for the reads of the disk."""
        if self._cold_reads is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._cold_reads.shutdown)

    async def _read_all(
        self, params: FetchParams, context: FetchContext, acknowledge: bool, waits: bool
    ) -> _Found:
        room = params.max_bytes if params.room is None else params.room()
        items = context.take()
        found = _Found(min(params.max_bytes, room), context.held_bytes)
        answers = []
        turn_ends = found.size_bytes + TURN_BYTES
        for number, item in enumerate(items, 1):
            if found.size_bytes >= turn_ends or number % TURN_PARTITIONS == 0:
                turn_ends = found.size_bytes + TURN_BYTES
                await asyncio.sleep(0)
            answer = FetchPartitionData(item.topic, item.partition)
            if not item.topic:  # named by its id alone
                answer.topic_id = item.topic_id
            answers.append(answer)
            try:
                self._read_one(params, context, item, answer, found, acknowledge, waits)
            except FatalError as error:
                self._partitions.fatal(error)
                self._failed(answer, item, KafkaStorageError(str(error)), found)
            except ApiError as error:
                self._failed(answer, item, error, found)
            except (OSError, StorageError) as error:
                logger.error("read of %s-%d failed: %s", item.topic, item.partition, error)
                self._failed(answer, item, KafkaStorageError(str(error)), found)
        context.looked_at(items, answers)
        return found

    def _failed(
        self, answer: FetchPartitionData, item: FetchPartition, error: ApiError, found: _Found
    ) -> None:
        set_error(answer, error)
        answer.current_leader = self._partitions.leader_of(
            item.topic, item.partition, item.topic_id
        )
        found.answer_now = True

    def _read_one(
        self,
        params: FetchParams,
        context: FetchContext,
        item: FetchPartition,
        answer: FetchPartitionData,
        found: _Found,
        acknowledge: bool,
        waits: bool,
    ) -> None:
        hosted = self._partitions.get(item.topic, item.partition, item.topic_id)
        core, local = hosted.core, hosted.log
        if not item.topic:
            answer.topic = hosted.topic_partition.topic
        core.check_leader_epoch(item.current_leader_epoch)
        replica = params.replica
        if params.rack:
            hosted.check_readable()
        else:
            core.check_leader()
        if replica is not None:
            core.check_follower(replica.node_id, replica.broker_epoch)
        context.watch(item, hosted)
        diverging = _diverging_epoch(hosted, item)
        if diverging is not None:
            answer.diverging_epoch = diverging
            found.answer_now = True
            set_positions(answer, hosted)
            return
        if item.fetch_offset < local.local_log_start_offset or (
            item.fetch_offset > local.log_end_offset
        ):
            self._beyond_local(params, context, item, answer, found, hosted)
            return
        if params.rack and self.selects_closest:
            closest = closest_replica(core, params.rack, item.fetch_offset)
            if closest is not None:
                answer.preferred_read_replica = closest
                found.answer_now = True
                set_positions(answer, hosted)
                return
        throttle = None
        if replica is not None:
            throttle = self._heard_of(replica, context, item, hosted, acknowledge)
        if throttle is not None and throttle.wait_s(self._clock.mono_ms() / 1000) > 0:
            set_positions(answer, hosted)
            return
        limit = _read_limit(hosted, params)
        room = found.max_bytes - found.size_bytes
        if item.fetch_offset < limit and (room > 0 or not found.size_bytes):
            result = self._local(params, item, hosted, limit, found, waits)
            if result is None:
                context.look_again(item)
                set_positions(answer, hosted)
                return
            if result.records:
                _fill(answer, hosted, params, item, result, found)
            else:
                context.look_again(item)  # the first batch needs more room than is left
            found.size_bytes += len(result.records)
            if replica is None:
                hosted.traffic.bytes_out += len(result.records)
            else:
                hosted.traffic.replication_bytes_out += len(result.records)
            if throttle is not None:
                throttle.record(len(result.records), self._clock.mono_ms() / 1000)
        elif item.fetch_offset < limit:
            context.look_again(item)  # the next answer has room for it
        set_positions(answer, hosted)

    def _local(
        self,
        params: FetchParams,
        item: FetchPartition,
        hosted: HostedPartition,
        limit: int,
        found: _Found,
        waits: bool,
    ) -> FetchResult | None:
        """Reads below `limit`, as far as there is room. None if the disk has to read first, and the
        fetch does not wait: it does so in a thread."""
        try:
            return hosted.log.read(
                item.fetch_offset,
                min(item.max_bytes, max(0, found.max_bytes - found.size_bytes), TURN_BYTES),
                max_offset=None if params.replica is not None else limit,
                min_one=not found.size_bytes,
                waits=waits,
            )
        except NotCachedError as error:
            found.loads.append(self._loading(hosted, item.fetch_offset, error.load))
            return None
        except CorruptLogError as error:
            if hosted.found_damage(error):  # another replica will answer
                raise KafkaStorageError(hosted.offline) from error
            raise

    def _loading(
        self, hosted: HostedPartition, offset: int, load: Callable[[], None]
    ) -> asyncio.Future[None]:
        """Begins a read in a thread, once for all who wait for it. It ends even if they give up."""
        key = hosted.topic_partition, offset
        known = self._loads.get(key)
        if known is None:
            loop = asyncio.get_running_loop()
            known = self._loads[key] = loop.run_in_executor(self._cold_reads, load)
            known.add_done_callback(lambda _: self._loads.pop(key, None))
        return known

    def _heard_of(
        self,
        replica: FetchingReplica,
        context: FetchContext,
        item: FetchPartition,
        hosted: HostedPartition,
        acknowledge: bool,
    ) -> ReplicationThrottle | None:
        """Takes the acknowledgement of a follower. Returns the throttle that it is held to, which
        one in the ISR never is."""
        if acknowledge:
            self._isr.on_follower_fetch(
                hosted, replica, item.fetch_offset, item.log_start_offset, self._clock.mono_ms()
            )
        if replica.node_id in hosted.core.isr:
            return None
        context.look_again(item)  # it may join the ISR without another record
        throttle, partition = self._throttle, hosted.topic_partition.partition
        if throttle is None or not throttle.holds(hosted.config, partition):
            return None
        return throttle

    def _beyond_local(
        self,
        params: FetchParams,
        context: FetchContext,
        item: FetchPartition,
        answer: FetchPartitionData,
        found: _Found,
        hosted: HostedPartition,
    ) -> None:
        """Handles an offset outside of the local log: it is in the tier, or out of range."""
        local = hosted.log
        tiered = hosted.config.remote_storage_enable
        below = item.fetch_offset < local.local_log_start_offset
        if tiered and below and item.fetch_offset >= local.log_start_offset:
            if params.replica is not None:
                raise OffsetMovedToTieredStorageError(
                    f"{hosted.topic_partition}: offset {item.fetch_offset} is in the tier; "
                    f"the local log starts at {local.local_log_start_offset}"
                )
            set_positions(answer, hosted)
            self._take_remote(params, context, item, answer, found, hosted)
            return
        set_positions(answer, hosted)
        raise OffsetOutOfRangeError(
            f"{hosted.topic_partition}: offset {item.fetch_offset} is not within "
            f"{local.log_start_offset} and {local.log_end_offset}"
        )

    def _take_remote(
        self,
        params: FetchParams,
        context: FetchContext,
        item: FetchPartition,
        answer: FetchPartitionData,
        found: _Found,
        hosted: HostedPartition,
    ) -> None:
        """Takes the outcome of a read of the tier, or begins the read. One above the quota is no
        error: the fetch is answered without it, and repeated (KIP-956).
        """
        size = min(item.max_bytes, found.max_bytes)
        read = self._remote.take(hosted, item.fetch_offset, size, params.read_committed)
        if read is None or read.outcome is None:
            context.look_again(item)
        if read is None:
            found.throttled = True
            return
        if read.outcome is None:
            found.reads.append(read)
            return
        found.answer_now = True
        try:
            outcome = read.within(found.max_bytes - found.size_bytes, not found.size_bytes)
        except ApiError:
            self._remote.done(read)
            raise
        if outcome is None:
            context.look_again(item)  # the next answer has room for it
        else:
            self._remote.done(read)
            answer.records = (outcome.records,)
            answer.next_offset = outcome.next_offset
            answer.aborted_transactions = outcome.aborted
            found.size_bytes += len(outcome.records)
            hosted.traffic.bytes_out += len(outcome.records)

    async def _name_aborted(self, found: _Found) -> None:
        """Names the aborted transactions of records whose transaction index is checked first, in
        pieces between which the loop has its turn. Kafka checks none.
        """
        for answer, hosted, item in found.unchecked:
            try:
                while True:
                    try:
                        _aborted(answer, hosted, item)
                        break
                    except TransactionsUncheckedError:
                        await asyncio.sleep(0)
            except (ApiError, OSError, StorageError) as error:
                logger.error("aborted transactions of %s: %s", hosted.topic_partition, error)
                known = error if isinstance(error, ApiError) else KafkaStorageError(str(error))
                answer.records, answer.next_offset = (), 0
                self._failed(answer, item, known, found)


def _fill(
    answer: FetchPartitionData,
    hosted: HostedPartition,
    params: FetchParams,
    item: FetchPartition,
    result: FetchResult,
    found: _Found,
) -> None:
    """Adds what was read; for read_committed with the aborted transactions that have records in
    it. An error leaves nothing."""
    answer.next_offset = result.next_offset
    if params.read_committed:
        try:
            _aborted(answer, hosted, item)
        except TransactionsUncheckedError:
            found.unchecked.append((answer, hosted, item))
        except BaseException:
            answer.next_offset = 0
            raise
    answer.records = (result.records,)


def _aborted(answer: FetchPartitionData, hosted: HostedPartition, item: FetchPartition) -> None:
    answer.aborted_transactions = named(
        hosted.log.aborted_transactions(item.fetch_offset, answer.next_offset, paced=True)
    )


def _diverging_epoch(hosted: HostedPartition, item: FetchPartition) -> tuple[int, int] | None:
    """(epoch, end offset) where the fetcher's log parts from this one; None if it does not
    (KIP-595)."""
    if item.last_fetched_epoch is None:
        return None
    if not hosted.is_leader and item.fetch_offset > hosted.core.high_watermark:
        return None  # above it a follower may lack records, or have dead ones
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
    """The offset that a reader must stay below."""
    if params.replica is not None:
        return hosted.counted_end
    if params.read_committed:
        return min(hosted.log.last_stable_offset, hosted.core.high_watermark)
    return hosted.core.high_watermark
