"""Damage in the own log, found while it is served: the batch that cannot be read, and where it is.

A read compares offsets and epochs (`commitlog.log.log.Log.read`), but no CRC: that would cost each
fetch. A follower compares them, and fetches again at the same offset. Only then the leader compares
them, too. A leader with a damaged batch resigns (`quorum/raft/state.py::note_damage`).
"""

from __future__ import annotations

from quorum.raft.effects import ReadRecords
from quorum.replica.metadata_log import ReplicatedLog
from tidemark.errors import CorruptMessageError, StorageError, TidemarkError
from tidemark.records import iter_batches, verify_crc


class OwnLogDamagedError(TidemarkError):
    """The batch at `offset` of the own log is damaged."""

    def __init__(self, offset: int, reason: Exception) -> None:
        super().__init__(f"the batch at offset {offset} is damaged ({reason})")
        self.offset = offset


def read_records(log: ReplicatedLog, read: ReadRecords) -> bytes:
    """Returns the batches of a fetch answer. Raises OwnLogDamagedError, OffsetOutOfRangeError."""
    try:
        records = log.read(read.offset, read.max_bytes)
        if read.doubted:
            _compare_checksums(records)
        return records
    except (CorruptMessageError, StorageError) as error:
        raise _located(log, read.offset, error) from error


def _compare_checksums(records: bytes) -> int:
    """Returns the offset after the last batch. Raises CorruptMessageError."""
    following = 0
    for position, header in iter_batches(records):
        verify_crc(records, position, header)
        following = header.next_offset
    return following


def _located(log: ReplicatedLog, offset: int, error: Exception) -> OwnLogDamagedError:
    """Finds the damaged batch, one batch after another from `offset` on."""
    following = offset
    while following < log.end_offset:
        try:
            reached = _compare_checksums(log.read(following, 1))
        except (CorruptMessageError, StorageError) as reason:
            return OwnLogDamagedError(following, reason)
        if reached <= following:
            break
        following = reached
    return OwnLogDamagedError(offset, error)  # the disk gave these bytes once, and others now


def advice(log: ReplicatedLog, error: OwnLogDamagedError) -> str:
    """Returns the log line for the operator."""
    return (
        f"{log.directory.path}: {error}. This replica does not lead until a newer checkpoint has "
        "replaced the batch, or a restart has fetched it anew from another voter. Check the disk"
    )


def tail_is_lost(log: ReplicatedLog) -> str:
    """Returns the log line for a log that ends below its durable end."""
    return (
        f"{log.directory.path}: the log ends at offset {log.end_offset}, but it was durable up to "
        f"{log.bounds.now.end_offset}: the disk lost records. This replica does not vote until it "
        "has fetched everything from a leader. If no other voter has these records, restore the "
        "directory from a copy, or give them up with `tidemark quorum recover`"
    )
