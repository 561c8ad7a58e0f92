"""Keeps the in-sync replicas of the partitions led here: followers' fetches and AlterPartition.

Waiting proposals share a request, and one request is in flight at a time (KIP-497). A
proposal that the controller could not answer is sent again after a backoff. The partition's core
decides which errors end it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Protocol

from node.membership.controller_calls import ControllerCaller
from node.membership.identity import BrokerIdentity
from node.partition.core import AlterResult, IsrProposal
from node.partition.hosted import HostedPartition
from node.partition.registry import PartitionRegistry
from node.runtime.clock import Clock
from tidemark.errors import ApiError, ErrorCode, code_of
from tidemark.types import OrderedSet, TopicIdPartition
from tidemark.v1 import controller_pb2 as pb

logger = logging.getLogger(__name__)

PARTITIONS_PER_REQUEST_MAX = 1_000
"""Proposals in one request. A broker that returns joins tens of thousands of ISRs at once. The
controller decides on a request in one event, and heartbeats wait meanwhile."""
_RETRY_BACKOFF_MS = 100
_STALE_EPOCH_BACKOFF_MS = 500


class FollowerName(Protocol):
    """Identity of a follower in its fetch."""

    @property
    def node_id(self) -> int: ...

    @property
    def broker_epoch(self) -> int: ...


class IsrKeeper:
    """One per node. `run` is its task; everything else is called from the loop and never waits."""

    def __init__(
        self,
        identity: BrokerIdentity,
        partitions: PartitionRegistry,
        client: ControllerCaller,
        clock: Clock,
        request_timeout_ms: int = 30_000,
    ) -> None:
        self._identity = identity
        self._partitions = partitions
        self._client = client
        self._clock = clock
        self._request_timeout_ms = request_timeout_ms
        self.shrinks = 0
        self.expands = 0
        self._unsent: dict[TopicIdPartition, IsrProposal] = {}
        self._work = asyncio.Event()
        self.watched: OrderedSet[HostedPartition] = OrderedSet()  # checked by `shrink`

    def on_follower_fetch(
        self,
        hosted: HostedPartition,
        replica: FollowerName,
        fetch_offset: int,
        log_start_offset: int,
        now_ms: int,
    ) -> None:
        """Applies a fetch that passed its checks: may move the high watermark and bring the
        follower into the ISR."""
        core = hosted.core
        moved = core.on_follower_fetch(
            replica.node_id, replica.broker_epoch, fetch_offset, log_start_offset, now_ms
        )
        if fetch_offset != core.log_end_offset:
            self.watched.add(hosted)
        if replica.node_id not in core.isr:
            self.submit(core.maybe_recover() or core.maybe_expand_isr(replica.node_id))
        if moved:
            hosted.committed()

    def shrink(self) -> None:
        """Proposes ISRs without followers that lag longer than replica.lag.time.max.ms; called
        every half of that.

        A follower outside of the ISR that stays behind then no longer holds the high watermark. No
        request of the others may trigger that, because sessions name only changed partitions.

        Only `watched` partitions are checked: those with a new record or registration, or a fetch
        below the end. They are watched until all their replicas are at the end.
        """
        now_ms = self._clock.mono_ms()
        for hosted in list(self.watched):
            if not hosted.is_leader or hosted.offline or hosted.deleted:
                self.watched.discard(hosted)
                continue
            proposal = hosted.core.maybe_shrink_isr(now_ms)
            if proposal is not None:
                logger.info("%s: ISR shrinks to %s", hosted.topic_partition, proposal.new_isr)
            self.submit(proposal or hosted.core.maybe_recover())
            if hosted.core.maybe_advance_high_watermark(now_ms):
                hosted.committed()
            if hosted.core.is_settled:
                self.watched.discard(hosted)

    def submit(self, proposal: IsrProposal | None) -> None:
        """Adds a proposal to the next request."""
        if proposal is not None:
            self._unsent[proposal.partition] = proposal
            self._work.set()

    async def run(self) -> None:
        """Sends waiting proposals forever."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._unsent:
                backoff_ms = await self._send(self._next_batch())
                if backoff_ms:
                    await asyncio.sleep(backoff_ms / 1000)

    def _next_batch(self) -> dict[TopicIdPartition, IsrProposal]:
        """Takes the oldest proposals, for one request."""
        chosen = list(itertools.islice(self._unsent, PARTITIONS_PER_REQUEST_MAX))
        return {identity: self._unsent.pop(identity) for identity in chosen}

    async def _send(self, batch: dict[TopicIdPartition, IsrProposal]) -> int:
        """Sends one request and applies its answer; returns the backoff before the next one in
        ms."""
        try:
            response = await self._client.call(
                "AlterPartition", self._request(batch), self._request_timeout_ms
            )
        except ApiError as error:
            return self._all_failed(batch, code_of(error))
        if response.error_code != ErrorCode.NONE:
            return self._all_failed(batch, ErrorCode(response.error_code))
        answered = {(bytes(p.topic_id), p.partition_index): p for p in response.partitions}
        backoff_ms = 0
        for identity, proposal in batch.items():
            answer = answered.get((identity.topic_id.bytes, identity.partition))
            hosted = self._partitions.find(identity.topic_partition)
            if hosted is None or hosted.topic_id != identity.topic_id:
                continue
            if answer is None or answer.error_code != ErrorCode.NONE:
                code = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else answer.error_code
                if self._failed(hosted, proposal, ErrorCode(code)):
                    backoff_ms = _RETRY_BACKOFF_MS
            else:
                self._succeeded(hosted, answer)
        return backoff_ms

    def _all_failed(self, batch: dict[TopicIdPartition, IsrProposal], code: ErrorCode) -> int:
        logger.info("AlterPartition failed with %s", code.name)
        stale = code == ErrorCode.STALE_BROKER_EPOCH
        for identity, proposal in batch.items():
            hosted = self._partitions.find(identity.topic_partition)
            if hosted is not None and hosted.core.pending is proposal:
                self._unsent.setdefault(identity, proposal)
        return _STALE_EPOCH_BACKOFF_MS if stale else _RETRY_BACKOFF_MS

    def _failed(self, hosted: HostedPartition, proposal: IsrProposal, code: ErrorCode) -> bool:
        again = hosted.core.on_alter_error(proposal, code)
        logger.info("%s: AlterPartition gave %s", hosted.topic_partition, code.name)
        if again is not None:
            self._unsent.setdefault(again.partition, again)
        return again is not None

    def _succeeded(
        self, hosted: HostedPartition, answer: pb.AlterPartitionResponse.PartitionData
    ) -> None:
        result = AlterResult(
            None if answer.leader_id < 0 else answer.leader_id,
            answer.leader_epoch,
            tuple(answer.isr),
            answer.partition_epoch,
            answer.leader_recovery_state == 1,
            tuple(answer.eligible_leader_replicas),
        )
        before = hosted.core.isr
        if hosted.core.on_alter_result(result, self._clock.mono_ms()):
            hosted.committed()
        else:
            hosted.answer_acks()
        if hosted.core.isr - before:
            self.expands += 1
            logger.debug("%s: ISR is %s", hosted.topic_partition, sorted(hosted.core.isr))
        if before - hosted.core.isr:
            self.shrinks += 1
            hosted.isr_shrank()

    def _request(self, batch: dict[TopicIdPartition, IsrProposal]) -> pb.AlterPartitionRequest:
        request = pb.AlterPartitionRequest(
            broker_id=self._identity.id, broker_epoch=self._identity.epoch
        )
        for identity, proposal in batch.items():
            data = request.partitions.add(
                topic_id=identity.topic_id.bytes,
                partition_index=identity.partition,
                leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch,
                leader_recovery_state=int(proposal.recovering),
            )
            for member in proposal.new_isr:
                data.new_isr.add(broker_id=member.broker_id, broker_epoch=member.broker_epoch)
        return request
