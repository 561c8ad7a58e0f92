"""An independent codec: aiokafka reads our batches, and we read its."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.records.strategies import BYTES, HEADERS
from tidemark.records import Record, arrow, decode_arrow, decode_batch, encode_batch

arrow.warm_up()

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

# aiokafka counts times from the first record's, within the range of a client.
ITEMS = st.lists(
    st.tuples(st.integers(0, 2**41), BYTES, BYTES, HEADERS.map(tuple)), min_size=1, max_size=20
)


def records_of(items: list[Any]) -> list[Record]:
    return [Record(index, *item) for index, item in enumerate(items)]


@pytest.mark.parametrize("codec", CODECS)
@given(items=ITEMS)
@settings(max_examples=40, deadline=None)
def test_we_read_what_it_writes(codec: str, items: list[Any]) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=CODECS[codec],
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for index, (timestamp, key, value, headers) in enumerate(items):
        assert builder.append(index, timestamp, key, value, list(headers)) is not None
    built = bytes(builder.build())
    assert decode_batch(built) == records_of(items)
    found = decode_arrow(built)
    assert found.column("value").to_pylist() == [item[2] for item in items]
    assert found.column("timestamp").to_pylist() == [item[0] for item in items]


@pytest.mark.parametrize("codec", CODECS)
@given(items=ITEMS)
@settings(max_examples=40, deadline=None)
def test_it_reads_what_we_write(codec: str, items: list[Any]) -> None:
    encoded = encode_batch(
        records_of(items), compression=codec, producer_id=9, producer_epoch=2, base_sequence=40
    )
    batch = DefaultRecordBatch(bytearray(encoded))
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 2, 40)
    assert batch.next_offset == len(items)
    read = [
        Record(r.offset, r.timestamp, r.key, r.value, tuple((k, v) for k, v in r.headers))
        for r in batch
    ]
    assert read == records_of(items)
