"""Messages of the services Log and Replication, to and from the types of the handlers (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from google.protobuf.message import Message

from node.serving.fetch_session import FetchPartition
from node.serving.offsets import OffsetFinder
from node.serving.produce import ProduceResult
from quorum.image import BrokerRegistration
from quorum.services.admin_answers import node_of
from tidemark.errors import ApiError, code_of
from tidemark.types import TopicPartition
from tidemark.v1 import common_pb2
from tidemark.v1 import log_pb2 as pb

_PARTITION_MAX_BYTES = 1 << 20  # of a fetch that names none: max.partition.fetch.bytes of Kafka


class Redirecting(Protocol):
    """The answer about a partition, which may name its leader by id and epoch."""

    @property
    def current_leader(self) -> tuple[int, int] | None: ...


def known(item: Message, name: str) -> int | None:
    """An epoch of a request; None if it is left out, or -1."""
    if not item.HasField(name):
        return None
    value: int = getattr(item, name)
    return None if value < 0 else value


def wanted(partitions: Sequence[pb.FetchRequest.FetchPartition]) -> list[FetchPartition]:
    """The partitions of a fetch."""
    return [
        FetchPartition(
            item.topic,
            item.partition,
            item.fetch_offset,
            item.partition_max_bytes
            if item.HasField("partition_max_bytes")
            else _PARTITION_MAX_BYTES,
            known(item, "current_leader_epoch"),
            known(item, "last_fetched_epoch"),
            item.log_start_offset,
            item.topic_id,
        )
        for item in partitions
    ]


def forgotten_key(item: pb.FetchRequest.ForgottenPartition) -> TopicPartition:
    """The key of a partition in its session."""
    return TopicPartition(item.topic or item.topic_id.hex(), item.partition)


def produce_response(results: Sequence[ProduceResult], leaders: list[common_pb2.Node]) -> bytes:
    """The answer to a produce."""
    response = pb.ProduceResponse(node_endpoints=leaders)
    for result in results:
        answer = response.responses.add(
            topic=result.topic,
            topic_id=result.topic_id,
            index=result.index,
            error_code=int(result.error_code),
            error_message=result.error_message,
            base_offset=result.base_offset,
            log_append_time_ms=result.log_append_time_ms,
            log_start_offset=result.log_start_offset,
        )
        if result.current_leader is not None:
            answer.current_leader.leader_id = result.current_leader[0]
            answer.current_leader.leader_epoch = result.current_leader[1]
    encoded: bytes = response.SerializeToString()
    return encoded


def leaders_of(
    results: Sequence[Redirecting], brokers: Mapping[int, BrokerRegistration], listener: str
) -> list[common_pb2.Node]:
    """The addresses of the leaders that answers name, at one listener (KIP-951)."""
    named = {r.current_leader[0] for r in results if r.current_leader is not None}
    alive = (brokers[n] for n in sorted(named) if n in brokers and not brokers[n].fenced)
    return [node_of(broker, listener) for broker in alive]


def epoch_ends(
    offsets: OffsetFinder, request: pb.OffsetForLeaderEpochRequest
) -> pb.OffsetForLeaderEpochResponse:
    """The answer to an OffsetForLeaderEpoch."""
    response = pb.OffsetForLeaderEpochResponse()
    for item in request.partitions:
        answer = response.partitions.add(
            topic=item.topic, partition=item.partition, leader_epoch=-1, end_offset=-1
        )
        try:
            found = offsets.epoch_end(
                item.topic,
                item.partition,
                known(item, "current_leader_epoch"),
                item.leader_epoch,
            )
        except ApiError as error:
            answer.error_code = int(code_of(error))  # type: ignore[assignment]
            continue
        if found is not None:
            answer.leader_epoch, answer.end_offset = found
    return response
