"""A flush in three steps, so that fsyncs need not hold up the event loop.

`Log.prepare_flush` (on the loop) writes what waits in memory and collects what must be synced;
`PendingFlush.run` (anywhere) syncs it; `Log.complete_flush` (on the loop) moves the recovery point.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commitlog.disk.files import Directory, DiskError, File
from commitlog.segment.segment import Segment

if TYPE_CHECKING:
    from commitlog.log.log import Log


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
