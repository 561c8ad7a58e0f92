"""Starts a follower above the tier (KIP-405): epochs and producer state come from remote data.

Steps after the leader's answer OFFSET_MOVED_TO_TIERED_STORAGE, and wherever the follower's own log
ends below its local start:

1. Get the leader's earliest local offset E and the epoch of that record. With
   follower.fetch.last.tiered.offset.enable an empty log takes the earliest offset that is not in
   the tier yet instead (KIP-1023).
2. Find the epoch of offset E-1, by the end of the epoch before.
3. Fetch epochs and producer snapshot of the remote segment that holds E-1.
4. Let the leader confirm that the segment's end is on its lineage; otherwise take the state at E.
5. Empty the local log and restart it there with them, at once and atomically.
6. Continue fetching.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from commitlog.log.from_tier import rebuilding
from commitlog.log.log import Work
from node.partition.hosted import HostedPartition
from node.replication import follower_log
from node.replication.client import ReplicationClient
from tidemark.errors import OffsetNotAvailableError
from tidemark.types import OffsetSpec, TopicIdPartition
from tidemark.v1 import log_pb2 as pb
from tiering.manager import RemoteAuxState

logger = logging.getLogger(__name__)

Offset = pb.ListOffsetsResponse.PartitionResponse


class AuxStates(Protocol):
    """The call of the remote log manager that is used here."""

    async def fetch_aux_state(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int, *, exact: bool = False
    ) -> RemoteAuxState: ...


async def leader_offset(
    client: ReplicationClient, hosted: HostedPartition, epoch: int, timestamp: int, timeout_ms: int
) -> Offset:
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
    """Runs the steps for one partition at a time. `last_tiered_offset` returns whether
    follower.fetch.last.tiered.offset.enable is set at the moment."""

    def __init__(
        self, remote: AuxStates, timeout_ms: int, last_tiered_offset: Callable[[], bool]
    ) -> None:
        self._remote = remote
        self._timeout_ms = timeout_ms
        self._last_tiered_offset = last_tiered_offset

    async def run(
        self,
        client: ReplicationClient,
        hosted: HostedPartition,
        epoch: int,
        *,
        is_current: Callable[[], bool],
        now_ms: Callable[[], int],
        cut: Callable[[Work], Awaitable[bool]],
    ) -> None:
        """Rebuilds the follower's log by `cut`. Raises if the leader or the tier cannot answer; the
        caller retries."""
        leader = _Leader(client, hosted, epoch, self._timeout_ms)
        first = await leader.offset(OffsetSpec.EARLIEST_LOCAL)
        start = await leader.offset(OffsetSpec.EARLIEST)
        if hosted.log.log_end_offset == 0 and self._last_tiered_offset():
            first = await _pending_upload(leader, first, start)
        if first.offset <= start.offset:
            if is_current():
                await cut(follower_log.restart(hosted, start.offset, now_ms()))
            return
        aux = await self._state_before(leader, hosted, first)
        if not is_current():
            return
        steps = rebuilding(
            hosted.log,
            aux.epochs,
            aux.producer_snapshot,
            aux.start_offset,
            now_ms(),
            log_start_offset=start.offset,
        )
        if await cut(steps):
            logger.info(
                "%s: rebuilt from the tier, fetching from %d",
                hosted.topic_partition,
                aux.start_offset,
            )

    async def _state_before(
        self, leader: _Leader, hosted: HostedPartition, first: Offset
    ) -> RemoteAuxState:
        """Fetches the state before `first` on the leader's lineage, or that of a later offset."""
        identity = hosted.core.identity
        before = await leader.epoch_before(first)
        aux = await self._remote.fetch_aux_state(identity, before, first.offset)
        if aux.start_offset > first.offset:
            last, _ = aux.epochs[-1]
            end = await leader.epoch_end(last)
            # The segment has records that an unclean election took from this lineage.
            if end.leader_epoch != last or end.end_offset < aux.start_offset:
                aux = await self._remote.fetch_aux_state(identity, before, first.offset, exact=True)
        return aux


@dataclass(frozen=True, slots=True)
class _Leader:
    """The calls to the leader of one partition, in one epoch."""

    client: ReplicationClient
    hosted: HostedPartition
    epoch: int
    timeout_ms: int

    async def offset(self, timestamp: int) -> Offset:
        return await leader_offset(self.client, self.hosted, self.epoch, timestamp, self.timeout_ms)

    async def epoch_end(self, leader_epoch: int) -> pb.OffsetForLeaderEpochResponse.Partition:
        """The end of an epoch, or of the greatest one below it."""
        request = pb.OffsetForLeaderEpochRequest(replica_id=self.hosted.core.node_id)
        request.partitions.add(
            topic=self.hosted.topic_partition.topic,
            partition=self.hosted.topic_partition.partition,
            current_leader_epoch=self.epoch,
            leader_epoch=leader_epoch,
        )
        return await self.client.epoch_end(request, self.timeout_ms)

    async def epoch_before(self, first: Offset) -> int:
        """The epoch of the record before an offset."""
        if first.leader_epoch <= 0:
            return max(0, first.leader_epoch)
        previous = await self.epoch_end(first.leader_epoch - 1)
        if previous.end_offset > first.offset - 1:
            return previous.leader_epoch
        return first.leader_epoch


async def _pending_upload(leader: _Leader, local: Offset, start: Offset) -> Offset:
    """Returns the leader's earliest offset that is not in the tier, at least its local start if
    the tier has nothing of its log. Raises if the leader does not know yet (KIP-1023)."""
    pending = await leader.offset(OffsetSpec.EARLIEST_PENDING_UPLOAD)
    if pending.offset < 0:
        if local.offset > start.offset:
            raise OffsetNotAvailableError(
                f"the leader of {leader.hosted.topic_partition} does not know yet what of its log"
                " is in the tier"
            )
        return local
    return pending if pending.offset > local.offset else local
