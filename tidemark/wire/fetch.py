"""FetchResponse as a dataclass, encoded and decoded by hand.

The bytes are those of proto/tidemark/v1/log.proto; Log.Fetch and Replication.Fetch use it. The
records of a partition may be several buffers (file reads, cached remote chunks). They are joined
once, together with everything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
from tidemark.wire.produce import PLAIN, BytesLike, Payload, buffers_of, plain_fields, read_inner


@dataclass(slots=True)
class FetchPartitionData:
    """The part of a fetch response about one partition.

    `diverging_epoch` is (epoch, end offset); `current_leader` is (leader id, leader epoch);
    `aborted_transactions` are pairs of (producer id, first offset). -1 stands for an unknown
    offset. `next_offset` is the offset behind all that was read, to fetch next; 0 if nothing was.
    `preferred_read_replica` is the closest replica, which is to be asked instead (KIP-392).
    """

    topic: str
    partition_index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Payload = b""
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    aborted_transactions: tuple[tuple[int, int], ...] = ()
    topic_id: bytes = b""
    plain_records: tuple[common_pb2.Record, ...] = ()
    error_message: str = ""
    next_offset: int = 0
    preferred_read_replica: int | None = None

    @property
    def payload(self) -> bytes | bytearray | memoryview:
        """The records as one buffer: the decoded one, or the given buffers joined."""
        if isinstance(self.records, bytes | bytearray | memoryview):
            return self.records
        return b"".join(self.records)


@dataclass(slots=True)
class FetchResponse:
    """An answer to a fetch of many partitions. `node_endpoints` are those of the leaders that it
    names (KIP-951)."""

    responses: list[FetchPartitionData] = field(default_factory=list)
    error_code: int = 0
    error_message: str = ""
    throttle_time_ms: int = 0
    session_id: int = 0
    node_endpoints: list[common_pb2.Node] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Bytes of records."""
        return sum(
            buffers_of(item.records)[1] + sum(record.ByteSize() for record in item.plain_records)
            for item in self.responses
        )


_PARTITION_TAG = tag(3, LENGTH_DELIMITED)
_RECORDS_TAG = tag(11, LENGTH_DELIMITED)
_PREFERRED_TAG = tag(15, VARINT)
_NODE_TAG = tag(6, LENGTH_DELIMITED)


def encode_fetch_response(response: FetchResponse) -> bytes:
    """The response's bytes; every payload is copied once."""
    parts: list[BytesLike] = [
        int_field(1, response.error_code),
        string_field(2, response.error_message),
    ]
    for item in response.responses:
        head = _encode_head(item)
        buffers, size = buffers_of(item.records)
        if size:
            head += _RECORDS_TAG + varint(size)
        tail = plain_fields(12, item.plain_records)
        if item.error_message:
            tail.append(string_field(13, item.error_message))
        if item.next_offset:
            tail.append(int_field(14, item.next_offset))
        if item.preferred_read_replica is not None:
            tail.append(_PREFERRED_TAG + varint(item.preferred_read_replica))
        total = len(head) + size + sum(map(len, tail))
        parts += (_PARTITION_TAG, varint(total), head, *buffers, *tail)
    parts.append(int_field(4, response.throttle_time_ms))
    parts.append(int_field(5, response.session_id))
    for node in response.node_endpoints:
        encoded = node.SerializeToString()
        parts += (_NODE_TAG, varint(len(encoded)), encoded)  # one without fields, too
    return b"".join(parts)


def _encode_head(item: FetchPartitionData) -> bytes:
    parts = [
        string_field(1, item.topic),
        bytes_field(2, item.topic_id),
        int_field(3, item.partition_index),
        int_field(4, item.error_code),
        int_field(5, item.high_watermark),
        int_field(6, item.last_stable_offset),
        int_field(7, item.log_start_offset),
    ]
    if item.diverging_epoch is not None:
        parts.append(_pair_field(8, item.diverging_epoch))
    if item.current_leader is not None:
        parts.append(_pair_field(9, item.current_leader))
    parts += [_pair_field(10, aborted) for aborted in item.aborted_transactions]
    return b"".join(parts)


