"""The indexes of a remote segment, held against the batches of its log.

A checksum that was made over a wrong index agrees with it. So each offset entry must have the
position and the last offset of a batch. Each time entry must have the greatest timestamp
and the last offset of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from commitlog.segment.batch_table import BatchTable
from tiering.store.manager import IndexType

_SHAPES = {
    IndexType.OFFSET: np.dtype([("offset", ">i4"), ("position", ">i4")]),
    IndexType.TIMESTAMP: np.dtype([("timestamp", ">i8"), ("offset", ">i4")]),
}


class IndexCheck:
    """Collects the entries that a batch confirms; `parts` are the sound indexes of the sidecar."""

    def __init__(self, base_offset: int, parts: Mapping[IndexType, bytes]) -> None:
        self._base = base_offset
        self._rows = {kind: _rows(parts[kind], kind) for kind in _SHAPES if kind in parts}
        self._confirmed = {kind: np.zeros(len(rows), bool) for kind, rows in self._rows.items()}

    def take(self, begin: int, table: BatchTable) -> None:
        """Takes batches in order; the first begins at byte `begin` of the log or later."""
        lasts = table.column("base_offset").astype(np.int64) + table.column("last_offset_delta")
        for kind, rows in self._rows.items():
            offsets = rows["offset"].astype(np.int64) + self._base
            if kind is IndexType.OFFSET:
                wanted, known = rows["position"], begin + table.positions
                at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
                fits = (known[at] == wanted) & (lasts[at] == offsets)
            else:
                times = table.column("max_timestamp_ms")
                at = np.minimum(np.searchsorted(lasts, offsets), len(lasts) - 1)
                fits = lasts[at] == offsets
                is_least = (rows["timestamp"] == 0) & (table.column("record_count")[at] == 0)
                fits &= (times[at] == rows["timestamp"]) | is_least  # of an empty batch
            self._confirmed[kind] |= fits

    def faults(self) -> Iterator[tuple[IndexType, int, str]]:
        """Yields (kind, byte within the part, reason) of the first wrong entry of each index."""
        for kind, rows in self._rows.items():
            first = _SHAPES[kind].names
            assert first is not None
            values = rows[first[0]].astype(np.int64)
            falls = np.concatenate(([False], np.diff(values) <= 0))[: len(values)]
            for row in np.nonzero(~self._confirmed[kind] | falls)[0][:1].tolist():
                reason = f"an entry of the part {kind.value} contradicts the log: {rows[row]}"
                yield kind, row * rows.dtype.itemsize, reason


def _rows(content: bytes, kind: IndexType) -> Any:
    """Returns the entries, without the preallocated rest of an index that was not closed."""
    shape = _SHAPES[kind]
    rows = np.frombuffer(content, shape, len(content) // shape.itemsize)
    blank = np.nonzero(rows[1:] == np.zeros(1, shape))[0]
    return rows[: int(blank[0]) + 1] if len(blank) else rows
