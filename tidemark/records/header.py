"""The 61-byte header of a record batch v2: its one home.

Sizes, positions, flags, readers and writers; no record is decoded. This is the node's hot path:
only `struct` and the CRC-32C package, no numpy, Arrow or numba. Layout: Kafka's DefaultRecordBatch
(KIP-98). The CRC covers everything from `attributes` on. Base offset and leader epoch lie before
it, so a leader rewrites them without a new CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from tidemark.errors import (
    CorruptMessageError,
    InvalidRecordError,
    MessageTooLargeError,
)

BytesLike = bytes | bytearray | memoryview

HEADER_BYTES = 61
OVERHEAD_BYTES = 12  # base offset and length field, which batch_length does not count
PATCH_BYTES = 16  # base offset, length and leader epoch, all that an append changes
MAGIC = 2

# Positions of the fields in a header.
LENGTH_AT = 8
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21  # also the begin of the bytes that the CRC covers
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
BASE_SEQUENCE_AT = 53
RECORD_COUNT_AT = 57

MAX_SEQUENCE = 2**31 - 1
MIN_RECORD_BYTES = (
    7  # length, attributes, two deltas, null key, null value, no headers: one byte each
)
MAX_OFFSET_DELTA = 2**31 - 1
NO_TIMESTAMP_MS = -1  # timestamp of a record without one
MAX_OFFSET = 2**63 - 2  # the offset after it must exist

CODEC_MASK = 0x07
TIMESTAMP_TYPE_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

COMPRESSION_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"

HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">8xi")
ORDER = struct.Struct(">qiib6xi")  # base offset, length, leader epoch, magic, last offset delta
_LINK = struct.Struct(">8xi4xbI")  # length, magic, CRC
_TIMES = struct.Struct(">hiqq")  # attributes, last offset delta, base and max timestamp

patch: Callable[[int, int, int], bytes] = struct.Struct(">qii").pack
"""Returns the first PATCH_BYTES of a batch, from base offset, length and leader epoch. The CRC does
not cover them.
"""


_new_header = tuple.__new__  # `_make` without its check of the length


class BatchHeader(NamedTuple):
    """A batch's header as stored; times in ms, -1 where Kafka writes -1.

    `position` is not stored: the begin of the batch in the buffer or file that it was read from.
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
        """The header's 61 bytes."""
        return HEADER.pack(*self[:-1])

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return self.batch_length + OVERHEAD_BYTES

    @property
    def end_position(self) -> int:
        """Position of the next batch."""
        return self.position + self.batch_length + OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        """Offset of the last record; stays the same if compaction removes that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> str:
        """none, gzip, snappy, lz4 or zstd. Raises CorruptMessageError for an unknown number."""
        number = self.attributes & CODEC_MASK
        if number >= len(COMPRESSION_NAMES):
            raise CorruptMessageError(f"batch {self.base_offset}: unknown compression {number}")
        return COMPRESSION_NAMES[number]

    @property
    def timestamp_type(self) -> str:
        """CreateTime or LogAppendTime; with LogAppendTime every record has `max_timestamp_ms`."""
        return LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_FLAG else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time from which on tombstones may be deleted (KIP-534); stored in place of the base
        timestamp.
        """
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; 0 follows 2^31 - 1. -1 without a producer."""
        if self.base_sequence == -1:
            return -1
        last = self.base_sequence + self.last_offset_delta
        return last if last <= MAX_SEQUENCE else last - MAX_SEQUENCE - 1


def read_header(buffer: BytesLike, position: int = 0, start: int = 0) -> BatchHeader:
    """Reads the header at `position` of a buffer; the batch's body need not be there.

    `start` is the position of the buffer in its file, which the header's own position counts from.
    Raises CorruptMessageError if fewer than 61 bytes are left, or for a size, magic, offset or
    record count that no batch has.
    """
    try:
        fields = HEADER.unpack_from(buffer, position)
    except struct.error:
        raise CorruptMessageError(
            f"no batch header at position {position} of {len(buffer)} bytes: it is cut off"
        ) from None
    header: BatchHeader = _new_header(BatchHeader, (*fields, start + position))
    if fields[3] != MAGIC or fields[1] < HEADER_BYTES - OVERHEAD_BYTES:
        raise _malformed(header)
    if fields[0] < 0 or fields[6] < 0 or fields[12] < 0:
        raise _malformed(header)
    return header


def _malformed(header: BatchHeader) -> CorruptMessageError:
    place = f"batch at position {header.position}"
    if header.magic != MAGIC:
        return CorruptMessageError(f"{place} has magic {header.magic}; only 2 is supported")
    if header.batch_length < HEADER_BYTES - OVERHEAD_BYTES:
        return CorruptMessageError(f"{place} claims a length of {header.batch_length} bytes")
    return CorruptMessageError(f"{place} has a negative offset or record count")


def whole_header(buffer: BytesLike, position: int = 0) -> BatchHeader:
    """Reads the header of a batch that must be whole. Raises CorruptMessageError."""
    header = read_header(buffer, position)
    end = position + header.batch_length + OVERHEAD_BYTES
    if end > len(buffer):
        raise _cut_off(header, position, len(buffer))
    return header


def _cut_off(header: BatchHeader, position: int, size: int) -> CorruptMessageError:
    return CorruptMessageError(
        f"batch {header.base_offset} wants {header.size_bytes} bytes at position {position};"
        f" {size - position} are there"
    )


def claimed_size(buffer: BytesLike, position: int = 0) -> int:
    """Returns the size of the batch at `position` by its length field, of which any number may be
    damage. The first 12 bytes of the batch must be there.
    """
    length: int = _LENGTH.unpack_from(buffer, position)[0]
    return length + OVERHEAD_BYTES


def iter_batches(buffer: BytesLike) -> Iterator[tuple[int, BatchHeader]]:
    """Yields position and header of each whole batch, and ends at a torn tail.

    Raises CorruptMessageError if a whole batch has a header that no batch has.
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


