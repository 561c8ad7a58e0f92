"""AlterPartitionReassignments: moves partitions to other brokers while they serve (KIP-455).

One record adds the new replicas. The change that completes the ISR also removes the old replicas
(the first rule of `partition_change`). A cancellation takes the added ones out again. A new target
may replace an unfinished one: added replicas are judged against the replicas from before both.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorum.controller.elections import ElectionRules
from quorum.controller.leader_requests import find_partition
from quorum.controller.result import ControllerResult, check_operations
from quorum.image import MetadataImage, PartitionRegistration, TopicImage
from tidemark.errors import (
    ApiError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    NoReassignmentInProgressError,
    set_error,
)
from tidemark.v1 import admin_pb2
from tidemark.v1 import metadata_pb2 as pb

_Asked = admin_pb2.AlterPartitionReassignmentsRequest.Partition


def alter_reassignments(
    rules: ElectionRules, request: admin_pb2.AlterPartitionReassignmentsRequest
) -> ControllerResult[admin_pb2.AlterPartitionReassignmentsResponse]:
    """Begins and cancels reassignments, each partition with its own answer.

    Raises PolicyViolationError for too many of them.
    """
    check_operations(len(request.partitions))
    response = admin_pb2.AlterPartitionReassignmentsResponse()
    result = ControllerResult(response)
    seen: set[tuple[str, int]] = set()
    for asked in request.partitions:
        answer = response.responses.add(topic=asked.topic, partition_index=asked.partition_index)
        try:
            if (asked.topic, asked.partition_index) in seen:
                raise InvalidRequestError("the partition is named twice in one request")
            seen.add((asked.topic, asked.partition_index))
            record = _alter(rules, asked)
        except ApiError as error:
            set_error(answer, error)
        else:
            if record is not None:
                result.groups.append([record])
    return result


def check_replicas(image: MetadataImage, replicas: Sequence[int]) -> tuple[int, ...]:
    """Returns a valid assignment; raises InvalidReplicaAssignmentError for any other."""
    ids = tuple(replicas)
    if not ids or len(set(ids)) != len(ids):
        raise InvalidReplicaAssignmentError(f"the replicas {list(ids)} are none or not distinct")
    unknown = sorted(set(ids) - set(image.brokers))
    if unknown:
        raise InvalidReplicaAssignmentError(f"no broker {unknown[0]} is registered")
    return ids


def _alter(rules: ElectionRules, asked: _Asked) -> pb.MetadataRecord | None:
    topic, index, partition = find_partition(rules.image, asked.topic, asked.partition_index)
    if not asked.HasField("replicas"):
        return _cancel(rules, topic, index, partition)
    target = check_replicas(rules.image, asked.replicas.broker_ids)
    original = [r for r in partition.replicas if r not in partition.adding]
    removing = tuple(r for r in partition.replicas if r not in target)
    builder = rules.builder(topic, index, partition)
    builder.target_replicas = (*target, *removing)
    builder.target_adding = tuple(r for r in target if r not in original)
    builder.target_removing = removing
    return builder.build()


def _cancel(
    rules: ElectionRules, topic: TopicImage, index: int, partition: PartitionRegistration
) -> pb.MetadataRecord | None:
    if not partition.is_reassigning:
        raise NoReassignmentInProgressError(f"{topic.name}-{index} is not being reassigned")
    replicas = tuple(r for r in partition.replicas if r not in partition.adding)
    isr = tuple(r for r in partition.isr if r not in partition.adding)
    builder = rules.builder(topic, index, partition)
    holders = partition.isr or partition.elr or partition.last_known_elr
    if not set(holders) & set(replicas):
        # Only added replicas have all records: going back loses what only they have.
        allowed = rules.of_topic(topic.name).unclean_allowed
        if not allowed or not any(map(builder.is_acceptable_leader, replicas)):
            raise InvalidReplicaAssignmentError(
                f"{topic.name}-{index}: only replicas that were added have its records, going back "
                "needs unclean.leader.election.enable and an old replica in service"
            )
    builder.target_replicas = replicas
    builder.target_isr = isr
    builder.target_adding = builder.target_removing = ()
    return builder.build()
