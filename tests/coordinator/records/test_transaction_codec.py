"""The faster bytes of transactions are those of the schemas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.records.transaction_codec import TransactionCodec
from coordinator.records.transactions import (
    TRANSACTION_RECORDS,
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
)
from coordinator.records.types import RecordTypes
from tidemark.errors import CorruptMessageError

BY_SCHEMA = RecordTypes(TRANSACTION_RECORDS.by_number.values())
CODEC = TransactionCodec(TransactionLogKey, TransactionLogValue, TransactionPartitions)

names = st.one_of(st.text(max_size=20), st.text(min_size=100, max_size=140))


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(-1, 1), st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))


topics = st.builds(
    TransactionPartitions,
    names,
    st.one_of(
        st.lists(signed(32), max_size=4).map(tuple), st.integers(120, 130).map(lambda n: (7,) * n)
    ),
)
keys = st.builds(TransactionLogKey, names)
values = st.builds(
    TransactionLogValue,
    signed(64),
    signed(16),
    signed(32),
    signed(8),
    st.one_of(st.none(), st.lists(topics, max_size=3).map(tuple)),
    signed(64),
    signed(64),
    signed(64),
    signed(64),
    signed(16),
    signed(16),
)


@given(keys, values)
def test_both_write_and_read_the_same(key: TransactionLogKey, value: TransactionLogValue) -> None:
    written = BY_SCHEMA.encode(key, value)
    assert TRANSACTION_RECORDS.encode(key, value) == written
    assert TRANSACTION_RECORDS.decode(*written) == (key, value) == BY_SCHEMA.decode(*written)


@given(keys, values, st.data())
def test_damaged_bytes_are_read_or_refused_as_by_the_schemas(
    key: TransactionLogKey, value: TransactionLogValue, data: st.DataObject
) -> None:
    pair = [bytearray(part or b"") for part in BY_SCHEMA.encode(key, value)]
    part = pair[data.draw(st.integers(0, 1))]
    where = data.draw(st.integers(0, len(part) - 1))
    match data.draw(st.sampled_from(("set", "cut", "insert"))):
        case "set":
            part[where] = data.draw(st.integers(0, 255))
        case "cut":
            del part[where:]
        case _:
            part.insert(where, data.draw(st.integers(0, 255)))
    raw = bytes(pair[0]), bytes(pair[1])

    def outcome(types: RecordTypes) -> object:
        try:
            return types.decode(*raw)
        except CorruptMessageError as error:
            return type(error)

    assert outcome(TRANSACTION_RECORDS) == outcome(BY_SCHEMA)


def test_what_is_written_every_time_needs_no_schema() -> None:
    usual = TransactionLogValue(
        7, 3, 60_000, 1, (TransactionPartitions("t", (0, 2)),), 5, 4, 7, -1, 2, -1
    )
    fast = CODEC.encode(TransactionLogKey("one"), usual)
    assert fast is not None
    assert CODEC.decode(*fast) == (TransactionLogKey("one"), usual)


def test_long_lists_and_other_versions_are_left_to_the_schemas() -> None:
    key = TransactionLogKey("one")
    old = TRANSACTION_RECORDS.by_number[0].encode_value(
        TransactionLogValue(7, 3, 60_000, 1, None, 5, 4), 0
    )
    assert CODEC.decode(TRANSACTION_RECORDS.encode(key, None)[0], old) is None
    for topics, is_fast in (
        ((TransactionPartitions("t", tuple(range(126))),), True),
        ((TransactionPartitions("t", tuple(range(127))),), False),
        ((TransactionPartitions("t" * 126, (0,)),), True),
        ((TransactionPartitions("t" * 127, (0,)),), False),
        (tuple(TransactionPartitions(f"{n}", (0,)) for n in range(126)), True),
        (tuple(TransactionPartitions(f"{n}", (0,)) for n in range(127)), False),
    ):
        value = TransactionLogValue(7, 3, 60_000, 1, topics, 5)
        assert (CODEC.encode(key, value) is not None) == is_fast
        written = BY_SCHEMA.encode(key, value)
        assert written[1] is not None
        assert (CODEC.decode(written[0], written[1]) is not None) == is_fast
        assert TRANSACTION_RECORDS.encode(key, value) == written
