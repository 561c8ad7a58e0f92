"""A flush in three steps, so that fsyncs do not block the event loop, and the durable part of a
log.

`Log.prepare_flush` (on the loop) writes data held in memory and collects the files to sync.
`PendingFlush.run` (in any thread) syncs them, and the leader epochs. `Log.complete_flush` (on the
loop) moves the recovery point.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from commitlog.disk.files import Directory, DiskError, File
from commitlog.log.restart import RESTART_FILE, Restart
from commitlog.log.segments import Segments
from commitlog.segment.epochs import LeaderEpochCache
from commitlog.segment.producer_state import ProducerStateManager
from commitlog.segment.segment import Segment
from tidemark.errors import FatalError


@dataclass(slots=True)
class PendingFlush:
    """The files that one flush syncs. `names`: the count of name changes that the flush makes
    durable, 0 if it does not sync the directory.
    """

    directory: Directory
    end_offset: int
    truncations: int
    names: int
    epochs: LeaderEpochCache
    files: list[File] = field(default_factory=list)

    def add(self, names: Iterable[str]) -> None:
        """Opens the files of these names, as far as they exist."""
        for name in names:
            if self.directory.exists(name):
                # Handles of its own: the log may close, truncate or delete its files meanwhile.
                self.files.append(self.directory.open(name))

    def run(self) -> None:
        """Writes the epochs and syncs the files. Raises FatalError if an fsync fails; it is never
        retried.
        """
        try:
            self._unless_gone(self.epochs.flush)
            for file in self.files:
                file.fsync()
            if self.names:
                self._unless_gone(self.directory.fsync)
        finally:
            for file in self.files:
                file.close()

    def _unless_gone(self, sync: Callable[[], None]) -> None:
        try:
            sync()
        except DiskError as error:
            if error.errno != errno.ENOENT:  # else the log was moved or deleted meanwhile
                raise


class Durability:
    """The part of one log that survives a crash: records below `recovery_point`, and names of its
    files up to a count of changes. Not thread-safe: the log holds its lock for each call.
    """

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
        """How many of the segments' name changes the directory was synced for."""
        self.truncations = 0
        """How often the log was truncated."""
        self.last_flush_ms = now_ms
        """When the interval of flush.ms began."""
        self.restart: Restart | None = None
        """State from elsewhere whose file is still there (`commitlog.log.restart`)."""
        self._opened_end = end_offset
        self._failed: FatalError | None = None

    @property
    def names_are_durable(self) -> bool:
        """Whether a crash would keep the present files."""
        return self.segments.name_changes <= self.names_synced

    def is_as_opened(self, end_offset: int) -> bool:
        """Whether the whole log is durable and unchanged since it was opened."""
        is_same = self.recovery_point == end_offset == self._opened_end
        return is_same and self.truncations == 0

    def lower(self, offset: int) -> bool:
        """Lowers the recovery point to `offset`, where the log is truncated; False if it is not
        above it.
        """
        self.truncations += 1
        if offset >= self.recovery_point:
            return False
        self.recovery_point = offset
        return True

    def begin_restart(self, restart: Restart) -> None:
        """Durably decides that the log continues with the state of `restart`."""
        self.segments.directory.write_atomic(RESTART_FILE, restart.encode())
        self.restart = restart

    def write_restart(self) -> None:
        """Durably writes the epochs and producers of a restart."""
        if self.restart is not None:
            self.epochs.flush()
            self.producers.keep_snapshot(self.restart.producer_snapshot, self.restart.offset)

    def end_restart(self) -> None:
        """Removes the file: the log is no longer the one that it describes."""
        self.segments.directory.remove(RESTART_FILE)
        self.segments.directory.fsync()
        self.restart = None

    def move_to(self, directory: Directory, segments: list[Segment], end_offset: int) -> None:
        """Continues with a durable copy of the files in another directory."""
        self.epochs.directory = directory
        self.segments.move_to(directory, segments)
        self.recovery_point, self.names_synced = end_offset, self.segments.name_changes

    def prepare(self, end_offset: int) -> PendingFlush | None:
        """Writes index entries and snapshots, and collects the files to sync. None if everything
        below `end_offset` is durable.
        """
        if self._failed is not None:
            raise self._failed
        segments = self.segments
        names = 0 if self.names_are_durable else segments.name_changes
        if end_offset <= self.recovery_point and not names:
            return None
        pending = PendingFlush(segments.directory, end_offset, self.truncations, names, self.epochs)
        wanted = self.producers.take_unsynced()
        for segment in segments.all[segments.index_of(self.recovery_point) :]:
            if segment.base_offset < end_offset:
                wanted += [segment.log_file, *segment.write_indexes()]
        pending.add(wanted)
        return pending

    def sync(self, names: Iterable[str]) -> None:
        """Writes the epochs, and syncs some files and the directory, in this thread. After a
        FatalError, `prepare` raises it again.
        """
        segments = self.segments
        pending = PendingFlush(segments.directory, 0, -1, segments.name_changes + 1, self.epochs)
        pending.add(names)
        self.run(pending)

    def run(self, pending: PendingFlush) -> None:
        """Runs a flush in this thread. After a FatalError, `prepare` raises it again."""
        try:
            pending.run()
        except FatalError as error:
            self._failed = error
            raise

    def complete(self, pending: PendingFlush) -> None:
        """Moves the recovery point up, unless the log was truncated meanwhile."""
        if pending.truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, pending.end_offset)
        self.names_synced = max(self.names_synced, pending.names)
