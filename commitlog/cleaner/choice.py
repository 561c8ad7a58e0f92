"""Choice of the next log to clean, of its range, and of its groups of segments: pure decisions.

A log has three parts. The clean part is below the first dirty offset: it was cleaned before. The
dirty part follows. The rest may not be cleaned yet:

- the active segment;
- the segment that holds the last stable offset (at most the high watermark), and all after it;
- segments younger than min.compaction.lag.ms.

A log qualifies if dirty / (clean + dirty) bytes is above min.cleanable.dirty.ratio. It also does if
its oldest dirty record is older than max.compaction.lag.ms. The dirtiest log goes first. Source:
Kafka's LogCleanerManager and Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from tidemark.config import TopicConfig

MAX_RELATIVE_OFFSET = 2**31 - 1
NEVER_MS = 2**63 - 1


class SegmentView(Protocol):
    """Segment as the choice reads it; timestamps in ms, -1 if there are none."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def first_timestamp_ms(self) -> int: ...

    @property
    def max_timestamp_ms(self) -> int: ...


class CleanableLog(Protocol):
    """Log as the choice reads it; the last segment is the active one."""

    @property
    def config(self) -> TopicConfig: ...

    @property
    def segments(self) -> Sequence[SegmentView]: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def last_stable_offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Cleanable:
    """Dirty part of a log: offsets [first_dirty_offset, end_offset), sizes in bytes."""

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def cleanable(log: CleanableLog, checkpoint: int | None, now_ms: int) -> Cleanable:
    """Returns the dirty part of a log; `checkpoint` is the offset at which the last cleaning ended.

    A checkpoint outside of the log (it was cut, or its start moved) counts as the log's start.
    """
    start, segments = log.log_start_offset, log.segments
    first_dirty = start if checkpoint is None else checkpoint
    if not start <= first_dirty <= log.log_end_offset:
        first_dirty = start
    end = _end_offset(log, first_dirty, now_ms)
    clean = sum(s.size_bytes for s in segments if s.base_offset < min(first_dirty, end))
    dirty = [s for s in segments if first_dirty <= s.base_offset < end]
    holder = _holder(segments, first_dirty)
    if holder is not None and holder.base_offset < first_dirty and holder.base_offset < end:
        clean -= holder.size_bytes  # the segment that holds the first dirty offset is dirty
        dirty.insert(0, holder)
    overdue = False
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms < now_ms:
        oldest = min((s.first_timestamp_ms for s in dirty if s.first_timestamp_ms > 0), default=-1)
        overdue = 0 < oldest < now_ms - lag_ms
    return Cleanable(first_dirty, end, clean, sum(s.size_bytes for s in dirty), overdue)


def _holder(segments: Sequence[SegmentView], offset: int) -> SegmentView | None:
    found = None
    for segment in segments:
        if segment.base_offset > offset:
            break
        found = segment
    return found


def _end_offset(log: CleanableLog, first_dirty: int, now_ms: int) -> int:
    """Returns the base offset of the first segment that may not be cleaned."""
    segments = log.segments
    limit = min(log.last_stable_offset, segments[-1].base_offset)
    lag_ms = log.config.min_compaction_lag_ms
    for segment, following in pairwise(segments):
        if following.base_offset > limit:
            return segment.base_offset
        young = lag_ms > 0 and segment.max_timestamp_ms > now_ms - lag_ms
        if young and following.base_offset > first_dirty:
            return segment.base_offset
    return segments[-1].base_offset


def qualifies(found: Cleanable, config: TopicConfig) -> bool:
    """Returns whether it is time to clean."""
    if found.dirty_bytes == 0:
        return False
    return found.is_overdue or found.dirty_ratio > config.min_cleanable_dirty_ratio


def is_settled(found: Cleanable, log: CleanableLog) -> bool:
    """Returns whether only a change, and no lapse of time, can make a log qualify that does not
    yet.

    That is not so while segments wait for min.compaction.lag.ms, or dirty records for
    max.compaction.lag.ms.
    """
    config = log.config
    waits = config.min_compaction_lag_ms > 0 and found.end_offset < log.segments[-1].base_offset
    ages = found.dirty_bytes > 0 and config.max_compaction_lag_ms < NEVER_MS
    return not waits and not ages


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """Sizes of a segment for grouping, in bytes; `next_base` is the base offset of the next one."""

    base_offset: int
    next_base: int
    size_bytes: int
    index_bytes: int
    time_index_bytes: int


def group_segments(
    segments: Iterable[SegmentSizes], segment_bytes: int, index_bytes: int
) -> list[list[SegmentSizes]]:
    """Groups neighbours that fit into one segment, by log size, index sizes and offset span."""
    groups: list[list[SegmentSizes]] = []
    size = index = time_index = 0
    for segment in segments:
        size += segment.size_bytes
        index += segment.index_bytes
        time_index += segment.time_index_bytes
        if (
            not groups
            or size > segment_bytes
            or max(index, time_index) > index_bytes
            or segment.next_base - 1 - groups[-1][0].base_offset > MAX_RELATIVE_OFFSET
        ):
            groups.append([])
            size, index = segment.size_bytes, segment.index_bytes
            time_index = segment.time_index_bytes
        groups[-1].append(segment)
    return groups
