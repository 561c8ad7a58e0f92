"""A pass of retention over one log: deletes the segments that `commitlog.log.retention` selects."""

from __future__ import annotations

import logging

from commitlog.log import retention
from commitlog.log.log import Log
from commitlog.types import DeletedSegment

logger = logging.getLogger(__name__)


def delete_expired(log: Log, now_ms: int) -> list[DeletedSegment]:
    """Deletes the segments that breach retention; returns them, oldest first."""
    deleted: list[DeletedSegment] = []
    for reason in retention.reasons(log.config):
        expired = retention.expired(log, reason, now_ms)
        if expired.rolls:
            log.roll(now_ms)
        if expired.count:
            deleted += _delete(log, expired.count, reason.value, now_ms)
    return deleted


def _delete(log: Log, count: int, reason: str, now_ms: int) -> list[DeletedSegment]:
    expired = log.segments[:count]
    # The log start moves first: segments that a crash leaves behind are below it, and the next pass
    # deletes them. With remote storage the log start stays: the tier has the records.
    if not log.config.copies_to_tier:
        log.increment_log_start_offset(log.segments[count].base_offset)
    # Recovery rebuilds unwritten epochs from the batches, but not those of deleted batches. Without
    # its epoch an offset is not found in the tier.
    log.epochs.flush()
    log.drop_oldest(count, now_ms)
    logger.info("%s: deleted %d segments by %s", log.topic_partition, count, reason)
    return [
        DeletedSegment(
            segment.base_offset,
            segment.next_offset,
            segment.size_bytes,
            segment.max_timestamp_ms,
            reason,
        )
        for segment in expired
    ]
