"""A pass of retention over one log: deletes what `commitlog.log.retention` decides."""

from __future__ import annotations

import logging

from commitlog.log import retention
from commitlog.log.log import Log
from commitlog.types import DeletedSegment

logger = logging.getLogger(__name__)


def delete_expired(log: Log, now_ms: int) -> list[DeletedSegment]:
    """Deletes the segments that breach retention; returns what left the log, oldest first."""
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
    # The start moves first: what a crash leaves behind lies below it, and goes with the next pass.
    # With remote storage it stays: the tier has the records.
    if not log.config.remote_storage_enable:
        log.increment_log_start_offset(log.segments[count].base_offset)
    # Recovery finds unwritten epochs in the batches; those of batches that go now it never would,
    # and without its epoch an offset is not found in the tier.
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
