"""Checks of what no CRC covers in a metadata log: base offset and leader epoch of a batch.

Offsets of a metadata log have no gaps, because it is never compacted. Each epoch begins with the
LeaderChange record of its leader; any other batch has the epoch of the one before it. Source:
KIP-595. Kafka's followers ignore batches beyond the leader's epoch (KAFKA-18723).
"""

from __future__ import annotations

from tidemark.errors import CorruptMessageError
from tidemark.records import (
    BatchHeader,
    ControlType,
    decode_control_records,
    iter_batches,
    verify_crc,
)


def begins_epoch(buffer: bytes | memoryview, header: BatchHeader) -> bool:
    """Whether the batch begins with a LeaderChange record. Raises CorruptMessageError."""
    if not header.is_control:
        return False
    verify_crc(buffer, header.position, header)
    records = decode_control_records(buffer, header.position)
    return bool(records) and records[0].type is ControlType.LEADER_CHANGE


def check_continuation(records: bytes, end_offset: int, last_epoch: int, leader_epoch: int) -> None:
    """Raises CorruptMessageError unless these are whole batches from the log end on, with epochs
    that follow `last_epoch` and end at the leader's.
    """
    end = 0
    for position, header in iter_batches(records):
        if header.base_offset != end_offset:
            raise CorruptMessageError(
                f"a batch begins at offset {header.base_offset}, where the log ends at {end_offset}"
            )
        epoch = header.partition_leader_epoch
        if epoch != last_epoch:
            if not last_epoch < epoch <= leader_epoch:
                raise CorruptMessageError(
                    f"the batch at offset {end_offset} has epoch {epoch}, which is not within the "
                    f"log's last epoch {last_epoch} and the leader's, {leader_epoch}"
                )
            if not begins_epoch(records, header):
                raise CorruptMessageError(
                    f"the batch at offset {end_offset} has epoch {epoch} after {last_epoch}, but "
                    "no LeaderChange record begins it"
                )
            last_epoch = epoch
        end_offset, end = header.next_offset, position + header.size_bytes
    if end != len(records) or not records:
        raise CorruptMessageError(f"{len(records) - end} bytes behind the last batch are none")
