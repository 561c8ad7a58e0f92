"""Decisions of copy and expiration, pure (KIP-405; Kafka's RemoteLogManager tasks).

Copied is every rolled segment that ends at or below the last stable offset. It must end above the
highest offset that this leader's own lineage has in the tier.

One notion decides what the tier has of a log: `coverage`, the offsets of a segment that belong to a
lineage. Reads, search by time, retention and the first offset follow from it. A segment of which
only a part is covered counts with that part.

Deleted are, from the oldest on, segments below the log start offset, too old ones, and those beyond
the size limit. A segment of another lineage is deleted by its age, or below the log start, and for
no other reason (RULES.md rule 12). The log start offset moves before anything is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, takewhile
from uuid import UUID

from tiering.metadata.manager import RemoteSegments
from tiering.metadata.segments import EpochEntry, RemoteLogSegmentMetadata, RemoteLogSegmentState

_S = RemoteLogSegmentState
Bounds = Mapping[int, tuple[int, int]]
"""First offset and end (exclusive) of each leader epoch of a lineage."""


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


def coverage(
    segment: RemoteLogSegmentMetadata, epochs: Sequence[EpochEntry], log_end_offset: int
) -> range:
    """Returns the offsets of the remote segment whose records belong to the lineage `epochs`.

    A record is the lineage's own if both have its offset in the same leader epoch (RULES.md rule
    5). Histories that agree on a record agree on all before it, so the result has no hole. It may
    be empty. It ends early after an unclean election, and begins late if the log start lies within
    the segment. Kafka takes a segment as a whole or not at all (isRemoteSegmentWithinLeaderEpochs).
    """
    return covered_by(segment, lineage_bounds(epochs, log_end_offset), log_end_offset)


def lineage_bounds(epochs: Sequence[EpochEntry], log_end_offset: int) -> Bounds:
    """Returns the first offset and the end (exclusive) of each epoch of a lineage."""
    ends = [entry.start_offset for entry in epochs[1:]] + [log_end_offset]
    return {e.epoch: (e.start_offset, end) for e, end in zip(epochs, ends, strict=False)}


def covered_by(segment: RemoteLogSegmentMetadata, bounds: Bounds, log_end_offset: int) -> range:
    """Returns the `coverage` of a segment by a lineage with these bounds."""
    following = [*segment.segment_leader_epochs[1:], EpochEntry(-1, segment.next_offset)]
    covered = range(segment.start_offset, segment.start_offset)
    for (epoch, start), (_, stop) in zip(segment.segment_leader_epochs, following, strict=True):
        begin, end = bounds.get(epoch, (0, 0))
        own = range(max(begin, start, segment.start_offset), min(end, stop, log_end_offset))
        if not own:
            continue
        if covered and own.start != covered.stop:
            break
        covered = range(covered.start if covered else own.start, own.stop)
    return covered


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
    tier: RemoteSegments,
    epochs: Sequence[EpochEntry],
    retention: Retention,
    now_ms: int,
) -> ExpirationPlan:
    """Returns the segments that the leader deletes from the tier now.

    Segments in state DELETE_SEGMENT_STARTED are remains of an earlier deletion and are deleted
    again. Retention by time and size stops at the first segment of the lineage that stays, so that
    the rest is contiguous. Segments of another lineage neither stop it nor move the log start. Only
    segments that go, and the unusual ones, are looked at: the rest costs nothing.
    """
    bounds = lineage_bounds(epochs, retention.log_end_offset)
    beside = tier.beside(bounds)
    excess_bytes, uncounted = _excess_bytes(tier, beside, bounds, retention)
    delete: dict[UUID, RemoteLogSegmentMetadata] = {}
    new_start = retention.log_start_offset
    keeping = False
    for segment in _oldest_first(tier.segments_from(0)):
        if keeping and segment.start_offset >= new_start:
            break
        if segment.state is not _S.COPY_SEGMENT_FINISHED:
            continue
        if segment.end_offset < new_start:
            delete[segment.id] = segment
            continue
        own = covered_by(segment, bounds, retention.log_end_offset)
        if keeping or not own:
            continue
        if not _too_old(segment, retention, now_ms) and excess_bytes <= 0:
            keeping = True
            continue
        delete[segment.id] = segment
        if segment.id not in uncounted:
            excess_bytes -= segment.segment_size_bytes
        new_start = max(new_start, own.stop)
    for segment in beside:
        foreign = not covered_by(segment, bounds, retention.log_end_offset)
        if foreign and _too_old(segment, retention, now_ms):
            delete[segment.id] = segment
    moved = new_start if new_start > retention.log_start_offset else None
    leftovers = [s for s in tier.unfinished() if s.state is _S.DELETE_SEGMENT_STARTED]
    ordered = sorted(delete.values(), key=lambda one: (one.start_offset, one.end_offset, one.id))
    return ExpirationPlan((*leftovers, *ordered), moved)


def plan_clearing(tier: RemoteSegments) -> tuple[RemoteLogSegmentMetadata, ...]:
    """Returns all segments that were copied, the newest first (KIP-950).

    A deletion that stops half way leaves no hole below the tier's highest offset. So tiering may be
    switched on again at any time.
    """
    finished = (s for s in tier.segments_from(0) if s.state is _S.COPY_SEGMENT_FINISHED)
    leftovers = (s for s in tier.unfinished() if s.state is _S.DELETE_SEGMENT_STARTED)
    newest_first = sorted(finished, key=lambda one: (one.end_offset, one.id), reverse=True)
    return (*leftovers, *newest_first)


def _too_old(segment: RemoteLogSegmentMetadata, retention: Retention, now_ms: int) -> bool:
    return 0 <= retention.retention_ms < now_ms - segment.max_timestamp_ms


def _oldest_first(
    segments: Iterable[RemoteLogSegmentMetadata],
) -> Iterator[RemoteLogSegmentMetadata]:
    """Yields segments by start offset, of those with the same one the longest first."""
    for _, group in groupby(segments, key=lambda segment: segment.start_offset):
        yield from sorted(group, key=lambda segment: -segment.end_offset)


def _excess_bytes(
    tier: RemoteSegments,
    beside: Iterable[RemoteLogSegmentMetadata],
    bounds: Bounds,
    retention: Retention,
) -> tuple[int, set[UUID]]:
    """Returns the bytes above retention.bytes, and the segments that do not count.

    No read of the lineage uses these; so each offset counts once.
    """
    uncounted: set[UUID] = set()
    if retention.retention_bytes < 0:
        return 0, uncounted
    below = takewhile(
        lambda segment: segment.start_offset < retention.log_start_offset, tier.segments_from(0)
    )
    total = tier.finished_bytes + retention.local_only_bytes
    for segment in chain(below, beside):
        is_counted = segment.state is _S.COPY_SEGMENT_FINISHED and segment.id not in uncounted
        if is_counted and not _is_read(tier, segment, bounds, retention):
            uncounted.add(segment.id)
            total -= segment.segment_size_bytes
    return total - retention.retention_bytes, uncounted


def _is_read(
    tier: RemoteSegments, segment: RemoteLogSegmentMetadata, bounds: Bounds, retention: Retention
) -> bool:
    own = covered_by(segment, bounds, retention.log_end_offset)
    for epoch, start in segment.segment_leader_epochs:
        begin, end = bounds.get(epoch, (0, 0))
        offset = max(start, begin, retention.log_start_offset)
        if offset in own and offset < end:
            found = tier.segment_for(epoch, offset)
            if found is not None and found.id == segment.id:
                return True
    return False


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


def first_available_offset(
    tier: RemoteSegments,
    epochs: Sequence[EpochEntry],
    log_end_offset: int,
    local_log_start_offset: int,
) -> int:
    """Returns the first readable offset: the oldest that a finished segment covers, else the local
    start.

    A segment that is covered in part counts, as in Kafka (findLogStartOffset takes the first
    segment of the earliest epoch, whole or not). The leader raises its log start to it: an earlier
    leader may have deleted from the tier just before it failed.
    """
    bounds, first = lineage_bounds(epochs, log_end_offset), local_log_start_offset
    for segment in tier.segments_from(0):
        if segment.start_offset >= first:
            break
        if segment.state is _S.COPY_SEGMENT_FINISHED:
            own = covered_by(segment, bounds, log_end_offset)
            first = min(first, own.start) if own else first
    return first
