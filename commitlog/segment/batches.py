"""Scans over the batch headers of a file, without reading the records between them.

`tidemark.records.header` defines the format, and all other readers of headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from commitlog.disk.files import File
from tidemark.errors import CorruptMessageError
from tidemark.records.header import (
    HEADER_BYTES,
    read_header,
)
from tidemark.records.header import BatchHeader as Header

SCAN_BYTES = 16 * 1024


class Cut(NamedTuple):
    """Position of a truncation to `offset` in a segment, and the end of the batches before it. The
    timestamp is the greatest one since the last index entry; -1 if there is none.
    """

    offset: int
    position: int
    next_offset: int
    max_timestamp_ms: int
    max_timestamp_offset: int


def indexed_ms(header: Header) -> int:
    """Returns the timestamp of a batch for the time index: none if the batch is empty. An entry for
    an empty batch would lead a search by time to no record.
    """
    return header.max_timestamp_ms if header.record_count else -1


def has_timestamp(header: Header, timestamp_ms: int) -> bool:
    """Returns whether a time entry fits its batch. Those of empty batches have the timestamp of
    the batch in Kafka's indexes, and 0 in own ones (`Segment.finish_indexes`).
    """
    is_least = timestamp_ms == 0 and not header.record_count
    return is_least or header.max_timestamp_ms == timestamp_ms


def scan_headers(
    file: File, position: int, end: int, chunk_bytes: int = SCAN_BYTES, floor: int = 0
) -> Iterator[Header]:
    """Yields the headers of the batches in `file` from `position` to `end`, without their records.

    Ends before an incomplete batch. Raises CorruptMessageError for an invalid header, and for a
    batch that begins below `floor` or the end of the one before it.
    """
    return (header for header, _, _ in scan_batches(file, position, end, chunk_bytes, floor=floor))


def scan_batches(
    file: File,
    position: int,
    end: int,
    chunk_bytes: int,
    scratch: memoryview | None = None,
    first_last_offset: int | None = None,
    floor: int = 0,
) -> Iterator[tuple[Header, bytes | memoryview, int]]:
    """As `scan_headers`, but also yields the bytes read of each batch, and its position in them.

    Reads `chunk_bytes` first, then about as much as there are small batches left, and only headers
    of large batches. The first read of more than a header fills `scratch`, if given. The first
    batch must end with `first_last_offset`, if given: the claim of an index entry.
    """
    chunk: bytes | memoryview = b""
    chunk_start, want = position, max(chunk_bytes, HEADER_BYTES)
    while end - position >= HEADER_BYTES:
        inside = position - chunk_start
        if inside + HEADER_BYTES > len(chunk):
            if scratch is not None and (chunk or want > HEADER_BYTES):
                chunk, scratch = scratch[: file.pread_into(scratch, position)], None
            else:
                chunk = file.pread(want, position)
            chunk_start, inside = position, 0
            if len(chunk) < HEADER_BYTES:
                return
        header = read_header(chunk, inside, chunk_start)
        following = header.end_position
        if following > end:
            return
        if first_last_offset is not None:
            if header.last_offset != first_last_offset:
                raise CorruptMessageError(
                    f"the index of {file.name} says that the batch at {position} ends with offset"
                    f" {first_last_offset}; its last is {header.last_offset}"
                )
            first_last_offset = None
        if header.base_offset < floor:
            raise CorruptMessageError(
                f"the batch at byte {position} of {file.name} begins at offset"
                f" {header.base_offset}, below {floor}"
            )
        floor = header.next_offset
        yield header, chunk, inside
        want = SCAN_BYTES if following - position < SCAN_BYTES // 4 else HEADER_BYTES
        position = following


def has_records(file: File, size_bytes: int) -> bool:
    """Whether one of the batches is not empty; reads up to the first such batch."""
    return any(header.record_count for header in scan_headers(file, 0, size_bytes))


def finds_timestamp(
    file: File, end: int, entry: tuple[int, int], timestamp_ms: int, offset: int
) -> bool:
    """Whether `timestamp_ms` is the greatest timestamp of the batch that holds `offset`. `entry` is
    the entry of the offset index at or below it: offset and position.
    """
    entry_offset, position = entry
    try:
        for header in scan_headers(file, position, end):
            if header.position == position and position and header.last_offset != entry_offset:
                return False
            if header.last_offset >= offset:
                return header.base_offset <= offset and has_timestamp(header, timestamp_ms)
    except CorruptMessageError:
        return False
    return False
