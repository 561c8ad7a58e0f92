"""Checkpoint files of the log directories: recovery points, log start offsets and high watermarks.

Each directory has one file of each kind, with Kafka's name and format. A file is written only if
its contents changed. The logs that changed since the last write are known
(`commitlog.manager.changes`), so idle partitions cost a pass nothing. The entries are kept in
memory for that, as they are on disk or are to be written (`_unsaved`).

After an unclean stop an entry is trusted, so it must describe the log that exists now:

- Writers exclude one another, for the temporary file too, and read the offsets under the lock.
  Otherwise a recovery point from before a truncation could replace the one written for it.
- Before a new log is made, entries of an earlier log of its name are removed (`forget`). The
  recovery point of a deleted topic would mark its namesake's batches as durable, and its log start
  would hide them.
- `names` returns whether the file on disk has an entry for a log that exists now.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import suppress

from commitlog.disk.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    OffsetCheckpoint,
)
from commitlog.disk.log_directory import LogDirectory, LogDirectoryOfflineError
from commitlog.log.events import ChangedLogs
from commitlog.log.log import Log
from commitlog.manager.changes import ChangeReader
from commitlog.manager.registry import LogRegistry
from tidemark.errors import StorageError
from tidemark.types import TopicPartition

logger = logging.getLogger(__name__)


def _log_start(log: Log) -> int | None:
    """Returns the log start offset if the files do not determine it, None if they do.

    The files do not if it is within or below a segment, or if a crash may bring back others.
    """
    start, segments = log.log_start_offset, log.segments
    # none while the loop removes all of them: the log is marked as changed afterwards
    is_told = bool(segments) and start == segments[0].base_offset
    return None if is_told and (not start or log.durability.names_are_durable) else start


_VALUES: dict[str, Callable[[Log], int | None]] = {
    RECOVERY_POINT_CHECKPOINT: lambda log: log.recovery_point,
    LOG_START_OFFSET_CHECKPOINT: _log_start,
    HIGH_WATERMARK_CHECKPOINT: lambda log: log.high_watermark,
}


class LogCheckpoints:
    """Checkpoint files of a node's log directories; any thread.

    It implements `LogEvents`: before a log cuts or rolls its files, the checkpoint of its directory
    must be written.
    """

    def __init__(self, registry: LogRegistry) -> None:
        self.lock = threading.RLock()
        self._registry = registry
        self._changes = registry.changes
        self._changed: dict[str, ChangeReader] = {
            name: registry.changes.reader() for name in _VALUES
        }
        self._entries: dict[str, dict[LogDirectory, dict[TopicPartition, int]]] = {
            name: {} for name in _VALUES
        }
        self._unsaved: set[tuple[str, LogDirectory]] = set()
        self._unreadable: set[tuple[str, LogDirectory]] = set()

    def read(self, directory: LogDirectory, name: str) -> dict[TopicPartition, int]:
        """Reads a checkpoint at the start. A damaged one counts as empty: it only costs time, since
        recovery checks everything. One that is missing may have been removed.
        """
        if not directory.exists(name):
            self._unsaved.add((name, directory))
            self._unreadable.add((name, directory))
        try:
            found = OffsetCheckpoint(directory, name).read()
        except LogDirectoryOfflineError:
            raise
        except StorageError as error:
            logger.warning("%s", error)
            found = {}
            self._unsaved.add((name, directory))
            self._unreadable.add((name, directory))
        self._entries[name][directory] = dict(found)
        return found

    def names(self, directory: LogDirectory, name: str, topic_partition: TopicPartition) -> bool:
        """Returns whether the file on disk has an entry for this log."""
        is_saved = (name, directory) not in self._unsaved
        return is_saved and topic_partition in self._entries[name].get(directory, ())

    def may_name(self, name: str, topic_partition: TopicPartition) -> bool:
        """Returns whether a file has an entry for the partition, or was not readable at the
        start.
        """
        return any(found == name for found, _ in self._unreadable) or any(
            topic_partition in known for known in self._entries[name].values()
        )

    def prune(
        self,
        directory: LogDirectory,
        there: Set[TopicPartition],
        is_assigned: Callable[[TopicPartition], bool],
    ) -> None:
        """Drops the entries of logs that are not `there`, the logs found at the start; the next
        write applies it. The high watermark of a replica that the metadata assigns to this node
        stays: it shows that its log is missing.
        """
        with self.lock:
            for name, entries in self._entries.items():
                for gone in entries.get(directory, {}).keys() - there:
                    if name == HIGH_WATERMARK_CHECKPOINT and is_assigned(gone):
                        continue
                    del entries[directory][gone]
                    self._unsaved.add((name, directory))

    def doubt(self, directory: LogDirectory, name: str, topic_partition: TopicPartition) -> None:
        """Drops an entry that was read but does not describe this log."""
        with self.lock:
            if self._entries[name][directory].pop(topic_partition, None) is not None:
                self._unsaved.add((name, directory))

    def write(self, name: str, directories: Iterable[LogDirectory]) -> None:
        """Durably updates the files of these directories if they changed. Changes in other
        directories, and changes left by a StorageError, are written with the next call.
        """
        with self.lock:
            self._take_over(name)
            for directory in directories:
                if (name, directory) in self._unsaved and directory.is_online:
                    with suppress(LogDirectoryOfflineError):  # continue with the others
                        self._save(directory, name)

    # --- what logs announce (`LogEvents`)

    @property
    def unread(self) -> ChangedLogs[Log]:
        """The set to which logs add themselves after each change."""
        return self._changes.unread

    def truncating(self, log: Log) -> None:
        """Writes the lowered recovery point of a log."""
        home = self._registry.directory_of(log.topic_partition)
        if home is not None:
            self._changes.note((log,))
            self.write(RECOVERY_POINT_CHECKPOINT, (home,))

    def cut(self, log: Log) -> None:
        """Notifies the registry's listeners."""
        self._registry.cut(log)

    def restarted(self, log: Log) -> None:
        """Writes the log start of a log that continues elsewhere."""
        home = self._registry.directory_of(log.topic_partition)
        if home is not None:
            self._changes.note((log,))
            self.write(LOG_START_OFFSET_CHECKPOINT, (home,))

    def rolling(self, log: Log, is_gap: bool) -> None:
        """Writes the entry of a log before its second segment is made (`commitlog.log.loader`)."""
        home = self._registry.directory_of(log.topic_partition)
        if home is not None and (
            is_gap or not self.names(home, RECOVERY_POINT_CHECKPOINT, log.topic_partition)
        ):
            self._changes.note((log,))
            self.write(RECOVERY_POINT_CHECKPOINT, (home,))

    # --- files

    def _take_over(self, name: str) -> None:
        """Updates the entries of the logs that changed."""
        entries = self._entries[name]
        for log in self._changed[name].take():
            topic_partition = log.topic_partition
            current = self._registry.get(topic_partition)
            home = self._registry.directory_of(topic_partition)
            value = None if current is None else _VALUES[name](current)
            if home is not None:
                entries.setdefault(home, {})
            for directory, known in entries.items():
                wanted = value if directory is home else None
                if known.get(topic_partition) == wanted:
                    continue
                self._unsaved.add((name, directory))
                if wanted is None:
                    del known[topic_partition]
                else:
                    known[topic_partition] = wanted

    def _save(self, directory: LogDirectory, name: str) -> None:
        OffsetCheckpoint(directory, name).write(self._entries[name][directory])
        self._unsaved.discard((name, directory))

    def note(
        self, directory: LogDirectory, topic_partition: TopicPartition, offsets: Mapping[str, int]
    ) -> None:
        """Durably sets one log's entries, given by file; other logs' entries are kept."""
        with self.lock:
            for name, offset in offsets.items():
                self._entries[name].setdefault(directory, {})[topic_partition] = offset
                self._unsaved.add((name, directory))
                self._save(directory, name)

    def forget(self, directory: LogDirectory, names: Collection[TopicPartition]) -> None:
        """Durably removes the entries of logs that no longer exist."""
        with self.lock:
            for name, entries in self._entries.items():
                known = entries.get(directory, {})
                gone = [each for each in names if each in known]
                if gone or (name, directory) in self._unsaved:
                    for each in gone:
                        del known[each]
                    self._unsaved.add((name, directory))
                    self._save(directory, name)
