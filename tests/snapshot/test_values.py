"""Batches of values have the bytes that tidemark.records gives them, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.values import MAX_BATCH_RECORDS, _plain_values, decode_values, encode_values
from tidemark.errors import CorruptMessageError
from tidemark.records import HEADER_BYTES, Record, decode_batch, encode_batch
from tidemark.records.plain import BatchOptions, assemble

values_lists = st.lists(
    st.one_of(st.binary(max_size=80), st.integers(0, 20_000).map(bytes)), min_size=1, max_size=30
)


def by_records(values: list[bytes | None], base_offset: int, **options: object) -> bytes:
    records = [Record(base_offset + i, 1_700, None, value) for i, value in enumerate(values)]
    return encode_batch(
        records,
        base_offset=base_offset,
        partition_leader_epoch=7,
        **options,  # type: ignore[arg-type]
    )


@settings(max_examples=200, deadline=None)
@given(values_lists, st.integers(0, 2**40))
def test_the_bytes_are_the_same_and_come_back(values: list[bytes], base_offset: int) -> None:
    raw = encode_values(values, base_offset, 7, 1_700)
    assert raw == by_records(list(values), base_offset)
    assert decode_values(raw) == values
    assert decode_values(b"before" + raw + b"behind", 6) == values


def test_a_batch_may_have_more_records_than_a_checkpoints() -> None:
    values = [b"%d" % number for number in range(MAX_BATCH_RECORDS + 10)]
    raw = encode_values(values, 0, 7, 1_700)
    assert raw == by_records(list(values), 0)
    assert decode_values(raw) == values


def test_other_kinds_of_batches_are_read_too() -> None:
    keyed = [Record(0, 5, b"key", b"value", (("header", b"x"),)), Record(1, 9, None, b"second")]
    assert decode_values(encode_batch(keyed)) == [b"value", b"second"]
    assert decode_values(by_records([b"a", None, b"c"], 0)) == [b"a", b"", b"c"]
    assert decode_values(by_records([b"a" * 900] * 9, 0, compression="gzip")) == [b"a" * 900] * 9
    gaps = [Record(3, 5, None, b"third"), Record(8, 5, None, b"eighth")]
    assert decode_values(encode_batch(gaps, base_offset=1, keep_offsets=True)) == [
        b"third",
        b"eighth",
    ]


@settings(max_examples=200, deadline=None)
@given(
    values_lists,
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    st.one_of(st.none(), st.integers(0, 400)),
    st.integers(-1, 2),
)
def test_damaged_records_are_read_as_records_are_or_refused(
    values: list[bytes], flips: list[tuple[int, int]], cut: int | None, more: int
) -> None:
    """The CRC is right: the test is of the walk over the records."""
    count = len(values) + more
    body = bytearray(encode_values(values, 0, 7, 1_700)[HEADER_BYTES:])
    for position, byte in flips:
        body[position % len(body)] = byte
    damaged = bytes(body[:cut])
    check_as_records(damaged, max(count, 1))


def test_every_wrong_byte_is_read_as_records_are_or_refused() -> None:
    for values in ([b"abc", b""], [b"x" * 70]):
        body = encode_values(values, 0, 7, 1_700)[HEADER_BYTES:]
        for position in range(min(len(body), 20)):
            for byte in range(256):
                damaged = body[:position] + bytes((byte,)) + body[position + 1 :]
                check_as_records(damaged, len(values))


def check_as_records(body: bytes, count: int) -> None:
    """Builds a batch of these records with a right CRC; asserts that `decode_values` and
    `decode_batch` agree.
    """
    raw = assemble(
        body,
        BatchOptions(partition_leader_epoch=7),
        count=count,
        last_offset_delta=count - 1,
        base_timestamp_ms=1_700,
        max_timestamp_ms=1_700,
    )
    try:
        expected = [record.value or b"" for record in decode_batch(raw)]
    except CorruptMessageError:
        with pytest.raises(CorruptMessageError):
            decode_values(raw)
        return
    assert decode_values(raw) == expected
    assert _plain_values(body, count) in (None, expected)
