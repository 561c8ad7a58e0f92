"""Starts a follower above the tier (KIP-405): epochs and producer state come from remote data.

Steps after the leader's answer OFFSET_MOVED_TO_TIERED_STORAGE:

1. Get the leader's earliest local offset E and the epoch of that record.
2. Find the epoch of offset E-1, by the end of the epoch before.
3. Fetch epochs and producer snapshot of the remote segment that holds E-1.
4. Empty the local log and restart it at E with them.
5. Continue fetching from E.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from commitlog.log.from_tier import rebuild_from_remote
from node.partition.hosted import HostedPartition
from node.replication import follower_log
from node.replication.client import ReplicationClient
from tidemark.types import OffsetSpec, TopicIdPartition
from tidemark.v1 import log_pb2 as pb
from tiering.manager import RemoteAuxState

logger = logging.getLogger(__name__)


class AuxStates(Protocol):
    """The call of the remote log manager that is used here."""

    async def fetch_aux_state(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteAuxState: ...


async def leader_offset(
    client: ReplicationClient, hosted: HostedPartition, epoch: int, timestamp: int, timeout_ms: int
) -> pb.ListOffsetsResponse.PartitionResponse:
    """The leader's answer to ListOffsets for one partition; `timestamp` is a special value."""
    request = pb.ListOffsetsRequest(replica_id=hosted.core.node_id + 1, timeout_ms=timeout_ms)
    request.partitions.add(
        topic=hosted.topic_partition.topic,
        partition_index=hosted.topic_partition.partition,
        current_leader_epoch=epoch,
        timestamp=timestamp,
    )
    return await client.list_offset(request, timeout_ms)


class TierBootstrap:
    """Runs the steps for one partition at a time."""

    def __init__(self, remote: AuxStates, timeout_ms: int) -> None:
        self._remote = remote
        self._timeout_ms = timeout_ms

    async def run(
        self,
        client: ReplicationClient,
        hosted: HostedPartition,
        epoch: int,
        *,
        is_current: Callable[[], bool],
        now_ms: Callable[[], int],
    ) -> None:
        """Rebuilds the follower's log. Raises if the leader or the tier cannot answer; the caller
        retries."""
        local = await leader_offset(
            client, hosted, epoch, OffsetSpec.EARLIEST_LOCAL, self._timeout_ms
        )
        start = await leader_offset(client, hosted, epoch, OffsetSpec.EARLIEST, self._timeout_ms)
        offset = local.offset
        if offset <= start.offset:
            if is_current():
                follower_log.restart_at(hosted, offset, now_ms())
            return
        before = await self._epoch_before(client, hosted, epoch, local)
        aux = await self._remote.fetch_aux_state(hosted.core.identity, before, offset)
        if not is_current():
            return
        rebuild_from_remote(
            hosted.log,
            aux.epochs,
            aux.producer_snapshot,
            aux.start_offset,
            now_ms(),
            log_start_offset=start.offset,
        )
        follower_log.settle(hosted)
        logger.info("%s: rebuilt from the tier, fetching from %d", hosted.topic_partition, offset)

    async def _epoch_before(
        self,
        client: ReplicationClient,
        hosted: HostedPartition,
        epoch: int,
        local: pb.ListOffsetsResponse.PartitionResponse,
    ) -> int:
        """The epoch of the record before the leader's earliest local one."""
        if local.leader_epoch <= 0:
            return max(0, local.leader_epoch)
        request = pb.OffsetForLeaderEpochRequest(replica_id=hosted.core.node_id)
        request.partitions.add(
            topic=hosted.topic_partition.topic,
            partition=hosted.topic_partition.partition,
            current_leader_epoch=epoch,
            leader_epoch=local.leader_epoch - 1,
        )
        previous = await client.epoch_end(request, self._timeout_ms)
        if previous.end_offset > local.offset - 1:
            return previous.leader_epoch
        return local.leader_epoch
