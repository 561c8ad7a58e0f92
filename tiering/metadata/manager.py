"""RemoteLogMetadataManager: what is known of the remote segments of all partitions (KIP-405, same
name).

An implementation keeps the history of every segment and answers by epoch and offset. What
`add_...` and `update_...` have written is seen by every later look-up through the same manager
(they return after reading their own record back). `tiering.metadata.memory` is the verified fake,
`tiering.metadata.topic_based` the real one; both pass the same contract tests.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from tidemark.types import TopicIdPartition
from tiering.metadata.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)


class RemoteLogMetadataManager(Protocol):
    """Look-ups raise RemoteStorageNotReadyError for a partition that is not assigned or not
    caught up.
    """

    async def start(self) -> None:
        """Begins work in the background; does not wait for the cluster to be up."""
        ...

    async def close(self) -> None:
        """Ends the background work and lets connections go."""
        ...

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Records a new segment in state COPY_SEGMENT_STARTED; RemoteStorageError for another
        state.
        """
        ...

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> None:
        """Records a new state. RemoteStorageError for an illegal transition,
        RemoteResourceNotFoundError for an unknown id.
        """
        ...

    async def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> None:
        """Records a step of a partition's deletion."""
        ...

    async def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The finished segment that holds `offset` written in leader epoch `epoch`."""
        ...

    async def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        """The highest offset (inclusive) of `epoch` in finished segments."""
        ...

    async def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        """All segments, or those with records of `epoch`, in every state but
        DELETE_SEGMENT_FINISHED, by start offset.
        """
        ...

    async def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        """Bytes of the finished segments that have records of `epoch`."""
        ...

    async def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The first segment of `epoch` at or after the one that holds `offset` whose transaction
        index is not empty.
        """
        ...

    def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """These partitions are hosted here from now on: their metadata is followed."""
        ...

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """These partitions are hosted here no more."""
        ...

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether the partition's metadata is read to the end it had when it was assigned."""
        ...
