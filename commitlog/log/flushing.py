"""A flush in three steps, so that fsyncs need not hold up the event loop; and what of a log is
durable.

`Log.prepare_flush` (on the loop) writes what waits in memory and collects what must be synced;
`PendingFlush.run` (anywhere) syncs it; `Log.complete_flush` (on the loop) moves the recovery point.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass, field

from commitlog.disk.files import Directory, DiskError, File
from commitlog.log.segments import Segments
from commitlog.segment.epochs import LeaderEpochCache
from commitlog.segment.producer_state import ProducerStateManager
from commitlog.segment.segment import Segment
from tidemark.errors import FatalError


@dataclass(slots=True)
class PendingFlush:
    """The files that one flush syncs; `names`: up to which change of names, 0 where none is to be
    synced."""

    directory: Directory
    end_offset: int
    truncations: int
    names: int
    files: list[File] = field(default_factory=list)

    def add(self, names: Iterable[str]) -> None:
        """Opens the files of these names that there are."""
        for name in names:
            if self.directory.exists(name):
                # handles of its own: the log may close, truncate or delete its files meanwhile
                self.files.append(self.directory.open(name))

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


class Durability:
    """How much of one log survives a crash: records below `recovery_point`, and the names of its
    files up to a certain change. The log serialises the calls."""

    def __init__(
        self,
        segments: Segments,
        epochs: LeaderEpochCache,
        producers: ProducerStateManager,
        *,
        end_offset: int,
        now_ms: int,
    ) -> None:
        self.segments = segments
        self.epochs = epochs
        self.producers = producers
        self.recovery_point = end_offset
        self.names_synced = 0
        """Up to which of the segments' changes of names the directory is synced."""
        self.truncations = 0
        """How often the log was cut."""
        self.last_flush_ms = now_ms
        """When flush.ms began to count."""
        self._opened_end = end_offset
        self._failed: FatalError | None = None

    @property
    def names_are_durable(self) -> bool:
        """Would a crash leave the files that there are now?"""
        return self.segments.name_changes <= self.names_synced

    def is_as_opened(self, end_offset: int) -> bool:
        """Is all of the log durable, and nothing new since it was opened?"""
        is_same = self.recovery_point == end_offset == self._opened_end
        return is_same and self.truncations == 0

    def lower(self, offset: int) -> bool:
        """The log is cut at `offset`: moves the recovery point down to it; False where it is there
        already."""
        self.truncations += 1
        if offset >= self.recovery_point:
            return False
        self.recovery_point = offset
        return True

    def move_to(self, directory: Directory, segments: list[Segment], end_offset: int) -> None:
        """The log goes on with a durable copy of its files in another directory."""
        self.epochs.directory = directory
        self.segments.move_to(directory, segments)
        self.recovery_point, self.names_synced = end_offset, self.segments.name_changes

    def prepare(self, end_offset: int) -> PendingFlush | None:
        """Writes index entries, epochs and snapshots, and collects the files to sync; None where
        everything below `end_offset` is durable."""
        if self._failed is not None:
            raise self._failed
        segments = self.segments
        names = 0 if self.names_are_durable else segments.name_changes
        if end_offset <= self.recovery_point and not names:
            return None
        pending = PendingFlush(segments.directory, end_offset, self.truncations, names)
        self.epochs.flush()
        wanted = self.producers.take_unsynced()
        for segment in segments.all[segments.index_of(self.recovery_point) :]:
            if segment.base_offset < end_offset:
                wanted += [segment.log_file, *segment.write_indexes()]
        pending.add(wanted)
        return pending

    def run(self, pending: PendingFlush) -> None:
        """Syncs here and now. After a FatalError no flush of this log is prepared any more."""
        try:
            pending.run()
        except FatalError as error:
            self._failed = error
            raise

    def complete(self, pending: PendingFlush) -> None:
        """Moves the recovery point; a truncation meanwhile wins."""
        if pending.truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, pending.end_offset)
        self.names_synced = max(self.names_synced, pending.names)
