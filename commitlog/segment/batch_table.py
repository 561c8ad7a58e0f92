"""Many batch headers at once, as columns: what recovery and the cleaner do without an object per
batch.

The walk from batch to batch is a chain (each length says where the next one begins): a kernel, with
the CRC. Everything else of the headers is taken by numpy in one gather. So a batch costs well under
a microsecond beside its bytes.
"""

from __future__ import annotations

import functools
import sys
from bisect import bisect_right
from typing import Any, NamedTuple

import numpy as np

from tidemark.records.header import (
    HEADER,
    HEADER_BYTES,
    TRANSACTIONAL_FLAG,
    plain_sound_batches,
    whole_header,
)
from tidemark.records.header import BatchHeader as Header

_ROW = np.dtype(
    [
        (name, ">" + code)
        for name, code in zip(Header._fields, HEADER.format.removeprefix(">"), strict=False)
    ]
)
_BYTES = np.dtype((np.void, HEADER_BYTES))
assert _ROW.itemsize == HEADER_BYTES


_KERNEL = "tidemark.records.kernels.batches"
_PLAIN_BYTES_MAX = 64 << 20
_walked_bytes = 0


def sound_batches(view: memoryview, *, check_crc: bool = True) -> tuple[Any, int, bool]:
    """Where the whole, undamaged batches of `view` begin (a list or an array), where the last of
    them ends, and whether a damaged one (not just one that `view` cuts off) follows.

    What is checked is what the bytes alone say: size, magic and CRC. By a kernel, but for the first
    64 MiB of a process that has not loaded it: that takes longer than to walk over them here.
    """
    global _walked_bytes
    _walked_bytes += len(view)
    if _walked_bytes > _PLAIN_BYTES_MAX or _KERNEL in sys.modules:
        from tidemark.records.kernels import batches as batch_kernel

        return batch_kernel.sound_batches(view, check_crc)
    return plain_sound_batches(view, check_crc)


class IndexEntries(NamedTuple):
    """What a run of batches adds to the indexes, and the greatest timestamp so far with the last
    offset of the batch that has it. Arrays are of one length, one row per entry.
    """

    last_offsets: Any
    positions: Any
    timestamps: Any
    timestamp_offsets: Any
    greatest: tuple[int, int]


