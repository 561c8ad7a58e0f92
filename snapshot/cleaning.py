"""Which checkpoints go: the oldest, as long as log and checkpoints together are too large or it is
too old (KIP-630 "When to Delete Snapshots").

Pure choice, then plain removal. The newest checkpoint always stays. The log begins at its earliest
checkpoint: those before it go first, the segments below it last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from commitlog.disk.files import Directory
from snapshot.names import DELETED_SUFFIX, PART_SUFFIX, SnapshotId
from snapshot.reader import file_name


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
    """The checkpoint that the log may begin at from now on; None when nothing has to go.

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
    """Removes a checkpoint; one that is gone already is no error."""
    name = file_name(directory, snapshot_id)
    if name is not None:
        directory.remove(name)


def remove_leftovers(directory: Directory) -> list[str]:
    """Removes what an interrupted write or removal left behind; gives the names."""
    left = [name for name in directory.list() if name.endswith((PART_SUFFIX, DELETED_SUFFIX))]
    for name in left:
        directory.remove(name)
    return left
