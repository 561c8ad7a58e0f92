"""The golden files of Apache Kafka, and our decode in the format of Kafka's dump tool."""

from __future__ import annotations

import json
from pathlib import Path

from tidemark.records import (
    BatchHeader,
    ControlMessage,
    ControlRecord,
    EndTransactionMarker,
    LeaderChange,
    Record,
    SnapshotFooter,
    SnapshotHeader,
    decode_batch,
    decode_control_records,
    iter_batches,
    verify_crc,
)
from tidemark.records.header import sequence_after

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka-4.3.0"

FOLDERS = (
    "codec-none-0",
    "codec-gzip-0",
    "codec-snappy-0",
    "codec-lz4-0",
    "codec-zstd-0",
    "transactional-0",
    "idempotent-rolled-0",
    "compacted-0",
    "rolled-by-size-0",
    "__cluster_metadata-0",
)

FILES = [
    *sorted(path for folder in FOLDERS for path in (GOLDEN / folder).glob("*.log")),
    *sorted((GOLDEN / "__cluster_metadata-0").glob("*.checkpoint")),
    GOLDEN / "bootstrap.checkpoint",
]


def name_of(path: Path) -> str:
    return str(path.relative_to(GOLDEN))


def expected_lines(path: Path) -> list[str]:
    """Returns the dump's lines about batches and records."""
    text = path.with_name(path.name + ".dump.txt").read_text(encoding="utf-8")
    return [line.rstrip() for line in text.splitlines() if line.startswith(("baseOffset", "|"))]


def dump_lines(path: Path) -> list[str]:
    """Returns our decode of the same file, in the dump tool's format."""
    data = path.read_bytes()
    lines = []
    for position, header in iter_batches(data):
        verify_crc(data, position, header)
        lines.append(_batch_line(position, header))
        controls: dict[int, ControlRecord] = {}
        if header.is_control:
            controls = {item.offset: item for item in decode_control_records(data, position)}
        for record in decode_batch(data, position):
            lines.append(_record_line(header, record, controls.get(record.offset)))
    return lines


def _batch_line(position: int, header: BatchHeader) -> str:
    horizon = header.delete_horizon_ms
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset}"
        f" count: {header.record_count} baseSequence: {header.base_sequence}"
        f" lastSequence: {header.last_sequence} producerId: {header.producer_id}"
        f" producerEpoch: {header.producer_epoch}"
        f" partitionLeaderEpoch: {header.partition_leader_epoch}"
        f" isTransactional: {_java(header.is_transactional)} isControl: {_java(header.is_control)}"
        f" deleteHorizonMs: OptionalLong{'.empty' if horizon is None else f'[{horizon}]'}"
        f" position: {position} {header.timestamp_type}: {header.max_timestamp_ms}"
        f" size: {header.size_bytes} magic: {header.magic} compresscodec: {header.compression}"
        f" crc: {header.crc} isvalid: true"
    )


def _java(value: bool) -> str:
    return str(value).lower()


def _record_line(header: BatchHeader, record: Record, control: ControlRecord | None) -> str:
    sequence = -1
    if header.base_sequence >= 0:
        sequence = sequence_after(header.base_sequence, record.offset - header.base_offset)
    line = (
        f"| offset: {record.offset} {header.timestamp_type}: {record.timestamp_ms}"
        f" keySize: {-1 if record.key is None else len(record.key)}"
        f" valueSize: {-1 if record.value is None else len(record.value)}"
        f" sequence: {sequence} headerKeys: [{','.join(key for key, _ in record.headers)}]"
    )
    if control is not None:
        return f"{line} {_control_text(control.message)}"
    if record.key is not None:
        line += f" key: {record.key.decode(errors='replace')}"
    if record.value is not None:
        line += f" payload: {record.value.decode(errors='replace')}"
    return line.rstrip()


def _control_text(message: ControlMessage) -> str:
    match message:
        case EndTransactionMarker():
            word = "COMMIT" if message.committed else "ABORT"
            return f"endTxnMarker: {word} coordinatorEpoch: {message.coordinator_epoch}"
        case LeaderChange():
            fields = {
                "version": message.version,
                "leaderId": message.leader_id,
                "voters": [{"voterId": voter.voter_id} for voter in message.voters],
                "grantingVoters": [{"voterId": v.voter_id} for v in message.granting_voters],
            }
            return f"LeaderChange: {json.dumps(fields, separators=(',', ':'))}"
        case SnapshotHeader():
            time = message.last_contained_log_timestamp_ms
            return (
                f'SnapshotHeader {{"version":{message.version},"lastContainedLogTimestamp":{time}}}'
            )
        case SnapshotFooter():
            return f'SnapshotFooter {{"version":{message.version}}}'
    raise AssertionError(f"the golden files hold no {message}")
