"""ProduceRequest as a dataclass, encoded and decoded by hand.

The bytes are those of proto/tidemark/v1/log.proto. A produce request is read once: `records` of
each partition is a view into the request as it came from the socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from tidemark.errors import InvalidRequestError
from tidemark.v1 import common_pb2
from tidemark.wire.primitives import (
    LENGTH_DELIMITED,
    VARINT,
    bytes_field,
    int32,
    int64,
    int_field,
    read_length,
    read_tag,
    read_varint,
    skip,
    string_field,
    tag,
    text,
    varint,
)

M = TypeVar("M", bound=Message)
PLAIN = common_pb2.Record, "a plain record"
BytesLike = bytes | bytearray | memoryview
Payload = BytesLike | Sequence[BytesLike]


def buffers_of(records: Payload) -> tuple[Sequence[BytesLike], int]:
    """The buffers of a payload, and their total size in bytes; a single buffer is a list of one."""
    if isinstance(records, bytes | bytearray | memoryview):
        return (records,), _size(records)
    return records, sum(map(_size, records))


def _size(buffer: BytesLike) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def plain_fields(number: int, records: Sequence[common_pb2.Record]) -> list[BytesLike]:
    """Plain records as repeated fields `number`."""
    parts: list[BytesLike] = []
    for record in records:
        encoded = record.SerializeToString()
        parts += (tag(number, LENGTH_DELIMITED), varint(len(encoded)), encoded)
    return parts


def read_inner(kind: type[M], what: str, data: bytes, begin: int, end: int) -> M:
    """A message within a message; raises InvalidRequestError, which says what it is."""
    try:
        return kind.FromString(data[begin:end])
    except DecodeError as error:
        raise InvalidRequestError(f"malformed message: {what}") from error


PARTITIONS_MAX = 100_000
"""Partitions that a node takes in one request of a client, or in one fetch session."""


@dataclass(slots=True)
class PartitionProduceData:
    """The records for one partition: record batches v2, or plain records to make a batch of.

    `producer_id`, `producer_epoch` and `base_sequence` are those of plain records; -1: none.
    """

    topic: str
    index: int
    records: bytes | memoryview = b""
    topic_id: bytes = b""
    plain_records: tuple[common_pb2.Record, ...] = ()
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


@dataclass(slots=True)
class ProduceRequest:
    """Batches of many partitions; `acks` is 0, 1, or -1 for all in-sync replicas."""

    acks: int = -1
    timeout_ms: int = 0
    partition_data: list[PartitionProduceData] = field(default_factory=list)
    transactional_id: str = ""


def encode_produce_request(request: ProduceRequest) -> bytes:
    """The request's bytes; every payload is copied once."""
    parts: list[BytesLike] = [
        string_field(1, request.transactional_id),
        _ACKS_TAG + varint(request.acks),  # 0 as well: left out it is -1
        int_field(3, request.timeout_ms),
    ]
    for item in request.partition_data:
        head = (
            string_field(1, item.topic) + bytes_field(2, item.topic_id) + int_field(3, item.index)
        )
        buffers, size = buffers_of(item.records)
        if size:
            head += _RECORDS_TAG + varint(size)
        plain = plain_fields(5, item.plain_records)
        if item.producer_id != -1:
            numbers = (item.producer_id, item.producer_epoch, item.base_sequence)
            plain += [tag(6 + n, VARINT) + varint(value) for n, value in enumerate(numbers)]
        total = len(head) + size + sum(map(len, plain))
        parts += (_PARTITION_TAG, varint(total), head, *buffers, *plain)
    return b"".join(parts)


_ACKS_TAG = tag(2, VARINT)
_RECORDS_TAG = tag(4, LENGTH_DELIMITED)
_PARTITION_TAG = tag(4, LENGTH_DELIMITED)


def decode_produce_request(data: bytes) -> ProduceRequest:
    """Decodes a request; `records` are views into `data`. Raises InvalidRequestError."""
    request = ProduceRequest()
    view = memoryview(data)
    position, end = 0, len(data)
    while position < end:
        number, wire_type, position = read_tag(data, position, end)
        if wire_type == LENGTH_DELIMITED and number in (1, 4):
            begin, position = read_length(data, position, end)
            if number == 1:
                request.transactional_id = text(data, begin, position)
            else:
                if len(request.partition_data) == PARTITIONS_MAX:
                    raise InvalidRequestError(
                        f"more than {PARTITIONS_MAX} partitions: send several"
                    )
                request.partition_data.append(_decode_partition(data, view, begin, position))
        elif wire_type == VARINT and number in (2, 3):
            value, position = read_varint(data, position, end)
            if number == 2:
                request.acks = int32(value)
            else:
                request.timeout_ms = int32(value)
        else:
            position = skip(data, position, end, wire_type)
    return request


def _decode_partition(
    data: bytes, view: memoryview, position: int, end: int
) -> PartitionProduceData:
    result = PartitionProduceData("", 0)
    plain: list[common_pb2.Record] = []
    while position < end:
        number, wire_type, position = read_tag(data, position, end)
        if wire_type == LENGTH_DELIMITED and number in (1, 2, 4, 5):
            begin, position = read_length(data, position, end)
            if number == 1:
                result.topic = text(data, begin, position)
            elif number == 2:
                result.topic_id = data[begin:position]
            elif number == 4:
                result.records = view[begin:position]
            else:
                plain.append(read_inner(*PLAIN, data, begin, position))
        elif wire_type == VARINT and number in (3, 6, 7, 8):
            value, position = read_varint(data, position, end)
            if number == 3:
                result.index = int32(value)
            elif number == 6:
                result.producer_id = int64(value)
            elif number == 7:
                result.producer_epoch = int32(value)
            else:
                result.base_sequence = int32(value)
        else:
            position = skip(data, position, end, wire_type)
    result.plain_records = tuple(plain)
    return result
