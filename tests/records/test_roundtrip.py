"""Round trips: plain and Arrow paths, all codecs, and the two paths agree."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.records.strategies import CODECS, RECORDS
from tidemark.errors import UnsupportedCompressionTypeError
from tidemark.records import (
    RECORDS_SCHEMA,
    Record,
    arrow,
    decode_arrow,
    decode_batch,
    encode_arrow,
    encode_batch,
    encode_control_batch,
    read_header,
)
from tidemark.records.control import SnapshotFooter

arrow.warm_up()


def rows_of(records: list[Record]) -> list[dict[str, object]]:
    return [
        {
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
        }
        for record in records
    ]


def arrow_of(records: list[Record]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows_of(records), schema=RECORDS_SCHEMA)


def encode_columns(batch: pa.RecordBatch, **options: object) -> bytes:
    return encode_arrow(
        batch.column("key"),
        batch.column("value"),
        batch.column("timestamp"),
        batch.column("headers"),
        **options,  # type: ignore[arg-type]
    )


@given(RECORDS, CODECS)
@settings(max_examples=150, deadline=None)
def test_plain_records_come_back(records: list[Record], codec: str) -> None:
    encoded = encode_batch(records, compression=codec)
    assert decode_batch(encoded) == records
    assert read_header(encoded).size_bytes == len(encoded)


@given(RECORDS, CODECS)
@settings(max_examples=150, deadline=None)
def test_both_encoders_write_the_same_bytes(records: list[Record], codec: str) -> None:
    assert encode_columns(arrow_of(records), compression=codec) == encode_batch(
        records, compression=codec
    )


@given(RECORDS, CODECS)
@settings(max_examples=150, deadline=None)
def test_both_decoders_read_the_same_records(records: list[Record], codec: str) -> None:
    batch = decode_arrow(encode_batch(records, compression=codec))
    batch.validate(full=True)
    assert batch.schema == RECORDS_SCHEMA
    assert batch.to_pylist() == rows_of(records)


@given(RECORDS, st.integers(0, 29), st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_slices_of_arrow_columns_are_encoded_as_such(
    records: list[Record], start: int, length: int
) -> None:
    part = arrow_of(records).slice(start % len(records), max(1, length))
    assert (
        decode_arrow(encode_columns(part))
        .drop_columns("offset")
        .equals(part.drop_columns("offset"))
    )


@given(st.lists(st.tuples(RECORDS, CODECS), max_size=4), st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_a_buffer_of_batches_is_filtered_by_offset(
    batches: list[tuple[list[Record], str]], first: int, last: int
) -> None:
    buffer = b""
    expected: list[Record] = []
    base = 0
    for records, codec in batches:
        buffer += encode_batch(records, base_offset=base, compression=codec)
        for record in records:
            record.offset += base
        expected += records
        base += len(records)
    wanted = [record for record in expected if first <= record.offset < last]
    found = decode_arrow(buffer, min_offset=first, max_offset=last)
    assert found.to_pylist() == rows_of(wanted)


@given(RECORDS, st.sets(st.sampled_from(RECORDS_SCHEMA.names), min_size=1), st.booleans())
@settings(max_examples=50, deadline=None)
def test_some_columns_are_as_among_all(
    records: list[Record], names: set[str], is_plain: bool
) -> None:
    encoded = encode_batch(records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow._PlainBudget, "take", lambda *_: is_plain)
        found = decode_arrow(encoded, columns=names)
        assert found.equals(decode_arrow(encoded).select(found.schema.names))
    assert set(found.schema.names) == names


@pytest.mark.parametrize("names", [(), ("offset", "topic")])
def test_columns_that_records_do_not_have_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="columns are some of"):
        decode_arrow(b"", columns=names)


def test_the_path_without_kernels_reads_and_writes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [
        Record(0, 5, None, b"a", (("h", None), ("h", b""))),
        Record(1, -7, b"", None),
        Record(2, 1356998400000, b"key", "ζ".encode(), ()),
    ]
    batch = arrow_of(records)
    by_kernels = encode_columns(batch, compression="lz4")
    monkeypatch.setattr(arrow._PlainBudget, "take", lambda *_: True)
    assert encode_columns(batch, compression="lz4") == by_kernels
    plain = decode_arrow(by_kernels, min_offset=1)
    monkeypatch.setattr(arrow._PlainBudget, "take", lambda *_: False)
    assert plain.equals(decode_arrow(by_kernels, min_offset=1))


def test_control_batches_and_a_torn_tail_are_left_out() -> None:
    data = encode_batch([Record(0, 1, b"k", b"v")], base_offset=7)
    control = encode_control_batch(
        [SnapshotFooter()], base_offset=8, timestamp_ms=1, partition_leader_epoch=0
    )
    found = decode_arrow(control + data + data[:-1])
    assert found.column("offset").to_pylist() == [7]


def test_no_batches_give_an_empty_arrow_batch() -> None:
    assert decode_arrow(b"").schema == RECORDS_SCHEMA
    assert decode_arrow(b"").num_rows == 0


def test_columns_of_other_types_are_cast() -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.large_binary())])
    encoded = encode_arrow(
        pa.chunked_array([["a"], ["ä"]], pa.large_string()),
        pa.array(["x", None], pa.string()),
        pa.array([1_000, 2_000], pa.timestamp("us", tz="UTC")),
        pa.array([[{"key": "h", "value": b"1"}], None], pa.large_list(header)),
    )
    assert decode_batch(encoded) == [
        Record(0, 1, b"a", b"x", (("h", b"1"),)),
        Record(1, 2, "ä".encode(), None),
    ]


def test_columns_that_do_not_fit_together_are_refused() -> None:
    times = pa.array([1, 2])
    with pytest.raises(ValueError, match="a column of 1 values beside 2 timestamps"):
        encode_arrow(None, pa.array([b"x"]), times)
    with pytest.raises(ValueError, match="without records"):
        encode_arrow(None, None, pa.array([], pa.int64()))
    with pytest.raises(ValueError, match="null timestamp"):
        encode_arrow(None, None, pa.array([1, None]))
    no_key = pa.array([[{"key": None, "value": b""}], None])
    with pytest.raises(ValueError, match="key"):
        encode_arrow(None, None, times, no_key)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(UnsupportedCompressionTypeError, match="'brotli' is none of none, gzip"):
        encode_batch([Record(0, 1, None, b"")], compression="brotli")


def test_offsets_with_gaps_are_kept_when_asked_for() -> None:
    records = [Record(12, 1, b"a", b"1"), Record(15, 2, b"b", b"2")]
    encoded = encode_batch(records, base_offset=10, keep_offsets=True, last_offset=19)
    assert decode_batch(encoded) == records
    assert read_header(encoded).next_offset == 20
    assert decode_arrow(encoded).column("offset").to_pylist() == [12, 15]
    with pytest.raises(ValueError, match="does not ascend"):
        encode_batch(records[::-1], base_offset=10, keep_offsets=True)


def test_an_empty_batch_keeps_what_it_spans() -> None:
    encoded = encode_batch([], base_offset=3, last_offset=9, producer_id=5, base_sequence=0)
    assert decode_batch(encoded) == []
    assert read_header(encoded).next_offset == 10
    assert decode_arrow(encoded).num_rows == 0
