"""Reading of checkpoint files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from snapshot.names import SnapshotId


class SnapshotReader(Protocol):
    """A frozen checkpoint, checked as it is read."""

    @property
    def id(self) -> SnapshotId: ...

    def batches(self) -> Iterator[list[bytes]]:
        """The values of each data batch, in order; raises CorruptMessageError."""
        ...
