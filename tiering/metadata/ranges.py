"""Row numbers of finished segments, in the order of the offsets that they hold of one leader epoch.

Sorted by first offset, and so by last, since none lies within another. A copy that lies within
another one is kept aside, and is used again when the other one is removed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tiering.metadata.rows import SegmentRows


class EpochRanges:
    """The rows of one epoch; 4 bytes each."""

    __slots__ = ("_epoch", "_hidden", "_rows", "_sorted")

    def __init__(self, rows: SegmentRows, epoch: int) -> None:
        self._rows = rows
        self._epoch = epoch
        self._sorted = array("I")
        self._hidden: list[int] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, row: int) -> None:
        """Adds a row, unless it is known; it must have offsets of the epoch."""
        rows = self._sorted
        first, last = self._bounds(row)
        position = bisect_right(rows, first, key=self._first)
        if position and self._last(rows[position - 1]) >= last:
            if rows[position - 1] != row and row not in self._hidden:
                self._hidden.append(row)
            return
        begin = position
        if position and self._first(rows[position - 1]) == first:
            begin -= 1
        end = begin
        while end < len(rows) and self._last(rows[end]) <= last:
            self._hidden.append(rows[end])
            end += 1
        rows[begin:end] = array("I", [row])

    def remove(self, row: int) -> None:
        """Removes a row, if it is known, before its segment is removed."""
        if row in self._hidden:
            self._hidden.remove(row)
        position = bisect_left(self._sorted, self._first(row), key=self._first)
        if position == len(self._sorted) or self._sorted[position] != row:
            return
        del self._sorted[position]
        hidden, self._hidden = self._hidden, []
        for other in hidden:
            self.add(other)

    def find(self, offset: int) -> int | None:
        """Returns the row with `offset`."""
        position = bisect_right(self._sorted, offset, key=self._first) - 1
        if position < 0 or self._last(self._sorted[position]) < offset:
            return None
        return self._sorted[position]

    def rows_from(self, offset: int) -> Iterator[int]:
        """Yields the rows from the one with `offset` on."""
        begin = bisect_left(self._sorted, offset, key=self._last)
        return (self._sorted[position] for position in range(begin, len(self._sorted)))

    def outside(self, begin: int, end: int) -> list[int]:
        """Returns the rows that end below `begin`, or at or above `end`, and those kept aside."""
        rows = self._sorted
        if not rows or end <= begin:
            return [*rows, *self._hidden]
        below = above = 0
        if self._last(rows[0]) < begin:
            below = bisect_left(rows, begin, key=self._last)
        if self._last(rows[-1]) >= end:
            above = len(rows) - bisect_left(rows, end, key=self._last)
        return [*rows[:below], *rows[len(rows) - above :], *self._hidden]

    def highest(self) -> int | None:
        """Returns the last offset (inclusive)."""
        return self._last(self._sorted[-1]) if self._sorted else None

    def validate(self) -> Sequence[int]:
        """Asserts that no row hides another one; returns the rows."""
        for before, after in pairwise(map(self._bounds, self._sorted)):
            assert before[0] < after[0] and before[1] < after[1], (before, after)
        return self._sorted

    def _bounds(self, row: int) -> tuple[int, int]:
        bounds = self._rows.epoch_range(row, self._epoch)
        assert bounds is not None
        return bounds

    def _first(self, row: int) -> int:
        return self._bounds(row)[0]

    def _last(self, row: int) -> int:
        return self._bounds(row)[1]
