"""The place at which a truncation cuts a segment: found, and checked, before anything is removed.

No CRC covers the base offset of a batch. A damaged one before the cut may seem to hold its offset,
and records in sync would be removed. The batch behind shows where a batch ends; the end of the
segment shows it for the last one. Gaps of a compaction are allowed.
"""

from __future__ import annotations

import logging

from commitlog.segment.batches import SCAN_BYTES, Cut, indexed_ms, scan_batches
from commitlog.segment.segment import Segment
from commitlog.types import CorruptLogError
from tidemark.errors import CorruptMessageError

logger = logging.getLogger(__name__)


def find_cut(segment: Segment, offset: int) -> Cut:
    """Returns the place where the batch that holds `offset` begins, or the segment's end.

    Rebuilds indexes that do not fit. Raises CorruptLogError if damage hides the place.
    """
    if offset <= segment.base_offset:
        return Cut(offset, 0, segment.base_offset, -1, segment.base_offset)
    end_offset = segment.next_offset
    try:
        return _search(segment, offset, end_offset)
    except CorruptMessageError as error:
        logger.warning("%s: %s; rebuilding the indexes", segment.directory.path, error)
    segment.rebuild_indexes()
    try:
        return _search(segment, offset, end_offset)
    except CorruptMessageError as error:
        position, problem = segment.fault or (0, str(error))
        path = f"{segment.directory.path}/{segment.log_file}"
        raise CorruptLogError(path, position, problem) from error


def _search(segment: Segment, offset: int, end_offset: int) -> Cut:
    """Scans from the last index entry that the cut leaves. Raises CorruptMessageError."""
    size_bytes, base_offset = segment.size_bytes, segment.base_offset
    last_offset, position = segment.offset_index.lookup(offset - 1)
    claim, floor = (last_offset, 0) if position else (None, base_offset)
    next_offset, greatest_ms, greatest_offset = base_offset, -1, base_offset
    scan = scan_batches(segment.file, position, size_bytes, SCAN_BYTES, None, claim, floor)
    is_confirmed, headers = False, (header for header, _, _ in scan)
    for header in headers:
        if header.last_offset >= offset:
            is_last = header.end_position == size_bytes and header.next_offset == end_offset
            is_confirmed = is_last or next(headers, None) is not None
            break
        if indexed_ms(header) > greatest_ms:
            greatest_ms, greatest_offset = indexed_ms(header), header.last_offset
        next_offset, position = header.next_offset, header.end_position
    if not is_confirmed and position < size_bytes:
        raise CorruptMessageError(f"size or offset of the batch at byte {position} is wrong")
    return Cut(offset, position, next_offset, greatest_ms, greatest_offset)
