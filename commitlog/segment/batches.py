"""Batch headers as a log meets them: in a buffer, in a file, patched before they are written.

`tidemark.records` owns the format and the header itself (`BatchHeader`, here `Header`). This module
adds what an append or a read does with the header of every batch, about a microsecond each: bounds,
CRC, base offset and leader epoch, walks from batch to batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from crc32c import crc32c

from commitlog.disk.files import File
from tidemark.errors import CorruptMessageError
from tidemark.records.header import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    OVERHEAD_BYTES,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
)
from tidemark.records.header import BatchHeader as Header

__all__ = [
    "ATTRIBUTES_POSITION",
    "CONTROL_FLAG",
    "CRC_POSITION",
    "DELETE_HORIZON_FLAG",
    "HEADER_BYTES",
    "MAGIC",
    "OVERHEAD_BYTES",
    "PATCH_BYTES",
    "SCAN_BYTES",
    "TIMESTAMP_TYPE_FLAG",
    "TRANSACTIONAL_FLAG",
    "EndTransaction",
    "Header",
    "check_shape",
    "crc_is_valid",
    "end_transaction",
    "header_at",
    "header_in",
    "patch",
    "restamp",
    "scan_batches",
    "scan_headers",
    "unpack_header",
    "whole_batches",
]

PATCH_BYTES = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21

_WALK = struct.Struct(">qi11xi")  # base offset, length, last offset delta
_WALK_BYTES = _WALK.size
_STAMP = struct.Struct(">hiqq")  # attributes, last offset delta, base and max timestamp
_CRC = struct.Struct(">I")


def header_at(buffer: bytes | bytearray | memoryview, position: int = 0) -> Header:
    """The header at `position` of a buffer.

    CorruptMessageError where there is no whole batch of this format.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptMessageError(f"{len(buffer) - position} bytes at {position} are no batch")
    header = Header._make((*HEADER.unpack_from(buffer, position), position))
    check_shape(header)
    if header.end_position > len(buffer):
        raise CorruptMessageError(
            f"the batch at {position} says {header.size_bytes} bytes, {len(buffer) - position} are"
            " there"
        )
    return header


def header_in(data: bytes | memoryview, position: int) -> Header:
    """The header at `position` of `data`; its batch may end behind it."""
    header = Header._make((*HEADER.unpack_from(data, position), position))
    check_shape(header)
    return header


def unpack_header(data: bytes, position: int) -> Header:
    """The header that `data` begins with; the batch itself lies at `position` of a file."""
    header = Header._make((*HEADER.unpack_from(data), position))
    check_shape(header)
    return header


def check_shape(header: Header) -> None:
    """CorruptMessageError for a size, magic, count or offset that no batch has."""
    if header.magic != MAGIC:
        raise CorruptMessageError(
            f"the batch at {header.position} has magic {header.magic}; this log keeps version 2"
        )
    if header.batch_length < HEADER_BYTES - OVERHEAD_BYTES:
        raise CorruptMessageError(
            f"the batch at {header.position} says it has {header.batch_length} bytes"
        )
    if header.last_offset_delta < 0 or header.base_offset < 0 or header.record_count < 0:
        raise CorruptMessageError(
            f"the batch at {header.position} has a negative offset or record count"
        )


def crc_is_valid(buffer: bytes | bytearray | memoryview, header: Header) -> bool:
    """Does the CRC-32C of the batch at `header.position` of `buffer` agree with its header?"""
    view = memoryview(buffer)[header.position + ATTRIBUTES_POSITION : header.end_position]
    return bool(crc32c(view) == header.crc)


patch: Callable[[int, int, int], bytes] = struct.Struct(">qii").pack
"""The first 16 bytes of a batch, from its base offset, length and leader epoch; its CRC does not
cover them."""


def restamp(
    buffer: bytes | bytearray | memoryview,
    header: Header,
    *,
    log_append_time: bool,
    max_timestamp_ms: int,
) -> bytes:
    """Bytes 16 to 60 of the batch with another timestamp type and maximum, and a CRC that fits."""
    attributes = header.attributes & ~TIMESTAMP_TYPE_FLAG & 0xFFFF
    if log_append_time:
        attributes |= TIMESTAMP_TYPE_FLAG
    if attributes >= 1 << 15:
        attributes -= 1 << 16
    head = bytearray(
        memoryview(buffer)[header.position + PATCH_BYTES : header.position + HEADER_BYTES]
    )
    _STAMP.pack_into(
        head,
        ATTRIBUTES_POSITION - PATCH_BYTES,
        attributes,
        header.last_offset_delta,
        header.base_timestamp_ms,
        max_timestamp_ms,
    )
    crc = crc32c(bytes(head[ATTRIBUTES_POSITION - PATCH_BYTES :]))
    crc = crc32c(memoryview(buffer)[header.position + HEADER_BYTES : header.end_position], crc)
    _CRC.pack_into(head, CRC_POSITION - PATCH_BYTES, crc)
    return bytes(head)


def whole_batches(
    buffer: bytes | memoryview, max_offset: int | None = None
) -> tuple[int, int, int]:
    """How far `buffer` holds whole batches whose last offset is below `max_offset`.

    Returns (bytes, first base offset, next offset); (0, -1, -1) where there is none.
    """
    end, size, first, following = 0, len(buffer), -1, -1
    unpack = _WALK.unpack_from
    while size - end >= HEADER_BYTES:
        base_offset, length, delta = unpack(buffer, end)
        stop = end + length + OVERHEAD_BYTES
        if stop > size or length < HEADER_BYTES - OVERHEAD_BYTES:
            break
        if max_offset is not None and base_offset + delta >= max_offset:
            break
        if first < 0:
            first = base_offset
        following = base_offset + delta + 1
        end = stop
    return end, first, following


SCAN_BYTES = 16 * 1024


def scan_headers(
    file: File, position: int, end: int, chunk_bytes: int = SCAN_BYTES
) -> Iterator[Header]:
    """The headers of the batches in `file` from `position` to `end`, without reading their records.

    Ends before a batch that is torn; CorruptMessageError where a header can not be one.
    """
    return (header for header, _, _ in scan_batches(file, position, end, chunk_bytes))


def scan_batches(
    file: File,
    position: int,
    end: int,
    chunk_bytes: int,
    scratch: memoryview | None = None,
    first_last_offset: int | None = None,
) -> Iterator[tuple[Header, bytes | memoryview, int]]:
    """As `scan_headers`, with what was read of each batch: bytes, and where in them it begins.

    `chunk_bytes` are read first, then about as much as there are small batches to come, and only
    headers where batches are large. The first read of more than a header goes into `scratch`, where
    it is given, and fills it. The first batch must end with `first_last_offset`, where that is
    given: what an index says of it.
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
        header = Header._make((*HEADER.unpack_from(chunk, inside), position))
        check_shape(header)
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
        yield header, chunk, inside
        want = SCAN_BYTES if following - position < SCAN_BYTES // 4 else HEADER_BYTES
        position = following


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """A control record that ends a transaction."""

    committed: bool
    coordinator_epoch: int


def end_transaction(buffer: bytes | bytearray | memoryview, position: int) -> EndTransaction | None:
    """What the control batch at `position` says of its producer's transaction; None: nothing."""
    from tidemark.records import decode_batch

    for record in decode_batch(buffer, position):
        key, value = record.key or b"", record.value or b""
        if len(key) >= 4 and len(value) >= 6:
            kind = int.from_bytes(key[2:4], "big")
            if kind in (0, 1):
                return EndTransaction(kind == 1, int.from_bytes(value[2:6], "big", signed=True))
    return None
