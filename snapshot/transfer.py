"""The transfer of a checkpoint in pieces (KIP-630 "FetchSnapshot"), for receiver and sender.

The receiver trusts nothing: pieces must come in order, and the whole is verified (framing, CRCs,
header, footer) before it is frozen. The sender opens the file for each piece. If the checkpoint was
cleaned meanwhile, the answer is SNAPSHOT_NOT_FOUND.
"""

from __future__ import annotations

from commitlog.disk.files import Directory
from snapshot.names import SnapshotId
from snapshot.reader import FileSnapshotReader, file_name
from snapshot.writer import freeze_part
from tidemark.errors import PositionOutOfRangeError, SnapshotNotFoundError


def read_piece(
    directory: Directory, snapshot_id: SnapshotId, position: int, max_bytes: int
) -> bytes:
    """Reads up to `max_bytes` of a frozen checkpoint. Raises SnapshotNotFoundError,
    PositionOutOfRangeError.
    """
    name = file_name(directory, snapshot_id)
    if name is None:
        raise SnapshotNotFoundError(f"there is no {snapshot_id.name} here (any more)")
    file = directory.open_read_only(name)
    try:
        if not 0 <= position < file.size:
            raise PositionOutOfRangeError(f"{snapshot_id.name} has {file.size} bytes: {position}")
        return file.pread(max_bytes, position)
    finally:
        file.close()


def write_piece(directory: Directory, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
    """Adds a piece to the part file; position 0 starts it anew. Raises PositionOutOfRangeError for
    a gap.
    """
    if position == 0:
        directory.remove(snapshot_id.part_name)
    file = directory.open(snapshot_id.part_name, create=position == 0)
    try:
        if file.size != position:
            raise PositionOutOfRangeError(
                f"{snapshot_id.part_name} has {file.size} bytes, the piece begins at {position}"
            )
        file.append(data)
    finally:
        file.close()


def install_part(directory: Directory, snapshot_id: SnapshotId) -> None:
    """Verifies the fetched file and freezes it. Raises CorruptMessageError after removing a bad
    one, FatalError if an fsync fails.
    """
    try:
        reader = FileSnapshotReader(directory, snapshot_id, name=snapshot_id.part_name)
        reader.verify()
    except Exception:
        directory.remove(snapshot_id.part_name)
        raise
    file = directory.open(snapshot_id.part_name)
    try:
        file.fsync()
    finally:
        file.close()
    freeze_part(directory, snapshot_id)
