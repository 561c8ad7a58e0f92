"""CreatePartitions: adds partitions to topics, by continued or manual placement (KIP-195)."""

from __future__ import annotations

import random
from collections import Counter

from quorum.controller.placement import StripedReplicaPlacer
from quorum.controller.reassignments import check_replicas
from quorum.controller.result import RECORDS_PER_BATCH_MAX, ControllerResult
from quorum.controller.topics import check_room, new_partition, usable_brokers
from quorum.image import MetadataImage, TopicImage
from quorum.image.records import partition_record
from tidemark.errors import (
    ApiError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
    set_error,
)
from tidemark.types import COORDINATOR_TOPICS
from tidemark.v1 import admin_pb2
from tidemark.v1 import metadata_pb2 as pb

_Asked = admin_pb2.CreatePartitionsRequest.Topic


def create_partitions(
    image: MetadataImage, rng: random.Random, request: admin_pb2.CreatePartitionsRequest
) -> ControllerResult[admin_pb2.CreatePartitionsResponse]:
    """Grows the topics it can; the others have their error in the answer."""
    response = admin_pb2.CreatePartitionsResponse()
    result = ControllerResult(response)
    counts = Counter(asked.name for asked in request.topics)
    planned = 0
    for asked in request.topics:
        answer = response.results.add(name=asked.name)
        try:
            if counts[asked.name] > 1:
                raise InvalidRequestError(f"the request names {asked.name!r} more than once")
            records = _grow(image, rng, asked, planned)
            planned += len(records)
        except ApiError as error:
            set_error(answer, error)
        else:
            if not request.validate_only:
                result.groups.append(records)
    return result


def _grow(
    image: MetadataImage, rng: random.Random, asked: _Asked, planned: int
) -> list[pb.MetadataRecord]:
    """Records of a topic's new partitions; the request has `planned` others already."""
    topic = image.topics.get(asked.name)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"there is no topic {asked.name!r}")
    if asked.name in COORDINATOR_TOPICS:
        raise InvalidPartitionsError(
            f"the number of partitions of {asked.name} tells which broker coordinates whom: with"
            " another one, groups and transactions would be forgotten"
        )
    first = len(topic.partitions)
    added = asked.count - first
    if added <= 0:
        raise InvalidPartitionsError(
            f"topic {asked.name!r} has {first} partitions: {asked.count} is not more"
        )
    if added > RECORDS_PER_BATCH_MAX:
        raise PolicyViolationError(
            f"{added} partitions do not fit into one atomic change of {RECORDS_PER_BATCH_MAX} "
            "records: grow the topic in steps"
        )
    check_room(planned, added)
    existing = [tuple(r for r in p.replicas if r not in p.removing) for _, p in topic.ordered()]
    if asked.assignments:
        placed = _by_hand(image, asked, added, len(existing[0]))
    else:
        placer = StripedReplicaPlacer(rng)
        placed = placer.place(usable_brokers(image), added, len(existing[0]), existing)
    return [_record(image, topic, first + i, ids) for i, ids in enumerate(placed)]


def _record(
    image: MetadataImage, topic: TopicImage, index: int, replicas: tuple[int, ...]
) -> pb.MetadataRecord:
    partition = new_partition(image, topic.name, index, replicas)
    return partition_record(topic.topic_id, index, partition)


def _by_hand(image: MetadataImage, asked: _Asked, added: int, factor: int) -> list[tuple[int, ...]]:
    if len(asked.assignments) != added:
        raise InvalidReplicaAssignmentError(
            f"{len(asked.assignments)} assignments for {added} new partitions"
        )
    placed = [check_replicas(image, a.broker_ids) for a in asked.assignments]
    if any(len(replicas) != factor for replicas in placed):
        raise InvalidReplicaAssignmentError(
            f"the topic has {factor} replicas, the new partitions must have as many"
        )
    return placed
