"""The facts that a leader needs of a batch's records before an append, without record objects.

Kafka's LogValidator walks over every record. Its offset must follow the one before it, its
timestamp must be allowed and decides the batch's maximum, and a compacted topic needs its key. The
walk is a bounds-checked kernel. The first batches of a process are decoded plainly instead, so that
a short-lived process never loads numba.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from tidemark.errors import CorruptMessageError, InvalidRecordError
from tidemark.records.header import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MIN_RECORD_BYTES,
    NO_TIMESTAMP_MS,
    TIMESTAMP_TYPE_FLAG,
    BatchHeader,
    BytesLike,
    check_counts,
    verify_crc,
)
from tidemark.records.plain import MIN_TIMESTAMP_MS, Record, decode_batch, decompressed

_arrow: Any = None
_walk_kernel: Any = None
_find_kernel: Any = None
_append_kernel: Any = None
_WALK_KERNEL = "tidemark.records.kernels.walk"


class RecordFacts(NamedTuple):
    """Facts of all records of a batch. The least timestamp is of the records that have one,
    NO_TIMESTAMP_MS if none has; timestamps in ms.
    """

    min_timestamp_ms: int
    max_timestamp_ms: int
    has_null_key: bool


def _kernel(count: int) -> Any:
    """Returns the kernels for a batch of `count` records; None if it is decoded plainly."""
    global _arrow, _walk_kernel
    if _arrow is None:
        from tidemark.records import arrow

        _arrow = arrow
    if _arrow.takes_plain_path(count):
        return None
    if _walk_kernel is None:
        from tidemark.records.kernels import walk as walk_kernel

        _walk_kernel = walk_kernel
    return _walk_kernel


def append_kernel() -> Any:
    """Returns `tidemark.records.kernels.append`, which checks a whole batch in one call; None while
    this process has no use for kernels.
    """
    global _append_kernel
    if _append_kernel is None and _WALK_KERNEL in sys.modules:
        from tidemark.records.kernels import append as append_kernel

        _append_kernel = append_kernel
    return _append_kernel


def record_facts(buffer: BytesLike, header: BatchHeader) -> RecordFacts:
    """Walks over the records of the batch at `header.position`, decompressing them first if need
    be. The caller has checked the CRC.

    Raises CorruptMessageError if the records can not be read, InvalidRecordError if their offsets
    do not rise by one from the batch's first.
    """
    if header.record_count <= 0:
        raise InvalidRecordError("a batch without records")
    kernel = _kernel(header.record_count)
    if kernel is None:
        return _of_records(decode_batch(buffer, header.position, check_crc=False), header)
    return _of_kernel(kernel, buffer, header)


def _of_records(records: list[Record], header: BatchHeader) -> RecordFacts:
    for index, record in enumerate(records):
        if record.offset != header.base_offset + index:
            raise _not_in_sequence(header)
    times = [record.timestamp_ms for record in records]
    least = min((time for time in times if time != NO_TIMESTAMP_MS), default=NO_TIMESTAMP_MS)
    return RecordFacts(least, max(times), any(record.key is None for record in records))


def _of_kernel(kernel: Any, buffer: BytesLike, header: BatchHeader) -> RecordFacts:
    source, begin, end = _plain_body(buffer, header.position, header)
    fault, least, most, keyless = kernel.walk(
        kernel.bytes_of(source), begin, end, header.record_count, header.base_timestamp_ms
    )
    if fault == kernel.FAULT_OFFSET:
        raise _not_in_sequence(header)
    if fault < 0:
        raise CorruptMessageError(f"a batch can not be read: {kernel.FAULTS[fault]}")
    if header.timestamp_type == LOG_APPEND_TIME:
        least = most = header.max_timestamp_ms
    return RecordFacts(least, most, keyless > 0)


def first_record_at_or_after(
    buffer: BytesLike, position: int, header: BatchHeader, timestamp_ms: int, min_offset: int
) -> tuple[int, int] | None:
    """Returns (timestamp, offset) of the first record at or above both bounds in the batch at
    `position`; None if there is none. `header` is the batch's. Raises CorruptMessageError, also for
    a wrong CRC.
    """
    verify_crc(buffer, position, header)
    kernel = _kernel(header.record_count)
    if kernel is None:
        for record in decode_batch(buffer, position, check_crc=False):
            if record.timestamp_ms >= timestamp_ms and record.offset >= min_offset:
                return record.timestamp_ms, record.offset
        return None
    check_counts(header)
    least_ms = timestamp_ms
    append_time = header.attributes & TIMESTAMP_TYPE_FLAG
    if append_time:  # the records' own timestamps do not count
        if header.max_timestamp_ms < timestamp_ms:
            return None
        least_ms = MIN_TIMESTAMP_MS
    source, begin, end = _plain_body(buffer, position, header)
    delta, found_ms = kernel.seek(
        kernel.bytes_of(source),
        begin,
        end,
        header.record_count,
        header.base_timestamp_ms,
        header.last_offset_delta,
        least_ms,
        max(0, min_offset - header.base_offset),
    )
    if delta == kernel.NONE_FOUND:
        return None
    if delta < 0:
        raise CorruptMessageError(f"a batch can not be read: {kernel.FAULTS[delta]}")
    return header.max_timestamp_ms if append_time else found_ms, header.base_offset + delta


def find_in_plain_batch(
    data: memoryview, timestamp_ms: int, min_offset: int
) -> tuple[int, int] | None:
    """Does the work of `first_record_at_or_after` in a third of its time, for the first batch of
    `data`, with a check of its header.

    Applies to an uncompressed batch with the records' own timestamps. None also if the batch is of
    another kind or damaged, or this process has no use for kernels; `first_record_at_or_after`
    decides then.
    """
    global _find_kernel
    if _find_kernel is None:
        if _walk_kernel is None:
            return None
        from tidemark.records.kernels import find as find_kernel

        _find_kernel = find_kernel
    offset, found_ms = _find_kernel.find(_walk_kernel.bytes_of(data), timestamp_ms, min_offset)
    return (found_ms, offset) if offset >= 0 else None


def _plain_body(
    buffer: BytesLike, position: int, header: BatchHeader
) -> tuple[BytesLike, int, int]:
    """Returns the bytes that hold the batch's plain records, and their begin and end."""
    begin, end = position + HEADER_BYTES, position + header.size_bytes
    if header.attributes & CODEC_MASK:
        source = decompressed(header, memoryview(buffer)[begin:end])
        return source, 0, len(source)
    if header.record_count * MIN_RECORD_BYTES > end - begin:
        raise CorruptMessageError(
            f"a batch claims {header.record_count} records in {end - begin} bytes"
        )
    return buffer, begin, end


def _not_in_sequence(header: BatchHeader) -> InvalidRecordError:
    return InvalidRecordError(
        f"the offsets of the {header.record_count} records of a batch do not go up by one"
    )
