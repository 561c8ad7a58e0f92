"""A flush in three steps, so that fsyncs need not hold up the event loop; and which logs the passes
of a node flush.

`Log.prepare_flush` (on the loop) writes what waits in memory and collects what must be synced;
`PendingFlush.run` (anywhere) syncs it; `Log.complete_flush` (on the loop) moves the recovery point.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commitlog.disk.files import Directory, DiskError, File
from commitlog.disk.log_directory import LogDirectoryOfflineError
from commitlog.log.changes import Changes
from commitlog.segment.segment import Segment

if TYPE_CHECKING:
    from commitlog.log.log import Log

_NEVER_MS = 2**63 - 1


@dataclass(slots=True)
class PendingFlush:
    """What one flush syncs; `names`: up to which change of names, 0 where none is to be synced."""

    directory: Directory
    end_offset: int
    truncations: int
    names: int
    files: list[File] = field(default_factory=list)

    @classmethod
    def of(cls, log: Log, segments: list[Segment], end_offset: int, names: int) -> PendingFlush:
        """Writes index entries, epochs and snapshots, and collects the files to sync."""
        pending = cls(log.directory, end_offset, log.truncations, names)
        log.epochs.flush()
        wanted = log.producers.take_unsynced()
        for segment in segments:
            wanted += [segment.log_file, *segment.write_indexes()]
        for name in wanted:
            if log.directory.exists(name):
                # handles of its own: the log may close, truncate or delete its files meanwhile
                pending.files.append(log.directory.open(name))
        return pending

    def run(self) -> None:
        """Syncs; FatalError where an fsync fails (never retried)."""
        try:
            for file in self.files:
                file.fsync()
            if self.names:
                self._sync_names()
        finally:
            for file in self.files:
                file.close()

    def _sync_names(self) -> None:
        try:
            self.directory.fsync()
        except DiskError as error:
            if error.errno != errno.ENOENT:  # else the log moved, or was deleted, meanwhile
                raise


class FlushPasses:
    """The passes of a node: each looks at the logs that changed alone. After an error, what was not
    looked at comes with the next pass."""

    def __init__(self, changes: Changes) -> None:
        self._rolled = changes.reader()
        self._unflushed = changes.reader()

    def flush_rolled(self, is_open: Callable[[Log], bool]) -> None:
        """Flushes everything below the active segments."""
        waiting = self._rolled.take()
        try:
            for log in tuple(waiting):
                if is_open(log):
                    with suppress(LogDirectoryOfflineError):  # the others go on
                        log.flush(log.active_segment.base_offset)
                waiting.discard(log)
        finally:
            self._rolled.put_back(waiting)

    def flush_due(self, now_ms: int, is_open: Callable[[Log], bool]) -> None:
        """Flushes the logs whose flush.ms is over; those where it is not yet wait for it."""
        waiting = self._unflushed.take()
        try:
            for log in tuple(waiting):
                flush_ms = log.config.flush_ms
                is_durable = log.recovery_point >= log.log_end_offset
                if is_durable or flush_ms >= _NEVER_MS or not is_open(log):
                    waiting.discard(log)
                elif now_ms - log.last_flush_ms >= flush_ms:
                    with suppress(LogDirectoryOfflineError):  # the others go on
                        log.flush()
                        log.last_flush_ms = now_ms
                    waiting.discard(log)
        finally:
            self._unflushed.put_back(waiting)
