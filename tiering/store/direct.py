"""A store that clients read themselves, and that keeps the leases of their jobs.

A RemoteStorageManager may offer this beside its protocol. Leases are bytes of one small object per
partition, which only the partition's leader writes. They lie beside the segments that they hold:
they survive every broker, and need no record that Kafka's readers would not know.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tidemark.types import TopicIdPartition
from tiering.metadata.segments import RemoteLogSegmentMetadata

LEASES = "leases"
"""Prefix of the objects with leases; no key of a segment has it."""


@runtime_checkable
class DirectStore(Protocol):
    """Calls block, and raise the errors of `tiering.store.manager.RemoteStorageManager`."""

    def locate(self, metadata: RemoteLogSegmentMetadata, expires_s: int) -> str:
        """Returns a URL of the segment's log: file, or http(s) for GET, valid for so many s."""
        ...

    def read_leases(self, partition: TopicIdPartition) -> bytes:
        """Returns what `write_leases` wrote last; empty if there is nothing."""
        ...

    def write_leases(self, partition: TopicIdPartition, content: bytes) -> None:
        """Writes durably; empty content removes the object."""
        ...
