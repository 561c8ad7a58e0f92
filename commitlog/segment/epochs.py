"""The leader epochs of a log: the offset at which each leader began (KIP-101, KIP-279).

They are kept in `leader-epoch-checkpoint`, strictly rising in epoch and offset. `flush` writes new
entries to disk; the log calls it before its recovery point passes them. A truncation writes at
its end. After an unclean stop, recovery finds unwritten entries in the batches.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise

from commitlog.disk.checkpoints import LEADER_EPOCH_CHECKPOINT, format_epochs, parse_epochs
from commitlog.disk.files import Directory
from commitlog.types import FetchResult
from tidemark.errors import StorageError


class LeaderEpochCache:
    """The (epoch, start offset) entries of a log, in memory and on disk."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._changing = threading.Lock()  # held for a moment, by `entries` as well
        self._writing = threading.Lock()  # held while the file is written
        self._closed = False
        self._dirty = False
        self._on_disk: tuple[tuple[int, int], ...] | None = None  # durable entries; None: unknown
        if directory.exists(LEADER_EPOCH_CHECKPOINT):
            try:
                self._set(parse_epochs(directory.read(LEADER_EPOCH_CHECKPOINT)))
                self._on_disk = self.entries()
            except StorageError:
                self._dirty = True  # recovery fills it again

    def _set(self, entries: Iterable[tuple[int, int]]) -> None:
        with self._changing:
            self._epochs, self._starts = [], []
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def latest_epoch(self) -> int | None:
        """The newest epoch; None if there is none."""
        return self._epochs[-1] if self._epochs else None

    @property
    def is_dirty(self) -> bool:
        """Whether `flush` has something to write."""
        return self._dirty

    def entries(self) -> tuple[tuple[int, int], ...]:
        """Returns all (epoch, start offset), oldest first; any thread."""
        with self._changing:
            return tuple(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Starts `epoch` at `start_offset`, and drops entries that contradict this.

        Does nothing if the epoch is known, or older than the newest one at the same or a lower
        offset.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} at offset {start_offset}")
        if self._epochs and epoch == self._epochs[-1] and start_offset >= self._starts[-1]:
            return
        keep = min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset))
        with self._changing:
            del self._epochs[keep:], self._starts[keep:]
            self._epochs.append(epoch)
            self._starts.append(start_offset)
        self._dirty = True

    def on_batch(self, epoch: int, base_offset: int) -> None:
        """Starts the epoch of an appended batch there, if it is newer than all others."""
        if epoch >= 0 and (not self._epochs or epoch > self._epochs[-1]):
            self.assign(epoch, base_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        """Returns (epoch, end offset), as a leader answers OffsetForLeaderEpoch (KIP-101, KIP-279).

        The newest epoch ends at the log end. For an unknown epoch the result is the greatest known
        epoch below it, with its end. For one older than all it is (epoch, first start). None if the
        epoch is newer than all, or if no epoch is known.
        """
        if not self._epochs or epoch > self._epochs[-1] or epoch < 0:
            return None
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        above = bisect_right(self._epochs, epoch)
        if above == 0:
            return epoch, self._starts[0]
        return self._epochs[above - 1], self._starts[above]

    def epoch_for_offset(self, offset: int) -> int | None:
        """Returns the epoch of the leader that appended the record at `offset`; None if unknown."""
        index = bisect_right(self._starts, offset)
        return self._epochs[index - 1] if index else None

    def agrees_with(self, found: FetchResult) -> bool:
        """Whether batches that were read are of the leader epochs known for their offsets."""
        first, base = found.first_epoch, found.base_offset
        if first != found.last_epoch:
            return False  # an epoch begins among them: each one must be looked at
        if self._epochs and first == self._epochs[-1] and base >= self._starts[-1]:
            return True
        known = self.epoch_for_offset(base)
        return known is None or first == known == self.epoch_for_offset(found.next_offset - 1)

    def previous_epoch(self, epoch: int) -> int | None:
        """Returns the greatest known epoch below `epoch`."""
        index = bisect_left(self._epochs, epoch)
        return self._epochs[index - 1] if index else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Drops the entries that begin at or above `end_offset`."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            with self._changing:
                del self._epochs[keep:], self._starts[keep:]
            self._dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Drops the entries below `start_offset`; the one that spans it begins there afterwards."""
        index = bisect_right(self._starts, start_offset) - 1
        if index >= 0 and (index > 0 or self._starts[0] < start_offset):
            with self._changing:
                del self._epochs[:index], self._starts[:index]
                self._starts[0] = start_offset
            self._dirty = True

    def replace(self, entries: Iterable[tuple[int, int]]) -> None:
        """Replaces all entries by others (bootstrap from the tier); the next flush writes them."""
        self._set(entries)
        self._dirty = True

    def clear(self) -> None:
        """Drops all entries; the next flush writes that."""
        if self._epochs:
            with self._changing:
                self._epochs, self._starts = [], []
            self._dirty = True

    def flush(self) -> None:
        """Durably writes the checkpoint if it differs from the one on disk; any thread."""
        with self._writing:
            if not self._dirty or self._closed:
                return
            self._dirty = False  # entries that change from here on are for the next flush
            entries = self.entries()
            if entries == self._on_disk:  # recovery mostly finds the entries on disk
                return
            try:
                self.directory.write_atomic(LEADER_EPOCH_CHECKPOINT, format_epochs(entries))
            except BaseException:
                self._dirty = True
                raise
            self._on_disk = entries

    def close(self) -> None:
        """Has later flushes do nothing: the directory may be another log's."""
        self._closed = True

    def repair(self) -> bool:
        """Durably writes the checkpoint anew if the file is no longer as it was written; returns
        whether it was not.
        """
        if self._on_disk is None:
            return False
        wanted, there = self._on_disk, self.directory.exists(LEADER_EPOCH_CHECKPOINT)
        found = self.directory.read(LEADER_EPOCH_CHECKPOINT) if there else b""
        if found == format_epochs(wanted) or not (there or wanted):
            return False
        self._dirty, self._on_disk = True, None
        self.flush()
        return True

    def validate(self) -> None:
        """Asserts that epochs and offsets rise strictly."""
        for (epoch, start), (next_epoch, next_start) in pairwise(self.entries()):
            assert epoch < next_epoch, self.entries()
            assert start < next_start, self.entries()
