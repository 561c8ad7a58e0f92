"""The records of a metadata batch: values only, without key, headers or a timestamp of their own.

A checkpoint of a large cluster has a million of them. So records as this version writes them are
written and read without an object for each. A batch with any other record is left to
`tidemark.records`, which also reports damage. Layout of a record: Kafka's DefaultRecord (zigzag
varints; KIP-98).
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.records import decode_batch, read_header
from tidemark.records.kafka_codec import append_uvarint
from tidemark.records.plain import BatchOptions, assemble, records_body

MAX_BATCH_RECORDS = 4_096
"""Limit for a batch of a checkpoint; a batch of the log may have more."""


def _zigzag(number: int) -> bytes:
    out = bytearray()
    append_uvarint(out, number << 1)
    return bytes(out)


def _head(offset_delta: int) -> bytes:
    """Returns the bytes before a record's value: no attributes, no timestamp delta, a null key."""
    return b"\0\0%b\x01" % _zigzag(offset_delta)


_HEADS = [_head(delta) for delta in range(MAX_BATCH_RECORDS)]
_LENGTHS = [_zigzag(number) for number in range(1 << 10)]
_NO_HEADERS = b"\0"


class ValuesBatch:
    """One data batch being filled. Each value is encoded when it is added, so that finishing the
    batch is only a copy and a checksum.
    """

    def __init__(self, base_offset: int, epoch: int, timestamp_ms: int) -> None:
        self._options = BatchOptions(base_offset, partition_leader_epoch=epoch)
        self._timestamp_ms = timestamp_ms
        self._body = bytearray()
        self.count = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the records so far."""
        return len(self._body)

    def add(self, value: bytes) -> None:
        delta, lengths = self.count, _LENGTHS
        head = _HEADS[delta] if delta < MAX_BATCH_RECORDS else _head(delta)
        size = len(value)
        length = lengths[size] if size < len(lengths) else _zigzag(size)
        whole = len(head) + len(length) + size + len(_NO_HEADERS)
        self._body += b"%b%b%b%b\0" % (
            lengths[whole] if whole < len(lengths) else _zigzag(whole),
            head,
            length,
            value,
        )
        self.count = delta + 1

    def finish(self) -> bytes:
        """Returns the batch, which must have a value. Raises MessageTooLargeError."""
        return assemble(
            self._body,
            self._options,
            count=self.count,
            last_offset_delta=self.count - 1,
            base_timestamp_ms=self._timestamp_ms,
            max_timestamp_ms=self._timestamp_ms,
        )


def encode_values(
    values: Sequence[bytes], base_offset: int, epoch: int, timestamp_ms: int
) -> bytes:
    """Encodes one data batch of at least one value."""
    batch = ValuesBatch(base_offset, epoch, timestamp_ms)
    for value in values:
        batch.add(value)
    return batch.finish()


def decode_values(raw: bytes | memoryview, position: int = 0) -> list[bytes]:
    """Decodes the values of the data batch at `position`, after a check of its CRC. Raises
    CorruptMessageError.
    """
    header = read_header(raw, position)
    values = None
    if header.last_offset_delta == header.record_count - 1:
        values = _plain_values(bytes(records_body(raw, position, header)), header.record_count)
    if values is None:
        return [record.value or b"" for record in decode_batch(raw, position)]
    return values


def _plain_values(body: bytes, count: int) -> list[bytes] | None:
    """Returns the values of records as `ValuesBatch` writes them; None if any record differs."""
    values = []
    position = 0
    try:
        for delta in range(count):
            # Lengths are varints of one byte or two, zigzag: twice the number.
            doubled = body[position]
            position += 1
            if doubled >= 0x80:
                doubled, position = doubled & 0x7F | body[position] << 7, position + 1
            head = _HEADS[delta] if delta < MAX_BATCH_RECORDS else _head(delta)
            if not body.startswith(head, position):
                return None
            end = position + (doubled >> 1) - len(_NO_HEADERS)
            position += len(head)
            size = body[position]
            position += 1
            if size >= 0x80:
                size, position = size & 0x7F | body[position] << 7, position + 1
            # The record does not end there after a longer varint, a null or a negative length.
            if position + (size >> 1) != end or body[end] or (size | doubled) & 1:
                return None
            values.append(body[position:end])
            position = end + 1
    except IndexError:
        return None
    return values if position == len(body) else None
