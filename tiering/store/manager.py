"""RemoteStorageManager: the protocol for the bytes of remote segments (KIP-405, same name).

An implementation has no notion of offsets or epochs. It stores, reads and deletes the files of a
segment under the segment's id. Calls block and are safe from several threads; the RemoteLogManager
runs them in its own bounded pools. Copying and deleting are idempotent. Errors are
RetriableRemoteStorageError if the failure may pass by itself, RemoteResourceNotFoundError for a
missing file, RemoteStorageError for the rest.

A segment is two objects: the bytes of its `.log`, and its `.sidecar`, which has all the rest and
the checksums of both (`tiering.store.sidecar`). They are named as Apache Kafka's local tier names
its files:

    <topic>-<partition>-<topic id>/<start offset, 20 digits>-<segment id><suffix>
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from tidemark.types import TopicIdPartition, uuid_to_text
from tiering.metadata.segments import RemoteLogSegmentMetadata


class IndexType(Enum):
    """A small file beside a segment's log, a part of its sidecar; the value is Kafka's suffix."""

    OFFSET = ".index"
    TIMESTAMP = ".timeindex"
    TRANSACTION = ".txnindex"
    PRODUCER_SNAPSHOT = ".snapshot"
    LEADER_EPOCH = ".leader_epoch_checkpoint"


LOG_SUFFIX = ".log"
SIDECAR_SUFFIX = ".sidecar"


class ByteSource(Protocol):
    """A file of known size, readable at any position from any thread."""

    @property
    def size_bytes(self) -> int: ...

    def pread(self, position: int, size: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """The files to copy of one rolled segment. The log may be large and is streamed; the rest is
    small.
    """

    log_segment: ByteSource
    indexes: Mapping[IndexType, bytes]
    """OFFSET, TIMESTAMP, PRODUCER_SNAPSHOT and LEADER_EPOCH always; TRANSACTION if the segment has
    one.
    """


@runtime_checkable
class RemoteStorageManager(Protocol):
    """A store of remote segments; the module's docstring has the rules for every method."""

    def configure(self, settings: Mapping[str, str]) -> None:
        """Accepts `rsm.config.*` (without the prefix). The storage need not be up. Raises
        ConfigError.
        """
        ...

    def expect_segments(self) -> None:
        """Says that the tier has segments. A tier that looks empty is an outage from now on, as it
        is after the first copy: RetriableRemoteStorageError, never a missing object.
        """
        ...

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Stores a segment durably, the sidecar after the log. Returns the sidecar's pin, which is
        `metadata.custom_metadata` in later calls.
        """
        ...

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int | None = None
    ) -> bytes:
        """Returns the log's bytes from position `start` to `end` (exclusive; None: to its end);
        fewer at the file's end.
        """
        ...

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """Returns a part of the sidecar, checked: `tiering.store.objects.fetch_part`."""
        ...

    def fetch_sidecar(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int | None = None
    ) -> bytes:
        """Returns the sidecar's bytes from `start` to `end` (exclusive; None: to its end); fewer at
        its end.
        """
        ...

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Removes all objects of the segment; a missing one is no error, unless the tier looks
        empty.
        """
        ...

    def close(self) -> None:
        """Closes connections."""
        ...


class StoredSegment(NamedTuple):
    """A segment with both of its objects in the store, as their names tell it."""

    start_offset: int
    id: UUID


@runtime_checkable
class SegmentListing(Protocol):
    """A look past the metadata, which a RemoteStorageManager may offer beside its protocol. It is
    asked only where the metadata lacks what a log had in its tier (RULES.md rule 12).
    """

    def list_segments(self, partition: TopicIdPartition) -> Iterator[StoredSegment]:
        """Yields the segments of a partition in any order. Raises RemoteStorageError."""
        ...


def partition_directory(partition: TopicIdPartition) -> str:
    """Returns `<topic>-<partition>-<topic id>`."""
    return f"{partition.topic}-{partition.partition}-{uuid_to_text(partition.topic_id)}"


def file_name(metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
    """Returns `<start offset>-<segment id><suffix>`."""
    return f"{metadata.start_offset:020d}-{uuid_to_text(metadata.id)}{suffix}"
