"""The hand-made codec compared with protobuf in both directions, and fed with bad bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.errors import InvalidRequestError
from tidemark.v1 import common_pb2, log_pb2
from tidemark.wire import (
    FetchPartitionData,
    FetchResponse,
    PartitionProduceData,
    ProduceRequest,
    decode_fetch_response,
    decode_produce_request,
    encode_fetch_response,
    encode_produce_request,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=12)
SMALL = st.binary(max_size=16)
PAYLOAD = st.binary(max_size=300)
ERRORS = st.sampled_from([-1, 0, 1, 6, 109, 127])
PAIRS_32 = st.none() | st.tuples(INT32, INT32)
PAIRS_64 = st.none() | st.tuples(INT32, INT64)

PLAIN = st.builds(
    lambda offset, key, headers: common_pb2.Record(
        offset=offset,
        key=key,
        headers=[common_pb2.Header(key=name, value=value) for name, value in headers],
    ),
    INT64,
    st.none() | SMALL,
    st.lists(st.tuples(TEXT, st.none() | SMALL), max_size=2),
)
PLAINS = st.lists(PLAIN, max_size=2).map(tuple)

PRODUCE = st.builds(
    ProduceRequest,
    acks=INT32,
    timeout_ms=INT32,
    partition_data=st.lists(
        st.builds(
            lambda data, numbers: replace(
                data,
                producer_id=numbers[0],
                producer_epoch=numbers[1],
                base_sequence=numbers[2],
            ),
            st.builds(PartitionProduceData, TEXT, INT32, PAYLOAD, SMALL, PLAINS),
            st.just((-1, -1, -1)) | st.tuples(INT64.filter(lambda n: n != -1), INT32, INT32),
        ),
        max_size=4,
    ),
    transactional_id=TEXT,
)
FETCH = st.builds(
    FetchResponse,
    responses=st.lists(
        st.builds(
            FetchPartitionData,
            TEXT,
            INT32,
            error_code=ERRORS,
            high_watermark=INT64,
            last_stable_offset=INT64,
            log_start_offset=INT64,
            records=PAYLOAD,
            diverging_epoch=PAIRS_64,
            current_leader=PAIRS_32,
            aborted_transactions=st.lists(st.tuples(INT64, INT64), max_size=3).map(tuple),
            topic_id=SMALL,
            plain_records=PLAINS,
            error_message=TEXT,
            next_offset=INT64,
            preferred_read_replica=st.none() | st.integers(0, 2**31 - 1),
        ),
        max_size=4,
    ),
    error_code=ERRORS,
    error_message=TEXT,
    throttle_time_ms=INT32,
    node_endpoints=st.lists(
        st.builds(common_pb2.Node, node_id=INT32, host=TEXT, port=st.integers(0, 65535)), max_size=2
    ),
)


def produce_message(request: ProduceRequest) -> log_pb2.ProduceRequest:
    message = log_pb2.ProduceRequest(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
    )
    for item in request.partition_data:
        message.partition_data.add(
            topic=item.topic,
            topic_id=item.topic_id,
            index=item.index,
            records=bytes(item.records),
            plain_records=item.plain_records,
        )
        if item.producer_id != -1:
            added = message.partition_data[-1]
            added.producer_id, added.producer_epoch = item.producer_id, item.producer_epoch
            added.base_sequence = item.base_sequence
    return message


def fetch_message(response: FetchResponse) -> log_pb2.FetchResponse:
    message = log_pb2.FetchResponse(
        error_code=response.error_code,  # type: ignore[arg-type]
        error_message=response.error_message,
        throttle_time_ms=response.throttle_time_ms,
        node_endpoints=response.node_endpoints,
    )
    for item in response.responses:
        added = message.responses.add(
            topic=item.topic,
            topic_id=item.topic_id,
            partition_index=item.partition_index,
            error_code=item.error_code,  # type: ignore[arg-type]
            high_watermark=item.high_watermark,
            last_stable_offset=item.last_stable_offset,
            log_start_offset=item.log_start_offset,
            records=bytes(item.payload),
            plain_records=item.plain_records,
            error_message=item.error_message,
            next_offset=item.next_offset,
            preferred_read_replica=item.preferred_read_replica,
        )
        if item.diverging_epoch is not None:
            epoch, end_offset = item.diverging_epoch
            added.diverging_epoch.CopyFrom(
                common_pb2.EpochEndOffset(epoch=epoch, end_offset=end_offset)
            )
        if item.current_leader is not None:
            leader, epoch = item.current_leader
            added.current_leader.CopyFrom(
                common_pb2.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
            )
        for producer_id, first_offset in item.aborted_transactions:
            added.aborted_transactions.add(producer_id=producer_id, first_offset=first_offset)
    return message


@given(PRODUCE)
@settings(max_examples=100, deadline=None)
def test_protobuf_reads_our_produce_request(request: ProduceRequest) -> None:
    encoded = encode_produce_request(request)
    assert encoded == produce_message(request).SerializeToString(deterministic=True)


@given(PRODUCE)
@settings(max_examples=100, deadline=None)
def test_we_read_protobufs_produce_request(request: ProduceRequest) -> None:
    assert decode_produce_request(produce_message(request).SerializeToString()) == request


@given(FETCH)
@settings(max_examples=100, deadline=None)
def test_protobuf_reads_our_fetch_response(response: FetchResponse) -> None:
    assert log_pb2.FetchResponse.FromString(encode_fetch_response(response)) == fetch_message(
        response
    )


@given(FETCH)
@settings(max_examples=100, deadline=None)
def test_we_read_protobufs_fetch_response(response: FetchResponse) -> None:
    assert decode_fetch_response(fetch_message(response).SerializeToString()) == response


def test_records_of_several_buffers_are_joined_once() -> None:
    parts = (b"ab", memoryview(b"cdef")[1:3], bytearray(b"g"))
    encoded = encode_fetch_response(FetchResponse([FetchPartitionData("t", 1, records=parts)]))
    whole = FetchResponse([FetchPartitionData("t", 1, records=b"abdeg")])
    assert encoded == encode_fetch_response(whole)
    produced = encode_produce_request(
        ProduceRequest(1, 2, [PartitionProduceData("t", 0, list(parts))])
    )
    assert decode_produce_request(produced).partition_data[0].records == b"abdeg"


def test_records_are_views_into_the_received_bytes() -> None:
    data = encode_fetch_response(FetchResponse([FetchPartitionData("t", 1, records=b"abc")]))
    payload = decode_fetch_response(data).responses[0].payload
    assert isinstance(payload, memoryview) and payload.obj is data
    data = encode_produce_request(ProduceRequest(1, 1, [PartitionProduceData("t", 1, b"abc")]))
    records = decode_produce_request(data).partition_data[0].records
    assert isinstance(records, memoryview) and records.obj is data


def test_an_address_without_fields_is_one_still() -> None:
    response = FetchResponse(node_endpoints=[common_pb2.Node()])
    assert decode_fetch_response(encode_fetch_response(response)) == response


UNKNOWN = b"\xc0\x3e\x05" + b"\xc2\x3e\x02hi" + b"\xc5\x3e1234" + b"\xc1\x3e12345678"


@given(FETCH)
@settings(max_examples=50, deadline=None)
def test_unknown_fields_are_skipped(response: FetchResponse) -> None:
    encoded = fetch_message(response).SerializeToString()
    assert decode_fetch_response(UNKNOWN + encoded + UNKNOWN) == response
    for item in response.responses:
        inner = fetch_message(FetchResponse([item])).responses[0].SerializeToString() + UNKNOWN
        wrapped = b"\x1a" + _length(len(inner)) + inner
        assert decode_fetch_response(wrapped).responses == [item]


def _length(size: int) -> bytes:
    out = bytearray()
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([*out, size])


def test_fields_come_in_any_order() -> None:
    message = b"\x18\x07" + b"\x22\x09" + b"\x22\x02hi\x18\x03\x0a\x01t" + b"\x10\x01"
    assert decode_produce_request(message) == ProduceRequest(
        1, 7, [PartitionProduceData("t", 3, memoryview(b"hi"))]
    )


def test_a_field_of_another_wire_type_is_unknown() -> None:
    message = b"\x12\x01a" + b"\x20\x05"  # acks as bytes, partition data as a varint
    log_pb2.ProduceRequest.FromString(message)
    assert decode_produce_request(message) == ProduceRequest()


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"\x10", "ends within a varint"),
        (b"\x10" + b"\xff" * 10 + b"\x01", "longer than ten"),
        (b"\x0a\x05abc", "5 bytes where 3 are left"),
        (b"\x0a\x01\xff", "not UTF-8"),
        (b"\x00\x01", "no field number"),
        (b"\x0b\x0c", "wire type 3"),
        (b"\xc5\x3e12", "fixed-width"),
        (b"\x22\x03\x2a\x01\xff", "a plain record"),
        (b"\x22\x02\x22\x05", "5 bytes where 0 are left"),
    ],
)
def test_malformed_messages_are_refused(message: bytes, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        decode_produce_request(message)


def _decodes(decode: Any, data: bytes) -> Any:
    try:
        return decode(data)
    except InvalidRequestError:
        return None


@given(PRODUCE, FETCH, st.data())
@settings(max_examples=100, deadline=None)
def test_changed_bytes_are_read_or_refused(
    request: ProduceRequest, response: FetchResponse, data: st.DataObject
) -> None:
    for encoded, decode in (
        (encode_produce_request(request), decode_produce_request),
        (encode_fetch_response(response), decode_fetch_response),
    ):
        bad = bytearray(encoded[: data.draw(st.integers(0, len(encoded)))])
        for _ in range(3):
            if bad:
                bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
        found = _decodes(decode, bytes(bad))
        assert found is None or isinstance(found, ProduceRequest | FetchResponse)


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_what_we_accept_protobuf_accepts_alike(data: bytes) -> None:
    found = _decodes(decode_produce_request, data)
    if found is not None:
        message = log_pb2.ProduceRequest.FromString(data)
        message.DiscardUnknownFields()
        message.acks = message.acks if message.HasField("acks") else -1
        for item in message.partition_data:
            for name in ("producer_id", "producer_epoch", "base_sequence"):
                if not item.HasField(name):
                    setattr(item, name, -1)
        written = produce_message(found)
        for item in written.partition_data:
            if not item.HasField("producer_id"):
                item.producer_id = item.producer_epoch = item.base_sequence = -1
        assert message == written
