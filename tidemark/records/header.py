"""The 61-byte header of a record batch v2: read, checked and patched without decoding records.

This is the node's hot path: `struct` and the CRC-32C package only, no numpy, Arrow or numba.
Layout: Kafka's DefaultRecordBatch (KIP-98). The CRC covers everything from `attributes` on, so a
leader may rewrite base offset and leader epoch, which lie before it, without touching it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from tidemark.errors import (
    CorruptMessageError,
    InvalidRecordError,
    MessageTooLargeError,
)

BytesLike = bytes | bytearray | memoryview

HEADER_BYTES = 61
OVERHEAD_BYTES = 12  # base offset and length field: not counted by batch_length
MAGIC = 2
MAX_SEQUENCE = 2**31 - 1
CRC_BEGIN = 21
MIN_RECORD_BYTES = (
    7  # length, attributes, two deltas, null key, null value, no headers: one byte each
)
MAX_OFFSET_DELTA = 2**31 - 1
NO_TIMESTAMP_MS = -1  # of a record that has none
MAX_OFFSET = 2**63 - 2  # the next offset must exist

CODEC_MASK = 0x07
TIMESTAMP_TYPE_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

COMPRESSION_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"

HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET_LENGTH = struct.Struct(">qi")
_PATCH = struct.Struct(">qii")


class BatchHeader(NamedTuple):
    """A batch's header as it stands in the file; times in ms, -1 where Kafka writes -1.

    `position` is no part of it: where the batch begins in the buffer or file it was read from.
    """

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    position: int = 0

    @property
    def packed(self) -> bytes:
        """Its 61 bytes."""
        return HEADER.pack(*self[:-1])

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return self.batch_length + OVERHEAD_BYTES

    @property
    def end_position(self) -> int:
        """Where the next batch begins."""
        return self.position + self.batch_length + OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        """Offset of the last record; it stays when compaction removes that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> str:
        """none, gzip, snappy, lz4 or zstd; CorruptMessageError for an unknown number."""
        number = self.attributes & CODEC_MASK
        if number >= len(COMPRESSION_NAMES):
            raise CorruptMessageError(f"batch {self.base_offset}: unknown compression {number}")
        return COMPRESSION_NAMES[number]

    @property
    def timestamp_type(self) -> str:
        """CreateTime or LogAppendTime; with the latter every record has `max_timestamp_ms`."""
        return LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_FLAG else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When its tombstones may go (KIP-534); it takes the place of the base timestamp."""
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, wrapping after 2^31 - 1 to 0; -1 without a producer."""
        if self.base_sequence == -1:
            return -1
        last = self.base_sequence + self.last_offset_delta
        return last if last <= MAX_SEQUENCE else last - MAX_SEQUENCE - 1


def read_header(buffer: BytesLike, position: int = 0) -> BatchHeader:
    """The header at `position`; the batch's body need not be there.

    Raises CorruptMessageError when fewer than 61 bytes are left, or size or magic make no sense.
    """
    try:
        header = BatchHeader._make((*HEADER.unpack_from(buffer, position), position))
    except struct.error:
        raise CorruptMessageError(
            f"no batch header at position {position} of {len(buffer)} bytes: it is cut off"
        ) from None
    if header.magic != MAGIC:
        raise CorruptMessageError(
            f"batch at position {position} has magic {header.magic}; only 2 is supported"
        )
    if header.batch_length < HEADER_BYTES - OVERHEAD_BYTES:
        raise CorruptMessageError(
            f"batch at position {position} claims a length of {header.batch_length} bytes"
        )
    return header


