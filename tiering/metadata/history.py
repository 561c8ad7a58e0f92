"""MetadataHistory: the fold of all of `__remote_log_metadata`, for tools that look at a whole tier.

A node keeps the partitions it is assigned. A tool keeps all of them, and also which segments were
deleted. So it tells a deleted segment from one whose first record was lost. Pure.
"""

from __future__ import annotations

from uuid import UUID

from tidemark.errors import TidemarkError
from tidemark.records import iter_batches
from tidemark.records.header import BytesLike
from tidemark.records.plain import iter_records
from tidemark.types import TopicIdPartition
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.codec import decode
from tiering.metadata.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)


class MetadataHistory:
    """The segments of every partition that a record ever named."""

    def __init__(self) -> None:
        self.partitions: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self.segment_ids: set[UUID] = set()
        """Ids of all segments that a record names, deleted ones included."""
        self.deleted_ids: set[UUID] = set()
        """Ids of segments whose end a record states. Others may be missing because the topic lost
        the record of their begin, by an unclean election.
        """
        self.refused: list[str] = []
        """Reasons of records that every node passes over."""
        self.is_complete = True
        """False if the topic has lost its first records, or one of them can not be decoded."""

    def apply_batches(self, buffer: BytesLike, first_offset: int) -> None:
        """Applies the records of fetched batches, from `first_offset` on."""
        for position, header in iter_batches(buffer):
            if not header.is_control:
                for record in iter_records(buffer, position):
                    if record.offset >= first_offset:
                        self.apply(record.value or b"")

    def apply(self, value: bytes | memoryview) -> None:
        """Applies the value of a record as every node does."""
        try:
            record = decode(value)
        except TidemarkError as error:
            self.refused.append(str(error))
            self.is_complete = False
            return
        if isinstance(record, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
            self.segment_ids.add(record.remote_log_segment_id.id)
            if record.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                self.deleted_ids.add(record.remote_log_segment_id.id)
        partition = record.topic_id_partition
        cache = self.partitions.setdefault(partition, RemoteLogMetadataCache())
        try:
            cache.apply(record)
        except TidemarkError as error:
            self.refused.append(str(error))

    def find(self, partition: TopicIdPartition, identity: UUID) -> RemoteLogSegmentMetadata | None:
        """Returns a segment in any state, None if it was deleted or its begin is not on record."""
        cache = self.partitions.get(partition)
        return None if cache is None else cache.get(identity)

    def is_deleted(self, partition: TopicIdPartition, identity: UUID) -> bool:
        """Returns whether a record states the end of the segment, or it is named and its partition
        is being deleted.
        """
        cache = self.partitions.get(partition)
        if cache is not None and cache.partition_delete is not None:
            return identity in self.segment_ids and cache.get(identity) is None
        return identity in self.deleted_ids

    def of_topic(
        self, topic: str | None, number: int | None = None
    ) -> list[tuple[TopicIdPartition, RemoteLogMetadataCache]]:
        """Returns the partitions of a topic (None: of all), by name, number and topic id."""
        return sorted(
            (
                (partition, cache)
                for partition, cache in self.partitions.items()
                if topic in (None, partition.topic) and number in (None, partition.partition)
            ),
            key=lambda row: (row[0].topic, row[0].partition, row[0].topic_id),
        )


def finished(cache: RemoteLogMetadataCache) -> list[RemoteLogSegmentMetadata]:
    """Returns the segments whose copy is finished, by start offset."""
    state = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    return [segment for segment in cache.segments() if segment.state is state]
