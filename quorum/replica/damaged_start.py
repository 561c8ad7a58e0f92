"""A start of a metadata log that is damaged below its newest whole checkpoint.

Recovery ends a log at its first damaged batch. But the checkpoint holds all that came before its
end offset, so only the records from there on are needed. They are copied into a segment of their
own, and the segments below are kept as `.damaged`. Their indexes go first: an index without its log
tells of a loss. A crash in between leaves a log that the next start treats in the same way.
"""

from __future__ import annotations

import logging
import struct

from commitlog.disk.files import Directory
from commitlog.segment.batch_table import BatchTable
from commitlog.segment.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    log_name,
    snapshot_name,
)
from commitlog.verify import BatchRun, check_batches
from quorum.replica.log_checks import RestCheck
from snapshot.cleaning import DAMAGED_SUFFIX, remove_old_damaged
from snapshot.names import SnapshotId
from tidemark.errors import CorruptMessageError
from tidemark.records.header import HEADER_BYTES, BatchHeader, verify_crc, whole_header

logger = logging.getLogger(__name__)


def segment_bases(directory: Directory) -> list[int]:
    """Returns the base offsets of the segments, oldest first."""
    names = [name.removesuffix(LOG_SUFFIX) for name in directory.list()]
    return sorted(int(name) for name in names if len(name) == 20 and name.isdigit())


def find_batch(data: bytes, checkpoint: SnapshotId) -> int | None:
    """Returns the byte position of the batch that follows a checkpoint; None if none does.

    Damage may hide where batches begin, so all bytes are searched. A batch of an epoch below the
    checkpoint's is of another lineage.
    """
    wanted = struct.pack(">q", checkpoint.end_offset)
    at = data.find(wanted)
    while 0 <= at <= len(data) - HEADER_BYTES:
        try:
            header = whole_header(data, at)
            verify_crc(data, at, header)
            if header.partition_leader_epoch >= checkpoint.epoch and _is_followed(data, header):
                return at
        except CorruptMessageError:
            pass  # other bytes that look like the offset
        at = data.find(wanted, at + 1)
    return None


def _is_followed(data: bytes, header: BatchHeader) -> bool:
    """Whether the next batch agrees with the base offset of this one, which no CRC covers."""
    following = data[header.end_position : header.end_position + 8]
    return len(following) < 8 or struct.unpack(">q", following) == (header.next_offset,)


def begin_behind_damage(directory: Directory, checkpoint: SnapshotId, check: RestCheck) -> None:
    """Makes the log begin at a whole checkpoint if it is damaged below. `check` begins at the first
    segment. Call before the log is opened.
    """
    end_offset = checkpoint.end_offset
    bases = segment_bases(directory)
    below = [base for base in bases if base < end_offset]
    if not below or not _is_damaged(directory, bases, end_offset, check):
        return
    name = log_name(end_offset if end_offset in bases else below[-1])
    data = directory.read(name)
    position = find_batch(data, checkpoint)
    if position is None:
        return  # nothing follows the checkpoint: recovery restarts the log there
    if end_offset not in bases:
        directory.write_atomic(log_name(end_offset), data[position:])
    _remove_indexes(directory, below)
    remove_old_damaged(directory, LOG_SUFFIX)
    for base in reversed(below):
        name = log_name(base)
        logger.error(
            "%s/%s is damaged, or lies below damage: it is kept as %s%s, and the log begins at "
            "checkpoint %s. Check the disk",
            directory.path,
            name,
            name,
            DAMAGED_SUFFIX,
            checkpoint.name,
        )
        directory.rename(name, f"{name}{DAMAGED_SUFFIX}")
    directory.fsync()


def _remove_indexes(directory: Directory, bases: list[int]) -> None:
    """Removes all files of segments but their logs; it is durable on return."""
    for base in bases:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            directory.remove(f"{base:020d}{suffix}")
        directory.remove(snapshot_name(base))
    directory.fsync()


def _is_damaged(directory: Directory, bases: list[int], end_offset: int, check: RestCheck) -> bool:
    """Whether something is wrong below `end_offset`; a log that ends sooner is not damaged."""
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        reached = _sound_end(directory, base, end_offset, check)
        if reached is None or (following is not None and reached < min(following, end_offset)):
            return True
        if reached >= end_offset:
            return False
    return False


def _sound_end(directory: Directory, base: int, end_offset: int, check: RestCheck) -> int | None:
    """Returns the offset after the last batch of a segment, or at least `end_offset` if all below
    is sound; None if it is not.
    """
    contradicted = False

    def on_batches(table: BatchTable) -> None:
        nonlocal contradicted
        damage = check.damage_in(table.view)
        contradicted |= damage is not None and damage[0] < end_offset

    run = BatchRun(base, on_batches=on_batches)
    file = directory.open_read_only(log_name(base))
    try:
        size = file.size
        for _ in check_batches(file, size, run):
            if contradicted or run.faults:
                return None
            if run.next_offset >= end_offset:
                return run.next_offset
    except CorruptMessageError:
        return None
    finally:
        file.close()
    return None if run.position < size else run.next_offset
