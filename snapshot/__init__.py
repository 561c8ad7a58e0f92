"""Checkpoint files of the metadata log (KIP-630).

- `names`: the identity of a checkpoint, and its file name.
- `writer`, `reader`: one checkpoint, written batch by batch, read with every check.
- `framing`, `values`: the batches of the metadata log and of checkpoints.
- `transfer`: the pieces of FetchSnapshot, for sender and receiver.
- `cleaning`: the choice of checkpoints to delete, and their removal.

Outsiders import the package, or `framing`, `names`, `reader`, `writer`, `transfer` and `cleaning`
from it; `values` is of use only here.

A file with a checkpoint's name is whole and durable: it gets the name after its fsync. Replicas
with the same state write the same bytes. Memory is bounded by one batch. The files are Kafka's:
golden files hold it.
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
