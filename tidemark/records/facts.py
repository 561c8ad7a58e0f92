"""What a leader must know of a batch's records before it appends them, without making any of them.

Kafka's LogValidator walks over every record: its offset must follow the one before it, its
timestamp decides whether it is taken and what the batch's maximum is, and a compacted topic asks
for keys. The walk is a bounds-checked kernel; the first batches of a process are decoded plainly
instead, so that a short-lived one never loads numba.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemark.errors import CorruptMessageError, InvalidRecordError
from tidemark.records import compression as codecs
from tidemark.records.header import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MIN_RECORD_BYTES,
    BatchHeader,
    BytesLike,
    read_header,
)
from tidemark.records.plain import Record, decode_batch


class RecordFacts(NamedTuple):
    """Of all records of one batch; timestamps in ms."""

    min_timestamp_ms: int
    max_timestamp_ms: int
    has_null_key: bool


def record_facts(buffer: BytesLike, position: int = 0) -> RecordFacts:
    """Walks over the records of the batch at `position`, decompressing them where they are.

    CorruptMessageError for records that can not be read; InvalidRecordError where their offsets do
    not go up by one from the batch's first.
    """
    header = read_header(buffer, position)
    count = header.record_count
    if count <= 0:
        raise InvalidRecordError("a batch without records")
    from tidemark.records.arrow import takes_plain_path

    if takes_plain_path(count):
        return _of_records(decode_batch(buffer, position), header)
    return _of_kernel(buffer, position, header)


def _of_records(records: list[Record], header: BatchHeader) -> RecordFacts:
    for index, record in enumerate(records):
        if record.offset != header.base_offset + index:
            raise _not_in_sequence(header)
    times = [record.timestamp_ms for record in records]
    return RecordFacts(min(times), max(times), any(record.key is None for record in records))


def _of_kernel(buffer: BytesLike, position: int, header: BatchHeader) -> RecordFacts:
    import numpy as np

    from tidemark.records import walk_kernel
    from tidemark.records.kernels import FAULT_OFFSET, FAULTS

    count = header.record_count
    begin, end = position + HEADER_BYTES, position + header.size_bytes
    source: BytesLike = buffer
    if header.compression != "none":
        source = codecs.decompress(header.compression, memoryview(buffer)[begin:end])
        begin, end = 0, len(source)
    if count * MIN_RECORD_BYTES > end - begin:
        raise CorruptMessageError(f"a batch claims {count} records in {end - begin} bytes")
    notes, totals = walk_kernel.new_notes()
    data = np.frombuffer(source, np.uint8)
    fault = walk_kernel.walk(data, begin, end, count, header.base_timestamp_ms, notes, totals)
    if fault == FAULT_OFFSET:
        raise _not_in_sequence(header)
    if fault < 0:
        raise CorruptMessageError(f"a batch can not be read: {FAULTS[fault]}")
    least, most, keyless = notes.tolist()
    if header.timestamp_type == LOG_APPEND_TIME:
        least = most = header.max_timestamp_ms
    return RecordFacts(least, most, keyless > 0)


def _not_in_sequence(header: BatchHeader) -> InvalidRecordError:
    return InvalidRecordError(
        f"the offsets of the {header.record_count} records of a batch do not go up by one"
    )
