"""Checkpoint files of the metadata log (KIP-630): identity, writing, reading, transfer,
cleaning.
"""

from snapshot.cleaning import SnapshotInfo, delete_snapshot, first_to_keep, remove_leftovers
from snapshot.names import SnapshotId, parse_name
from snapshot.reader import FileSnapshotReader, SnapshotReader, list_snapshots
from snapshot.transfer import install_part, read_piece, write_piece
from snapshot.writer import SnapshotWriter

__all__ = [
    "FileSnapshotReader",
    "SnapshotId",
    "SnapshotInfo",
    "SnapshotReader",
    "SnapshotWriter",
    "delete_snapshot",
    "first_to_keep",
    "install_part",
    "list_snapshots",
    "parse_name",
    "read_piece",
    "remove_leftovers",
    "write_piece",
]
