"""A RemoteLogMetadataManager in memory: the verified fake, which passes the contract tests of the
topic-based one.

For tests and benches: nothing survives the object. Several managers may share one `history`, as
brokers share a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tidemark.types import TopicIdPartition
from tiering.errors import RemoteStorageNotReadyError
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.lookups import CacheLookups
from tiering.metadata.segments import (
    RemoteLogMetadata,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)


class MemoryHistory:
    """The records of all partitions, in place of the metadata topic."""

    def __init__(self) -> None:
        self.records: list[RemoteLogMetadata] = []
        self.caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}

    def append(self, record: RemoteLogMetadata) -> None:
        """Applies a record; a record that the cache refuses is not kept."""
        cache = self.caches.setdefault(record.topic_id_partition, RemoteLogMetadataCache())
        cache.apply(record)
        cache.validate()
        self.records.append(record)


class MemoryRemoteLogMetadataManager(CacheLookups):
    """A fake; see `tiering.metadata.manager.RemoteLogMetadataManager`."""

    def __init__(self, history: MemoryHistory | None = None) -> None:
        self.history = history or MemoryHistory()
        self._assigned: set[TopicIdPartition] = set()
        self._owns = False

    async def start(self) -> None:
        """Does nothing: there is no background work."""

    async def close(self) -> None:
        self._assigned.clear()

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._cache(metadata.topic_id_partition)
        self.history.append(metadata)

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> None:
        self._cache(update.topic_id_partition)
        self.history.append(update)

    async def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> None:
        self._cache(metadata.topic_id_partition)
        self.history.append(metadata)

    def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        self._assigned |= {*leaders, *followers}

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        self._assigned -= set(partitions)

    def recorded_partitions(
        self, leads: Callable[[int], bool]
    ) -> tuple[list[TopicIdPartition], bool]:
        self._owns = leads(0)
        return list(self.history.caches) if self._owns else [], True

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return partition in self._assigned or self._owns

    def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        if not self.is_ready(partition):
            raise RemoteStorageNotReadyError(f"{partition} is not assigned to this node")
        return self.history.caches.setdefault(partition, RemoteLogMetadataCache())
