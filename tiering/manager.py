"""RemoteLogManager: the tier of one node (KIP-405), and the room's face to the node.

Every hosted partition with a tier has a task: a leader checks the log's history,
copies, then expires; a follower follows the metadata. The task makes a pass each
remote.log.manager.task.interval.ms, and at once after a segment was rolled. After a failure,
whatever a plug-in raises, it waits for a growing, jittered time. A fatal error ends the process.

Decisions are in `tiering.tasks.planner`. Logs are used on the event loop only. Every blocking call
of the storage runs in a bounded pool. Uploads, deletions and reads have separate pools, so that
none delays another or the node's hot path.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from uuid import UUID

from commitlog.disk.files import Directory
from commitlog.disk.os_files import open_directory
from commitlog.log.log import Log
from commitlog.types import AbortedTransaction, TimestampOffset
from tidemark.config import ServerConfig
from tidemark.errors import FatalError, OffsetOutOfRangeError, TidemarkError
from tidemark.surroundings import surroundings
from tidemark.types import TopicIdPartition
from tiering.failing import COPY, DELETE, HISTORY, FailedTasks
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.metrics import (
    NO_LAG,
    CopyLag,
    RemoteGauges,
    RemoteMeter,
    RemoteMetrics,
    TopicGauges,
    by_topic,
    total_lag,
)
from tiering.reading.aux_state import RemoteAuxState, RemoteAuxStates, RemoteHistory
from tiering.reading.plans import ReadPlan, ReadPlanner
from tiering.reading.reader import RemoteReader
from tiering.store.manager import RemoteStorageManager
from tiering.tasks.copier import Copier
from tiering.tasks.deleter import SegmentDeleter
from tiering.tasks.expirer import Expirer
from tiering.tasks.history import LineageKeeper
from tiering.tasks.leases import Leases
from tiering.tasks.partition import TieredPartition
from tiering.tasks.remover import NO_CLUSTER, PartitionRemover, TierCluster
from tiering.tasks.unrecorded import UnrecordedSegments
from tiering.tasks.uploads import Uploads

__all__ = ["CopyLag", "RemoteAuxState", "RemoteHistory", "RemoteLogManager", "RemoteMetrics"]

logger = logging.getLogger(__name__)

_NOT_READY_POLL_MS = 200  # while the metadata is read after a start


class RemoteLogManager:
    """The tier of a node; see the module's docstring. All methods are called on one event loop."""

    def __init__(
        self,
        config: ServerConfig,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        now_ms: Callable[[], int],
        *,
        cluster: TierCluster | None = None,
        cache_directory: Directory | None = None,
        former_cache_directories: Sequence[Directory] = (),
        rng: random.Random | None = None,
        mono_ms: Callable[[], int] | None = None,
        on_fatal: Callable[[FatalError], None] | None = None,
    ) -> None:
        self._config = config
        self._storage = storage
        self._metadata = metadata
        self._random = rng or surroundings().make_rng()
        self._on_fatal = on_fatal
        self._hosted: dict[TopicIdPartition, TieredPartition] = {}
        self._running = False
        self.metrics = metrics = RemoteMetrics(failed_tasks=FailedTasks(now_ms))
        self._meter = RemoteMeter(metrics)
        caches = cache_directory or open_directory(config.log_dirs[0])
        self._reader = RemoteReader(
            config, storage, metadata, caches, metrics, former_cache_directories
        )
        self._aux_states = RemoteAuxStates(config, storage, metadata, metrics)
        self._uploads = uploads = Uploads(
            storage, config.remote_log_manager_copier_thread_pool_size
        )
        self._deleter = SegmentDeleter(
            config,
            storage,
            metadata,
            uploads,
            metrics,
            now_ms,
            self._reader.segments.forget,
            mono_ms=mono_ms,
        )
        self._copier = Copier(config, uploads, metadata, self._deleter, metrics, now_ms)
        unrecorded = UnrecordedSegments(storage, metadata, self._reader.segments.run)
        lease_ms = config.remote_log_lease_max_ms
        self.leases = Leases(storage, self._deleter.run, now_ms, lease_ms)
        self._plans = ReadPlanner(
            *(storage, metadata, self._reader.segments, self._reader.aborted_transactions, config)
        )
        self._expirer = Expirer(
            *(config, metadata, self._copier, self._deleter, unrecorded, self.leases),
            *(now_ms, mono_ms),
        )
        self._remover = PartitionRemover(
            *(config, metadata, self._deleter, self.leases, cluster or NO_CLUSTER),
            *(now_ms, self._random, metrics.failed_tasks),
        )
        self._histories = LineageKeeper(storage, metadata, self._reader.segments.run)
        self._removing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the tasks of the known partitions; does not wait for the object store."""
        await self._metadata.start()
        self._running = True
        self._reader.segments.start()
        self._removing = asyncio.ensure_future(self._remover.run())
        for hosted in self._hosted.values():
            self._begin(hosted)

    async def stop(self) -> None:
        """Ends all tasks. An upload under way continues on its own; the next leader finds its
        remains.
        """
        self._running = False
        if self._removing is not None:
            self._removing.cancel()
            await asyncio.gather(self._removing, return_exceptions=True)
        for hosted in self._hosted.values():
            await _cancel(hosted)
        self._hosted.clear()
        await self._reader.close()
        self._aux_states.close()
        self._uploads.close()
        self._deleter.close()
        await self._metadata.close()
        self._storage.close()

    def on_leadership_change(
        self,
        leaders: Mapping[TopicIdPartition, tuple[Log, int]],
        followers: Mapping[TopicIdPartition, Log],
    ) -> None:
        """Starts the tasks of partitions that are led (in this epoch) or followed here.

        All partitions have a tier (`TopicConfig.has_tier`). A known role and log keeps its tasks;
        only the epoch changes. A new role or log gets new tasks; a copy under way ends first.
        """
        self._metadata.on_partition_leadership_changes(leaders.keys(), followers.keys())
        for partition, (log, epoch) in leaders.items():
            self._assume(partition, log, epoch)
        for partition, log in followers.items():
            self._assume(partition, log, None)

    async def stop_partitions(
        self, partitions: Collection[TopicIdPartition], delete_remote: bool
    ) -> None:
        """Stops the tasks of partitions; afterwards none uses their logs.

        With `delete_remote` (the topic was deleted, and this node led it) marks them for the
        remover of the tier. Raises the last failure after every partition was tried; may be called
        again.
        """
        failed: TidemarkError | None = None
        for partition in partitions:
            hosted = self._hosted.get(partition)
            if hosted is None:
                continue
            await _cancel(hosted)
            if delete_remote:
                try:
                    await self._remover.mark(partition)
                except TidemarkError as error:
                    logger.warning("%s is not marked as deleted yet: %s", partition, error)
                    failed = error
                    continue
            del self._hosted[partition]
            self.metrics.failed_tasks.forget(partition)
            self._metadata.on_stop_partitions([partition])
        if failed is not None:
            raise failed

    def segment_copyable(self, partition: TopicIdPartition) -> None:
        """Wakes a partition's tasks: there is something new to copy, or to delete locally."""
        hosted = self._hosted.get(partition)
        if hosted is not None:
            hosted.nudged.set()

    def tiering_switched(self, partition: TopicIdPartition) -> None:
        """Begins a pass of a partition whose tiering may have been switched off or on (KIP-950).

        Where it is on, the metadata is read to its present end first: what is known here may have
        been deleted while it was off.
        """
        hosted = self._hosted.get(partition)
        if hosted is None:
            return
        if hosted.log.config.remote_storage_enable:
            leads = hosted.is_leader
            self._metadata.on_stop_partitions([partition])
            self._metadata.on_partition_leadership_changes(
                [partition] if leads else [], [] if leads else [partition]
            )
        hosted.nudged.set()

    async def read(
        self, partition: TopicIdPartition, log: Log, offset: int, max_bytes: int
    ) -> memoryview:
        """Reads whole batches of one remote segment, the first of which holds `offset`.

        Returns at least one batch, else at most `max_bytes`. If the caller is cancelled, the load
        continues into the cache. Raises OffsetOutOfRangeError if the tier lacks the offset on this
        log's lineage, or RemoteStorageError. Retriable: RemoteReadBusyError,
        RemoteStorageNotReadyError, RetriableRemoteStorageError, RequestTimedOutError.
        """
        try:
            return await self._reader.read(partition, log, offset, max_bytes)
        except OffsetOutOfRangeError:
            if offset >= log.log_start_offset:  # another leader expired it: the log start must move
                self.segment_copyable(partition)
            raise

    async def plan_read(
        self,
        partition: TopicIdPartition,
        log: Log,
        start: int,
        end: int,
        split_bytes: int,
        read_committed: bool,
    ) -> ReadPlan:
        """Plans a read of [start, end) past the brokers, in pieces of about `split_bytes`.

        Raises as `read`.
        """
        return await self._reader.guarded(
            f"plan of {partition} from {start} on",
            self._plans.plan(partition, log, start, end, split_bytes, read_committed),
            *(partition, log, start),
        )

    async def urls(
        self, partition: TopicIdPartition, log: Log, ids: Sequence[UUID]
    ) -> Mapping[UUID, str]:
        """Returns new URLs of the segments that the tier still has. Raises as `read`."""
        work = self._plans.urls(partition, ids)
        return await self._reader.guarded(
            f"URLs of {partition}", work, partition, log, log.log_start_offset
        )

    def reconfigure(self, config: ServerConfig) -> None:
        """Applies altered quotas."""
        self._copier.reconfigure(config)
        self._reader.segments.quota.reconfigure(config)

    def fetch_throttle_s(self) -> float:
        """Returns the time until reads are within their quota, in s; 0: none is throttled."""
        return self._reader.segments.quota.throttle_s()

    async def aborted_transactions(
        self, partition: TopicIdPartition, log: Log, start_offset: int, end_offset: int
    ) -> list[AbortedTransaction]:
        """Finds the aborted transactions with records in [start, end), which `read` returned; their
        markers may be in the tier or in the local log. Raises as `read`.
        """
        return await self._reader.aborted_transactions(partition, log, start_offset, end_offset)

    async def offset_for_timestamp(
        self, partition: TopicIdPartition, log: Log, timestamp_ms: int
    ) -> TimestampOffset | None:
        """Finds the first record with this timestamp or a later one, among those only in the tier;
        in ms.
        """
        return await self._reader.offset_for_timestamp(partition, log, timestamp_ms)

    async def fetch_aux_state(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int, *, exact: bool = False
    ) -> RemoteAuxState:
        """Fetches the state from which a follower starts near the leader's local log start `offset`
        (KIP-405).

        `leader_epoch` is the epoch of the record before `offset` on the leader. The epoch of
        `offset` itself works too, unless the tier has several older candidates. The follower
        continues at the result's `start_offset`: the end of the remote segment, which may be of
        another lineage above `offset`. With `exact` it is `offset`. Raises
        RemoteResourceNotFoundError if the segment is not known (yet), and the errors of `read`.
        """
        return await self._aux_states.fetch(partition, leader_epoch, offset, exact=exact)

    async def latest_history(self, partition: TopicIdPartition) -> RemoteHistory | None:
        """Fetches the history of the latest lineage in the tier, for a leader without a log; None
        if the tier has nothing. Raises as `fetch_aux_state`.
        """
        return await self._aux_states.latest(partition)

    async def remote_log_size(self, partition: TopicIdPartition) -> int:
        """Returns the bytes of the partition's finished remote segments, unreferenced copies
        included.
        """
        return self._metadata.finished_bytes(partition)

    def copy_lag(self, partition: TopicIdPartition) -> CopyLag:
        """Returns the lag of the copy of a partition that is led here; nothing for others."""
        hosted = self._hosted.get(partition)
        return self._copier.lag(hosted) if hosted is not None and hosted.is_leader else NO_LAG

    def report(self, now_ms: int, gauges: RemoteGauges | None = None) -> dict[str, int | float]:
        """Returns the metrics of the node's tier by Kafka's names (`tiering.metrics`)."""
        return self._meter.read(gauges or self.gauges(), now_ms)

    def gauges(self) -> RemoteGauges:
        """Returns the state of the node's tier, in all and by topic."""
        began_s, metadata = time.perf_counter(), self._metadata
        led = [hosted for hosted in self._hosted.values() if hosted.is_leader]
        tiers = [
            metadata.remote_segments(one.partition) if metadata.is_ready(one.partition) else None
            for one in led
        ]
        sizes = [0 if tier is None else tier.finished_bytes for tier in tiers]
        computed_ms = (time.perf_counter() - began_s) * 1000
        counts = [0 if tier is None else len(tier) for tier in tiers]
        parts = [
            TopicGauges(self._copier.lag(one), one.delete_lag, count, size)
            for one, count, size in zip(led, counts, sizes, strict=True)
        ]
        topics = by_topic((one.partition.topic, p) for one, p in zip(led, parts, strict=True))
        threads = self._config.remote_log_reader_threads
        reads = self.metrics.reader_pending_tasks
        return RemoteGauges(
            total_lag(part.copy_lag for part in parts),
            total_lag(part.delete_lag for part in parts),
            sum(counts),
            sum(sizes),
            computed_ms,
            max(0, reads - threads),
            max(0, threads - reads) / threads,
            self._uploads.idle,
            topics,
        )

    @property
    def partitions(self) -> frozenset[TopicIdPartition]:
        """The partitions with tasks."""
        return frozenset(self._hosted)

    async def run_once(self, partition: TopicIdPartition) -> None:
        """Makes one pass of the partition's task; raises the error that stops it. For tests and
        tools.
        """
        await self._pass(self._hosted[partition])

    def _assume(self, partition: TopicIdPartition, log: Log, leader_epoch: int | None) -> None:
        known = self._hosted.get(partition)
        if known is not None and known.log is log and known.is_leader == (leader_epoch is not None):
            known.leader_epoch = leader_epoch
            return
        hosted = TieredPartition(partition, log, leader_epoch)
        if known is not None:
            self.metrics.failed_tasks.forget(partition)
            known.retire()
            hosted.succeed(known)
        self._hosted[partition] = hosted
        if self._running:
            self._begin(hosted)

    def _begin(self, hosted: TieredPartition) -> None:
        hosted.tasks.append(asyncio.ensure_future(self._repeat(hosted)))

    async def _pass(self, hosted: TieredPartition) -> None:
        """Makes a pass of the partition's role. A copy that fails does not hold back retention.
        Where tiering was switched off, the leader deletes what the tier has."""
        if not hosted.log.config.remote_storage_enable:
            if hosted.is_leader:
                await self._watched(DELETE, hosted, self._expirer.clear(hosted))
            return
        if not hosted.is_leader:
            await self._copier.follow(hosted)
            return
        await self._watched(HISTORY, hosted, self._histories.check(hosted))
        failed: Exception | None = None
        try:
            await self._watched(COPY, hosted, self._copier.copy(hosted))
        except FatalError:
            raise
        except Exception as error:
            failed = error
        if hosted.is_leader:
            await self._watched(DELETE, hosted, self._expirer.expire(hosted))
        if failed is not None:
            raise failed

    async def _watched(self, task: str, hosted: TieredPartition, work: Awaitable[object]) -> None:
        """Does a task of a pass. Failures in a row count until the next success."""
        try:
            await work
        except Exception as error:
            if hosted.is_leader:
                self.metrics.failed_tasks.fail(task, hosted.partition, error)
            raise
        if task != COPY or hosted.refusal is None:  # a refused copy is not tried meanwhile
            self.metrics.failed_tasks.succeed(task, hosted.partition)

    async def _repeat(self, hosted: TieredPartition) -> None:
        """Makes passes until the partition's role changes; a nudge starts one at once."""
        failures = 0
        while self._hosted.get(hosted.partition) is hosted:
            hosted.nudged.clear()
            try:
                await self._pass(hosted)
                failures = 0
            except FatalError as error:
                logger.critical("tier of %s: %s", hosted.partition, error)
                if self._on_fatal is not None:
                    self._on_fatal(error)
                return
            except Exception as error:  # plug-ins raise anything: the task must outlive it
                failures += 1
                self.metrics.task_errors += 1
                known = isinstance(error, (TidemarkError, OSError))
                logger.warning(
                    "tier of %s: %s", hosted.partition, error, exc_info=None if known else error
                )
            wait_ms = self._wait_ms(hosted.partition, failures)
            await _wait(hosted.retired if failures else hosted.nudged, wait_ms)

    def _wait_ms(self, partition: TopicIdPartition, failures: int) -> float:
        config = self._config
        if failures:
            backoff = config.remote_log_manager_task_retry_backoff_ms * 2 ** min(failures - 1, 20)
            wait_ms = float(min(backoff, config.remote_log_manager_task_retry_backoff_max_ms))
            jitter = config.remote_log_manager_task_retry_jitter
            return wait_ms * self._random.uniform(1 - jitter, 1 + jitter)
        interval = config.remote_log_manager_task_interval_ms
        return interval if self._metadata.is_ready(partition) else min(interval, _NOT_READY_POLL_MS)


async def _wait(event: asyncio.Event, timeout_ms: float) -> None:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        return


async def _cancel(hosted: TieredPartition) -> None:
    tasks, hosted.tasks = hosted.tasks, []
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
