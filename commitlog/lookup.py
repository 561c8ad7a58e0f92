"""Look-ups that need more than a position: by timestamp (KIP-33), and aborted transactions.

These decode a batch (`tidemark.records`); nothing of it is on the path of appends and reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commitlog.segment import Segment
from commitlog.types import AbortedTransaction, TimestampOffset

if TYPE_CHECKING:
    from commitlog.log import Log


def offset_for_timestamp(log: Log, timestamp_ms: int) -> TimestampOffset | None:
    """The first record at or after `timestamp_ms`, by offset, from the local log start on.

    Every record at or after the timestamp has this offset or a higher one.
    """
    start = log.local_log_start_offset
    for segment in log.segments:
        if segment.size_bytes == 0 or segment.max_timestamp_ms < timestamp_ms:
            continue
        for header in segment.first_at_or_after(timestamp_ms, start):
            found = find_in_batch(segment.read_batch(header), timestamp_ms, start)
            if found is not None:
                return TimestampOffset(*found, log.epoch_for_offset(found[1]))
    return None


def offset_of_max_timestamp(log: Log) -> TimestampOffset | None:
    """The first record that has the greatest timestamp; None for a log without timestamps."""
    best: Segment | None = None
    for segment in log.segments:
        if segment.size_bytes and (
            best is None or segment.max_timestamp_ms > best.max_timestamp_ms
        ):
            best = segment
    if best is None or best.max_timestamp_ms < 0:
        return None
    for header in best.headers(best.max_timestamp_offset):
        found = find_in_batch(best.read_batch(header), best.max_timestamp_ms, 0)
        if found is not None:
            return TimestampOffset(*found, log.epoch_for_offset(found[1]))
    return None


def find_in_batch(batch: bytes, timestamp_ms: int, start_offset: int) -> tuple[int, int] | None:
    """(timestamp, offset) of the batch's first record at or after both bounds."""
    from tidemark.records import decode_batch

    for record in decode_batch(batch):
        if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
            return record.timestamp_ms, record.offset
    return None


def aborted_transactions(log: Log, start: int, end: int) -> list[AbortedTransaction]:
    """The aborted transactions with records in [start, end), oldest marker first.

    A marker may lie in a later segment than the records: the search ends at the first entry whose
    last stable offset is at or above `end` (Kafka's AbortedTxn.lastStableOffset).
    """
    found: list[AbortedTransaction] = []
    for segment in log.segments:
        if segment is not log.active_segment and segment.next_offset <= start:
            continue
        for entry in segment.txn_index.entries():
            if entry.last_offset >= start and entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found
    return found
