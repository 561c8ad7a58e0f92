"""DeleteRecords: moves a partition's start up, on the leader at once, on followers with their
fetches.

As in Kafka (KIP-107) the answer waits until every replica on a live broker has moved, so that no
later leader shows the records again. Its low watermark is the least start among these replicas.
Segments wholly below the start are deleted by the next retention pass.
"""

from __future__ import annotations

import asyncio

from node.partition.hosted import HostedPartition
from node.partition.registry import PartitionRegistry
from tidemark.errors import (
    OffsetOutOfRangeError,
    PolicyViolationError,
    RequestTimedOutError,
)

HIGH_WATERMARK = -1
_LOOK_AGAIN_S = 0.02


class RecordDeleter:
    """The DeleteRecords side of a node's partitions."""

    def __init__(self, partitions: PartitionRegistry) -> None:
        self._partitions = partitions

    async def delete(self, topic: str, partition: int, offset: int, timeout_ms: int) -> int:
        """Deletes the records below `offset` (-1: below the high watermark); returns the low
        watermark.

        Raises:

        - the errors of the leader checks,
        - OffsetOutOfRangeError above the high watermark,
        - PolicyViolationError if the topic is only compacted,
        - RequestTimedOutError if a replica has not moved in time; it still will.
        """
        hosted = self._partitions.get(topic, partition)
        hosted.core.check_leader()
        if not hosted.config.is_deleted:
            raise PolicyViolationError(
                f"records of {hosted.topic_partition} can not be deleted: its cleanup.policy does"
                " not include delete"
            )
        end = hosted.core.high_watermark
        wanted = end if offset == HIGH_WATERMARK else offset
        if not 0 <= wanted <= end:
            raise OffsetOutOfRangeError(
                f"offset {wanted} of {hosted.topic_partition} is not within 0 and the high"
                f" watermark {end}"
            )
        hosted.log.increment_log_start_offset(wanted)
        hosted.start_moved()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while (lowest := low_watermark(hosted)) < wanted:
            if loop.time() >= deadline:
                raise RequestTimedOutError(
                    f"{hosted.topic_partition} begins at {wanted} here, at {lowest} on a follower"
                    f" after {timeout_ms} ms; it moves with the follower's next fetch"
                )
            await asyncio.sleep(_LOOK_AGAIN_S)
            hosted.core.check_leader()
        return lowest


def low_watermark(hosted: HostedPartition) -> int:
    """The least log start of the replicas on live brokers; -1 if one is not known yet."""
    core = hosted.core
    starts = [hosted.log.log_start_offset]
    brokers = core.brokers()
    for replica_id, state in core.remotes.items():
        broker = brokers.get(replica_id)
        if broker is not None and broker.in_service:
            starts.append(-1 if state.log_start_offset is None else state.log_start_offset)
    return min(starts)
