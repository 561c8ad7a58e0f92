"""What a leader must know of a batch's records before it appends them, without making any of them.

Kafka's LogValidator walks over every record: its offset must follow the one before it, its
timestamp decides whether it is taken and what the batch's maximum is, and a compacted topic asks
for keys. The walk here is the decoder's own bounds-checked kernel; small batches, and the first
ones of a process, are decoded plainly instead.
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

_PLAIN_MAX = 4  # below it the kernel's call costs more than Python's loop


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
    if count <= _PLAIN_MAX:
        return _of_records(decode_batch(buffer, position), header)
    from tidemark.records.arrow import takes_plain_path

    if takes_plain_path(count):
        return _of_records(decode_batch(buffer, position), header)
    return _of_columns(buffer, position, header)


def _of_records(records: list[Record], header: BatchHeader) -> RecordFacts:
    for index, record in enumerate(records):
        if record.offset != header.base_offset + index:
            raise _not_in_sequence(header)
    times = [record.timestamp_ms for record in records]
    return RecordFacts(min(times), max(times), any(record.key is None for record in records))


def _of_columns(buffer: BytesLike, position: int, header: BatchHeader) -> RecordFacts:
    import numpy as np

    from tidemark.records import kernels

    count = header.record_count
    begin, end = position + HEADER_BYTES, position + header.size_bytes
    source: BytesLike = buffer
    if header.compression != "none":
        source = codecs.decompress(header.compression, memoryview(buffer)[begin:end])
        begin, end = 0, len(source)
    if count * MIN_RECORD_BYTES > end - begin:
        raise CorruptMessageError(f"a batch claims {count} records in {end - begin} bytes")
    span = (begin, end, 0, header.last_offset_delta)
    append_time = header.timestamp_type == LOG_APPEND_TIME
    times_of = (header.base_timestamp_ms, header.max_timestamp_ms, append_time, count)
    table = np.array([[*span, *times_of]], np.int64)
    offsets, timestamps = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    fields = np.empty((count + 1, kernels.FIELDS), np.int32)
    totals = np.zeros(kernels.TOTALS, np.int64)
    data = np.frombuffer(source, np.uint8)
    found = kernels.scan(data, table, 0, 2**62, offsets, timestamps, fields, totals)
    if found < 0:
        raise CorruptMessageError(f"a batch can not be read: {kernels.FAULTS[found]}")
    # The kernel holds each offset within the batch: in sequence means the last is the last, and
    # none goes back or stays.
    if found != count or offsets[0] != 0 or (np.diff(offsets[:count]) != 1).any():
        raise _not_in_sequence(header)
    times = timestamps[:count]
    keyless = bool((fields[:count, kernels.KEY_LENGTH] < 0).any())
    return RecordFacts(int(times.min()), int(times.max()), keyless)


def _not_in_sequence(header: BatchHeader) -> InvalidRecordError:
    return InvalidRecordError(
        f"the offsets of the {header.record_count} records of a batch do not go up by one"
    )
