"""The offset and time index of a remote segment, read from Kafka's index files (pure).

`.index`: entries of 8 bytes, relative offset and position; `.timeindex`: 12 bytes, timestamp in ms
and relative offset. Both rise. Sources: the storage rules of Kafka's OffsetIndex and TimeIndex.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from tidemark.errors import CorruptMessageError

_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


@dataclass(frozen=True, slots=True)
class RemoteIndexes:
    """Binary searches; offsets are absolute, positions are bytes within the log file.

    Numpy's own search gives the interpreter's lock away. A loop whose threads load chunks waits
    milliseconds for it then, where a search takes a microsecond.
    """

    base_offset: int
    offsets: memoryview[int]
    positions: memoryview[int]
    timestamps: memoryview[int]
    time_offsets: memoryview[int]
    size_bytes: int

    @classmethod
    def parse(
        cls, base_offset: int, segment_size_bytes: int, offset_index: bytes, time_index: bytes
    ) -> RemoteIndexes:
        """Parses the two files. Raises CorruptMessageError if they can not be the segment's
        indexes.
        """
        if len(offset_index) % 8 or len(time_index) % 12:
            raise CorruptMessageError("an index ends in the middle of an entry")
        by_offset = np.frombuffer(offset_index, _OFFSET_ENTRY)
        by_time = np.frombuffer(time_index, _TIME_ENTRY)
        offsets = by_offset["offset"].astype(np.int64)
        positions = by_offset["position"].astype(np.int64)
        timestamps = by_time["timestamp"].astype(np.int64)
        time_offsets = by_time["offset"].astype(np.int64)
        for name, values in (("offset", offsets), ("position", positions)):
            if len(values) and (values[0] < 0 or np.any(np.diff(values) <= 0)):
                raise CorruptMessageError(f"the {name}s of an offset index do not rise")
        if len(positions) and positions[-1] >= segment_size_bytes:
            raise CorruptMessageError("an offset index points behind its log")
        if len(timestamps) and (np.any(np.diff(timestamps) < 0) or np.any(time_offsets < 0)):
            raise CorruptMessageError("the timestamps of a time index do not rise")
        size = len(offset_index) + len(time_index)
        return cls(
            base_offset,
            offsets.data,
            positions.data,
            timestamps.data,
            time_offsets.data,
            size,
        )

    def position_of(self, offset: int) -> int:
        """Returns the position to search `offset` from: at or before the batch that holds it."""
        entry = bisect_right(self.offsets, offset - self.base_offset) - 1
        return self.positions[entry] if entry >= 0 else 0

    def entry_at(self, offset: int) -> tuple[int, int]:
        """Returns (last offset, position) of the batch of the last entry at or below `offset`; the
        position is 0 if there is none.
        """
        entry = bisect_right(self.offsets, offset - self.base_offset) - 1
        if entry < 0:
            return self.base_offset, 0
        return self.base_offset + self.offsets[entry], self.positions[entry]

    def last_position_within(self, start: int, limit: int) -> int:
        """Returns the start of a batch in [start, limit]: the last one indexed, or `start`
        itself.
        """
        entry = bisect_right(self.positions, limit) - 1
        return max(start, self.positions[entry]) if entry >= 0 else start

    def offset_before(self, timestamp_ms: int) -> int:
        """Returns an offset up to which every record is older than `timestamp_ms`."""
        entry = bisect_left(self.timestamps, timestamp_ms) - 1
        return self.base_offset + (self.time_offsets[entry] if entry >= 0 else 0)
