"""Look-ups that need more than a position: by timestamp (KIP-33), and aborted transactions.

They decode batches (`tidemark.records`). Appends and reads do not use them.
"""

from __future__ import annotations

import logging
from bisect import bisect_right

from commitlog.log.loader import replay_producers
from commitlog.log.segments import Segments
from commitlog.segment.batches import has_timestamp
from commitlog.segment.epochs import LeaderEpochCache
from commitlog.segment.indexes import CorruptIndexError
from commitlog.segment.segment import Segment
from commitlog.segment.txn_recovery import check_transactions
from commitlog.types import (
    AbortedTransaction,
    CorruptLogError,
    TimestampOffset,
    TransactionsUncheckedError,
)
from tidemark.errors import CorruptMessageError
from tidemark.records.facts import find_in_plain_batch, first_record_at_or_after
from tidemark.records.header import BatchHeader, read_header

_SCRATCH_BYTES = 64 << 10
_scratch: list[memoryview] = []  # buffers to read into, one for each concurrent look-up

logger = logging.getLogger(__name__)


def offset_for_timestamp(
    segments: Segments, epochs: LeaderEpochCache, start: int, end: int, timestamp_ms: int
) -> TimestampOffset | None:
    """Returns the first record at or after `timestamp_ms`, by offset, from `start` on and
    below the log's `end`.

    Every record at or after the timestamp has this offset or a higher one.
    """
    for segment in segments.since(timestamp_ms):
        if segment.max_timestamp_ms < timestamp_ms or segment.size_bytes == 0:
            continue
        limit = _end_of(segments, segment, end)
        try:
            found = _first_in_segment(segment, timestamp_ms, start, limit)
        except (CorruptIndexError, CorruptMessageError) as error:
            logger.warning("%s: %s; rebuilding the indexes", segment.directory.path, error)
            segment.rebuild_indexes()
            found = _first_in_segment(segment, timestamp_ms, start, limit)
        if found is not None:
            _check_whole(segments, segment)
            return TimestampOffset(*found, epochs.epoch_for_offset(found[1]))
    _check_whole(segments, None)
    return None


def _end_of(segments: Segments, segment: Segment, end: int) -> int:
    """Returns the offset where the next segment begins, or the log ends."""
    following = bisect_right(segments.bases, segment.base_offset)
    return segments.bases[following] if following < len(segments.bases) else end


def _check_whole(segments: Segments, until: Segment | None) -> None:
    """Checks that no segment before `until` (None: no segment) is damaged, so that it might hold an
    earlier answer. Its greatest timestamp is only that of the batches before the damage. Raises
    CorruptLogError.
    """
    for segment in segments.all if Segment.rebuilds else ():  # only a rebuild finds damage
        if segment is until:
            return
        if segment.fault is not None and segment.fault[0] < segment.size_bytes:
            raise CorruptLogError(f"{segment.directory.path}/{segment.log_file}", *segment.fault)


def _first_in_segment(
    segment: Segment, timestamp_ms: int, start_offset: int, end_offset: int
) -> tuple[int, int] | None:
    """Returns (timestamp, offset) of the segment's first record at or after both bounds.

    Raises CorruptIndexError or CorruptMessageError if a used index entry does not fit the log, or
    if the log is damaged.
    """
    entry_ms, entry_offset = segment.time_index.lookup(timestamp_ms)
    # Records below the start do not count, so an entry for them proves nothing.
    unproven = entry_ms >= 0 and entry_offset >= start_offset
    scratch = _scratch.pop() if _scratch else memoryview(bytearray(_SCRATCH_BYTES))
    if unproven and entry_ms < timestamp_ms:
        place = segment.batch_after(entry_offset, entry_ms)
        if place is not None and place[1] <= len(scratch):
            position, size, last_offset = place
            got = segment.file.pread_into(scratch[:size], position)
            found = None
            if read_header(scratch[:got]).last_offset == last_offset:  # else the scan finds out
                found = find_in_plain_batch(scratch[:got], timestamp_ms, start_offset)
            if found is not None:
                _scratch.append(scratch)
                return found
    for header, data, at in segment.scan_from(max(entry_offset, start_offset), scratch):
        if unproven and header.last_offset >= entry_offset:
            if header.base_offset > entry_offset or not has_timestamp(header, entry_ms):
                raise CorruptIndexError(f"{segment.time_index.name} does not fit its log")
            unproven = False
        if header.max_timestamp_ms >= timestamp_ms and header.last_offset >= start_offset:
            if at + header.size_bytes > len(data):
                data, at = segment.read_batch(header), 0
            found = first_record_at_or_after(data, at, header, timestamp_ms, start_offset)
            if found is not None:
                _check_end_of(segment, header, end_offset)
                _scratch.append(scratch)
                return found
    if unproven:
        raise CorruptIndexError(f"{segment.time_index.name} points behind its log")
    return None


def _check_end_of(segment: Segment, header: BatchHeader, end_offset: int) -> None:
    """Checks the base offset of a batch, which no CRC covers, by what is behind it: another batch,
    or `end_offset`. Raises CorruptLogError.
    """
    end, limit = header.end_position, end_offset
    if end < segment.size_bytes:
        entry = segment.offset_index.lookup(header.last_offset)
        if (
            header.position
            and entry == (header.last_offset, header.position)
            and (
                segment.fault is None  # else the index was made of the damaged batches
            )
        ):
            return
        limit = segment.header_at(end).base_offset
    if header.next_offset > limit:
        raise CorruptLogError(
            f"{segment.directory.path}/{segment.log_file}",
            header.position,
            f"the batch at offset {header.base_offset} ends behind offset {limit}",
        )


def offset_of_max_timestamp(segments: Segments, end: int) -> TimestampOffset | None:
    """Returns the first record with the greatest timestamp; None for a log without timestamps."""
    _check_whole(segments, None)
    best: Segment | None = None
    for segment in segments.all:
        if segment.size_bytes and (
            best is None or segment.max_timestamp_ms > best.max_timestamp_ms
        ):
            best = segment
    if best is None or best.max_timestamp_ms < 0:
        return None
    for header in best.headers(best.max_timestamp_offset):
        found = first_record_at_or_after(
            best.read_batch(header), 0, header, best.max_timestamp_ms, 0
        )
        if found is not None:
            _check_end_of(best, header, _end_of(segments, best, end))
            epoch = header.partition_leader_epoch  # the offset may lie below the log start
            return TimestampOffset(*found, epoch if epoch >= 0 else None)
    return None


def aborted_transactions(
    segments: Segments, start: int, end: int, *, paced: bool = False
) -> list[AbortedTransaction]:
    """Returns the aborted transactions with records in [start, end), oldest marker first.

    A marker may lie in a later segment than the records. So the search ends at the first entry
    whose last stable offset is at or above `end` (Kafka's AbortedTxn.lastStableOffset). With
    `paced` a check of a large segment raises TransactionsUncheckedError between its pieces.
    """
    found: list[AbortedTransaction] = []
    known = segments.all
    for number in range(max(0, bisect_right(segments.bases, start) - 1), len(known)):
        index = known[number].txn_index
        while not index.is_checked:
            done = check_transactions(known[-1].directory, known[: number + 1], replay_producers)
            if paced and not done:
                raise TransactionsUncheckedError
        for entry in index.entries() if index.has_entries else ():
            if entry.last_offset >= start and entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found
    return found
