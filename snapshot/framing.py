"""The batches of the metadata log and of its checkpoints, as values.

A metadata record is a value without key or headers; all records of a batch share one timestamp. The
control batches are Kafka's LeaderChange, SnapshotHeader and SnapshotFooter, encoded by
`tidemark.records`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from snapshot.values import decode_values, encode_values
from tidemark.errors import CorruptMessageError
from tidemark.records import (
    ControlMessage,
    ControlRecord,
    ControlType,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
    VoterId,
    decode_control_records,
    encode_control_batch,
    iter_batches,
    read_header,
)
from tidemark.types import ZERO_UUID

__all__ = [
    "ControlBatch",
    "DecodedBatch",
    "decode_batch_at",
    "decode_batches",
    "encode_footer",
    "encode_header",
    "encode_leader_change",
    "encode_quorum",
    "encode_values",
    "header_timestamp_ms",
]


class ControlBatch(NamedTuple):
    """A control batch, typed by its first record."""

    type: ControlType
    record: ControlRecord
    records: tuple[ControlRecord, ...]


class DecodedBatch(NamedTuple):
    """One batch of the metadata log; `values` is None for a control batch."""

    base_offset: int
    next_offset: int
    epoch: int
    timestamp_ms: int
    size_bytes: int
    values: list[bytes] | None


def encode_header(
    base_offset: int,
    epoch: int,
    last_contained_log_timestamp_ms: int,
    quorum: Sequence[ControlMessage] = (),
) -> bytes:
    """Encodes the control batch that begins a checkpoint; `quorum` are KRaftVersion and Voters
    (KIP-853).
    """
    return encode_control_batch(
        [SnapshotHeader(last_contained_log_timestamp_ms), *quorum],
        base_offset=base_offset,
        timestamp_ms=last_contained_log_timestamp_ms,
        partition_leader_epoch=epoch,
    )


def encode_footer(base_offset: int, epoch: int, timestamp_ms: int) -> bytes:
    """Encodes the control batch that ends a checkpoint."""
    return encode_control_batch(
        [SnapshotFooter()],
        base_offset=base_offset,
        timestamp_ms=timestamp_ms,
        partition_leader_epoch=epoch,
    )


def encode_leader_change(
    base_offset: int,
    epoch: int,
    timestamp_ms: int,
    *,
    leader_id: int,
    voters: Sequence[int],
    granting_voters: Sequence[int],
    directory_ids: Mapping[int, UUID] | None = None,
    quorum: Sequence[ControlMessage] = (),
) -> bytes:
    """Encodes the control batch that begins a leader's epoch.

    `directory_ids` are given if the voters come from the log, and are written then (version 1).
    `quorum` are the KRaftVersion and Voters records that a first leader adds.
    """
    known = {} if directory_ids is None else directory_ids
    message = LeaderChange(
        leader_id,
        tuple(VoterId(node, known.get(node, ZERO_UUID)) for node in voters),
        tuple(VoterId(node, known.get(node, ZERO_UUID)) for node in granting_voters),
        version=0 if directory_ids is None else 1,
    )
    return encode_quorum(base_offset, epoch, timestamp_ms, [message, *quorum])


def encode_quorum(
    base_offset: int, epoch: int, timestamp_ms: int, messages: Sequence[ControlMessage]
) -> bytes:
    """Encodes a control batch of Raft's own records."""
    return encode_control_batch(
        messages,
        base_offset=base_offset,
        timestamp_ms=timestamp_ms,
        partition_leader_epoch=epoch,
    )


def decode_batch_at(raw: bytes | memoryview, position: int = 0) -> ControlBatch | list[bytes]:
    """Decodes the batch at `position` after a check of its CRC. Raises CorruptMessageError."""
    if read_header(raw, position).is_control:
        records = decode_control_records(raw, position)
        if not records:
            raise CorruptMessageError("an empty control batch")
        return ControlBatch(records[0].type, records[0], tuple(records))
    return decode_values(raw, position)


def header_timestamp_ms(batch: ControlBatch) -> int:
    """Returns the last contained log timestamp of a SnapshotHeader, in ms."""
    message = batch.record.message
    if not isinstance(message, SnapshotHeader):
        raise CorruptMessageError(f"{batch.type.name} where a snapshot header belongs")
    return message.last_contained_log_timestamp_ms


def decode_batches(records: bytes | memoryview) -> list[DecodedBatch]:
    """Decodes all whole batches of a buffer after a check of their CRCs. Raises
    CorruptMessageError.
    """
    found = []
    for position, header in iter_batches(records):
        batch = decode_batch_at(records, position)
        found.append(
            DecodedBatch(
                header.base_offset,
                header.next_offset,
                header.partition_leader_epoch,
                header.max_timestamp_ms,
                header.size_bytes,
                None if isinstance(batch, ControlBatch) else batch,
            )
        )
    return found
