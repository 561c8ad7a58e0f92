"""Decisions of copy and expiration, pure (KIP-405; Kafka's RemoteLogManager tasks).

Copied is every rolled segment that ends at or below the last stable offset. It must end above the
highest offset that this leader's own lineage has in the tier.

Deleted are, from the oldest on, segments below the log start offset, too old ones, and those beyond
the size limit. Time and size apply only to segments of this leader's lineage. A segment of epochs
before the earliest known one belongs to no lineage and is deleted. The log start offset moves
before anything is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

from tiering.metadata.segments import EpochEntry, RemoteLogSegmentMetadata, RemoteLogSegmentState

_S = RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A segment on local disk: [base_offset, next_offset), its bytes, and its greatest timestamp in
    ms.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int


def highest_copied_offset(
    epochs: Sequence[EpochEntry],
    log_end_offset: int,
    highest_for_epoch: Callable[[int], int | None],
) -> int:
    """Returns the highest offset (inclusive) of this lineage in the tier, or -1.

    Walks the epochs backwards until one has remote records (KIP-405 "follower to leader"). The tier
    may have more of an epoch than this lineage kept after an unclean election. Then the epoch's own
    last offset counts.
    """
    for position in range(len(epochs) - 1, -1, -1):
        highest = highest_for_epoch(epochs[position].epoch)
        if highest is not None:
            later = epochs[position + 1 :]
            end = later[0].start_offset if later else log_end_offset
            return min(highest, end - 1)
    return -1


def segments_to_copy(
    segments: Sequence[LocalSegment],
    copied_offset: int,
    last_stable_offset: int,
    log_start_offset: int,
) -> list[LocalSegment]:
    """Returns the rolled segments to copy, oldest first. The last of `segments` is the active one
    and is never copied.

    A segment that the tier has only in part is copied as a whole; the older copy becomes
    unreferenced.
    """
    return [
        segment
        for segment in segments[:-1]
        if segment.next_offset > max(copied_offset + 1, log_start_offset)
        and segment.base_offset < segment.next_offset <= last_stable_offset
    ]


def segment_leader_epochs(
    epochs: Sequence[EpochEntry], start_offset: int, next_offset: int
) -> tuple[EpochEntry, ...]:
    """Returns the epochs with records in [start_offset, next_offset), each with its first offset
    there.
    """
    found = []
    for position, entry in enumerate(epochs):
        end = epochs[position + 1].start_offset if position + 1 < len(epochs) else next_offset
        first = max(entry.start_offset, start_offset)
        if first < min(end, next_offset):
            found.append(EpochEntry(entry.epoch, first))
    return tuple(found)


def epochs_up_to(epochs: Sequence[EpochEntry], end_offset: int) -> tuple[EpochEntry, ...]:
    """Returns the lineage of a log that ends (exclusively) at `end_offset`."""
    return tuple(entry for entry in epochs if entry.start_offset < end_offset)


def is_within_leader_epochs(
    segment: RemoteLogSegmentMetadata, log_end_offset: int, epochs: Sequence[EpochEntry]
) -> bool:
    """Returns whether every record of the remote segment belongs to the lineage `epochs`.

    Source: RemoteLogManager.isRemoteSegmentWithinLeaderEpochs. Epochs without records in the
    segment do not count. Unlike in Kafka, records below the lineage's first offset do not count
    either: the log start may lie in the middle of a segment.
    """
    if segment.end_offset >= log_end_offset or not epochs:
        return False
    starts = {entry.epoch: entry.start_offset for entry in epochs}
    ends = {entry.epoch: later.start_offset for entry, later in pairwise(epochs)}
    floor = epochs[0].start_offset  # the lineage below the log start is gone: it is never read
    checked = False
    for entry in segment.segment_leader_epochs:
        bounds = segment.epoch_range(entry.epoch)
        if bounds is None or bounds[0] > bounds[1] or bounds[1] < floor:
            continue
        first, last = max(bounds[0], floor), bounds[1]
        if entry.epoch not in starts:
            return False
        if first < starts[entry.epoch] or last >= ends.get(entry.epoch, log_end_offset):
            return False
        if first > max(segment.start_offset, floor) and first != starts[entry.epoch]:
            return False
        checked = True
    return checked


@dataclass(frozen=True, slots=True)
class ExpirationPlan:
    """Segments to delete (oldest first), and the new log start (None: unchanged)."""

    delete: tuple[RemoteLogSegmentMetadata, ...]
    log_start_offset: int | None


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits of a log, where below 0 is none, and the parts of it that are here."""

    retention_ms: int
    retention_bytes: int
    log_start_offset: int
    log_end_offset: int
    local_only_bytes: int
    """Bytes of local segments that the tier does not have."""


