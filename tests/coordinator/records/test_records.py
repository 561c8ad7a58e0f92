"""Records of the coordinators' topics: Kafka's own bytes, and every value there and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.records import groups, transactions
from coordinator.records.groups import (
    GROUP_RECORDS,
    OFFSET_COMMIT,
    OffsetCommitKey,
    OffsetCommitValue,
)
from coordinator.records.text import NULL_VALUE, decoder
from coordinator.records.transactions import (
    TRANSACTION_LOG,
    TRANSACTION_RECORDS,
    TransactionLogKey,
    TransactionLogValue,
    TransactionState,
)
from coordinator.records.types import RecordType, RecordTypes, UnknownRecordError
from tidemark import records
from tidemark.errors import CorruptMessageError
from tidemark.records.kafka_schema import Field, Struct

GOLDEN = Path(__file__).parents[2] / "golden"
LOGS = sorted(
    path
    for topic in ("__transaction_state-0", "__consumer_offsets-*")
    for path in GOLDEN.glob(f"kafka-*/{topic}/*.log")
)
TOPICS = [GROUP_RECORDS, TRANSACTION_RECORDS]
TYPES = [(topic, found) for topic in TOPICS for found in topic.by_number.values()]


def kafkas(path: Path) -> list[tuple[bytes, bytes | None]]:
    """Keys and values of a file that Kafka wrote."""
    found = []
    data = path.read_bytes()
    for position, header in records.iter_batches(data):
        if header.is_control:
            continue
        for record in records.decode_batch(data, position):
            assert record.key is not None
            found.append((record.key, record.value))
    return found


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.parent.name)
def test_records_that_kafka_wrote_are_written_again_byte_for_byte(path: Path) -> None:
    types = TRANSACTION_RECORDS if "transaction" in path.parent.name else GROUP_RECORDS
    found = kafkas(path)
    assert found
    for key, value in found:
        read_key, read_value = types.decode(key, value)
        assert types.encode(read_key, read_value) == (key, value), read_key


# --- every type


def _primitive(kind: str) -> st.SearchStrategy[Any]:
    if kind == "str":
        return st.text(max_size=20)
    if kind == "bytes":
        return st.binary(max_size=20)
    if kind == "uuid":
        return st.uuids()
    bits = int(kind[1:])
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def _values(kind: Any, version: int) -> st.SearchStrategy[Any]:
    """Any value that a version can keep."""
    if isinstance(kind, list):
        return st.lists(_values(kind[0], version), max_size=3).map(tuple)
    if isinstance(kind, str):
        return _primitive(kind)
    assert isinstance(kind, Struct)
    return st.builds(kind.make, **{f.attribute: _of_field(f, version) for f in kind.fields})


def _of_field(field: Field, version: int) -> st.SearchStrategy[Any]:
    default = st.just(field.default_value)
    return (default | _values(field.kind, version)) if field.is_in(version) else default


@pytest.mark.parametrize(("types", "found"), TYPES, ids=lambda each: type(each).__name__)
@given(data=st.data())
def test_every_value_is_read_as_it_was_written(
    types: RecordTypes, found: RecordType, data: st.DataObject
) -> None:
    key = data.draw(_values(found.key, 0))
    version = data.draw(st.integers(0, found.highest))
    value = data.draw(_values(found.value, version))
    encoded = found.encode_key(key)
    assert types.decode(encoded, found.encode_value(value, version)) == (key, value)
    assert types.decode(encoded, None) == (key, None)
    assert types.encode(key, None) == (encoded, None)
    names = [field.attribute for field in found.value.fields]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(found.value.make))


@pytest.mark.parametrize(("types", "found"), TYPES, ids=lambda each: type(each).__name__)
@given(data=st.data())
def test_no_cut_value_is_taken_for_a_whole_one(
    types: RecordTypes, found: RecordType, data: st.DataObject
) -> None:
    key, value = data.draw(_values(found.key, 0)), data.draw(_values(found.value, found.written))
    whole_key, whole = found.encode_key(key), found.encode_value(value)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptMessageError):
        types.decode(whole_key, whole[:cut])
    with pytest.raises(CorruptMessageError, match="are left behind"):
        types.decode(whole_key, whole + b"x")
    with pytest.raises(CorruptMessageError):
        types.decode(whole_key[: data.draw(st.integers(0, len(whole_key) - 1))], whole)


def test_types_have_the_numbers_of_kafka() -> None:
    found = GROUP_RECORDS.by_number
    numbers = {number: found[number].value.make.__name__ for number in found}
    assert numbers == {
        0: "LegacyOffsetCommitValue",
        1: "OffsetCommitValue",
        2: "GroupMetadataValue",
        3: "ConsumerGroupMetadataValue",
        4: "ConsumerGroupPartitionMetadataValue",
        5: "ConsumerGroupMemberMetadataValue",
        6: "ConsumerGroupTargetAssignmentMetadataValue",
        7: "ConsumerGroupTargetAssignmentMemberValue",
        8: "ConsumerGroupCurrentMemberAssignmentValue",
        16: "ConsumerGroupRegularExpressionValue",
    }
    assert [state.value for state in TransactionState] == list(range(8))


# --- what is not known


def test_a_type_or_version_of_a_newer_release_is_told_apart_from_damage() -> None:
    key, value = OFFSET_COMMIT.encode_key(OffsetCommitKey("g", "t", 0)), b"\x00\x05anything"
    with pytest.raises(UnknownRecordError, match="OffsetCommitValue has version 5; 4 is known"):
        GROUP_RECORDS.decode(key, value)
    with pytest.raises(UnknownRecordError, match="type 99"):
        GROUP_RECORDS.decode(b"\x00\x63", b"")
    texts = decoder(GROUP_RECORDS)
    assert texts(key, value)[1] == '{"version":"5","data":"unknown"}'
    assert texts(b"\x00\x63", b"\x00\x02x") == (
        '{"type":"99","data":"unknown"}',
        '{"version":"2","data":"unknown"}',
    )
    assert texts(b"\x00\x63", None)[1] == NULL_VALUE
    with pytest.raises(CorruptMessageError, match="has no key"):
        texts(None, value)


def test_a_version_without_a_place_for_a_value_refuses_it() -> None:
    value = OffsetCommitValue(1, 2, "", 3)
    with pytest.raises(ValueError, match="version 2 has no leaderEpoch, which is 2"):
        OFFSET_COMMIT.encode_value(value, 2)


def test_text_that_is_no_utf_8_is_corrupt() -> None:
    key = TRANSACTION_LOG.encode_key(TransactionLogKey("ab"))
    with pytest.raises(CorruptMessageError, match="no UTF-8"):
        TRANSACTION_RECORDS.decode(key.replace(b"ab", b"\xff\xfe"), None)


def test_the_json_leaves_out_tagged_fields_with_their_default() -> None:
    texts = decoder(TRANSACTION_RECORDS)
    value = TransactionLogValue(7, 1, 60_000, TransactionState.EMPTY, None, 5)
    key, data = TRANSACTION_RECORDS.encode(TransactionLogKey("tx"), value)
    shown_key, shown = texts(key, data)
    assert shown_key == '{"type":"0","data":{"transactionalId":"tx"}}'
    assert "nextProducerId" not in shown
    changed = dataclasses.replace(value, next_producer_id=8, client_transaction_version=2)
    fields = json.loads(texts(*TRANSACTION_RECORDS.encode(TransactionLogKey("tx"), changed))[1])
    assert fields["data"]["nextProducerId"] == 8
    assert fields["data"]["clientTransactionVersion"] == 2


def test_a_topic_id_is_kept_beside_the_offset() -> None:
    value = OffsetCommitValue(5, 1, "m", 9, topic_id=UUID(int=3))
    key, data = GROUP_RECORDS.encode(OffsetCommitKey("g", "t", 2), value)
    assert GROUP_RECORDS.decode(key, data) == (OffsetCommitKey("g", "t", 2), value)
    assert data is not None and data[:2] == b"\x00\x04"
    assert groups.OFFSET_COMMIT.written == 4 and transactions.TRANSACTION_LOG.written == 1


def test_control_characters_in_names_are_escaped_as_kafkas_tool_does() -> None:
    name = "\x1f\\u001f\t\x7f\u2028"
    shown, _ = decoder(TRANSACTION_RECORDS)(
        *TRANSACTION_RECORDS.encode(TransactionLogKey(name), None)
    )
    wanted = r'{"type":"0","data":{"transactionalId":"\u001F\\u001f\t'
    assert shown == wanted + '\x7f\u2028"}}'
