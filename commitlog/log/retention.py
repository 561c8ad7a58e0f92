"""Which segments of a log expire: by log start, time and size, locally and in all (Kafka's rules).

Oldest first, and never past a segment that stays. Nothing at or above the high watermark goes; with
remote storage only what the tier has (at or below highest_remote_offset), by local retention, and
the log's start does not move: the records are still there, in the tier. The active segment is never
deleted; where it breaches retention it is rolled, so that the next pass may take it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from commitlog.disk.files import Directory
from commitlog.segment.producer_state import snapshot_name
from commitlog.segment.segment import DELETED_SUFFIX, Segment
from commitlog.types import DeletedSegment

if TYPE_CHECKING:
    from commitlog.log.log import Log

logger = logging.getLogger(__name__)

Breach = Callable[[Segment], bool]


def delete_expired(log: Log, now_ms: int) -> list[DeletedSegment]:
    """One pass; returns what left the log, oldest first."""
    deleted = _delete(log, _below_log_start(log), "log start offset", now_ms, roll=False)
    if log.config.is_deleted:
        # by size first, as Kafka: behind what goes by size an expired segment goes in the same pass
        deleted += _delete(log, _above_retention_size(log), "retention.bytes", now_ms)
        deleted += _delete(log, _older_than_retention(log, now_ms), "retention.ms", now_ms)
    return deleted


def next_due_ms(log: Log, now_ms: int) -> int | None:
    """When a pass has to look at a log again that stays as it is; None: never.

    Only the oldest segment counts: none goes before it. `now_ms` where it breaches a limit already
    and something else holds it (the high watermark, the tier), or where it was just rolled.
    """
    oldest = log.segments[0]
    if not log.config.is_deleted or (_is_active(log, oldest) and oldest.size_bytes == 0):
        return None  # retention by log start is done with the pass that hears that it moved
    if _above_retention_size(log)(oldest):
        return now_ms
    limit_ms = _retention_ms(log)
    return None if limit_ms < 0 else max(now_ms, oldest.retention_timestamp_ms + limit_ms + 1)


def _below_log_start(log: Log) -> Breach:
    def breached(segment: Segment) -> bool:
        return not _is_active(log, segment) and segment.next_offset <= log.log_start_offset

    return breached


def _retention_ms(log: Log) -> int:
    config = log.config
    tiered = config.remote_storage_enable
    return config.effective_local_retention_ms if tiered else config.retention_ms


def _older_than_retention(log: Log, now_ms: int) -> Breach:
    limit = _retention_ms(log)

    def breached(segment: Segment) -> bool:
        return limit >= 0 and now_ms - segment.retention_timestamp_ms > limit

    return breached


def _above_retention_size(log: Log) -> Breach:
    config = log.config
    tiered = config.remote_storage_enable
    limit = config.effective_local_retention_bytes if tiered else config.retention_bytes
    excess = log.size_bytes - limit if limit >= 0 else -1

    def breached(segment: Segment) -> bool:
        nonlocal excess
        if limit < 0 or excess - segment.size_bytes < 0:
            return False
        excess -= segment.size_bytes
        return True

    return breached


def _delete(
    log: Log, breached: Breach, reason: str, now_ms: int, *, roll: bool = True
) -> list[DeletedSegment]:
    count, must_roll = 0, False
    for segment in log.segments:
        if segment.next_offset > log.high_watermark or not breached(segment):
            break
        if _is_active(log, segment):
            must_roll = roll and segment.size_bytes > 0
            break
        if not _is_removable(log, segment):
            break
        count += 1
    expired = log.segments[:count]
    if must_roll:
        log.roll(now_ms)
    if not expired:
        return []
    # The start moves first: what a crash leaves behind lies below it, and goes with the next pass.
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


def _is_active(log: Log, segment: Segment) -> bool:
    return segment is log.active_segment


def _is_removable(log: Log, segment: Segment) -> bool:
    """With remote storage: the tier has it, or the whole partition begins behind it."""
    if not log.config.remote_storage_enable:
        return True
    end = segment.next_offset
    return end - 1 <= log.highest_remote_offset or end <= log.log_start_offset


def rename_deleted(directory: Directory, segment: Segment) -> tuple[str, ...]:
    """Renames a segment's files to `.deleted`, the log first; returns the new names."""
    segment.close()
    renamed = []
    for name in (*segment.file_names, snapshot_name(segment.base_offset)):
        if directory.exists(name):
            directory.rename(name, name + DELETED_SUFFIX)
            renamed.append(name + DELETED_SUFFIX)
    return tuple(renamed)


class DeletedFiles:
    """Files renamed to `.deleted`, and when they may go; any thread may purge."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, tuple[str, ...]]] = []

    def add(self, due_ms: int, segments: Iterable[tuple[str, ...]]) -> None:
        """The names of deleted segments. A name that waits already begins to wait anew."""
        with self._lock:
            for names in segments:
                self._waiting = [
                    (due, tuple(name for name in waiting if name not in names))
                    for due, waiting in self._waiting
                ]
                self._waiting.append((due_ms, names))

    def __len__(self) -> int:
        """Segments that wait."""
        return len(self._waiting)

    def purge(self, now_ms: int) -> int:
        """Removes what is due; returns how many segments went."""
        with self._lock:
            due = [names for due_ms, names in self._waiting if due_ms <= now_ms]
            self._waiting = [entry for entry in self._waiting if entry[0] > now_ms]
            for names in due:
                for name in names:
                    self._directory.remove(name)
        return len(due)
