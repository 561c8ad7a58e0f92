"""Files of Apache Kafka 4.3.0: our decode equals its dump tool's, our encode its bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.records.golden import FILES, dump_lines, expected_lines, name_of
from tidemark.records import (
    BatchHeader,
    decode_arrow,
    decode_batch,
    decode_control_records,
    encode_arrow,
    encode_batch,
    encode_control_batch,
    iter_batches,
    validate_batches,
)
from tidemark.records.arrow import warm_up
from tidemark.records.header import (
    CREATE_TIME,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TIMESTAMP_TYPE_FLAG,
    compute_crc,
)

pytestmark = pytest.mark.parametrize("path", FILES, ids=name_of)


def _prints_data(lines: list[str]) -> bool:
    """Returns whether the dump was made with the records' data (the large one was not)."""
    return any(" payload: " in line for line in lines)


def _comparable(lines: list[str], with_data: bool, kafka_metadata: bool) -> list[str]:
    """Keeps the lines that both can print: Kafka prints its metadata records decoded."""
    if with_data and not kafka_metadata:
        return lines
    cut = [line.split(" payload: ")[0] for line in lines]
    return cut if with_data else [line.split(" key: ")[0] for line in cut]


def test_decode_agrees_with_every_line_of_the_dump(path: Path) -> None:
    expected = expected_lines(path)
    with_data = _prints_data(expected)
    metadata = "cluster_metadata" in str(path) or path.suffix == ".checkpoint"
    ours = _comparable(dump_lines(path), with_data, metadata)
    assert ours == _comparable(expected, with_data, metadata)
    assert len(ours) > 1


def test_validation_accepts_the_file(path: Path) -> None:
    data = path.read_bytes()
    assert len(validate_batches(data, 1 << 20)) == len(list(iter_batches(data)))


def _with_own_times(raw: bytes, header: BatchHeader) -> tuple[bytes, BatchHeader]:
    """Returns the batch with the producer's times, which LogAppendTime hides in the deltas."""
    header = header._replace(attributes=header.attributes & ~TIMESTAMP_TYPE_FLAG)
    buffer = bytearray(raw)
    buffer[:HEADER_BYTES] = header.packed
    header = header._replace(crc=compute_crc(buffer, 0, len(buffer)))
    buffer[:HEADER_BYTES] = header.packed
    return bytes(buffer), header


def test_reencoding_uncompressed_batches_gives_the_same_bytes(path: Path) -> None:
    data = path.read_bytes()
    for position, header in iter_batches(data):
        raw = data[position : position + header.size_bytes]
        if header.compression != "none":
            continue
        shown, _ = _with_own_times(raw, header)
        records = decode_batch(shown)
        again = encode_batch(
            records,
            base_offset=header.base_offset,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            partition_leader_epoch=header.partition_leader_epoch,
            transactional=header.is_transactional,
            control=header.is_control,
            timestamp_type=header.timestamp_type,
            max_timestamp_ms=header.max_timestamp_ms,
            keep_offsets=True,
            last_offset=header.last_offset,
            delete_horizon_ms=header.delete_horizon_ms,
        )
        assert again == raw


def test_reencoding_control_batches_gives_the_same_bytes(path: Path) -> None:
    data = path.read_bytes()
    for position, header in iter_batches(data):
        if not header.is_control:
            continue
        controls = decode_control_records(data, position)
        again = encode_control_batch(
            [control.message for control in controls],
            base_offset=header.base_offset,
            timestamp_ms=controls[0].timestamp_ms,
            partition_leader_epoch=header.partition_leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
        )
        assert again == data[position : position + header.size_bytes]


def test_arrow_decode_agrees_with_the_plain_one(path: Path) -> None:
    warm_up()
    data = path.read_bytes()
    rows = [
        {
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
        }
        for position, header in iter_batches(data)
        if not header.is_control
        for record in decode_batch(data, position)
    ]
    batch = decode_arrow(data)
    batch.validate(full=True)
    assert batch.to_pylist() == rows


def test_arrow_encode_gives_the_same_bytes(path: Path) -> None:
    warm_up()
    data = path.read_bytes()
    for position, header in iter_batches(data):
        gaps = header.record_count != header.last_offset_delta + 1
        if header.is_control or header.compression != "none" or gaps:
            continue
        raw = data[position : position + header.size_bytes]
        append_time = header.timestamp_type == LOG_APPEND_TIME
        shown = _with_own_times(raw, header)[0] if append_time else raw
        batch = decode_arrow(shown)
        again = encode_arrow(
            batch.column("key"),
            batch.column("value"),
            batch.column("timestamp").cast(pa.timestamp("ms")),
            batch.column("headers"),
            base_offset=header.base_offset,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            partition_leader_epoch=header.partition_leader_epoch,
            transactional=header.is_transactional,
            timestamp_type=LOG_APPEND_TIME if append_time else CREATE_TIME,
            max_timestamp_ms=header.max_timestamp_ms,
        )
        assert again == raw
