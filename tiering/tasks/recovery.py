"""The log that the tier has, for a partition whose replicas all lost theirs. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from tiering.metadata.segments import EpochEntry, RemoteLogSegmentMetadata, RemoteLogSegmentState


def finished(segments: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    """Returns the segments that can be read."""
    return [s for s in segments if s.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]


def latest_segment(
    segments: Sequence[RemoteLogSegmentMetadata],
) -> RemoteLogSegmentMetadata | None:
    """Returns the last segment of the latest lineage: the newest epoch, and its highest offset."""
    return max(finished(segments), key=_recency, default=None)


def unfinished_above(
    segments: Sequence[RemoteLogSegmentMetadata], last: RemoteLogSegmentMetadata | None
) -> list[RemoteLogSegmentMetadata]:
    """Returns the segments that would be later than `last` if their copies were finished."""
    return [
        segment
        for segment in segments
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        and (last is None or _recency(segment) > _recency(last))
    ]


def _recency(segment: RemoteLogSegmentMetadata) -> tuple[int, int]:
    return segment.segment_leader_epochs[-1].epoch, segment.end_offset


def first_offset(
    segments: Sequence[RemoteLogSegmentMetadata],
    lineage: Sequence[EpochEntry],
    last: RemoteLogSegmentMetadata,
) -> int:
    """Returns the lowest offset from which `last` can be reached on its lineage without a hole.

    A record of the same epoch at the same offset has the same records before it. So a segment
    belongs to the lineage as far as the record before the present start is in it, in its epoch.
    """
    starts = [entry.start_offset for entry in lineage]
    start = last.start_offset
    while (index := bisect_right(starts, start - 1)) > 0:
        epoch, before = lineage[index - 1].epoch, start - 1
        reaching = [
            segment.start_offset
            for segment in finished(segments)
            if (bounds := segment.epoch_range(epoch)) is not None
            and bounds[0] <= before <= bounds[1]
        ]
        if not reaching:
            break
        start = min(reaching)
    return start
