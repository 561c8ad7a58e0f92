"""The periodic passes of a broker: retention, checkpoints, flushes, purges, expiry, ISR shrinking.

Each pass has its own period (Kafka's settings). It looks only at logs that changed since the last
one or whose time has come (`commitlog.manager.changes`), so unused partitions cost nothing.

Appends and passes share the logs. A pass therefore works on the event loop in small slices, and
yields after each log. Work that waits for the disk (checkpoint files, fsyncs, removal of deleted
files) runs in a bounded pool of threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from commitlog.cleaner.manager import LogCleaner
from commitlog.log.expiration import delete_expired
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from commitlog.manager.retention_schedule import RetentionSchedule
from node.partition.registry import PartitionRegistry
from node.replication.isr import IsrKeeper
from node.runtime.clock import Clock
from node.runtime.tasks import OnFatal, cancel_all, every, spawn
from node.upkeep.cleaning import CleanerWorkers
from node.upkeep.scrubber import Scrubber, damage_reporter
from tidemark.config import ServerConfig
from tidemark.errors import FatalError, StorageError

logger = logging.getLogger(__name__)

_PRODUCER_EXPIRY_INTERVAL_MS = 600_000  # Kafka's producer.id.expiration.check.interval.ms
_NEVER_MS = 2**63 - 1
_REPORT_STARTS_MS = 5_000


class BackgroundWork:
    """Started when the broker hosts logs, stopped before they are closed."""

    def __init__(
        self,
        config: ServerConfig,
        logs: LogManager,
        partitions: PartitionRegistry,
        isr: IsrKeeper,
        clock: Clock,
        on_fatal: OnFatal,
    ) -> None:
        self._config = config
        self._logs = logs
        self._partitions = partitions
        self.isr = isr
        self._clock = clock
        self._on_fatal = on_fatal
        self._pool = ThreadPoolExecutor(config.background_threads, "background")
        self._tasks: list[asyncio.Task[None]] = []
        self._retention = RetentionSchedule(logs.changes.reader())
        self._with_producers = logs.changes.reader()
        self._with_starts = logs.changes.reader()
        self.cleaner = LogCleaner(logs, config, now_ms=clock.wall_ms)
        self._cleaners = CleanerWorkers(config, self.cleaner, on_fatal)
        self.scrubber = Scrubber(config, logs, damage_reporter(partitions), self._pool)

    def start(self) -> None:
        config = self._config
        self._cleaners.start()
        self._begin("retention", config.log_retention_check_interval_ms, self.retention)
        self._begin("purge", min(config.log_segment_delete_delay_ms + 1, 30_000), self.purge)
        self._begin(
            "high-watermark checkpoint",
            config.replica_high_watermark_checkpoint_interval_ms,
            self.checkpoint_high_watermarks,
        )
        self._begin(
            "recovery-point checkpoint",
            config.log_flush_offset_checkpoint_interval_ms,
            self.checkpoint_recovery_points,
        )
        if config.log_flush_scheduler_interval_ms < _NEVER_MS:
            self._begin("flush", config.log_flush_scheduler_interval_ms, self.flush_due)
        self._begin(
            "log-start checkpoint",
            config.log_flush_start_offset_checkpoint_interval_ms,
            self.checkpoint_log_starts,
        )
        self._begin(
            "producer expiry",
            min(_PRODUCER_EXPIRY_INTERVAL_MS, config.producer_id_expiration_ms),
            self.expire_producers,
        )
        self._begin("tell log starts", _REPORT_STARTS_MS, self.report_log_starts)
        self._begin("isr shrink", max(1, config.replica_lag_time_max_ms // 2), self.shrink)
        self._tasks.append(spawn("alter partition", self.isr.run(), self._on_fatal))
        self._tasks.append(spawn("scrubber", self.scrubber.run(), self._on_fatal))

    def reconfigure(self, config: ServerConfig) -> None:
        """Applies settings that were altered while the broker runs."""
        if config.producer_id_expiration_ms != self._config.producer_id_expiration_ms:
            self._logs.set_producer_expiration(config.producer_id_expiration_ms)
        self._config = config
        self._cleaners.reconfigure(config)
        self.scrubber.reconfigure(config)

    def _begin(self, name: str, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(spawn(name, every(interval_ms, work), self._on_fatal))

    async def stop(self) -> None:
        await self._cleaners.stop()
        await cancel_all(*self._tasks)
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)

    async def retention(self) -> None:
        """Applies retention.ms, retention.bytes, the log start and local retention to changed or
        expiring logs.

        A log that is being cleaned is left for the next pass.
        """
        for changed in self._retention.take(self._clock.wall_ms(), self._logs.by_partition):
            if changed.epochs.is_dirty:
                await self._in_pool(changed.epochs.flush)  # a deletion needs them on disk
            hosted = self._partitions.find(changed.topic_partition)
            if hosted is None or hosted.offline or hosted.deleted:
                continue  # hosting it marks it as changed
            if self.cleaner.is_cleaning(changed.topic_partition):
                self._retention.put_back(changed)
                continue
            self._expire(changed)
            await asyncio.sleep(0)

    def _expire(self, expiring: Log) -> None:
        now_ms = self._clock.wall_ms()
        try:
            delete_expired(expiring, now_ms)
            self._retention.looked_at(expiring, now_ms)
        except StorageError as error:
            logger.error("retention of %s: %s", expiring.topic_partition, error)
            self._retention.put_back(expiring)

    async def expire_producers(self) -> None:
        """Removes producers that were silent for producer.id.expiration.ms."""
        for changed in self._with_producers.take():
            changed.producers.remove_expired(self._clock.wall_ms())
            if changed.producers.producers:
                self._with_producers.put_back((changed,))
            await asyncio.sleep(0)

    async def report_log_starts(self) -> None:
        """Has followers fetch log starts that retention or the tier moved."""
        for changed in self._with_starts.take():
            hosted = self._partitions.find(changed.topic_partition)
            if hosted is not None and hosted.reported_start != changed.log_start_offset:
                hosted.start_moved()

    async def purge(self) -> None:
        """Removes files whose delete delay is over."""
        await self._in_pool(lambda: self._logs.purge_deleted(self._clock.wall_ms()))

    async def checkpoint_high_watermarks(self) -> None:
        await self._in_pool(self._logs.checkpoint_high_watermarks)

    async def checkpoint_recovery_points(self) -> None:
        await self._in_pool(self._logs.checkpoint_recovery_points)

    async def flush_due(self) -> None:
        """Flushes the logs whose flush.ms is over, in addition to the recovery-point
        checkpoints."""
        await self._in_pool(self._logs.flush_due)

    async def checkpoint_log_starts(self) -> None:
        await self._in_pool(self._logs.checkpoint_log_start_offsets)

    async def shrink(self) -> None:
        self.isr.shrink()

    async def _in_pool(self, work: Callable[[], object]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except FatalError:
            raise
        except (StorageError, OSError) as error:
            logger.error("background work failed, it is tried again: %s", error)
