"""LogManager, the face of the room: opening, creating and deleting logs, and their checkpoints.

Each directory has a lock file for one process at a time, and a marker of a clean stop. It has
checkpoints of recovery points, log start offsets and high watermarks. A new log goes to the
directory with the fewest logs. A deleted log is renamed to `<topic>-<n>.<uuid>-delete` at once and
removed later. A stray log is renamed to `-stray`. The quorum owns `__cluster_metadata-0`; it is not
opened here.

A directory whose disk fails goes offline (`commitlog.disk.log_directory`). `directory_failed` is
called once, in the thread that noticed; then the owner of the logs calls `drop_offline`. The logs
in it are dropped without touching a file, and are never recreated elsewhere (KIP-112, KIP-858).

`open`, `close`, `purge_deleted`, `flush_due` and the checkpoints may run in a thread. The logs
themselves belong to the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from commitlog.disk.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    CleanShutdown,
    PartitionMetadata,
)
from commitlog.disk.files import Directory, DirectoryLock
from commitlog.disk.log_directory import LogDirectory, LogDirectoryOfflineError
from commitlog.disk.names import DELETE_SUFFIX, STRAY_SUFFIX, unique_name
from commitlog.disk.open_files import OPEN_FILES, share_of_process
from commitlog.disk.threads import work_off
from commitlog.log.log import Log
from commitlog.manager import placement
from commitlog.manager.deleting import DeletedLogs
from commitlog.manager.flush_passes import FlushPasses
from commitlog.manager.full_disk import FullDiskWait
from commitlog.manager.new_logs import NewLog, NewLogs
from commitlog.manager.offset_checkpoints import LogCheckpoints
from commitlog.manager.opening import Opening
from commitlog.manager.ownership import foreign_log_error, is_other, is_stray
from commitlog.manager.placement import KnownReplica
from commitlog.manager.registry import LogListener, LogRegistry
from commitlog.moves.directory_moves import DirectoryMoves
from commitlog.moves.future_log import MOVES_FILE
from tidemark.config import ServerConfig, TopicConfig, server_defaults
from tidemark.errors import StorageError
from tidemark.types import TopicPartition, random_uuid, uuid_to_text

logger = logging.getLogger(__name__)


class LogManager:
    """Logs of one node."""

    def __init__(
        self,
        directories: Sequence[Directory],
        config: ServerConfig,
        *,
        now_ms: Callable[[], int],
        topic_config: Callable[[str], TopicConfig | None] = lambda _: None,
        locked: bool = False,
        vital: str | None = None,
        known_replica: Callable[[TopicPartition], KnownReplica | None] = lambda _: None,
        is_topic: Callable[[UUID], bool] = lambda _: False,
        directory_failed: Callable[[LogDirectory], object] = lambda _: None,
    ) -> None:
        """`topic_config` returns the settings of a topic if they are known when its logs are
        opened. `locked`: the caller holds the locks of the directories already. `vital` is the path
        of the directory the process cannot continue without: that of its metadata log.
        `known_replica` returns the topic id and the directory id that the metadata has for a
        partition of this node. `is_topic` returns whether a topic has an id. `directory_failed` is
        called once for each directory that fails, in any thread.
        """
        self._locked = locked
        self._vital = vital
        self._config = config
        self._now_ms = now_ms
        self._topic_config = topic_config
        self._known_replica = known_replica
        self._is_topic = is_topic
        self._locks: list[DirectoryLock] = []
        self.directories = tuple(
            d if isinstance(d, LogDirectory) else LogDirectory(d) for d in directories
        )
        self._registry = LogRegistry(self.directories)
        self.changes = self._registry.changes
        self.checkpoints = LogCheckpoints(self._registry)
        self.full_disk = FullDiskWait()
        """Wait of `open`; to be stopped with the node."""
        self._flushes = FlushPasses(self.changes)
        self._deleted = DeletedLogs(self._registry)
        self.moves = DirectoryMoves(
            self._registry, self.checkpoints, known_replica, self._remove_later
        )
        threads = config.num_recovery_threads_per_data_dir
        self.new_logs = NewLogs(self._registry, self.checkpoints, self.moves, now_ms, threads)
        self.set_producer_expiration(config.producer_id_expiration_ms)
        for directory in self.directories:
            self._watch(directory, directory_failed)

    def listen(self, listener: LogListener) -> None:
        """Notifies `listener` when a log is cut, moved, or removed."""
        self._registry.listen(listener)

    # --- directories

    def _watch(self, directory: LogDirectory, failed: Callable[[LogDirectory], object]) -> None:
        directory.state.watch(
            lambda: failed(directory), fails_when_full=lambda: self._can_do_without(directory)
        )

    def _can_do_without(self, directory: LogDirectory) -> bool:
        """Returns whether a full disk may fail the directory.

        A full disk refuses only writes, and retention may free space again. So it does not fail a
        directory that the process cannot continue without.
        """
        return directory.path != self._vital and len(self.online_directories) > 1

    @property
    def online_directories(self) -> list[LogDirectory]:
        """Directories that have not failed, in the order of log.dirs."""
        return placement.online(self.directories)

    @property
    def has_failed(self) -> bool:
        """Whether the process cannot continue: no directory is online, or the vital one failed."""
        return not self.online_directories or any(
            d.path == self._vital and not d.is_online for d in self.directories
        )

    def lost_in(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """Returns the failed directory that holds a partition's log."""
        return self._registry.lost_in(topic_partition)

    def forget_lost(self, topic_partition: TopicPartition) -> None:
        """Drops a log in a failed directory, and what is left of its moves: the replica left this
        node.
        """
        self._registry.forget_lost(topic_partition)
        self.moves.forget(topic_partition)

    def drop_offline(self) -> list[TopicPartition]:
        """Drops the logs of failed directories without touching a file; returns which."""
        dropped = self._registry.drop_offline()
        self.moves.drop_offline()
        return dropped

    # --- open and close

    def open(self) -> int:
        """Locks the directories and opens all logs in them; recovers those of an unclean stop.

        A directory whose disk fails goes offline, and the others are opened. Returns the broker
        epoch of the last clean stop, -1 after an unclean one or if a directory is offline. Raises
        StorageError if another process has locked a directory.
        """
        OPEN_FILES.limit = self._config.log_max_open_files or share_of_process()
        epochs = set()
        try:
            if not self._locked:
                for directory in self.online_directories:
                    with suppress(LogDirectoryOfflineError):
                        self._locks.append(directory.lock())
            self.moves.settle()
            opening = self._opening()
            for directory in self.directories:
                try:
                    epochs.add(opening.open(directory))
                except LogDirectoryOfflineError as error:
                    logger.error("%s", error)
                    epochs.add(-1)
        except BaseException:
            self._release()
            raise
        self.drop_offline()
        self.moves.resume()
        return epochs.pop() if len(epochs) == 1 else -1

    def _opening(self) -> Opening:
        return Opening(
            self._registry,
            self.checkpoints,
            self._now_ms,
            lambda topic: self._topic_config(topic) or server_defaults(self._config),
            self._known_replica,
            self.set_aside,
            self.full_disk,
            self._config.num_recovery_threads_per_data_dir,
            self._producer_expiration_ms,
        )

    def close(self, clean: bool = True, broker_epoch: int = -1) -> None:
        """Closes all logs and unlocks the directories.

        A clean close flushes the logs, num.recovery.threads.per.data.dir of a directory at a time.
        Then it writes the checkpoints that changed, and last the marker with `broker_epoch`. A
        directory that is offline or full, or becomes so meanwhile, gets no marker. Nor does one
        with a log that failed to open, and so was perhaps never recovered.
        """
        unclean: set[LogDirectory] = set()
        of_directory: dict[LogDirectory, list[Log]] = {}
        for log in self.logs():
            home = self._registry.directory_of(log.topic_partition)
            assert home is not None, "an open log has a directory"
            of_directory.setdefault(home, []).append(log)
        threads = self._config.num_recovery_threads_per_data_dir if clean else 1
        try:
            work_off(
                list(of_directory.values()),
                lambda log: self._close(log, clean, unclean),
                threads,
                "log-closing",
            )
            if clean:
                self._mark_clean(broker_epoch, unclean)
        finally:
            self._release()

    def _mark_clean(self, broker_epoch: int, unclean: set[LogDirectory]) -> None:
        for directory in self.online_directories:
            try:
                for name in (
                    RECOVERY_POINT_CHECKPOINT,
                    HIGH_WATERMARK_CHECKPOINT,
                    LOG_START_OFFSET_CHECKPOINT,
                ):
                    self.checkpoints.write(name, [directory])
                if directory not in unclean and not self._registry.has_unopened(directory):
                    CleanShutdown(directory).write(broker_epoch)
            except StorageError as error:
                logger.error("%s is recovered at the next start: %s", directory.path, error)

    def _close(self, log: Log, clean: bool, unclean: set[LogDirectory]) -> None:
        try:
            log.close(clean)
        except StorageError as error:
            logger.error("%s is not closed cleanly: %s", log.topic_partition, error)
            home = self._registry.directory_of(log.topic_partition)
            assert home is not None, "an open log has a directory"
            unclean.add(home)
            log.close(clean=False)

    def _release(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    # --- logs

    def logs(self) -> list[Log]:
        """Returns all open logs."""
        return list(self._registry.by_partition.values())

    @property
    def by_partition(self) -> Mapping[TopicPartition, Log]:
        """All open logs; not to be altered."""
        return self._registry.by_partition

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """Returns the open log of a partition."""
        return self._registry.get(topic_partition)

    def directory_of(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """Returns the log directory that holds a partition."""
        return self._registry.directory_of(topic_partition)

    def set_producer_expiration(self, expiration_ms: int) -> None:
        """Applies an altered producer.id.expiration.ms."""
        self._producer_expiration_ms = self.new_logs.producer_expiration_ms = expiration_ms
        for log in self.logs():
            log.producers.expiration_ms = expiration_ms

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        config: TopicConfig,
        *,
        assigned: UUID | None = None,
        may_hold_data: bool = False,
        is_placed: bool = True,
        leader_epoch: int = -1,
    ) -> Log:
        """Returns the log of a partition as `get_or_plan` does; makes it if it is planned."""
        found = self.get_or_plan(
            topic_partition,
            topic_id,
            config,
            assigned=assigned,
            may_hold_data=may_hold_data,
            is_placed=is_placed,
            leader_epoch=leader_epoch,
        )
        if isinstance(found, Log):
            return found
        self.new_logs.make([found])
        return self.new_logs.add(found)

    def get_or_plan(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        config: TopicConfig,
        *,
        assigned: UUID | None = None,
        may_hold_data: bool = False,
        is_placed: bool = True,
        leader_epoch: int = -1,
    ) -> Log | NewLog:
        """Returns the log of a partition and applies `config`.

        If there is none, plans one, in the `assigned` directory if that is online. Then the caller
        has `new_logs` make and add it; until then it plans no other of that name.
        `may_hold_data`: the metadata counts on this replica's records, so it must not come back
        empty (KIP-858). If it does not, a log that is damaged is set aside as stray, and the new
        one is copied from the leader. `is_placed`: the metadata has, or had, a directory for the
        replica. If it has none, the log is made anew where none was ever here (`_never_was`).

        A log that names another topic is set aside or refused (`commitlog.manager.ownership`);
        `leader_epoch` is the partition's in the metadata.

        Raises StorageError if the log failed to open, cannot be made, or is missing although the
        metadata counts on it. Raises LogDirectoryOfflineError if the log was, is assigned to, or
        may be in a directory that is offline or missing. That also holds for a log in another
        directory than the one the metadata counts on, unless it was ever moved.
        """
        if not may_hold_data:
            self.set_damaged_aside(topic_partition)
        self._registry.check(topic_partition)
        log = self.get(topic_partition)
        if log is not None and topic_id is not None and log.topic_id not in (None, topic_id):
            self._set_foreign_aside(log, topic_id, leader_epoch, may_hold_data)
            log = None
        if log is not None:
            self.moves.check_current(topic_partition, may_hold_data=may_hold_data)
            if may_hold_data and not log.directory.exists(MOVES_FILE):
                placement.check_home(topic_partition, self.directories, assigned)
            log.config = config
            if log.topic_id is None and topic_id is not None:
                PartitionMetadata(topic_id).write(log.directory)
                log.topic_id = topic_id
            return log
        if may_hold_data:
            self.moves.check_source(topic_partition)
            may_hold_data = is_placed or not self._never_was(topic_partition)
        home = placement.home_of_new(
            topic_partition,
            self.directories,
            preferred=self.moves.preferred.pop(topic_partition, None),
            assigned=assigned,
            may_hold_data=may_hold_data,
            logs_in=self._logs_in,
        )
        return self.new_logs.plan(topic_partition, topic_id, config, home)

    def _logs_in(self, directory: LogDirectory) -> int:
        """The logs of a directory, with those on their way to it."""
        homes = (self._registry.homes, self.moves.homes, self.new_logs.homes)
        return sum(each.count(directory) for each in homes)

    def _never_was(self, topic_partition: TopicPartition) -> bool:
        """Returns whether this node certainly never had a log of the partition, or deleted it.

        A log is durable and named in a checkpoint before it is used (`NewLogs.save`). So
        neither a crash nor the removal of its directory makes it unknown. All directories are
        online and have none. Each had its checkpoint at the start: a directory that was emptied,
        or is new, has none.
        """
        return self._registry.is_gone(topic_partition) and not self.checkpoints.may_name(
            HIGH_WATERMARK_CHECKPOINT, topic_partition
        )

    def refuse(self, topic_partition: TopicPartition, error: StorageError) -> None:
        """Closes a damaged log; from now on it counts as one that failed to open.

        Its move ends. The log that is made anew goes to the move's destination at once.
        """
        destination = self.moves.destination_of(topic_partition)
        if destination is not None:
            self.moves.cancel(topic_partition)
            self.moves.preferred[topic_partition] = destination
        if self.get(topic_partition) is not None:
            self._registry.refuse(topic_partition, error)

    def _set_foreign_aside(
        self, log: Log, topic_id: UUID, leader_epoch: int, counts_on_it: bool
    ) -> None:
        """Sets a log of another topic aside. Raises ForeignLogError if it may be this one's."""
        topic_partition, found = log.topic_partition, log.topic_id
        assert found is not None, "a log without an id is no other topic's"
        if not is_stray(
            found_is_known=self._is_topic(found) or is_other(found, topic_id),
            latest_epoch=log.epochs.latest_epoch,
            leader_epoch=leader_epoch,
            counts_on_it=counts_on_it,
        ):
            home = self._registry.directory_of(topic_partition)
            assert home is not None, "an open log has a directory"
            error = foreign_log_error(topic_partition, home.path, found, topic_id)
            self._registry.refuse(topic_partition, error)
            raise error
        logger.warning(
            "%s: the log of topic id %s is set aside as stray; the topic has id %s now",
            topic_partition,
            uuid_to_text(found),
            uuid_to_text(topic_id),
        )
        home, _ = self._take_out(topic_partition, STRAY_SUFFIX)
        self.checkpoints.forget(home, (topic_partition,))

    def set_damaged_aside(self, topic_partition: TopicPartition) -> None:
        """Renames the directory of a damaged log that failed to open, if there is one."""
        home = self._registry.damaged_in(topic_partition)
        if home is None:
            return
        name = unique_name(topic_partition, random_uuid().hex, STRAY_SUFFIX)
        logger.warning(
            "%s is damaged, and set aside as %s/%s: the metadata does not count on it",
            topic_partition,
            home.path,
            name,
        )
        home.rename(str(topic_partition), name)
        home.fsync()
        self.checkpoints.forget(home, (topic_partition,))
        self._registry.forget_failed(topic_partition)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Deletes a log: renames it at once, and removes its files after file.delete.delay.ms
        (`purge_deleted`). It is durable with the next `new_logs.save`.
        """
        log = self.get(topic_partition)
        self.forget_lost(topic_partition)
        if log is not None:
            due_ms = self._now_ms() + log.config.file_delete_delay_ms
            home, name = self._take_out(topic_partition, DELETE_SUFFIX)
            self._deleted.add(due_ms, home, name)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Renames a stray log to `-stray`, for an operator to inspect and remove."""
        if self.get(topic_partition) is not None:
            self._take_out(topic_partition, STRAY_SUFFIX)

    def _take_out(self, topic_partition: TopicPartition, suffix: str) -> tuple[LogDirectory, str]:
        self.moves.cancel(topic_partition)
        self.moves.forget(topic_partition)
        home = self._registry.remove(topic_partition)
        self.new_logs.existence_changed(home)
        name = unique_name(topic_partition, random_uuid().hex, suffix)
        # A log that comes back with a failed directory, or after a crash, is set aside then.
        with suppress(LogDirectoryOfflineError):
            home.rename(str(topic_partition), name)
        return home, name

    def _remove_later(self, directory: LogDirectory, name: str) -> None:
        self._deleted.add(self._now_ms(), directory, name)

    def purge_deleted(self, now_ms: int) -> int:
        """Removes the files of deleted logs and segments that are due; returns their number."""
        return self._deleted.purge(now_ms)

    # --- checkpoints

    def checkpoint_recovery_points(self) -> None:
        """Flushes rolled segments and the logs whose flush.ms is over; then writes the recovery
        points.
        """
        self.flush_due()
        self._flushes.flush_rolled(self._registry.is_open)
        self._write_recovery_points()

    def flush_due(self) -> None:
        """Flushes the logs whose flush.ms is over."""
        self._flushes.flush_due(self._now_ms(), self._registry.is_open)

    def checkpoint_log_start_offsets(self) -> None:
        """Writes the log start offsets that cannot be derived from the files.

        The high watermarks come first: an opening believes no log start beyond them.
        """
        self.checkpoint_high_watermarks()
        self.checkpoints.write(LOG_START_OFFSET_CHECKPOINT, self.directories)

    def checkpoint_high_watermarks(self) -> None:
        """Writes the high watermarks, each in the directory of its log."""
        self.checkpoints.write(HIGH_WATERMARK_CHECKPOINT, self.directories)

    def _write_recovery_points(self) -> None:
        self.checkpoints.write(RECOVERY_POINT_CHECKPOINT, self.directories)
