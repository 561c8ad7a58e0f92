"""Kafka's primitive types: written values are read back, cut off ones are refused."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given

from tests.records.strategies import INT64
from tidemark.errors import CorruptMessageError
from tidemark.records.kafka_codec import Reader, Writer, unzigzag, zigzag


def test_zigzag_alternates_signs() -> None:
    assert [zigzag(value) for value in (0, -1, 1, -2, 2**63 - 1, -(2**63))] == [
        0, 1, 2, 3, 2**64 - 2, 2**64 - 1,
    ]  # fmt: skip


@given(INT64)
def test_varlongs_come_back(value: int) -> None:
    assert unzigzag(zigzag(value)) == value
    writer = Writer()
    writer.varlong(value)
    assert Reader(writer.getvalue()).varlong() == value


def test_every_type_comes_back() -> None:
    writer = Writer()
    writer.boolean(True)
    writer.int8(-3)
    writer.int16(-300)
    writer.uint16(65_535)
    writer.int32(-70_000)
    writer.uint32(2**32 - 1)
    writer.int64(-(2**63))
    writer.uuid(UUID(int=5))
    writer.varint(-1)
    writer.unsigned_varint(2**32 - 1)
    writer.compact_string("ζ")
    writer.compact_string(None)
    writer.compact_bytes(b"")
    writer.string("old")
    writer.string(None)
    writer.compact_array_length(None)
    writer.compact_array_length(0)
    writer.tagged_fields({3: b"c", 1: b"a"})
    reader = Reader(writer.getvalue())
    assert reader.boolean() is True
    assert (reader.int8(), reader.int16(), reader.uint16()) == (-3, -300, 65_535)
    assert (reader.int32(), reader.uint32(), reader.int64()) == (-70_000, 2**32 - 1, -(2**63))
    assert (reader.uuid(), reader.varint()) == (UUID(int=5), -1)
    assert reader.unsigned_varint() == 2**32 - 1
    assert (reader.compact_string(), reader.compact_string()) == ("ζ", None)
    assert (reader.compact_bytes(), reader.string(), reader.string()) == (b"", "old", None)
    assert (reader.compact_array_length(), reader.compact_array_length()) == (None, 0)
    assert reader.tagged_fields() == {1: b"a", 3: b"c"}
    assert reader.remaining == 0


@pytest.mark.parametrize(
    "read",
    [
        Reader.boolean, Reader.int16, Reader.int64, Reader.uuid, Reader.unsigned_varint,
        Reader.compact_string, Reader.string, Reader.tagged_fields, Reader.non_null_string,
        Reader.non_null_array_length,
    ],
)  # fmt: skip
def test_nothing_is_read_beyond_the_end(read: object) -> None:
    with pytest.raises(CorruptMessageError):
        read(Reader(b"\x05", position=1))  # type: ignore[operator]


def test_absurd_lengths_are_refused() -> None:
    with pytest.raises(CorruptMessageError, match="elements"):
        Reader(b"\xff\xff\xff\xff\x0f").compact_array_length()
    with pytest.raises(CorruptMessageError, match="malformed varint"):
        Reader(b"\xff" * 9).unsigned_varint()
    with pytest.raises(CorruptMessageError, match="malformed varint"):
        Reader(b"\xff\xff\xff\xff\x7f").unsigned_varint()
    with pytest.raises(CorruptMessageError, match="is null"):
        Reader(b"\0").non_null_string()
    with pytest.raises(CorruptMessageError, match="not UTF-8"):
        Reader(b"\x02\xff").compact_string()
    with pytest.raises(CorruptMessageError, match="beyond its buffer"):
        Reader(b"", position=0, end=1)