def plain_sound_batches(view: memoryview, check_crc: bool) -> tuple[list[int], int, bool]:
    """Finds the whole, undamaged batches that a view begins with, by size, magic and (`check_crc`)
    CRC.

    Returns their positions, the end of the last one, and whether a damaged batch follows. A batch
    that is only cut off is not damaged.
    """
    positions: list[int] = []
    at, size = 0, len(view)
    last = size - HEADER_BYTES
    unpack, shortest = _LINK.unpack_from, HEADER_BYTES - OVERHEAD_BYTES
    while at <= last:
        length, magic, crc = unpack(view, at)
        if magic != MAGIC or length < shortest:
            return positions, at, True
        end = at + length + OVERHEAD_BYTES
        if end > size:
            break
        if check_crc and crc32c(view[at + ATTRIBUTES_AT : end]) != crc:
            return positions, at, True
        positions.append(at)
        at = end
    return positions, at, False


def compute_crc(buffer: BytesLike, position: int, size_bytes: int) -> int:
    """Returns the CRC-32C of the batch at `position`, over everything from its attributes on."""
    return int(crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : position + size_bytes]))


def crc_is_valid(buffer: BytesLike, position: int, header: BatchHeader) -> bool:
    """Returns whether the CRC of the whole batch at `position` agrees with its header."""
    return compute_crc(buffer, position, header.size_bytes) == header.crc


def verify_crc(buffer: BytesLike, position: int, header: BatchHeader) -> None:
    """Raises CorruptMessageError unless the whole batch is there and its CRC agrees."""
    end = position + header.size_bytes
    if end > len(buffer):
        raise _cut_off(header, position, len(buffer))
    computed = compute_crc(buffer, position, header.size_bytes)
    if computed != header.crc:
        raise CorruptMessageError(
            f"batch {header.base_offset} at position {position}: CRC-32C is {computed:#010x},"
            f" its header says {header.crc:#010x}"
        )


def verify_crcs(buffer: memoryview) -> None:
    """Verifies all whole batches of a buffer. Raises CorruptMessageError for the first wrong one.

    No field that the CRC covers may decide anything before. A flipped attribute makes a
    control batch of records, which readers pass over.
    """
    if plain_sound_batches(buffer, True)[2]:
        for position, header in iter_batches(buffer):  # says what is wrong
            verify_crc(buffer, position, header)


def check_counts(header: BatchHeader) -> None:
    """Checks the counts against the size. Raises CorruptMessageError if no batch can have them.

    A compacted batch may hold fewer records than its offsets span, even none, but never more.
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
    """Checks size, magic, CRC, codec and counts of every batch of a buffer; no record is decoded.

    With `from_client` also Kafka's rules for a producer's batch: no control batch, at least one
    record, offsets without gaps. Raises CorruptMessageError (also for a torn tail),
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
        size = claimed_size(buffer, end)
        if size > max_message_bytes:
            raise MessageTooLargeError(
                f"a batch of {size} bytes; max.message.bytes is {max_message_bytes}"
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
    """Returns the first 16 bytes of a batch with another base offset and leader epoch; the CRC
    stays valid.

    `header` is the batch or at least its first 12 bytes.
    """
    return patch(base_offset, claimed_size(header) - OVERHEAD_BYTES, leader_epoch)


def sign(head: bytearray, body: BytesLike) -> None:
    """Writes the CRC of a packed header and its batch's body into the header."""
    crc = crc32c(body, crc32c(memoryview(head)[ATTRIBUTES_AT:]))
    head[CRC_AT:ATTRIBUTES_AT] = crc.to_bytes(4, "big")


def signed(packed: bytes, body: BytesLike) -> bytes:
    """Returns the batch of a packed header and its body, with the right CRC."""
    head = bytearray(packed)
    sign(head, body)
    return b"".join((head, body))


def restamp(
    buffer: BytesLike, header: BatchHeader, *, log_append_time: bool, max_timestamp_ms: int
) -> bytes:
    """Returns bytes 16 to 60 of the batch at `header.position` with another timestamp type and
    maximum, and the right CRC.
    """
    attributes = header.attributes & ~TIMESTAMP_TYPE_FLAG
    if log_append_time:
        attributes |= TIMESTAMP_TYPE_FLAG
    view, begin = memoryview(buffer), header.position
    head = bytearray(view[begin : begin + HEADER_BYTES])
    times = (header.last_offset_delta, header.base_timestamp_ms, max_timestamp_ms)
    _TIMES.pack_into(head, ATTRIBUTES_AT, attributes, *times)
    sign(head, view[begin + HEADER_BYTES : header.end_position])
    return bytes(head[PATCH_BYTES:])


def sequence_after(sequence: int, delta: int) -> int:
    """Returns the sequence `delta` after `sequence`; 0 follows 2^31 - 1, as in Kafka."""
    return (sequence + delta) & MAX_SEQUENCE