def iter_batches(buffer: BytesLike) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch; a torn tail ends it.

    Raises CorruptMessageError when a whole batch has a bad size or magic.
    """
    position = 0
    size = len(buffer)
    while size - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        end = position + header.batch_length + OVERHEAD_BYTES
        if end > size:
            return
        yield position, header
        position = end


def compute_crc(buffer: BytesLike, position: int, size_bytes: int) -> int:
    """CRC-32C of the batch at `position`, over all from its attributes on."""
    return int(crc32c(memoryview(buffer)[position + CRC_BEGIN : position + size_bytes]))


def verify_crc(buffer: BytesLike, position: int, header: BatchHeader) -> None:
    """Raises CorruptMessageError unless the whole batch is there and its CRC agrees."""
    end = position + header.size_bytes
    if end > len(buffer):
        raise CorruptMessageError(
            f"batch {header.base_offset} wants {header.size_bytes} bytes at position {position};"
            f" {len(buffer) - position} are there"
        )
    computed = compute_crc(buffer, position, header.size_bytes)
    if computed != header.crc:
        raise CorruptMessageError(
            f"batch {header.base_offset} at position {position}: CRC-32C is {computed:#010x},"
            f" its header says {header.crc:#010x}"
        )


def check_counts(header: BatchHeader) -> None:
    """Raises CorruptMessageError for counts that no batch of this size can have.

    A compacted batch may hold fewer records than its offsets span, even none; never more.
    """
    delta, count = header.last_offset_delta, header.record_count
    if not 0 <= header.base_offset <= MAX_OFFSET - max(delta, 0):
        raise CorruptMessageError(f"a batch with base offset {header.base_offset}")
    if delta < 0 or not 0 <= count <= delta + 1:
        raise CorruptMessageError(
            f"batch {header.base_offset} claims {count} records over {delta + 1} offsets"
        )
    body = header.batch_length + OVERHEAD_BYTES - HEADER_BYTES
    if not header.attributes & CODEC_MASK and count * MIN_RECORD_BYTES > body:
        raise CorruptMessageError(
            f"batch {header.base_offset} claims {count} records in {body} bytes"
        )


def validate_batches(
    buffer: BytesLike, max_message_bytes: int, *, from_client: bool = False
) -> list[tuple[int, BatchHeader]]:
    """Checks every batch of a buffer: size, magic, CRC, codec and counts; no record is decoded.

    With `from_client` also what Kafka asks of a producer's batch: no control batch, at least one
    record, and offsets without gaps. Raises CorruptMessageError (a torn tail included),
    MessageTooLargeError for a batch above `max_message_bytes`, InvalidRecordError.
    """
    result = []
    end = 0
    for position, header in iter_batches(buffer):
        if header.size_bytes > max_message_bytes:
            raise MessageTooLargeError(
                f"a batch of {header.size_bytes} bytes; max.message.bytes is {max_message_bytes}"
            )
        if header.attributes & CODEC_MASK >= len(COMPRESSION_NAMES):
            raise CorruptMessageError(
                f"batch {header.base_offset}: unknown compression {header.attributes & CODEC_MASK}"
            )
        check_counts(header)
        verify_crc(buffer, position, header)
        if from_client:
            _check_client_batch(header)
        result.append((position, header))
        end = position + header.size_bytes
    if end != len(buffer):
        _raise_for_tail(buffer, end, max_message_bytes)
    return result


def _raise_for_tail(buffer: BytesLike, end: int, max_message_bytes: int) -> None:
    if len(buffer) - end >= OVERHEAD_BYTES:
        length = _OFFSET_LENGTH.unpack_from(buffer, end)[1]
        if length + OVERHEAD_BYTES > max_message_bytes:
            raise MessageTooLargeError(
                f"a batch of {length + OVERHEAD_BYTES} bytes; max.message.bytes is"
                f" {max_message_bytes}"
            )
    raise CorruptMessageError(f"{len(buffer) - end} bytes at the end are no whole batch")


def _check_client_batch(header: BatchHeader) -> None:
    if header.is_control:
        raise InvalidRecordError("a client may not write control batches")
    if header.record_count < 1:
        raise InvalidRecordError("a batch without records")
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"a batch of {header.record_count} records spans {header.last_offset_delta + 1} offsets"
        )
    if header.delete_horizon_ms is not None:
        raise InvalidRecordError("a client may not set a delete horizon")


def patch_header(header: BytesLike, base_offset: int, leader_epoch: int) -> bytes:
    """The first 16 bytes of a batch with another base offset and leader epoch; the CRC still holds.

    `header` is the batch or at least its first 12 bytes.
    """
    return _PATCH.pack(base_offset, _OFFSET_LENGTH.unpack_from(header, 0)[1], leader_epoch)


def sequence_after(sequence: int, delta: int) -> int:
    """Kafka's sequence arithmetic: after 2^31 - 1 comes 0."""
    return (sequence + delta) & 0x7FFFFFFF
