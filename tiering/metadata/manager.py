"""RemoteLogMetadataManager: the protocol for the metadata of remote segments (KIP-405, same name).

An implementation keeps the history of every segment and answers by epoch and offset. `add_...` and
`update_...` return after their own record was read back, so every later query of the same manager
has it. `tiering.metadata.memory` is the verified fake, `tiering.metadata.topic_based` the real one;
both pass the same contract tests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol
from uuid import UUID

from tidemark.types import TopicIdPartition
from tiering.metadata.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)


class RemoteSegments(Protocol):
    """The segments of one partition, for passes that look only at those that they need.

    Valid until the partition is assigned anew; to be asked for at each pass.
    """

    @property
    def finished_bytes(self) -> int:
        """Bytes of all finished segments, unreferenced copies included."""
        ...

    def __len__(self) -> int:
        """Returns the number of segments in every state but DELETE_SEGMENT_FINISHED."""
        ...

    def get(self, identity: UUID) -> RemoteLogSegmentMetadata | None:
        """Returns the segment of this id, in any state but DELETE_SEGMENT_FINISHED."""
        ...

    def segments_from(self, offset: int) -> Iterator[RemoteLogSegmentMetadata]:
        """Yields the segments that start at or above `offset`, by start offset; a change ends
        it.
        """
        ...

    def unfinished(self) -> list[RemoteLogSegmentMetadata]:
        """Returns the segments in another state than COPY_SEGMENT_FINISHED, by start offset."""
        ...

    def beside(self, bounds: Mapping[int, tuple[int, int]]) -> list[RemoteLogSegmentMetadata]:
        """Returns the finished segments that are not the only copy of a lineage's records.

        `bounds` has each epoch's first offset and end (exclusive). Returned are segments with
        offsets of other epochs or beyond these bounds, and those that lie within another one. The
        others cost nothing.
        """
        ...

    def segment_for(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Returns the finished segment from which `offset` written in `epoch` is read."""
        ...


class RemoteLogMetadataManager(Protocol):
    """The metadata of all remote segments. Queries are plain functions: they answer from memory.
    They raise RemoteStorageNotReadyError for a partition that is not assigned or not caught up.
    """

    async def start(self) -> None:
        """Starts work in the background; does not wait for the cluster to be up."""
        ...

    async def close(self) -> None:
        """Ends the background work and closes connections."""
        ...

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Records a new segment in state COPY_SEGMENT_STARTED. Raises RemoteStorageError for
        another state.
        """
        ...

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> None:
        """Records a new state. Raises RemoteStorageError for an illegal transition,
        RemoteResourceNotFoundError for an unknown id.
        """
        ...

    async def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> None:
        """Records a step of a partition's deletion. Raises RemoteStorageError for a step that is
        not the next one, and for the last one while segments are left.
        """
        ...

    def partition_deletion(
        self, partition: TopicIdPartition
    ) -> RemotePartitionDeleteMetadata | None:
        """Returns the last step of the partition's deletion, None if it was not marked."""
        ...

    def recorded_partitions(
        self, leads: Callable[[int], bool]
    ) -> tuple[list[TopicIdPartition], bool]:
        """Returns the user partitions recorded in the metadata partitions with these numbers.

        Those not read to their end are left out; the second value tells whether there were none.
        Follows exactly these metadata partitions from now on, besides those of assigned user
        partitions.
        """
        ...

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Returns the finished segment that holds `offset` written in leader epoch `epoch`."""
        ...

    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        """Returns the highest offset (inclusive) of `epoch` in finished segments."""
        ...

    def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        """Returns all segments, or those with records of `epoch`, by start offset; in every state
        but DELETE_SEGMENT_FINISHED.
        """
        ...

    def remote_segments(self, partition: TopicIdPartition) -> RemoteSegments:
        """Returns the partition's segments, for look-ups without a list of all."""
        ...

    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        """Returns the bytes of the finished segments that have records of `epoch`."""
        ...

    def finished_bytes(self, partition: TopicIdPartition) -> int:
        """Returns the bytes of all finished segments, unreferenced copies included; without a walk
        over them.
        """
        ...

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Returns the first segment of `epoch`, at or after the one with `offset`, whose
        transaction index is not empty.
        """
        ...

    def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """Starts to follow the metadata of partitions that are hosted here."""
        ...

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """Stops to follow the metadata of partitions."""
        ...

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Returns whether the partition's metadata is read to the end it had when it was
        assigned.
        """
        ...
