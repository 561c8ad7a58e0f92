"""Batches of plain Python records, for small batches: no kernel is worth loading for them.

The metadata quorum, tests and tools encode a handful of records at a time. This path is pure Python
and needs neither Arrow nor numba unless the batch is compressed. Layout of a record: Kafka's
DefaultRecord (zigzag varints; KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemark.errors import CorruptMessageError, MessageTooLargeError
from tidemark.records import compression as codecs
from tidemark.records.header import (
    CONTROL_FLAG,
    CREATE_TIME,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MAX_OFFSET_DELTA,
    MIN_RECORD_BYTES,
    OVERHEAD_BYTES,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    BytesLike,
    check_counts,
    read_header,
    signed,
    verify_crc,
)
from tidemark.records.kafka_codec import (
    MAX_VARINT_BYTES,
    MAX_VARLONG_BYTES,
    append_uvarint,
    append_varint,
    read_uvarint,
    unzigzag,
)

Header = tuple[str, bytes | None]

MAX_BATCH_BYTES = 2**31 - 1
MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS = -(2**63), 2**63 - 1


@dataclass(slots=True)
class Record:
    """One record; `key` and `value` may be null. A null value is a tombstone."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(slots=True, frozen=True)
class BatchOptions:
    """The header fields that a caller chooses; see `encode_batch`."""

    base_offset: int = 0
    compression: str = "none"
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    partition_leader_epoch: int = -1
    transactional: bool = False
    control: bool = False
    timestamp_type: str = CREATE_TIME

    def attributes(self) -> int:
        """Returns the attribute bits. Raises ValueError for an unknown timestamp type."""
        if self.timestamp_type not in (CREATE_TIME, LOG_APPEND_TIME):
            raise ValueError(f"timestamp type {self.timestamp_type!r}")
        return (
            codecs.compression_id(self.compression)
            | (TIMESTAMP_TYPE_FLAG if self.timestamp_type == LOG_APPEND_TIME else 0)
            | (TRANSACTIONAL_FLAG if self.transactional else 0)
            | (CONTROL_FLAG if self.control else 0)
        )


