"""PlanRead: names the objects of the tier that hold a range of records, for readers past the
brokers.

Only the leader answers. It writes the job's lease before it names any object, and then nothing of
the range is deleted for as long (`tiering.tasks.leases`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from commitlog.log.log import Log
from node.partition.hosted import HostedPartition
from node.partition.registry import PartitionRegistry
from tidemark.errors import (
    ApiError,
    InvalidRequestError,
    KafkaStorageError,
    TidemarkError,
    code_of,
)
from tidemark.types import TopicIdPartition
from tidemark.v1 import log_pb2 as pb
from tiering.reading.plans import ReadPlan
from tiering.tasks.leases import Leases


class TierPlans(Protocol):
    """The calls of the remote log manager that are used here."""

    leases: Leases

    async def plan_read(
        self,
        partition: TopicIdPartition,
        log: Log,
        start: int,
        end: int,
        split_bytes: int,
        read_committed: bool,
    ) -> ReadPlan: ...

    async def urls(
        self, partition: TopicIdPartition, log: Log, ids: Sequence[UUID]
    ) -> Mapping[UUID, str]: ...


class ReadPlans:
    """Plans of direct reads for a node's partitions; `tier` is None on a node without one."""

    def __init__(self, partitions: PartitionRegistry, tier: TierPlans | None = None) -> None:
        self._partitions = partitions
        self._tier = tier

    async def answer(self, request: pb.PlanReadRequest) -> pb.PlanReadResponse:
        """Answers a PlanRead; its errors are in the message."""
        try:
            return await self._answer(request)
        except ApiError as error:
            return _failed(error)
        except (TidemarkError, OSError) as error:  # of the store
            return _failed(KafkaStorageError(f"{request.topic}-{request.partition}: {error}"))

    async def _answer(self, request: pb.PlanReadRequest) -> pb.PlanReadResponse:
        hosted = self._partitions.get(request.topic, request.partition, request.topic_id)
        hosted.core.check_leader()
        start, end = request.start_offset, request.end_offset
        if not 0 <= start <= end or request.split_bytes < 0:
            raise InvalidRequestError(f"offsets {start} to {end} are no range to plan")
        answer, tier = pb.PlanReadResponse(tail_offset=start), self._tier
        if tier is None or not hosted.log.config.remote_storage_enable:
            answer.not_direct = _without_tier(hosted)
            return answer
        partition = hosted.core.identity
        if request.lease_id:
            answer.lease_ms = await tier.leases.hold(
                partition, request.lease_id, start, end, request.lease_ms
            )
            hosted.core.check_leader()  # a former leader may have replaced the leases of the next
        if request.lease_only:
            return answer
        if request.segment_ids:
            return await self._urls(tier, hosted, request.segment_ids, answer)
        plan = await tier.plan_read(
            *(partition, hosted.log, start, end, request.split_bytes),
            request.isolation_level == 1,
        )
        hosted.core.check_leader()  # no other one has deleted what the plan names
        return _filled(answer, plan)

    async def _urls(
        self,
        tier: TierPlans,
        hosted: HostedPartition,
        segment_ids: Sequence[bytes],
        answer: pb.PlanReadResponse,
    ) -> pb.PlanReadResponse:
        if any(len(one) != 16 for one in segment_ids):
            raise InvalidRequestError("the id of a segment has 16 bytes")
        ids = [UUID(bytes=one) for one in segment_ids]
        found = await tier.urls(hosted.core.identity, hosted.log, ids)
        hosted.core.check_leader()
        for identity, url in found.items():
            answer.pieces.add(url=url, segment_id=identity.bytes)
        return answer


def _without_tier(hosted: HostedPartition) -> str:
    return f"topic {hosted.topic_partition.topic} has no tier on its leader"


def _filled(answer: pb.PlanReadResponse, plan: ReadPlan) -> pb.PlanReadResponse:
    for piece in plan.pieces:
        answer.pieces.add(
            url=piece.url,
            start_position=piece.start_position,
            end_position=piece.end_position,
            start_offset=piece.start,
            end_offset=piece.end,
            segment_id=piece.segment.id.bytes,
            base_offset=piece.base_offset,
        )
    for one in plan.aborted:
        answer.aborted.add(
            producer_id=one.producer_id,
            first_offset=one.first_offset,
            last_offset=one.last_offset,
        )
    answer.tail_offset, answer.not_direct = plan.tail_offset, plan.not_direct
    answer.more = plan.more
    return answer


def _failed(error: ApiError) -> pb.PlanReadResponse:
    return pb.PlanReadResponse(
        error_code=int(code_of(error)),  # type: ignore[arg-type]
        error_message=str(error),
        tail_offset=-1,
    )
