"""An index file against its segment: entries that rise, and that name what the segment holds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commitlog.disk.files import Directory
from commitlog.dump.index import index_entries
from commitlog.segment.indexes import OFFSET_ENTRY, TIME_ENTRY
from commitlog.segment.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from commitlog.verify.findings import Finding

_FAULTS = ("damage", "mismatch")
_ANY_SIZE = 1 << 40
_OFFSETS = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIMES = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


def verify_index(directory: Directory, name: str) -> Iterator[Finding]:
    """Yields what is wrong with an offset, time or transaction index.

    The preallocated rest of an index that was not closed is passed over. Raises StorageError if
    the file can not be read.
    """
    data = directory.read(name)
    path = f"{directory.path}/{name}"
    if not any(data):
        return
    for entry in index_entries(directory, name, name, _ANY_SIZE):
        if entry["kind"] in _FAULTS:
            yield Finding(path, entry["position"], entry["reason"])
    if name.endswith(TIME_INDEX_SUFFIX):
        yield from _rising(path, data, _TIMES)
    elif name.endswith(INDEX_SUFFIX):
        yield from _rising(path, data, _OFFSETS)


def _rising(path: str, data: bytes, shape: np.dtype[np.void]) -> Iterator[Finding]:
    """Yields the first entry that does not rise above the one before it."""
    size = shape.itemsize
    rows = np.frombuffer(data, shape, len(data) // size)
    used = len(rows)
    blank = np.nonzero(rows[1:] == np.zeros(1, shape))[0]
    if len(blank):
        used = int(blank[0]) + 1
    for column in shape.names or ():
        values = rows[column][:used].astype(np.int64)
        for row in np.nonzero(np.diff(values) <= 0)[0][:1].tolist():
            reason = f"{column} {values[row + 1]} after {values[row]}: entries must rise"
            yield Finding(path, (row + 1) * size, reason)


assert _OFFSETS.itemsize == OFFSET_ENTRY.size
assert _TIMES.itemsize == TIME_ENTRY.size
