"""The faster bytes of committed offsets are those of the schemas."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from coordinator.records.groups import (
    GROUP_RECORDS,
    OFFSET_COMMIT,
    OffsetCommitKey,
    OffsetCommitValue,
)
from coordinator.records.offset_codec import OffsetCodec
from coordinator.records.types import RecordTypes
from tidemark.errors import CorruptMessageError
from tidemark.types import ZERO_UUID

BY_SCHEMA = RecordTypes(GROUP_RECORDS.by_number.values())
CODEC = OffsetCodec(OffsetCommitKey, OffsetCommitValue)

texts = st.text(max_size=40)
ids = st.one_of(st.just(ZERO_UUID), st.uuids())
keys = st.builds(OffsetCommitKey, texts, texts, st.integers(-(2**31), 2**31 - 1))
values = st.builds(
    OffsetCommitValue,
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.one_of(texts, st.text(min_size=30, max_size=200)),
    st.integers(-1, 2**63 - 1),
    topic_id=ids,
)


@given(keys, values)
def test_both_write_and_read_the_same(key: OffsetCommitKey, value: OffsetCommitValue) -> None:
    written = BY_SCHEMA.encode(key, value)
    assert GROUP_RECORDS.encode(key, value) == written
    assert GROUP_RECORDS.decode(*written) == (key, value) == BY_SCHEMA.decode(*written)


@given(keys, values, st.data())
def test_damaged_bytes_are_read_or_refused_as_by_the_schemas(
    key: OffsetCommitKey, value: OffsetCommitValue, data: st.DataObject
) -> None:
    pair = [bytearray(part) for part in BY_SCHEMA.encode(key, value)]
    part = pair[data.draw(st.integers(0, 1))]
    if data.draw(st.booleans()):
        part[data.draw(st.integers(2, len(part) - 1))] = data.draw(st.integers(0, 255))
    else:
        del part[data.draw(st.integers(2, len(part))) :]
    raw = bytes(pair[0]), bytes(pair[1])

    def outcome(types: RecordTypes) -> object:
        try:
            return types.decode(*raw)
        except CorruptMessageError as error:
            return type(error)

    assert outcome(GROUP_RECORDS) == outcome(BY_SCHEMA)


def test_other_versions_and_long_metadata_are_left_to_the_schemas() -> None:
    key = OffsetCommitKey("g", "t", 1)
    old = OFFSET_COMMIT.encode_value(OffsetCommitValue(5, -1, "", 7, 9), 1)
    assert CODEC.decode(OFFSET_COMMIT.encode_key(key), old) is None
    assert GROUP_RECORDS.decode(OFFSET_COMMIT.encode_key(key), old)[1].expire_timestamp == 9
    long = OffsetCommitValue(5, -1, "x" * 127, 7)
    assert CODEC.encode(key, long) is None
    assert CODEC.encode(key, OffsetCommitValue(5, -1, "x" * 126, 7)) is not None
    with_id = OffsetCommitValue(5, -1, "", 7, topic_id=UUID(int=5))
    assert GROUP_RECORDS.encode(key, with_id) == BY_SCHEMA.encode(key, with_id)
