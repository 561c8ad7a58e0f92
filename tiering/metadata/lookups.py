"""Queries of a remote log metadata manager that keeps a `RemoteLogMetadataCache` per partition."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tidemark.types import TopicIdPartition
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.segments import RemoteLogSegmentMetadata, RemotePartitionDeleteMetadata


class CacheLookups(ABC):
    """Queries on caches; see `tiering.metadata.manager.RemoteLogMetadataManager`."""

    @abstractmethod
    def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Returns the cache of a partition. Raises RemoteStorageNotReadyError as long as there is
        none.
        """

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._cache(partition).segment_for(epoch, offset)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        return self._cache(partition).highest_offset_for_epoch(epoch)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        return self._cache(partition).segments(epoch)

    def remote_segments(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        return self._cache(partition)

    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        return self._cache(partition).size_bytes(epoch)

    def finished_bytes(self, partition: TopicIdPartition) -> int:
        return self._cache(partition).finished_bytes

    def partition_deletion(
        self, partition: TopicIdPartition
    ) -> RemotePartitionDeleteMetadata | None:
        return self._cache(partition).partition_delete

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._cache(partition).next_with_txn_index(epoch, offset)
