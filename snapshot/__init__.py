"""Checkpoint files of the metadata log (KIP-630): identity, writing, reading, transfer and
cleaning.
"""

from snapshot.names import SnapshotId, parse_name

__all__ = ["SnapshotId", "parse_name"]
