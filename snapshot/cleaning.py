"""The choice of checkpoints to delete, and their removal (KIP-630 "When to Delete Snapshots").

The oldest checkpoint is deleted while log and checkpoints together are too large, or it is too old.
The newest always stays. The log begins at its earliest checkpoint: checkpoints before that are
deleted first, the segments below it last. The choice is pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from commitlog.disk.files import Directory
from snapshot.names import DELETED_SUFFIX, PART_SUFFIX, SUFFIX, SnapshotId
from snapshot.reader import file_name

DAMAGED_SUFFIX = ".damaged"
"""Suffix of a checkpoint that was found damaged, and of a copy of a segment."""
DAMAGED_MAX = 8
"""Damaged files of one kind that are kept when further ones are set aside: those of the greatest
offsets.
"""


class SnapshotInfo(NamedTuple):
    """A checkpoint's size, and the append time of the last record it contains."""

    id: SnapshotId
    size_bytes: int
    timestamp_ms: int


def first_to_keep(
    snapshots: Sequence[SnapshotInfo],
    log_size_bytes: int,
    *,
    retention_bytes: int,
    retention_ms: int,
    now_ms: int,
) -> SnapshotId | None:
    """Returns the checkpoint at which the log is to begin; None if nothing is to be deleted.

    `snapshots` are oldest first; -1 switches a limit off (metadata.max.retention.bytes / .ms).
    """
    total = log_size_bytes + sum(info.size_bytes for info in snapshots)
    keep = 0
    while keep + 1 < len(snapshots):
        oldest = snapshots[keep]
        too_large = 0 <= retention_bytes < total
        too_old = 0 <= retention_ms < now_ms - oldest.timestamp_ms
        if not too_large and not too_old:
            break
        total -= oldest.size_bytes
        keep += 1
    return snapshots[keep].id if keep > 0 else None


def delete_snapshot(directory: Directory, snapshot_id: SnapshotId) -> None:
    """Removes a checkpoint; a missing one is no error."""
    name = file_name(directory, snapshot_id)
    if name is not None:
        directory.remove(name)


def set_aside(directory: Directory, snapshot_id: SnapshotId) -> None:
    """Renames a damaged checkpoint, durably; a missing one is no error."""
    name = file_name(directory, snapshot_id)
    if name is not None:
        remove_old_damaged(directory, SUFFIX)
        directory.rename(name, f"{name}{DAMAGED_SUFFIX}")
        directory.fsync()


def remove_old_damaged(directory: Directory, suffix: str) -> None:
    """Removes the oldest damaged files of a kind, before others are set aside."""
    names = [name for name in directory.list() if name.endswith(suffix + DAMAGED_SUFFIX)]
    for name in sorted(names)[:-DAMAGED_MAX]:
        directory.remove(name)


def remove_leftovers(directory: Directory) -> list[str]:
    """Removes the remains of an interrupted write or removal; returns their names."""
    left = [name for name in directory.list() if name.endswith((PART_SUFFIX, DELETED_SUFFIX))]
    for name in left:
        directory.remove(name)
    return left
