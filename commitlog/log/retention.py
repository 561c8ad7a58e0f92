"""Retention: selects the segments of a log that expire, by log start, time and size (Kafka's
rules).

The oldest segments expire first, and none expires after one that stays. Nothing at or above the
high watermark expires. With remote storage local retention applies, and only to segments that the
tier has (at or below highest_remote_offset), also where cleanup.policy lacks delete. Without copies
(remote.log.copy.disable) it is that of a log without a tier, as in Kafka. The active segment is
never deleted. If it breaches retention it is rolled, so that the next pass may delete it.

These functions only decide; `commitlog.log.expiration` deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tidemark.config import TopicConfig


class RetainedSegment(Protocol):
    """The facts of a segment that retention needs. `retention_timestamp_ms` is read last, because
    it may have to be loaded.
    """

    @property
    def next_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def retention_timestamp_ms(self) -> int: ...


class RetainedLog(Protocol):
    """The facts of a log that retention needs; the last segment is the active one."""

    @property
    def config(self) -> TopicConfig: ...

    @property
    def segments(self) -> Sequence[RetainedSegment]: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def highest_remote_offset(self) -> int: ...


class Reason(Enum):
    """The limit that a segment breaches; the value is for messages."""

    LOG_START = "log start offset"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


@dataclass(frozen=True, slots=True)
class Expired:
    """The number of oldest segments to delete; `rolls`: roll the active segment first."""

    count: int
    rolls: bool


Breach = Callable[[RetainedSegment], bool]


def reasons(config: TopicConfig) -> tuple[Reason, ...]:
    """Returns the reasons that apply to a topic, in the order of a pass.

    Size comes before time, as in Kafka: an expired segment behind those that size removes goes in
    the same pass.
    """
    if config.expires_locally:
        return Reason.LOG_START, Reason.SIZE, Reason.TIME
    return (Reason.LOG_START,)


def expired(log: RetainedLog, reason: Reason, now_ms: int) -> Expired:
    """Returns the segments that one reason removes from the log in its present state."""
    segments, breached = log.segments, _breach(log, reason, now_ms)
    for count, segment in enumerate(segments):
        if segment.next_offset > log.high_watermark or not breached(segment):
            return Expired(count, rolls=False)
        if segment is segments[-1]:
            rolls = reason is not Reason.LOG_START and segment.size_bytes > 0
            return Expired(count, rolls)
        if not _is_removable(log, segment):
            return Expired(count, rolls=False)
    return Expired(0, rolls=False)


def next_due_ms(log: RetainedLog, now_ms: int) -> int | None:
    """Returns when a pass must look at an unchanged log again; None: never.

    Only the oldest segment counts, because none is deleted before it. `now_ms` if it already
    breaches a limit but is retained by the high watermark or the tier, or was just rolled.
    """
    segments = log.segments
    oldest = segments[0]
    if not log.config.expires_locally or (len(segments) == 1 and oldest.size_bytes == 0):
        return None  # a change of the log start triggers a pass by itself
    if _above_retention_size(log)(oldest):
        return now_ms
    limit_ms = _retention_ms(log.config)
    return None if limit_ms < 0 else max(now_ms, oldest.retention_timestamp_ms + limit_ms + 1)


def _breach(log: RetainedLog, reason: Reason, now_ms: int) -> Breach:
    if reason is Reason.LOG_START:
        active, start = log.segments[-1], log.log_start_offset
        return lambda segment: segment is not active and segment.next_offset <= start
    if reason is Reason.SIZE:
        return _above_retention_size(log)
    limit_ms = _retention_ms(log.config)
    return lambda segment: 0 <= limit_ms < now_ms - segment.retention_timestamp_ms


def _retention_ms(config: TopicConfig) -> int:
    tiered = config.copies_to_tier
    return config.effective_local_retention_ms if tiered else config.retention_ms


def _above_retention_size(log: RetainedLog) -> Breach:
    config = log.config
    tiered = config.copies_to_tier
    limit = config.effective_local_retention_bytes if tiered else config.retention_bytes
    excess = sum(segment.size_bytes for segment in log.segments) - limit if limit >= 0 else -1

    def breached(segment: RetainedSegment) -> bool:
        nonlocal excess
        if limit < 0 or excess - segment.size_bytes < 0:
            return False
        excess -= segment.size_bytes
        return True

    return breached


def _is_removable(log: RetainedLog, segment: RetainedSegment) -> bool:
    """With remote storage: whether the tier has the segment, or the partition starts behind it."""
    if not log.config.copies_to_tier:
        return True
    end = segment.next_offset
    return end - 1 <= log.highest_remote_offset or end <= log.log_start_offset
