"""RemoteStorageManager: where the bytes of remote segments lie (KIP-405, "RemoteStorageManager").

An implementation knows nothing of offsets or epochs: it stores, ranges and deletes the files of a
segment under the segment's id. Calls block and are safe from several threads; the
RemoteLogManager runs them in its own bounded pools. Copying and deleting are idempotent. Errors:
RetriableRemoteStorageError for what passes by itself, RemoteResourceNotFoundError for what is not
there, RemoteStorageError for the rest.

Files are named as Apache Kafka's local tier names them (the golden listing shows it):
    <topic>-<partition>-<topic id>/<start offset, 20 digits>-<segment id><suffix>
with the suffixes .log, .index, .timeindex, .txnindex (where there is one), .snapshot and
.leader_epoch_checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from tidemark.types import TopicIdPartition, uuid_to_text
from tiering.metadata.segments import RemoteLogSegmentMetadata


class IndexType(Enum):
    """The small files beside a segment's log; the value is the file's suffix."""

    OFFSET = ".index"
    TIMESTAMP = ".timeindex"
    TRANSACTION = ".txnindex"
    PRODUCER_SNAPSHOT = ".snapshot"
    LEADER_EPOCH = ".leader_epoch_checkpoint"


LOG_SUFFIX = ".log"


class ByteSource(Protocol):
    """A file of known size, readable at any position from any thread."""

    @property
    def size_bytes(self) -> int: ...

    def pread(self, position: int, size: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """All that is copied of one rolled segment. The log may be large and is streamed; the rest is
    small.
    """

    log_segment: ByteSource
    indexes: Mapping[IndexType, bytes]
    """OFFSET, TIMESTAMP, PRODUCER_SNAPSHOT and LEADER_EPOCH always; TRANSACTION where the segment
    has one.
    """


@runtime_checkable
class RemoteStorageManager(Protocol):
    """See the module's docstring for the rules that every method keeps."""

    def configure(self, settings: Mapping[str, str]) -> None:
        """Takes `rsm.config.*` (without the prefix). Raises ConfigError; does not need the
        storage to be up.
        """
        ...

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Stores a segment durably; what it returns comes back as `metadata.custom_metadata` in
        later calls.
        """
        ...

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int | None = None
    ) -> bytes:
        """The log's bytes from position `start` to `end` (exclusive; None: to its end); short at
        the file's end.
        """
        ...

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """The whole index file; RemoteResourceNotFoundError where the segment has none of the
        kind.
        """
        ...

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Removes all files of the segment; what is not there is no error."""
        ...

    def close(self) -> None:
        """Lets connections go."""
        ...


def partition_directory(partition: TopicIdPartition) -> str:
    """`<topic>-<partition>-<topic id>`."""
    return f"{partition.topic}-{partition.partition}-{uuid_to_text(partition.topic_id)}"


def file_name(metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
    """`<start offset>-<segment id><suffix>`."""
    return f"{metadata.start_offset:020d}-{uuid_to_text(metadata.id)}{suffix}"