def assemble(
    body: BytesLike,
    options: BatchOptions,
    *,
    count: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    delete_horizon: bool = False,
) -> bytes:
    """Assembles a batch from plain records: compresses them, adds the header and the CRC.

    Raises MessageTooLargeError if it is too large for a batch.
    """
    if options.compression != "none":
        body = codecs.compress(options.compression, body)
    size = HEADER_BYTES + len(body)
    if size > MAX_BATCH_BYTES or last_offset_delta > MAX_OFFSET_DELTA:
        raise MessageTooLargeError(f"a batch of {size} bytes and {count} records")
    attributes = options.attributes() | (DELETE_HORIZON_FLAG if delete_horizon else 0)
    head = HEADER.pack(
        options.base_offset,
        size - OVERHEAD_BYTES,
        options.partition_leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        options.producer_id,
        options.producer_epoch,
        options.base_sequence,
        count,
    )
    return signed(head, body)


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    compression: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    partition_leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: str = CREATE_TIME,
    max_timestamp_ms: int | None = None,
    keep_offsets: bool = False,
    last_offset: int | None = None,
    base_timestamp_ms: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Encodes one batch; `records` may be empty only if `last_offset` gives its span.

    Offsets are `base_offset`, `base_offset + 1`, ...; with `keep_offsets` those of the records, as
    a compacted batch has gaps. `base_timestamp_ms` defaults to the first record's,
    `max_timestamp_ms` to the largest. `delete_horizon_ms` is stored in place of the base timestamp
    (KIP-534).

    Raises ValueError if offsets do not ascend or times are 2^63 ms or more from the base,
    MessageTooLargeError, UnsupportedCompressionTypeError.
    """
    if not records and last_offset is None:
        raise ValueError("a batch without records needs last_offset")
    options = BatchOptions(
        base_offset,
        compression,
        producer_id,
        producer_epoch,
        base_sequence,
        partition_leader_epoch,
        transactional,
        control,
        timestamp_type,
    )
    if delete_horizon_ms is not None:
        base_timestamp_ms = delete_horizon_ms
    if base_timestamp_ms is None:
        base_timestamp_ms = records[0].timestamp_ms if records else -1
    body = bytearray()
    delta = -1
    for position, record in enumerate(records):
        next_delta = record.offset - base_offset if keep_offsets else position
        if next_delta <= delta:
            raise ValueError(f"offset {record.offset} does not ascend from {base_offset + delta}")
        delta = next_delta
        _append_record(body, record, record.timestamp_ms - base_timestamp_ms, delta)
    if max_timestamp_ms is None:
        max_timestamp_ms = max((record.timestamp_ms for record in records), default=-1)
    return assemble(
        body,
        options,
        count=len(records),
        last_offset_delta=delta if last_offset is None else last_offset - base_offset,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        delete_horizon=delete_horizon_ms is not None,
    )


def _append_record(out: bytearray, record: Record, timestamp_delta: int, delta: int) -> None:
    if not MIN_TIMESTAMP_MS <= timestamp_delta <= MAX_TIMESTAMP_MS:
        raise ValueError("timestamps of one batch are 2^63 ms or more apart")
    body = bytearray(1)  # attributes: no bit is in use
    append_varint(body, timestamp_delta)
    append_varint(body, delta)
    _append_nullable(body, record.key)
    _append_nullable(body, record.value)
    append_varint(body, len(record.headers))
    for key, value in record.headers:
        _append_nullable(body, key.encode())
        _append_nullable(body, value)
    append_varint(out, len(body))
    out += body


def _append_nullable(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # zigzag of -1
        return
    append_uvarint(out, len(value) << 1)
    out += value


def records_body(
    buffer: BytesLike, position: int, header: BatchHeader, *, check_crc: bool = True
) -> BytesLike:
    """Checks the CRC of a batch and decompresses its records. Raises CorruptMessageError."""
    check_counts(header)
    if check_crc:
        verify_crc(buffer, position, header)
    body = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes]
    return decompressed(header, body)


def decompressed(header: BatchHeader, body: BytesLike) -> BytesLike:
    """Decompresses a batch's body. Raises CorruptMessageError if it is too small for the records
    that the header claims.
    """
    if not body and not header.record_count:  # an empty batch may lack even the codec's frame
        return body
    plain = codecs.decompress(header.compression, body)
    if header.record_count * MIN_RECORD_BYTES > len(plain):
        raise CorruptMessageError(
            f"batch {header.base_offset} claims {header.record_count} records in {len(plain)} bytes"
        )
    return plain


def decode_batch(buffer: BytesLike, position: int = 0, *, check_crc: bool = True) -> list[Record]:
    """Decodes the records of the batch at `position`, control records included. Raises
    CorruptMessageError.

    `check_crc=False` if the caller has checked it.
    """
    return list(iter_records(buffer, position, check_crc=check_crc))


def iter_records(
    buffer: BytesLike, position: int = 0, *, check_crc: bool = True
) -> Iterator[Record]:
    """Yields the records of `decode_batch` one by one; of a damaged batch those before the
    damage.
    """
    header = read_header(buffer, position)
    body = bytes(records_body(buffer, position, header, check_crc=check_crc))
    cursor = _Cursor(body)
    append_time = header.max_timestamp_ms if header.timestamp_type == LOG_APPEND_TIME else None
    for _ in range(header.record_count):
        yield cursor.record(header, append_time)
    if cursor.position != len(body):
        raise CorruptMessageError(
            f"batch {header.base_offset}: {len(body) - cursor.position} bytes after its records"
        )


class _Cursor:
    """A position in the plain records of a batch. Raises CorruptMessageError beyond their end."""

    __slots__ = ("_data", "_end", "position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._end = len(data)
        self.position = 0

    def record(self, header: BatchHeader, append_time_ms: int | None) -> Record:
        size = self._varint()
        end = self.position + size
        if size < 0 or end > len(self._data):
            raise CorruptMessageError(f"batch {header.base_offset}: a record of {size} bytes")
        self._end = end
        self._take(1)
        timestamp_ms = header.base_timestamp_ms + self._varint(MAX_VARLONG_BYTES)
        if not MIN_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS:
            raise CorruptMessageError(f"batch {header.base_offset}: a timestamp overflows")
        delta = self._varint()
        if not 0 <= delta <= header.last_offset_delta:
            raise CorruptMessageError(f"batch {header.base_offset}: offset delta {delta}")
        key = self._nullable()
        value = self._nullable()
        headers = self._headers()
        if self.position != end:
            raise CorruptMessageError(
                f"batch {header.base_offset}: {end - self.position} bytes left in a record"
            )
        self._end = len(self._data)
        if append_time_ms is not None:
            timestamp_ms = append_time_ms
        return Record(header.base_offset + delta, timestamp_ms, key, value, headers)

    def _headers(self) -> tuple[Header, ...]:
        count = self._varint()
        if count == 0:
            return ()
        if not 0 < count <= self._end - self.position:
            raise CorruptMessageError(f"a record claims {count} headers")
        headers = []
        for _ in range(count):
            key = self._nullable()
            if key is None:
                raise CorruptMessageError("a header's key is null")
            headers.append((key.decode("utf-8", "replace"), self._nullable()))  # as Java does
        return tuple(headers)

    def _take(self, size: int) -> bytes:
        begin = self.position
        if size > self._end - begin:
            raise CorruptMessageError(f"a field of {size} bytes reaches beyond its record")
        self.position = begin + size
        return self._data[begin : begin + size]

    def _nullable(self) -> bytes | None:
        size = self._varint()
        if size < 0:
            if size != -1:
                raise CorruptMessageError(f"a field of {size} bytes")
            return None
        return self._take(size)

    def _varint(self, max_bytes: int = MAX_VARINT_BYTES) -> int:
        value, self.position = read_uvarint(self._data, self.position, self._end, max_bytes)
        return unzigzag(value)
