"""LogCleaner, the face of the room: which log is next, what is under way, how far each log is
clean.

`LogCleaner` belongs to the thread that owns the logs. It chooses and swaps, and keeps states and
checkpoints. The long work of a cleaning (`Cleaning.build_map`, `next_group`) is for other threads:
node/upkeep/cleaning.py runs it in a pool. `clean_once` does everything in the calling thread.

A log that cannot be cleaned (damaged batches, more keys than the map holds) is marked uncleanable
with the reason; the others are cleaned. The first dirty offsets are kept in
`cleaner-offset-checkpoint` of each log directory. Source: Kafka's LogCleaner and LogCleanerManager.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from commitlog.cleaner.choice import cleanable, is_settled, qualifies
from commitlog.cleaner.io import CleanerIo, CleaningAbortedError, Throttle
from commitlog.cleaner.states import CleaningState, CleaningStates
from commitlog.disk.checkpoints import OffsetCheckpoint
from commitlog.disk.files import Directory
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from tidemark.config import ServerConfig
from tidemark.errors import FatalError, StorageError, TidemarkError
from tidemark.types import TopicPartition

if TYPE_CHECKING:
    from commitlog.cleaner.cleaning import CleanedGroup, Cleaning
    from commitlog.cleaner.offset_map import OffsetMap

logger = logging.getLogger(__name__)

CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
RETRY_MS = 60_000


class LogCleaner:
    """Chooses, swaps and records the cleanings of all logs of a node."""

    def __init__(
        self,
        logs: LogManager,
        config: ServerConfig,
        *,
        now_ms: Callable[[], int],
        throttle: Throttle | None = None,
    ) -> None:
        self._logs = logs
        self._config = config
        self._now_ms = now_ms
        self._stop = threading.Event()
        rate = config.log_cleaner_io_max_bytes_per_second
        self._throttle = throttle or Throttle(rate, sleep_s=self._stop.wait)
        self.states = CleaningStates()
        self.uncleanable: dict[TopicPartition, str] = {}
        self._checkpoints: dict[TopicPartition, int] = {}
        self._unsaved: set[Directory] = set()  # their checkpoints changed
        self._write_lock = threading.Lock()
        self._retry_at_ms: dict[TopicPartition, int] = {}
        self._changed = logs.changes.reader()
        self._candidates: set[Log] = set()  # compacted, and not settled (`choice.is_settled`)
        logs.changes.note(logs.logs())
        for directory in logs.directories:
            try:
                self._checkpoints |= OffsetCheckpoint(directory, CLEANER_CHECKPOINT).read()
            except StorageError as error:
                logger.warning("%s: every log counts as dirty", error)
        logs.listen(self)

    def start(self) -> None:
        """Lowers checkpoints beyond the end of a log to it; called when the logs are open."""
        for log in self._logs.logs():
            known = self._checkpoints.get(log.topic_partition, 0)
            if known > log.log_end_offset:
                self._checkpoints[log.topic_partition] = log.log_end_offset

    def reconfigure(self, config: ServerConfig) -> None:
        """Applies altered log.cleaner.* settings: the rate at once, memory from the next cleaning
        on.
        """
        self._config = config
        self._throttle.set_rate(config.log_cleaner_io_max_bytes_per_second)

    # --- choice

    @property
    def has_work(self) -> bool:
        """Whether there may be something to clean; only then the kernels are worth loading.

        Compacted logs that are clean and do not change are not examined again.
        """
        self._take_changes()
        return bool(self._candidates)

    def _take_changes(self) -> None:
        for log in self._changed.take():
            if log.config.is_compacted and self._logs.get(log.topic_partition) is log:
                self._candidates.add(log)
            else:
                self._candidates.discard(log)

    def checkpoint_of(self, partition: TopicPartition) -> int | None:
        """Returns the offset at which the last cleaning of a log ended; None if it was never
        cleaned.
        """
        return self._checkpoints.get(partition)

    def choose(self) -> Cleaning | None:
        """Begins a cleaning of the dirtiest log that qualifies; the log is IN_PROGRESS until
        `finish`.
        """
        from commitlog.cleaner.cleaning import Cleaning

        now_ms = self._now_ms()
        best = None
        if self._stop.is_set() or not self.has_work:
            return None
        for log in sorted(self._candidates, key=lambda log: log.topic_partition):
            partition = log.topic_partition
            if partition in self.uncleanable:
                continue
            if self.states.get(partition) is not None:
                continue
            if self._retry_at_ms.get(partition, 0) > now_ms:
                continue
            try:
                found = cleanable(log, self._checkpoints.get(partition), now_ms)
            except TidemarkError as error:
                self._give_up(partition, error)
                continue
            if not qualifies(found, log.config):
                if is_settled(found, log):
                    self._candidates.discard(log)
            elif best is None or found.dirty_ratio > best[1].dirty_ratio:
                best = (log, found)
        if best is None:
            return None
        log, found = best
        self.states.begin(log.topic_partition)
        try:
            return Cleaning(log, found, now_ms, self._io(log.topic_partition))
        except TidemarkError as error:
            self.states.finish(log.topic_partition)
            self._give_up(log.topic_partition, error)
            return None

    def _io(self, partition: TopicPartition) -> CleanerIo:
        per_thread = self._config.log_cleaner_io_buffer_size // self._config.log_cleaner_threads
        states = self.states

        def must_stop() -> bool:
            return self._stop.is_set() or states.get(partition) is not CleaningState.IN_PROGRESS

        return CleanerIo(per_thread, self._throttle, must_stop)

    def new_map(self) -> OffsetMap:
        """Returns a map with one cleaner's share of log.cleaner.dedupe.buffer.size."""
        from commitlog.cleaner.offset_map import OffsetMap

        config = self._config
        share = config.log_cleaner_dedupe_buffer_size // config.log_cleaner_threads
        return OffsetMap(share, config.log_cleaner_io_buffer_load_factor)

    # --- a cleaning's end

    def swap(self, cleaning: Cleaning, group: CleanedGroup) -> None:
        """Puts a group in place. Raises CleaningAbortedError if the log changed meanwhile."""
        cleaning.swap(group)

    def finish(self, cleaning: Cleaning, error: BaseException | None = None) -> None:
        """Ends a cleaning and notes its outcome, for `save`. Raises `error` again if it is a
        FatalError.
        """
        partition = cleaning.log.topic_partition
        counts = self.states.finish(partition)
        if isinstance(error, FatalError):
            raise error
        if isinstance(error, CleaningAbortedError) or not counts:
            logger.info("%s: cleaning aborted", partition)
        elif isinstance(error, (StorageError, OSError)):  # a full disk may have room later
            self._retry_at_ms[partition] = self._now_ms() + RETRY_MS
            logger.error("%s: cleaning failed, it is tried again: %s", partition, error)
        elif isinstance(error, TidemarkError):
            self._give_up(partition, error)
        elif error is None:
            self._checkpoints[partition] = cleaning.end_offset
            self._changed_in(self._logs.directory_of(partition))
            stats = cleaning.stats
            logger.info(
                "%s: cleaned up to %d, %d bytes of %d left, %d segments of %d",
                partition,
                cleaning.end_offset,
                stats.bytes_written,
                stats.bytes_read,
                stats.segments_after,
                stats.segments_before,
            )

    def _give_up(self, partition: TopicPartition, error: BaseException) -> None:
        self.uncleanable[partition] = str(error)
        logger.error("%s is not compacted any more until the node restarts: %s", partition, error)

    def clean_once(self) -> Cleaning | None:
        """Chooses a log and cleans it in the calling thread; returns None if none qualifies."""
        cleaning = self.choose()
        if cleaning is None:
            return None
        error: BaseException | None = None
        try:
            cleaning.build_map(self.new_map())
            while (group := cleaning.next_group()) is not None:
                self.swap(cleaning, group)
        except (TidemarkError, OSError) as caught:
            error = caught
        self.finish(cleaning, error)
        self.save()
        return cleaning

    def stop(self) -> None:
        """Aborts the cleanings under way; no other begins."""
        self._stop.set()

    # --- what happens to logs meanwhile

    def log_cut(self, log: Log) -> None:
        """Aborts the cleaning of a log that is about to be cut to its recovery point, and lowers
        its checkpoint to it.
        """
        partition = log.topic_partition
        self.states.abort(partition)
        known = self._checkpoints.get(partition)
        if known is not None and known > log.recovery_point:
            self._checkpoints[partition] = log.recovery_point
            self._changed_in(self._logs.directory_of(partition))

    def log_removed(self, partition: TopicPartition) -> None:
        """Drops the state of a log that is deleted, set aside or lost."""
        self._take_changes()  # else changes of removed logs accumulate without cleaner threads
        self.states.abort(partition)
        self.uncleanable.pop(partition, None)
        self._retry_at_ms.pop(partition, None)
        if self._checkpoints.pop(partition, None) is not None:
            self._changed_in(self._logs.directory_of(partition))

    def log_moved(self, partition: TopicPartition, left: Directory) -> None:
        """Aborts the cleaning of a log that moved, and moves its checkpoint."""
        self.states.abort(partition)
        if partition in self._checkpoints:
            self._changed_in(self._logs.directory_of(partition))
            self._changed_in(left)

    def is_cleaning(self, partition: TopicPartition) -> bool:
        """Returns whether a cleaning is under way: retention waits for its end."""
        return self.states.get(partition) is CleaningState.IN_PROGRESS

    def _changed_in(self, directory: Directory | None) -> None:
        if directory is not None:
            self._unsaved.add(directory)

    def save(self) -> None:
        """Durably writes the checkpoints that changed; any thread."""
        with self._write_lock:
            while self._unsaved:
                directory, known = self._unsaved.pop(), dict(self._checkpoints)
                own = {
                    partition: offset
                    for partition, offset in known.items()
                    if self._logs.directory_of(partition) is directory
                }
                try:
                    OffsetCheckpoint(directory, CLEANER_CHECKPOINT).write(own)
                except StorageError as error:  # it only costs another cleaning after a restart
                    logger.error("%s", error)
