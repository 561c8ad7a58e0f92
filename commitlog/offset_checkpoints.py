"""What the checkpoints of the log directories say of which logs: recovery points, log starts and
high watermarks, a file each per directory (Kafka's names and format).

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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from commitlog.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    OffsetCheckpoint,
)
from commitlog.log_directory import LogDirectory, LogDirectoryOfflineError
from tidemark.errors import StorageError
from tidemark.types import TopicPartition

_log = logging.getLogger(__name__)

_ALL = (RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)


class LogCheckpoints:
    """The checkpoint files of a node's log directories; any thread."""

    def __init__(self, homes: Callable[[], Mapping[TopicPartition, LogDirectory]]) -> None:
        """`homes`: in which directory each log is, now."""
        self.lock = threading.RLock()
        self._homes = homes
        self._named: dict[tuple[str, str], set[TopicPartition]] = {}

    def read(self, directory: LogDirectory, name: str) -> dict[TopicPartition, int]:
        """A checkpoint's offsets; a damaged one only costs time (recovery checks everything)."""
        try:
            found = OffsetCheckpoint(directory, name).read()
        except LogDirectoryOfflineError:
            raise
        except StorageError as error:
            _log.warning("%s", error)
            found = {}
        self._named[directory.path, name] = set(found)
        return found

    def names(self, directory: LogDirectory, name: str, topic_partition: TopicPartition) -> bool:
        """Has the file an entry for this log?"""
        return topic_partition in self._named.get((directory.path, name), ())

    def doubt(self, directory: LogDirectory, name: str, topic_partition: TopicPartition) -> None:
        """The entry that was read is not this log's: as if there were none."""
        self._named.get((directory.path, name), set()).discard(topic_partition)

    def write(
        self,
        name: str,
        offsets_now: Callable[[], Mapping[TopicPartition, int]],
        directories: Iterable[LogDirectory],
    ) -> None:
        """Replaces the files of these directories durably, each with what its own logs have."""
        with self.lock:
            offsets, homes = offsets_now(), dict(self._homes())
            for directory in directories:
                own = {
                    topic_partition: offset
                    for topic_partition, offset in offsets.items()
                    if homes.get(topic_partition) is directory
                }
                with suppress(LogDirectoryOfflineError):  # the others go on
                    self._replace(directory, name, own)

    def note(
        self, directory: LogDirectory, topic_partition: TopicPartition, offsets: Mapping[str, int]
    ) -> None:
        """Durably sets one log's entries, by file; all others of the files stay."""
        with self.lock:
            for name, offset in offsets.items():
                others = self.read(directory, name)
                self._replace(directory, name, {**others, topic_partition: offset})

    def forget(self, directory: LogDirectory, topic_partition: TopicPartition) -> None:
        """Durably removes what the files say of a log that is no more."""
        with self.lock:
            for name in _ALL:
                if self.names(directory, name, topic_partition):
                    others = self.read(directory, name)
                    others.pop(topic_partition, None)
                    self._replace(directory, name, others)

    def _replace(
        self, directory: LogDirectory, name: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        OffsetCheckpoint(directory, name).write(offsets)
        self._named[directory.path, name] = set(offsets)