class BatchTable:
    """The headers of the whole batches that `view` consists of; they begin at `positions`.

    The columns are copied when one is first asked for.
    """

    def __init__(self, view: memoryview, positions: Any) -> None:
        self.view = view
        self.positions: Any = np.asarray(positions, np.int64)

    def __len__(self) -> int:
        return len(self.positions)

    @functools.cached_property
    def _rows(self) -> Any:
        starts = max(0, len(self.view) - HEADER_BYTES + 1)
        # a header at each byte, none copied; void: a gather of structs goes field by field
        every = np.ndarray((starts,), _BYTES, self.view, 0, (1,))
        return every[self.positions].view(_ROW)

    def column(self, name: str) -> Any:
        """A header field of all batches, as int64."""
        return self._rows[name].astype(np.int64)

    def header(self, row: int) -> Header:
        """One header as the object; its position is that in the view."""
        return whole_header(self.view, int(self.positions[row]))

    def in_order(self, base_offset: int, first_offset: int, reach: int) -> int:
        """How many batches, from the first on, have a shape that a batch can have, and offsets
        that rise from `first_offset` on and lie within `reach` of `base_offset`.
        """
        base, delta = self.column("base_offset"), self.column("last_offset_delta")
        floor = np.empty(len(base), np.int64)
        floor[:1] = first_offset
        floor[1:] = base[:-1] + delta[:-1] + 1  # where that overflows, the row before is bad
        relative = base - base_offset
        good = (base >= floor) & (delta >= 0) & (self.column("record_count") >= 0)
        good &= (relative <= reach) & (relative + delta <= reach)
        return len(good) if good.all() else int(good.argmin())

    def fitting(self, room_bytes: int) -> int:
        """How many batches, from the first on, are together no larger than this."""
        if len(self.view) <= room_bytes:
            return len(self)
        ends = np.append(self.positions[1:], len(self.view))
        return int(np.searchsorted(ends, room_bytes, "right"))

    def split(self, count: int) -> tuple[BatchTable, BatchTable]:
        """The first `count` batches (at least one), and the others, each with its part of the view
        alone.
        """
        if count >= len(self):
            return self, BatchTable(self.view[:0], [])
        cut = int(self.positions[count])
        first = BatchTable(self.view[:cut], self.positions[:count])
        return first, BatchTable(self.view[cut:], self.positions[count:] - cut)

    def keep(self, count: int) -> None:
        """Forgets the batches behind the first `count`."""
        self._rows = self._rows[:count]
        self.view, self.positions = self.view[: int(self.positions[count])], self.positions[:count]
        self.__dict__.pop("has_producers", None)

    @property
    def next_offset(self) -> int:
        """The offset after the last batch; there must be one."""
        return self.header(-1).next_offset

    @functools.cached_property
    def has_producers(self) -> bool:
        """Has a batch a producer id? Known with the index entries already, where a kernel made
        them.
        """
        return bool((self._rows["producer_id"] >= 0).any())

    def transactional_rows(self) -> list[int]:
        """The batches of transactions, markers among them."""
        flags = self._rows["attributes"] & TRANSACTIONAL_FLAG
        rows: list[int] = np.nonzero((flags != 0) & (self._rows["producer_id"] >= 0))[0].tolist()
        return rows

    def rows_of_new_epochs(self, latest: int | None) -> list[int]:
        """The batches whose leader epoch is above that of all before them, and above `latest`."""
        epochs = self.column("partition_leader_epoch")
        floor = np.maximum.accumulate(np.concatenate(([-1 if latest is None else latest], epochs)))
        rows: list[int] = np.nonzero(epochs > floor[:-1])[0].tolist()
        return rows

    def index_entries(
        self, start: int, last_indexed: int, interval_bytes: int, greatest: tuple[int, int]
    ) -> IndexEntries:
        """The index entries that are due for these batches, the view being at `start` of a file.

        `last_indexed` is the position of the last indexed batch, `greatest` the greatest timestamp
        before these batches and its offset (the rules: `commitlog.segment.segment`). By a kernel in
        a process that has loaded it.
        """
        if _KERNEL in sys.modules:
            from tidemark.records.kernels import batches as batch_kernel

            entries, most, self.__dict__["has_producers"] = batch_kernel.entries_of(
                self.view, self.positions, start, last_indexed, interval_bytes, greatest
            )
            offsets, places, times, time_offsets = entries
            return IndexEntries(offsets, places, times, time_offsets, most)
        return self.plain_index_entries(start, last_indexed, interval_bytes, greatest)

    def plain_index_entries(
        self, start: int, last_indexed: int, interval_bytes: int, greatest: tuple[int, int]
    ) -> IndexEntries:
        """`index_entries` without a kernel."""
        positions = self.positions + start
        last_offsets = self.column("base_offset") + self.column("last_offset_delta")
        highest = np.maximum.accumulate(np.maximum(self.column("max_timestamp_ms"), greatest[0]))
        before = np.concatenate(([greatest[0]], highest[:-1]))
        raised = np.maximum.accumulate(np.where(highest > before, np.arange(len(highest)), -1))
        offsets = np.where(raised < 0, greatest[1], last_offsets[raised])
        rows = _spaced(positions, last_indexed, interval_bytes)
        return IndexEntries(
            last_offsets[rows],
            positions[rows],
            highest[rows],
            offsets[rows],
            (int(highest[-1]), int(offsets[-1])),
        )


def _spaced(positions: Any, last_indexed: int, interval_bytes: int) -> Any:
    """The rows of the positions that are more than the interval behind the one taken before."""
    row = int(np.searchsorted(positions, last_indexed + interval_bytes, "right"))
    if len(positions) < row + 2 or np.diff(positions[row:]).min() > interval_bytes:
        return slice(row, None)
    listed: list[int] = positions.tolist()
    rows: list[int] = []
    while row < len(listed):
        rows.append(row)
        row = bisect_right(listed, listed[row] + interval_bytes, row + 1)
    return rows