def _pair_field(number: int, pair: tuple[int, int]) -> bytes:
    encoded = int_field(1, pair[0]) + int_field(2, pair[1])
    return tag(number, LENGTH_DELIMITED) + varint(len(encoded)) + encoded


def decode_fetch_response(data: bytes) -> FetchResponse:
    """Decodes a response; `records` are views into `data`. Raises InvalidRequestError."""
    response = FetchResponse()
    view = memoryview(data)
    position, end = 0, len(data)
    while position < end:
        number, wire_type, position = read_tag(data, position, end)
        if wire_type == LENGTH_DELIMITED and number in (2, 3, 6):
            begin, position = read_length(data, position, end)
            if number == 2:
                response.error_message = text(data, begin, position)
            elif number == 6:
                node = read_inner(common_pb2.Node, "a node", data, begin, position)
                response.node_endpoints.append(node)
            else:
                response.responses.append(_decode_partition(data, view, begin, position))
        elif wire_type == VARINT and number in (1, 4, 5):
            value, position = read_varint(data, position, end)
            if number == 1:
                response.error_code = int32(value)
            elif number == 5:
                response.session_id = int32(value)
            else:
                response.throttle_time_ms = int32(value)
        else:
            position = skip(data, position, end, wire_type)
    return response


def _decode_partition(data: bytes, view: memoryview, position: int, end: int) -> FetchPartitionData:
    result = FetchPartitionData("", 0, 0, 0, 0, 0)
    aborted: list[tuple[int, int]] = []
    plain: list[common_pb2.Record] = []
    while position < end:
        number, wire_type, position = read_tag(data, position, end)
        if wire_type == VARINT and (3 <= number <= 7 or 14 <= number <= 15):
            value, position = read_varint(data, position, end)
            _set_number(result, number, value)
        elif wire_type == LENGTH_DELIMITED and (number in (1, 2) or 8 <= number <= 13):
            begin, position = read_length(data, position, end)
            if number == 11:
                result.records = view[begin:position]
            elif number == 1:
                result.topic = text(data, begin, position)
            elif number == 2:
                result.topic_id = data[begin:position]
            elif number == 8:
                result.diverging_epoch = _epoch_end(data, begin, position, result.diverging_epoch)
            elif number == 9:
                result.current_leader = _leader(data, begin, position, result.current_leader)
            elif number == 10:
                first, second = _pair(data, begin, position, (0, 0))
                aborted.append((int64(first), int64(second)))
            elif number == 12:
                plain.append(read_inner(*PLAIN, data, begin, position))
            else:
                result.error_message = text(data, begin, position)
        else:
            position = skip(data, position, end, wire_type)
    result.aborted_transactions = tuple(aborted)
    result.plain_records = tuple(plain)
    return result


def _set_number(result: FetchPartitionData, number: int, value: int) -> None:
    if number == 5:
        result.high_watermark = int64(value)
    elif number == 6:
        result.last_stable_offset = int64(value)
    elif number == 7:
        result.log_start_offset = int64(value)
    elif number == 14:
        result.next_offset = int64(value)
    elif number == 15:
        result.preferred_read_replica = int32(value)
    elif number == 3:
        result.partition_index = int32(value)
    else:
        result.error_code = int32(value)


def _pair(data: bytes, position: int, end: int, before: tuple[int, int]) -> tuple[int, int]:
    """The varint fields 1 and 2 of a small message; a message that occurs twice is merged."""
    first, second = before
    while position < end:
        number, wire_type, position = read_tag(data, position, end)
        if wire_type == VARINT and number in (1, 2):
            value, position = read_varint(data, position, end)
            if number == 1:
                first = value
            else:
                second = value
        else:
            position = skip(data, position, end, wire_type)
    return first, second


def _epoch_end(
    data: bytes, begin: int, end: int, before: tuple[int, int] | None
) -> tuple[int, int]:
    epoch, offset = _pair(data, begin, end, before or (0, 0))
    return int32(epoch), int64(offset)


def _leader(data: bytes, begin: int, end: int, before: tuple[int, int] | None) -> tuple[int, int]:
    leader_id, epoch = _pair(data, begin, end, before or (0, 0))
    return int32(leader_id), int32(epoch)
