"""The header alone: patches, walks, positions, names of bits, Kafka's sequence arithmetic."""

from __future__ import annotations

import struct

import pytest

from tidemark.records import (
    Record,
    decode_batch,
    encode_batch,
    iter_batches,
    patch_header,
    read_header,
    validate_batches,
)
from tidemark.records import header as layout
from tidemark.records.header import BatchHeader, sequence_after

RECORDS = [Record(0, 10, b"k", b"v"), Record(1, 30, None, None), Record(2, 20, b"", b"")]


def test_a_patched_header_keeps_its_crc() -> None:
    encoded = encode_batch(RECORDS)
    patched = patch_header(encoded[:61], 1_000, 7) + encoded[16:]
    ((_, header),) = validate_batches(patched, 1 << 20)
    assert (header.base_offset, header.partition_leader_epoch) == (1_000, 7)
    assert [record.offset for record in decode_batch(patched)] == [1_000, 1_001, 1_002]


def test_the_header_says_what_was_asked_for() -> None:
    header = read_header(
        encode_batch(
            RECORDS,
            base_offset=5,
            compression="zstd",
            producer_id=1,
            producer_epoch=2,
            base_sequence=3,
            partition_leader_epoch=4,
            transactional=True,
            timestamp_type="LogAppendTime",
            max_timestamp_ms=99,
        )
    )
    assert header.compression == "zstd"
    assert header.timestamp_type == "LogAppendTime"
    assert header.is_transactional and not header.is_control
    assert header.delete_horizon_ms is None
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (10, 99)
    assert (header.last_offset, header.next_offset, header.last_sequence) == (7, 8, 5)


def test_the_largest_time_of_a_batch_is_its_own() -> None:
    assert read_header(encode_batch(RECORDS)).max_timestamp_ms == 30


def test_log_append_time_is_every_records_time() -> None:
    encoded = encode_batch(RECORDS, timestamp_type="LogAppendTime", max_timestamp_ms=99)
    assert {record.timestamp_ms for record in decode_batch(encoded)} == {99}


def test_an_unknown_timestamp_type_is_refused() -> None:
    with pytest.raises(ValueError, match="'Never'"):
        encode_batch(RECORDS, timestamp_type="Never")


def test_walking_ends_at_a_torn_tail() -> None:
    encoded = encode_batch(RECORDS)
    size = len(encoded)
    for cut in range(1, size):
        found = list(iter_batches(memoryview(encoded * 3)[: 3 * size - cut]))
        assert [position for position, _ in found] == [0, size]


def test_sequences_wrap_to_zero() -> None:
    last = 2**31 - 1
    assert sequence_after(last, 1) == 0
    assert sequence_after(last - 1, 1) == last
    header = read_header(encode_batch(RECORDS, producer_id=1, base_sequence=last))
    assert header.last_sequence == 1


def test_the_positions_are_those_of_the_struct() -> None:
    position, found = 0, {}
    for name, code in zip(
        BatchHeader._fields, layout.HEADER.format.removeprefix(">"), strict=False
    ):
        found[name] = position
        position += struct.calcsize(">" + code)
    assert position == layout.HEADER_BYTES == layout.HEADER.size
    assert found["partition_leader_epoch"] == layout.OVERHEAD_BYTES
    assert found["magic"] == layout.MAGIC_AT == layout.PATCH_BYTES
    assert {
        "batch_length": layout.LENGTH_AT,
        "crc": layout.CRC_AT,
        "attributes": layout.ATTRIBUTES_AT,
        "last_offset_delta": layout.LAST_OFFSET_DELTA_AT,
        "base_timestamp_ms": layout.BASE_TIMESTAMP_AT,
        "max_timestamp_ms": layout.MAX_TIMESTAMP_AT,
        "producer_id": layout.PRODUCER_ID_AT,
        "base_sequence": layout.BASE_SEQUENCE_AT,
        "record_count": layout.RECORD_COUNT_AT,
    }.items() <= found.items()
