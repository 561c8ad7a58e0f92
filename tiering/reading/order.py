"""Checks batches of a remote segment against its metadata (pure). No CRC covers their offsets,
lengths and leader epochs, and an object may be cut, or another one's.

The metadata is what the checks rely on: the topic that holds it has checksums.
"""

from __future__ import annotations

from bisect import bisect_right

from tidemark.errors import CorruptMessageError
from tidemark.records.extent import Extent, extent_of
from tiering.metadata.segments import RemoteLogSegmentMetadata


def checked_extent(
    segment: RemoteLogSegmentMetadata, data: bytes, position: int, wanted: int
) -> Extent:
    """Returns the extent of the first batches at `position` of a segment's log, `wanted` bytes at
    most. `data` also has the header behind them, unless the log ends there.

    Raises CorruptMessageError if no batch is left that is in order, of the segment's offsets and
    of its leader epochs.
    """
    extent = extent_of(data, segment.next_offset, wanted, segment.start_offset)
    end = position + extent.size_bytes
    if not extent.size_bytes:
        raise damaged(segment, position, "no batch of the segment begins there")
    if end == segment.segment_size_bytes and extent.next_offset != segment.next_offset:
        raise damaged(segment, position, f"it ends at offset {extent.next_offset - 1}")
    ends = (extent.first_offset, extent.first_epoch), (extent.next_offset - 1, extent.last_epoch)
    if any(epoch != epoch_at(segment, offset) for offset, epoch in ends):
        raise damaged(segment, position, "a batch is of another leader epoch")
    return extent


def epoch_at(segment: RemoteLogSegmentMetadata, offset: int) -> int:
    """Returns the leader epoch of an offset of the segment."""
    entries = segment.segment_leader_epochs
    row = bisect_right([entry.start_offset for entry in entries], offset) - 1
    return entries[max(0, row)].epoch


def damaged(segment: RemoteLogSegmentMetadata, position: int, problem: str) -> CorruptMessageError:
    """Returns the error of an object of the tier that contradicts its metadata."""
    return CorruptMessageError(
        f"remote segment {segment.remote_log_segment_id} is damaged at byte {position}: {problem}"
    )