def plan_expiration(
    segments: Iterable[RemoteLogSegmentMetadata],
    epochs: Sequence[EpochEntry],
    retention: Retention,
    now_ms: int,
    *,
    in_flight: Collection[UUID] = (),
) -> ExpirationPlan:
    """Returns the segments that the leader deletes from the tier now.

    Segments in state DELETE_SEGMENT_STARTED are remains of an earlier deletion and are deleted
    again. A segment that is being copied is kept. Retention by time and size stops at the first
    segment of the lineage that stays, so that the rest is contiguous.
    """
    ordered = sorted(segments, key=lambda segment: (segment.start_offset, segment.end_offset))
    leftovers = [s for s in ordered if s.state is _S.DELETE_SEGMENT_STARTED]
    finished = [s for s in ordered if s.state is _S.COPY_SEGMENT_FINISHED and s.id not in in_flight]
    earliest_epoch = epochs[0].epoch if epochs else None
    excess_bytes = _excess_bytes(finished, epochs, retention)
    delete: list[RemoteLogSegmentMetadata] = []
    new_start = retention.log_start_offset
    keeping = False
    for segment in finished:
        last_epoch = segment.segment_leader_epochs[-1].epoch
        if segment.end_offset < retention.log_start_offset or (
            earliest_epoch is not None and last_epoch < earliest_epoch
        ):
            delete.append(segment)
            continue
        if keeping or not is_within_leader_epochs(segment, retention.log_end_offset, epochs):
            continue
        too_old = 0 <= retention.retention_ms < now_ms - segment.max_timestamp_ms
        if not too_old and excess_bytes <= 0:
            keeping = True
            continue
        delete.append(segment)
        excess_bytes -= segment.segment_size_bytes
        new_start = max(new_start, segment.next_offset)
    moved = new_start if new_start > retention.log_start_offset else None
    return ExpirationPlan((*leftovers, *delete), moved)


def _excess_bytes(
    finished: Sequence[RemoteLogSegmentMetadata],
    epochs: Sequence[EpochEntry],
    retention: Retention,
) -> int:
    """Returns the bytes above retention.bytes. Each offset counts once, even if the tier has
    several copies.
    """
    if retention.retention_bytes < 0:
        return 0
    total, counted_to = retention.local_only_bytes, retention.log_start_offset - 1
    for segment in finished:
        if segment.end_offset > counted_to and is_within_leader_epochs(
            segment, retention.log_end_offset, epochs
        ):
            total += segment.segment_size_bytes
            counted_to = segment.end_offset
    return total - retention.retention_bytes


def unfinished_since(
    segments: Iterable[RemoteLogSegmentMetadata], since_ms: Mapping[UUID, int], now_ms: int
) -> dict[UUID, int]:
    """Returns when this node first saw each copy that is not finished, by its own clock.

    The records have times of other brokers' clocks, which may differ by any amount.
    """
    return {
        segment.id: since_ms.get(segment.id, now_ms)
        for segment in segments
        if segment.state is _S.COPY_SEGMENT_STARTED
    }


def dangling_copies(
    segments: Iterable[RemoteLogSegmentMetadata],
    broker_id: int,
    now_ms: int,
    grace_ms: int,
    since_ms: Mapping[UUID, int],
    in_flight: Callable[[UUID], bool],
) -> list[RemoteLogSegmentMetadata]:
    """Returns copies that were begun and can not be finished any more; the leader deletes them.

    This broker's own copies that are not in flight ended with an earlier process or a failed
    upload. Another broker's may still be under way after it lost the leadership; they are kept for
    `grace_ms` after `since_ms`.
    """
    return [
        segment
        for segment in segments
        if segment.state is _S.COPY_SEGMENT_STARTED
        and not in_flight(segment.id)
        and (segment.broker_id == broker_id or now_ms - since_ms.get(segment.id, now_ms) > grace_ms)
    ]


def readable_end(
    segment: RemoteLogSegmentMetadata, epochs: Sequence[EpochEntry], epoch: int, log_end_offset: int
) -> int:
    """Returns the offset (exclusive) up to which a segment found by `epoch` may be read on this
    lineage.

    After an unclean election a remote segment may hold, after the records of `epoch`, records that
    this lineage never had (KIP-405 "log divergence"). The read may continue as long as the next
    epochs of both begin at the same offsets.
    """
    starts = {entry.epoch: position for position, entry in enumerate(epochs)}
    following = [entry for entry in segment.segment_leader_epochs if entry.epoch > epoch]
    position = starts.get(epoch)
    if position is None:
        return segment.start_offset
    while True:
        later = epochs[position + 1].start_offset if position + 1 < len(epochs) else log_end_offset
        here = following[0].start_offset if following else segment.next_offset
        if not following or tuple(epochs[position + 1 : position + 2]) != tuple(following[:1]):
            return min(here, later)
        following, position = following[1:], position + 1


def first_available_offset(
    segments: Iterable[RemoteLogSegmentMetadata],
    epochs: Sequence[EpochEntry],
    log_end_offset: int,
    local_log_start_offset: int,
) -> int:
    """Returns the first readable offset: of the oldest finished segment of this lineage, else the
    local start.

    A new leader raises its log start to it: an earlier leader may have deleted from the tier just
    before it failed.
    """
    starts = [
        segment.start_offset
        for segment in segments
        if segment.state is _S.COPY_SEGMENT_FINISHED
        and is_within_leader_epochs(segment, log_end_offset, epochs)
    ]
    return min([*starts, local_log_start_offset])
