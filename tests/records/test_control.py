"""Control records in Kafka's encoding."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.errors import CorruptMessageError
from tidemark.records import (
    ControlType,
    EndTransactionMarker,
    KRaftVersion,
    LeaderChange,
    Record,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
    VoterEndpoint,
    VoterId,
    Voters,
    decode_control_records,
    encode_batch,
    encode_control_batch,
    read_header,
)
from tidemark.records.control import (
    control_type_of,
    decode_control_type,
    decode_control_value,
    encode_control_key,
    encode_control_value,
)

DIRECTORY = UUID(int=0x0102030405060708090A0B0C0D0E0F10)

MESSAGES = [
    EndTransactionMarker(True, 3),
    EndTransactionMarker(False, -1),
    LeaderChange(1, (VoterId(1), VoterId(2)), (VoterId(2),)),
    LeaderChange(-1, (VoterId(1, DIRECTORY),), (), version=1),
    SnapshotHeader(1795254982376),
    SnapshotFooter(),
    KRaftVersion(1),
    Voters(
        (
            Voter(1, DIRECTORY, (VoterEndpoint("CONTROLLER", "host-ä", 65535),), 0, 1),
            Voter(2, UUID(int=0)),
        )
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_comes_back(message: object) -> None:
    batch = encode_control_batch(
        [message],  # type: ignore[list-item]
        base_offset=40,
        timestamp_ms=77,
        partition_leader_epoch=5,
    )
    (record,) = decode_control_records(batch)
    assert (record.message, record.offset, record.timestamp_ms) == (message, 40, 77)
    header = read_header(batch)
    assert header.is_control and header.partition_leader_epoch == 5
    assert header.is_transactional == isinstance(message, EndTransactionMarker)


def test_voters_are_laid_out_as_the_schema_says() -> None:
    voter = Voter(7, DIRECTORY, (VoterEndpoint("C", "h", 0x1234),), 0, 1)
    expected = (
        b"\0\0"  # version
        b"\x02"  # one voter
        b"\0\0\0\x07" + DIRECTORY.bytes + b"\x02"  # one endpoint
        b"\x02C\x02h\x12\x34\0"  # name, host, uint16 port, no tags
        b"\0\0\0\x01\0"  # minimum, maximum, no tags
        b"\0\0"  # no tags of the voter, none of the record
    )
    assert encode_control_value(Voters((voter,))) == expected


def test_unknown_tagged_fields_are_stepped_over() -> None:
    value = encode_control_value(KRaftVersion(1))[:-1] + b"\x02\x00\x01a\x05\x02bc"
    assert decode_control_value(ControlType.KRAFT_VERSION, value) == KRaftVersion(1)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(CorruptMessageError, match="type 9 is unknown"):
        decode_control_type(b"\0\0\0\x09")
    with pytest.raises(CorruptMessageError, match="without a key"):
        decode_control_type(None)
    with pytest.raises(CorruptMessageError, match="without a value"):
        decode_control_value(ControlType.COMMIT, None)


def test_a_data_batch_is_no_control_batch() -> None:
    with pytest.raises(CorruptMessageError, match="no control batch"):
        decode_control_records(encode_batch([Record(0, 1, b"k", b"v")]))


@given(st.sampled_from(MESSAGES), st.data())
@settings(max_examples=200, deadline=None)
def test_cut_or_changed_values_are_read_or_refused(message: object, data: st.DataObject) -> None:
    control_type = control_type_of(message)  # type: ignore[arg-type]
    assert decode_control_type(encode_control_key(control_type)) is control_type
    value = bytearray(encode_control_value(message))  # type: ignore[arg-type]
    value = value[: data.draw(st.integers(0, len(value)))]
    if value:
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_control_value(control_type, bytes(value))
    except CorruptMessageError:
        return
    assert len(value) >= 2
