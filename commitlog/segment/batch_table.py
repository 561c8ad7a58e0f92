"""Headers of many batches at once, as columns, for recovery and the cleaner: no object per batch.

Walking from batch to batch is sequential, because each length gives the start of the next one. A
kernel does that, together with the CRC. Numpy takes all other fields in one gather. So a batch
costs well under a microsecond besides its bytes.
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
    """Finds the whole, undamaged batches of `view`. Returns their positions (a list or an array),
    the end of the last one, and whether a damaged batch follows. A batch that `view` cuts off is
    not damaged.

    Size, magic and CRC are checked. For its first 64 MiB a process that has not loaded the kernel
    uses plain Python, because that takes less time than loading it.
    """
    global _walked_bytes
    _walked_bytes += len(view)
    if _walked_bytes > _PLAIN_BYTES_MAX or _KERNEL in sys.modules:
        from tidemark.records.kernels import batches as batch_kernel

        return batch_kernel.sound_batches(view, check_crc)
    return plain_sound_batches(view, check_crc)


class IndexEntries(NamedTuple):
    """The index entries of a run of batches, and the greatest timestamp so far with the last offset
    of its batch. The arrays have equal length, one row per entry.
    """

    last_offsets: Any
    positions: Any
    timestamps: Any
    timestamp_offsets: Any
    greatest: tuple[int, int]


class BatchTable:
    """The headers of the whole batches that `view` consists of; the batches begin at `positions`.

    A column is copied at its first use.
    """

    def __init__(self, view: memoryview, positions: Any) -> None:
        self.view = view
        self.positions: Any = np.asarray(positions, np.int64)

    def __len__(self) -> int:
        return len(self.positions)

    @functools.cached_property
    def _rows(self) -> Any:
        starts = max(0, len(self.view) - HEADER_BYTES + 1)
        # a header at each byte, without copies; void, because a gather of structs copies field by
        # field
        every = np.ndarray((starts,), _BYTES, self.view, 0, (1,))
        return every[self.positions].view(_ROW)

    def column(self, name: str) -> Any:
        """Returns a header field of all batches, as int64."""
        return self._rows[name].astype(np.int64)

    def header(self, row: int) -> Header:
        """Returns one header as an object, with its position in the view."""
        return whole_header(self.view, int(self.positions[row]))

    def in_order(self, base_offset: int, first_offset: int, reach: int, epoch: int = -1) -> int:
        """Returns how many of the first batches have a valid shape and rising offsets. The offsets
        begin at `first_offset` and lie within `reach` of `base_offset`. Leader epochs begin at
        `epoch` and do not go back.
        """
        base, delta = self.column("base_offset"), self.column("last_offset_delta")
        floor = np.empty(len(base), np.int64)
        floor[:1] = first_offset
        floor[1:] = base[:-1] + delta[:-1] + 1  # if this overflows, the row before is bad
        relative = base - base_offset
        good = (base >= floor) & (delta >= 0) & (self.column("record_count") >= 0)
        good &= (relative <= reach) & (relative + delta <= reach)
        epochs = self.column("partition_leader_epoch")
        good &= epochs >= np.concatenate(([epoch], epochs[:-1]))
        return len(good) if good.all() else int(good.argmin())

    def fitting(self, room_bytes: int) -> int:
        """Returns how many of the first batches fit into this size together."""
        if len(self.view) <= room_bytes:
            return len(self)
        ends = np.append(self.positions[1:], len(self.view))
        return int(np.searchsorted(ends, room_bytes, "right"))

    def split(self, count: int) -> tuple[BatchTable, BatchTable]:
        """Returns the first `count` batches (at least one) and the others, each with its part of
        the view.
        """
        if count >= len(self):
            return self, BatchTable(self.view[:0], [])
        cut = int(self.positions[count])
        first = BatchTable(self.view[:cut], self.positions[:count])
        return first, BatchTable(self.view[cut:], self.positions[count:] - cut)

    def keep(self, count: int) -> None:
        """Drops the batches behind the first `count`."""
        self._rows = self._rows[:count]
        self.view, self.positions = self.view[: int(self.positions[count])], self.positions[:count]
        self.__dict__.pop("has_producers", None)

    @property
    def next_offset(self) -> int:
        """The offset after the last batch; the table must not be empty."""
        return self.header(-1).next_offset

    @functools.cached_property
    def has_producers(self) -> bool:
        """Whether a batch has a producer id. Known already if a kernel made the index entries."""
        return bool((self._rows["producer_id"] >= 0).any())

    @property
    def has_records(self) -> bool:
        """Whether a batch is not empty."""
        return bool((self._rows["record_count"] > 0).any())

    def transactional_rows(self) -> list[int]:
        """Returns the rows of transactional batches, including markers."""
        flags = self._rows["attributes"] & TRANSACTIONAL_FLAG
        rows: list[int] = np.nonzero((flags != 0) & (self._rows["producer_id"] >= 0))[0].tolist()
        return rows

    def rows_of_new_epochs(self, latest: int | None) -> list[int]:
        """Returns the rows whose leader epoch is above `latest` and above those of all
        rows before.
        """
        epochs = self.column("partition_leader_epoch")
        floor = np.maximum.accumulate(np.concatenate(([-1 if latest is None else latest], epochs)))
        rows: list[int] = np.nonzero(epochs > floor[:-1])[0].tolist()
        return rows

    def index_entries(
        self, start: int, last_indexed: int, interval_bytes: int, greatest: tuple[int, int]
    ) -> IndexEntries:
        """Returns the index entries due for these batches; the view begins at `start` of a file.

        `last_indexed` is the position of the last indexed batch. `greatest` is the greatest
        timestamp before these batches, and its offset. `commitlog.segment.segment` has the rules.
        Uses a kernel if the process has loaded it.
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
        times, counts = self.column("max_timestamp_ms"), self.column("record_count")
        times = np.where(counts > 0, times, -1)  # as `commitlog.segment.batches.indexed_ms`
        highest = np.maximum.accumulate(np.maximum(times, greatest[0]))
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
    """Returns the rows whose positions are more than the interval behind the row taken before."""
    row = int(np.searchsorted(positions, last_indexed + interval_bytes, "right"))
    if len(positions) < row + 2 or np.diff(positions[row:]).min() > interval_bytes:
        return slice(row, None)
    listed: list[int] = positions.tolist()
    rows: list[int] = []
    while row < len(listed):
        rows.append(row)
        row = bisect_right(listed, listed[row] + interval_bytes, row + 1)
    return rows
