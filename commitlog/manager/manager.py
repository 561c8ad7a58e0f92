"""All logs of a node's log directories: opening, creating, deleting, checkpoints.

Per directory: a lock file (one process at a time), the marker of a clean stop, and the checkpoints
of recovery points, log starts and high watermarks. A new log goes to the directory with the fewest
logs. A deleted log is renamed `<topic>-<n>.<uuid>-delete` at once and removed later; a log that
nobody claims is set aside as `-stray`. `__cluster_metadata-0` is the quorum's, not opened here.

A directory whose disk fails goes offline (`commitlog.disk.log_directory`) and `on_directory_failed`
is told, once, in whatever thread noticed; then the owner of the logs calls `drop_offline`. Its logs
are given up without touching a file, and are never made anew elsewhere (KIP-112, KIP-858).

`open`, `close`, `purge_deleted` and the checkpoints may run in a thread; the logs themselves belong
to the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from uuid import UUID, uuid4

from commitlog.disk.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    CleanShutdown,
    PartitionMetadata,
)
from commitlog.disk.files import Directory, DirectoryLock
from commitlog.disk.log_directory import LogDirectory, LogDirectoryOfflineError
from commitlog.disk.names import DELETE_SUFFIX, STRAY_SUFFIX, parse_directory_name, unique_name
from commitlog.disk.open_files import OPEN_FILES
from commitlog.disk.threads import work_off
from commitlog.log.events import ChangedLogs
from commitlog.log.log import Log
from commitlog.manager.changes import Changes
from commitlog.manager.flush_passes import FlushPasses
from commitlog.manager.offset_checkpoints import LogCheckpoints
from commitlog.moves.directory_moves import DirectoryMoves
from tidemark.config import ServerConfig, TopicConfig, server_defaults
from tidemark.errors import StorageError
from tidemark.types import METADATA_TOPIC, TopicPartition, uuid_to_text

logger = logging.getLogger(__name__)


class LogManager:
    """The logs of one node."""

    def __init__(
        self,
        directories: Sequence[Directory],
        config: ServerConfig,
        *,
        now_ms: Callable[[], int],
        topic_config: Callable[[str], TopicConfig | None] | None = None,
        locked: bool = False,
        vital: str | None = None,
        known_replica: Callable[[TopicPartition], tuple[UUID, UUID | None] | None] | None = None,
    ) -> None:
        """`topic_config` gives a topic's settings where they are known when the logs are opened;
        `locked`: the caller holds the directories' locks already; `vital`: the path of the
        directory that the process can not do without (its metadata log's); `known_replica`: the
        topic id and the directory id that the metadata has for a partition of this node.
        """
        self._locked = locked
        self._vital = vital
        self.directories = tuple(
            d if isinstance(d, LogDirectory) else LogDirectory(d) for d in directories
        )
        self._config = config
        self._now_ms = now_ms
        self._topic_config = topic_config or (lambda _: None)
        self._known_replica = known_replica or (lambda _: None)
        self._logs: dict[TopicPartition, Log] = {}
        self._homes: dict[TopicPartition, LogDirectory] = {}
        self._lost: dict[TopicPartition, LogDirectory] = {}
        self._failed: dict[TopicPartition, StorageError] = {}
        self._unopened: set[str] = set()  # paths of directories with such logs
        self._locks: list[DirectoryLock] = []
        self._deleted: list[tuple[int, LogDirectory, str]] = []
        self.changes = Changes()
        self.checkpoints = LogCheckpoints(self.changes, self._logs, self._homes)
        self._flushes = FlushPasses(self.changes)
        self._purgeable = self.changes.reader()
        self._producer_expiration_ms = config.producer_id_expiration_ms
        self.on_cut: Callable[[Log], None] | None = None
        self.on_removed: Callable[[TopicPartition], None] | None = None
        self.on_moved: Callable[[TopicPartition, LogDirectory], None] = lambda _, __: None
        self.on_directory_failed: Callable[[LogDirectory], None] = lambda _: None
        for directory in self.directories:
            self._watch(directory)
        self.moves = DirectoryMoves(self)

    # --- directories

    def _watch(self, directory: LogDirectory) -> None:
        state = directory.state
        state.on_failure = lambda: self.on_directory_failed(directory)
        state.fails_when_full = lambda: self._can_do_without(directory)

    def _can_do_without(self, directory: LogDirectory) -> bool:
        """A full disk refuses what it can not take, and retention may make room again: it does not
        fail a directory that the process can not do without.
        """
        return directory.path != self._vital and len(self.online_directories) > 1

    @property
    def online_directories(self) -> list[LogDirectory]:
        """Those that have not failed, in the order of log.dirs."""
        return [directory for directory in self.directories if directory.is_online]

    @property
    def has_failed(self) -> bool:
        """Can the process not go on? No directory is left, or the vital one failed."""
        online = self.online_directories
        return not online or any(
            d.path == self._vital and not d.is_online for d in self.directories
        )

    def directory_by_id(self, directory_id: UUID) -> LogDirectory | None:
        """The directory of this id, online or not; None where this node has none (any more)."""
        for directory in self.directories:
            if directory.directory_id == directory_id:
                return directory
        return None

    def lost_in(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """The failed directory that holds a partition's log; None where none does."""
        return self._lost.get(topic_partition)

    def forget_lost(self, topic_partition: TopicPartition) -> None:
        """The replica is gone from this node: what a failed directory holds of it is a stray."""
        self._lost.pop(topic_partition, None)
        self.moves.forget(topic_partition)

    def drop_offline(self) -> list[TopicPartition]:
        """Gives up the logs of failed directories, without touching a file; tells which."""
        dropped = [tp for tp, home in self._homes.items() if not home.is_online]
        for topic_partition in dropped:
            self._lost[topic_partition] = self._homes.pop(topic_partition)
            if self.on_removed is not None:  # the cleaner lets go of it
                self.on_removed(topic_partition)
            log = self._logs.pop(topic_partition)
            log.close(clean=False)
            self.changes.note((log,))
        self.moves.drop_offline()
        return dropped

    # --- open and close

    def open(self) -> int:
        """Locks the directories and opens all logs in them, recovering where a stop was unclean.

        Returns the broker epoch of the clean stop before; -1 after an unclean one, or where a
        directory is offline. One whose disk fails goes offline, the others are opened. StorageError
        where another process holds a directory.
        """
        OPEN_FILES.limit = self._config.log_max_open_files
        epochs = set()
        try:
            if not self._locked:
                for directory in self.online_directories:
                    with suppress(LogDirectoryOfflineError):
                        self._locks.append(directory.lock())
            self.moves.settle()
            for directory in self.directories:
                try:
                    epochs.add(self._open(directory))
                except LogDirectoryOfflineError as error:
                    logger.error("%s", error)
                    epochs.add(-1)
        except BaseException:
            self._release()
            raise
        self.drop_offline()
        self.moves.resume()
        return epochs.pop() if len(epochs) == 1 else -1

    def _open(self, directory: LogDirectory) -> int:
        marker = CleanShutdown(directory)
        epoch = marker.broker_epoch()
        clean = marker.exists()
        marker.remove()
        self._open_directory(directory, clean)
        return epoch

    def _open_directory(self, directory: LogDirectory, clean: bool) -> None:
        recovery_points = self.checkpoints.read(directory, RECOVERY_POINT_CHECKPOINT)
        starts = self.checkpoints.read(directory, LOG_START_OFFSET_CHECKPOINT)
        watermarks = self.checkpoints.read(directory, HIGH_WATERMARK_CHECKPOINT)
        found: list[tuple[TopicPartition, str]] = []
        for name in directory.list():
            if not directory.is_directory(name):
                continue
            if name.endswith(DELETE_SUFFIX):
                directory.remove_tree(name)
                continue
            topic_partition = parse_directory_name(name)
            if topic_partition is None or topic_partition.topic == METADATA_TOPIC:
                continue
            if self._is_current(topic_partition, directory):
                found.append((topic_partition, name))

        config_of = cache(self._config_of)  # a topic's is the same for all of its partitions

        def open_one(item: tuple[TopicPartition, str]) -> None:
            topic_partition, name = item
            try:
                log = Log.open(
                    directory.subdirectory(name, create=False),
                    topic_partition,
                    config_of(topic_partition.topic),
                    now_ms=self._now_ms(),
                    recovery_point=recovery_points.get(topic_partition),
                    log_start_offset=starts.get(topic_partition, 0),
                    clean=clean,
                    producer_expiration_ms=self._producer_expiration_ms,
                    events=self,
                )
            except LogDirectoryOfflineError:
                self._lost[topic_partition] = directory
                return
            except StorageError as error:
                logger.error("can not open %s: %s", topic_partition, error)
                self._failed[topic_partition] = error
                self._unopened.add(directory.path)
                return
            if recovery_points.get(topic_partition, 0) > log.log_end_offset:
                self.checkpoints.doubt(directory, RECOVERY_POINT_CHECKPOINT, topic_partition)
            log.update_high_watermark(watermarks.get(topic_partition, 0))
            self._add(log, directory)

        threads = 1 if clean else self._config.num_recovery_threads_per_data_dir
        work_off([found], open_one, threads, "log-recovery")
        self.checkpoints.prune(directory, {topic_partition for topic_partition, _ in found})
        if not directory.is_online:
            return
        logger.info(
            "%s: %d logs opened after %s stop",
            directory.path,
            len(found),
            "a clean" if clean else "an unclean",
        )

    def _config_of(self, topic: str) -> TopicConfig:
        return self._topic_config(topic) or server_defaults(self._config)

    def _is_current(self, topic_partition: TopicPartition, directory: LogDirectory) -> bool:
        """Of two logs of a partition the one that the metadata knows stays, the other is set aside:
        its directory was away while the partition, or another of its name, was made elsewhere.
        StorageError where the metadata does not tell.
        """
        home = self._homes.get(topic_partition)
        if home is None or home is directory:
            return True
        name = str(topic_partition)
        metadata = PartitionMetadata.read(directory.subdirectory(name, create=False))
        found = {
            home: (self._logs[topic_partition].topic_id, home.directory_id),
            directory: (None if metadata is None else metadata.topic_id, directory.directory_id),
        }
        known = self._known_replica(topic_partition) or (None, None)
        of_topic = [place for place, (topic_id, _) in found.items() if topic_id == known[0]]
        in_place = [place for place in of_topic if found[place][1] == known[1]]
        current = of_topic if len(of_topic) == 1 else in_place
        if known[0] is None or len(current) != 1:
            raise StorageError(
                f"{topic_partition} is in {home.path} and in {directory.path}; remove the older one"
            )
        if current == [directory]:
            logger.warning("%s in %s is not current: set aside", topic_partition, home.path)
            self.set_aside(topic_partition)
            return True
        logger.warning("%s in %s is not current: set aside", topic_partition, directory.path)
        directory.rename(name, unique_name(topic_partition, uuid4().hex, STRAY_SUFFIX))
        directory.fsync()
        return False

    def _add(self, log: Log, directory: LogDirectory) -> None:
        self._logs[log.topic_partition] = log
        self._homes[log.topic_partition] = directory
        self.changes.note((log,))

    def close(self, clean: bool = True, broker_epoch: int = -1) -> None:
        """Closes all logs and gives the directories back.

        A clean close flushes what is not durable yet, num.recovery.threads.per.data.dir logs of a
        directory at a time; then it writes the checkpoints that changed, and at last the marker
        with `broker_epoch`. A directory that is offline, or goes offline here, gets no marker; nor
        does one with a log that could not be opened, and so was perhaps never recovered.
        """
        of_directory: dict[LogDirectory, list[Log]] = {}
        for log in self.logs():
            of_directory.setdefault(self._homes[log.topic_partition], []).append(log)
        threads = self._config.num_recovery_threads_per_data_dir if clean else 1
        try:
            work_off(
                list(of_directory.values()),
                lambda log: self._close(log, clean),
                threads,
                "log-closing",
            )
            if clean:
                self._write_recovery_points(self.directories)
                self.checkpoint_log_start_offsets()
                self.checkpoint_high_watermarks()
                for directory in self.online_directories:
                    if directory.path in self._unopened:
                        continue
                    try:
                        CleanShutdown(directory).write(broker_epoch)
                    except LogDirectoryOfflineError as error:
                        logger.error("%s", error)
        finally:
            self._release()

    def _close(self, log: Log, clean: bool) -> None:
        try:
            log.close(clean)
        except LogDirectoryOfflineError as error:
            logger.error("%s is not closed cleanly: %s", log.topic_partition, error)
            log.close(clean=False)

    def _release(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    # --- logs

    def logs(self) -> list[Log]:
        """All open logs."""
        return list(self._logs.values())

    @property
    def by_partition(self) -> Mapping[TopicPartition, Log]:
        """All open logs, by name; not to be altered."""
        return self._logs

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The open log of a partition."""
        return self._logs.get(topic_partition)

    def set_producer_expiration(self, expiration_ms: int) -> None:
        """producer.id.expiration.ms was altered."""
        self._producer_expiration_ms = expiration_ms
        for log in self.logs():
            log.producers.expiration_ms = expiration_ms

    def directory_of(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """The log directory that holds a partition."""
        return self._homes.get(topic_partition)

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        config: TopicConfig,
        *,
        assigned: UUID | None = None,
        may_hold_data: bool = False,
    ) -> Log:
        """The log of a partition with these settings; a new, durable one where there is none, in
        the `assigned` directory where that is online.

        A log of another topic of the same name is set aside as stray. StorageError where the log
        could not be opened at start, or none can be made. LogDirectoryOfflineError where the log
        was, is assigned to, or could be in a directory that is offline; `may_hold_data`: the
        metadata counts on this replica's records, so that it must not come back empty (KIP-858).
        """
        if topic_partition in self._failed:
            raise self._failed[topic_partition]
        if topic_partition in self._lost:
            raise self._lost[topic_partition].state.offline()
        log = self._logs.get(topic_partition)
        if log is not None and topic_id is not None and log.topic_id not in (None, topic_id):
            self.set_aside(topic_partition)
            log = None
        if log is not None:
            self.moves.check_current(topic_partition, may_hold_data=may_hold_data)
            log.config = config
            if log.topic_id is None and topic_id is not None:
                PartitionMetadata(topic_id).write(log.directory)
                log.topic_id = topic_id
            return log
        if may_hold_data:
            self.moves.check_source(topic_partition)
        home = self._home_for(topic_partition, assigned, may_hold_data)
        self.checkpoints.forget(home, topic_partition)
        log = Log.open(
            home.subdirectory(str(topic_partition)),
            topic_partition,
            config,
            topic_id=topic_id,
            now_ms=self._now_ms(),
            producer_expiration_ms=self._producer_expiration_ms,
            events=self,
        )
        home.fsync()
        self._add(log, home)
        self.moves.forget(topic_partition)
        return log

    def _home_for(
        self, topic_partition: TopicPartition, assigned: UUID | None, may_hold_data: bool
    ) -> LogDirectory:
        """The directory of a new log: the wished one, but not where it may be no new log."""
        wished = self.moves.preferred.pop(topic_partition, None)
        if wished is not None and not wished.is_online:
            wished = None
        known = None if assigned is None else self.directory_by_id(assigned)
        if known is not None and known.is_online:
            return wished or known
        offline = [
            directory
            for directory in self.directories
            if not directory.is_online
            and (assigned is None or directory.directory_id in (None, assigned))
        ]
        if offline and (assigned is not None or may_hold_data):
            reasons = "; ".join(str(directory.state.offline()) for directory in offline)
            raise LogDirectoryOfflineError(
                f"{topic_partition} is not made anew: its log may be in a directory that is"
                f" offline ({reasons})"
            )
        if assigned is not None and may_hold_data:
            raise LogDirectoryOfflineError(
                f"{topic_partition} is not made anew: it belongs to the log directory"
                f" {uuid_to_text(assigned)}, which this node does not have any more, and this"
                " replica is the last one in sync. Give the directory back, or have another"
                " replica elected (tidemark elect-leaders --election-type unclean)"
            )
        return wished or self._emptiest()

    def _emptiest(self) -> LogDirectory:
        """The online directory with the fewest logs (Kafka's rule; sizes do not count)."""
        counts = {id(directory): 0 for directory in self.online_directories}
        if not counts:
            raise LogDirectoryOfflineError("no log directory is online")
        for home in (*self._homes.values(), *self.moves.destinations()):
            if id(home) in counts:
                counts[id(home)] += 1
        return min(self.online_directories, key=lambda directory: counts.get(id(directory), 0))

    def delete(self, topic_partition: TopicPartition) -> None:
        """Takes a log out at once; its files go after file.delete.delay.ms (`purge_deleted`)."""
        log = self._logs.get(topic_partition)
        self.forget_lost(topic_partition)
        if log is not None:
            home = self._homes[topic_partition]
            due_ms = self._now_ms() + log.config.file_delete_delay_ms
            name = self._take_out(topic_partition, DELETE_SUFFIX)
            self._deleted.append((due_ms, home, name))

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Renames a log that nobody claims to `-stray`; an operator may look at it, then
        remove it.
        """
        if topic_partition in self._logs:
            self._take_out(topic_partition, STRAY_SUFFIX)

    def is_gone(self, topic_partition: TopicPartition) -> bool:
        """Is it certain that no directory of this node has a log of the partition?"""
        known = (self._logs, self._failed, self._lost)
        online = len(self.online_directories) == len(self.directories)
        return online and not any(topic_partition in logs for logs in known)

    def is_known_in(self, topic_partition: TopicPartition, directory: LogDirectory) -> bool:
        """Does the metadata have the partition's log in this directory?"""
        known = self._known_replica(topic_partition)
        return known is not None and known[1] is not None and known[1] == directory.directory_id

    def moved_to(self, topic_partition: TopicPartition, directory: LogDirectory) -> None:
        """The log goes on in another directory; for `commitlog.moves.directory_moves`."""
        left, self._homes[topic_partition] = self._homes[topic_partition], directory
        self.changes.note((self._logs[topic_partition],))
        self.on_moved(topic_partition, left)

    def remove_later(self, directory: LogDirectory, name: str) -> None:
        """What nobody needs any more: its files go with the next `purge_deleted`."""
        self._deleted.append((self._now_ms(), directory, name))

    def _take_out(self, topic_partition: TopicPartition, suffix: str) -> str:
        self.moves.cancel(topic_partition)
        self.moves.forget(topic_partition)
        if self.on_removed is not None:  # the cleaner lets go of it first
            self.on_removed(topic_partition)
        log = self._logs.pop(topic_partition)
        home = self._homes.pop(topic_partition)
        log.close(clean=False)
        self.changes.note((log,))
        name = unique_name(topic_partition, uuid4().hex, suffix)
        # Without the sync the log would come back after a crash, under a topic that is gone; what
        # comes back with a directory that failed is set aside then.
        with suppress(LogDirectoryOfflineError):
            home.rename(str(topic_partition), name)
            home.fsync()
        return name

    def purge_deleted(self, now_ms: int) -> int:
        """Removes the files of deleted logs and segments whose delay is over; says how many."""
        due = [entry for entry in self._deleted if entry[0] <= now_ms]
        purged = 0
        for entry in due:
            self._deleted.remove(entry)
            with suppress(LogDirectoryOfflineError):  # the others go on
                entry[1].remove_tree(entry[2])
                purged += 1
        waiting = self._purgeable.take()
        try:
            for log in tuple(waiting):
                with suppress(LogDirectoryOfflineError):  # the others go on
                    purged += log.purge_deleted(now_ms)
                if not log.deleted_files or not self._is_open(log):
                    waiting.discard(log)
        finally:
            self._purgeable.put_back(waiting)
        return purged

    def _is_open(self, log: Log) -> bool:
        return self._logs.get(log.topic_partition) is log

    # --- checkpoints

    def checkpoint_recovery_points(self) -> None:
        """Flushes what was rolled, and logs whose flush.ms is over; then writes the checkpoint."""
        self.flush_due()
        self._flushes.flush_rolled(self._is_open)
        self._write_recovery_points(self.directories)

    def flush_due(self) -> None:
        """Flushes the logs whose flush.ms is over."""
        self._flushes.flush_due(self._now_ms(), self._is_open)

    def checkpoint_log_start_offsets(self) -> None:
        """Writes the log starts that the files do not tell: those within or below a segment."""
        self.checkpoints.write(LOG_START_OFFSET_CHECKPOINT, self.directories)

    def checkpoint_high_watermarks(self) -> None:
        """Writes the high watermarks, each in its log's directory."""
        self.checkpoints.write(HIGH_WATERMARK_CHECKPOINT, self.directories)

    @property
    def unread(self) -> ChangedLogs[Log]:
        """Where the logs add themselves after each change."""
        return self.changes.unread

    def truncating(self, log: Log) -> None:
        """Before a log is cut below its recovery point, the checkpoint must say so."""
        home = self._homes.get(log.topic_partition)
        if home is not None:
            self.changes.note((log,))
            self._write_recovery_points((home,))
        if self.on_cut is not None:
            self.on_cut(log)

    def rolling(self, log: Log, is_gap: bool) -> None:
        """Before a log has a second segment, the checkpoint must name it
        (`commitlog.log.loader`)."""
        home = self._homes.get(log.topic_partition)
        if home is not None and (
            is_gap
            or not self.checkpoints.names(home, RECOVERY_POINT_CHECKPOINT, log.topic_partition)
        ):
            self.changes.note((log,))
            self._write_recovery_points((home,))

    def _write_recovery_points(self, directories: Sequence[LogDirectory]) -> None:
        self.checkpoints.write(RECOVERY_POINT_CHECKPOINT, directories)
