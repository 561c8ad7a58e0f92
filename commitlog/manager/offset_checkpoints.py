"""What the checkpoints of the log directories say of which logs: recovery points, log starts and
high watermarks, a file each per directory (Kafka's names and format).

A file is written only where what it holds changed; what changed is known from the logs that did
(`commitlog.manager.changes`), so idle partitions cost a pass nothing, however many they are.
Entries are kept in memory for that, as they are on disk or have to come there (`_unsaved`).

An entry is believed after an unclean stop, so it must never be of anything but the log that is
there now:
- one writer at a time, of the temporary file too; and what it writes is read by then, or a recovery
  point from before a truncation could outlive the one that was written for it;
- before a new log is made, what is left of one of its name goes (`forget`): the recovery point of a
  deleted topic would have its namesake's batches taken for durable, the log start would hide them;
- `names` tells whether a directory's file has an entry for a log in this life of the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Set
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
    """Where the files do not tell it: within or below a segment, or where a crash may bring back
    others.
    """
    start, segments = log.log_start_offset, log.segments
    # none while the loop removes all of them: the log comes again when it did
    is_told = bool(segments) and start == segments[0].base_offset
    return None if is_told and (not start or log.names_are_durable) else start


_VALUES: dict[str, Callable[[Log], int | None]] = {
    RECOVERY_POINT_CHECKPOINT: lambda log: log.recovery_point,
    LOG_START_OFFSET_CHECKPOINT: _log_start,
    HIGH_WATERMARK_CHECKPOINT: lambda log: log.high_watermark,
}


class LogCheckpoints:
    """The checkpoint files of a node's log directories; any thread.

    It is the `LogEvents` of the logs as well: what a log is about to do to its files must be in the
    checkpoint of its directory first.
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

    def read(self, directory: LogDirectory, name: str) -> dict[TopicPartition, int]:
        """A checkpoint's offsets, at start; a damaged one only costs time (recovery checks
        everything)."""
        try:
            found = OffsetCheckpoint(directory, name).read()
        except LogDirectoryOfflineError:
            raise
        except StorageError as error:
            logger.warning("%s", error)
            found = {}
            self._unsaved.add((name, directory))
        self._entries[name][directory] = dict(found)
        return found

    def names(self, directory: LogDirectory, name: str, topic_partition: TopicPartition) -> bool:
        """Has the file an entry for this log?"""
        is_saved = (name, directory) not in self._unsaved
        return is_saved and topic_partition in self._entries[name].get(directory, ())

    def prune(self, directory: LogDirectory, there: Set[TopicPartition]) -> None:
        """The logs that are `there` were found at start: entries of others go with the next
        write."""
        with self.lock:
            for name, entries in self._entries.items():
                for gone in entries.get(directory, {}).keys() - there:
                    del entries[directory][gone]
                    self._unsaved.add((name, directory))

    def doubt(self, directory: LogDirectory, name: str, topic_partition: TopicPartition) -> None:
        """The entry that was read is not this log's: as if there were none."""
        with self.lock:
            if self._entries[name][directory].pop(topic_partition, None) is not None:
                self._unsaved.add((name, directory))

    def write(self, name: str, directories: Iterable[LogDirectory]) -> None:
        """Brings the files of these directories up to date, durably, where they are not. After a
        StorageError, and in the other directories, what changed is written with the next call."""
        with self.lock:
            self._take_over(name)
            for directory in directories:
                if (name, directory) in self._unsaved and directory.is_online:
                    with suppress(LogDirectoryOfflineError):  # the others go on
                        self._save(directory, name)

    # --- what logs announce (`LogEvents`)

    @property
    def unread(self) -> ChangedLogs[Log]:
        """Where the logs add themselves after each change."""
        return self._changes.unread

    def truncating(self, log: Log) -> None:
        """Writes the lowered recovery point of a log, then notifies those who listen."""
        home = self._registry.directory_of(log.topic_partition)
        if home is not None:
            self._changes.note((log,))
            self.write(RECOVERY_POINT_CHECKPOINT, (home,))
        self._registry.cut(log)

    def rolling(self, log: Log, is_gap: bool) -> None:
        """Writes a log's entry before its second segment is made (see `commitlog.log.loader`)."""
        home = self._registry.directory_of(log.topic_partition)
        if home is not None and (
            is_gap or not self.names(home, RECOVERY_POINT_CHECKPOINT, log.topic_partition)
        ):
            self._changes.note((log,))
            self.write(RECOVERY_POINT_CHECKPOINT, (home,))

    # --- files

    def _take_over(self, name: str) -> None:
        """Compares the logs that changed with their entries."""
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
        """Durably sets one log's entries, by file; all others of the files stay."""
        with self.lock:
            for name, offset in offsets.items():
                self._entries[name].setdefault(directory, {})[topic_partition] = offset
                self._unsaved.add((name, directory))
                self._save(directory, name)

    def forget(self, directory: LogDirectory, topic_partition: TopicPartition) -> None:
        """Durably removes what the files say of a log that is no more."""
        with self.lock:
            for name, entries in self._entries.items():
                known = entries.get(directory, {})
                if topic_partition in known or (name, directory) in self._unsaved:
                    known.pop(topic_partition, None)
                    self._unsaved.add((name, directory))
                    self._save(directory, name)
