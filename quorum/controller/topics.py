"""CreateTopics and DeleteTopics: checks in Kafka's order, placement, records.

Topics of a request are independent: the records of each are one atomic group, and each has its own
error. Rules of names: org.apache.kafka.common.internals.Topic.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from quorum.controller.placement import StripedReplicaPlacer, UsableBroker
from quorum.controller.result import RECORDS_PER_BATCH_MAX, ControllerResult
from quorum.image import (
    ConfigResourceType,
    LeaderRecoveryState,
    MetadataImage,
    PartitionRegistration,
    intern_ids,
)
from quorum.image.records import config_record, partition_record, topic_record
from tidemark.config import ServerConfig, validate_topic_configs
from tidemark.errors import (
    ApiError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    set_error,
)
from tidemark.types import METADATA_TOPIC
from tidemark.v1 import admin_pb2
from tidemark.v1 import metadata_pb2 as pb

_NAME_LENGTH_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_REPLICATION_FACTOR_MAX = 32_767
PARTITIONS_PER_REQUEST_MAX = 10_000
"""New partitions of one request (Kafka's constant): all other work waits while they are placed."""

_RESERVED_ID_MAX = 100
"""Ids up to this number have a meaning of their own (Kafka's Uuid.RESERVED)."""
_OF_REBUILD = {"remote.storage.enable": "true", "unclean.leader.election.enable": "false"}

_Creatable = admin_pb2.CreateTopicsRequest.CreatableTopic
_Created = admin_pb2.CreateTopicsResponse.Topic


def validate_topic_name(name: str) -> None:
    """Raises InvalidTopicError for an invalid name or one that clients may not create."""
    if name in ("", ".", ".."):
        raise InvalidTopicError(f"a topic can not be named {name!r}")
    if len(name) > _NAME_LENGTH_MAX:
        raise InvalidTopicError(f"the name is longer than {_NAME_LENGTH_MAX} characters")
    if not _LEGAL.fullmatch(name):
        raise InvalidTopicError(
            f"the name {name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
        )
    if name == METADATA_TOPIC:
        raise InvalidTopicError(f"{METADATA_TOPIC} is the cluster's own log")


def _metric_name(name: str) -> str:
    """The name in metrics, where two topics that differ only in '.' and '_' would collide."""
    return name.replace(".", "_")


@dataclass(slots=True)
class _Names:
    """Names of existing topics and of those that this request has created so far."""

    image: MetadataImage
    added: set[str] = field(default_factory=set)
    added_ids: set[UUID] = field(default_factory=set)
    by_metric_name: dict[str, str] | None = None

    def check_free(self, name: str) -> None:
        if name in self.image.topics:
            raise TopicAlreadyExistsError(f"there is a topic {name!r} already")
        if "." not in name and "_" not in name:
            return
        if self.by_metric_name is None:
            names = [*self.image.topics.ids_by_name, *self.added]
            self.by_metric_name = {_metric_name(n): n for n in sorted(names)}
        other = self.by_metric_name.get(_metric_name(name))
        if other is not None:
            raise InvalidTopicError(
                f"the name {name!r} collides with the topic {other!r}: '.' and '_' count as equal"
            )

    def add(self, name: str, topic_id: UUID) -> None:
        self.added.add(name)
        self.added_ids.add(topic_id)
        if self.by_metric_name is not None:
            self.by_metric_name[_metric_name(name)] = name


def create_topics(
    image: MetadataImage,
    config: ServerConfig,
    rng: random.Random,
    request: admin_pb2.CreateTopicsRequest,
) -> ControllerResult[admin_pb2.CreateTopicsResponse]:
    """Creates the topics it can; the others have their error in the answer. Topics beyond
    `PARTITIONS_PER_REQUEST_MAX` partitions altogether are among the others.

    `rng` makes topic ids and placement.
    """
    response = admin_pb2.CreateTopicsResponse()
    result = ControllerResult(response)
    creator = _Creator(image, config, rng, _Names(image))
    counts = Counter(topic.name for topic in request.topics)
    for wanted in request.topics:
        try:
            if counts[wanted.name] > 1:
                raise InvalidRequestError(f"the request names {wanted.name!r} more than once")
            created, records = creator.create(wanted)
        except ApiError as error:
            created = _Created(
                name=wanted.name,
                error_code=int(error.code),  # type: ignore[arg-type]
                error_message=str(error),
            )
        else:
            if not request.validate_only:
                result.groups.append(records)
        response.topics.append(created)
    return result


def delete_topics(
    image: MetadataImage, request: admin_pb2.DeleteTopicsRequest
) -> ControllerResult[admin_pb2.DeleteTopicsResponse]:
    """Deletes the topics it can, with their partitions and settings."""
    response = admin_pb2.DeleteTopicsResponse()
    result = ControllerResult(response)
    counts = Counter(request.topic_names)
    for name in request.topic_names:
        deleted = admin_pb2.DeleteTopicsResponse.Topic(name=name)
        topic = image.topics.get(name)
        try:
            if counts[name] > 1:
                raise InvalidRequestError(f"the request names {name!r} more than once")
            if topic is None:
                raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        except ApiError as error:
            set_error(deleted, error)
        else:
            deleted.topic_id = topic.topic_id.bytes
            remove = pb.RemoveTopicRecord(topic_id=topic.topic_id.bytes)
            result.groups.append([pb.MetadataRecord(remove_topic=remove)])
        response.topics.append(deleted)
    return result


@dataclass(slots=True)
class _Creator:
    """Makes the records of the new topics of one request."""

    image: MetadataImage
    config: ServerConfig
    rng: random.Random
    names: _Names
    planned: int = 0  # partitions so far

    def create(self, wanted: _Creatable) -> tuple[_Created, list[pb.MetadataRecord]]:
        image = self.image
        validate_topic_name(wanted.name)
        self.names.check_free(wanted.name)
        validate_topic_configs(wanted.configs, self.config, image.broker_configs(None))
        old = self._rebuilt_id(wanted)
        if wanted.assignments:
            check_room(self.planned, len(wanted.assignments))
            replicas = _manual_replicas(image, wanted)
        else:
            replicas = self._placed_replicas(wanted)
        if old is not None and len(replicas) != len(wanted.rebuild.leader_epochs):
            raise InvalidRequestError(
                f"{len(wanted.rebuild.leader_epochs)} leader epochs are not of {len(replicas)}"
                " partitions"
            )
        topic_id = old or self._new_topic_id()
        records = [topic_record(wanted.name, topic_id)]
        records += _config_records(wanted.name, wanted.configs)
        partitions = [
            new_partition(image, wanted.name, index, ids) for index, ids in enumerate(replicas)
        ]
        if old is not None:
            epochs = wanted.rebuild.leader_epochs
            partitions = [_without_leader(*pair) for pair in zip(partitions, epochs, strict=True)]
        records += [
            partition_record(topic_id, index, made) for index, made in enumerate(partitions)
        ]
        self.names.add(wanted.name, topic_id)
        self.planned += len(replicas)
        created = _Created(
            name=wanted.name,
            topic_id=topic_id.bytes,
            num_partitions=len(replicas),
            replication_factor=len(replicas[0]),
        )
        return created, records

    def _rebuilt_id(self, wanted: _Creatable) -> UUID | None:
        """Returns the topic's old id if it is rebuilt from the tier. Raises InvalidRequestError,
        and TopicAlreadyExistsError for an id in use.

        An automatic election would come before the metadata of its segments.
        """
        if not wanted.HasField("rebuild"):
            return None
        rebuild, configs = wanted.rebuild, wanted.configs
        topic_id = UUID(bytes=rebuild.topic_id) if len(rebuild.topic_id) == 16 else UUID(int=0)
        if topic_id.int <= _RESERVED_ID_MAX:
            raise InvalidRequestError(f"{wanted.name}: {topic_id} is no id of a topic")
        if min(rebuild.leader_epochs, default=-1) < 0:
            raise InvalidRequestError(f"{wanted.name}: a rebuild names each partition's epoch")
        for key, needed in _OF_REBUILD.items():
            if configs.get(key) != needed:
                raise InvalidRequestError(f"{wanted.name}: a rebuild needs {key}={needed}")
        other = self.image.topics.by_id(topic_id)
        if other is not None or topic_id in self.names.added_ids:
            name = wanted.name if other is None else other.name
            raise TopicAlreadyExistsError(f"the id {topic_id} is in use, by the topic {name!r}")
        return topic_id

    def _placed_replicas(self, wanted: _Creatable) -> list[tuple[int, ...]]:
        partitions, factor = _asked(wanted)
        if partitions == -1:
            partitions = self.config.num_partitions
        if factor == -1:
            factor = self.config.default_replication_factor
        if partitions <= 0:
            raise InvalidPartitionsError(f"the number of partitions {partitions} is below 1")
        _check_size(partitions, wanted)
        check_room(self.planned, partitions)
        if not 0 < factor <= _REPLICATION_FACTOR_MAX:
            raise InvalidReplicationFactorError(
                f"the replication factor {factor} is not within 1 and {_REPLICATION_FACTOR_MAX}"
            )
        placer = StripedReplicaPlacer(self.rng)
        return placer.place(usable_brokers(self.image), partitions, factor)

    def _new_topic_id(self) -> UUID:
        while True:
            topic_id = UUID(int=self.rng.getrandbits(128), version=4)
            if self.image.topics.by_id(topic_id) is None:
                return topic_id


def usable_brokers(image: MetadataImage) -> list[UsableBroker]:
    """Brokers that may get replicas."""
    return [
        UsableBroker(b.broker_id, b.rack, b.fenced)
        for b in image.brokers.values()
        if not b.in_controlled_shutdown
    ]


def check_room(planned: int, added: int) -> None:
    """Raises PolicyViolationError if a request asks for more partitions than one event makes."""
    if planned + added > PARTITIONS_PER_REQUEST_MAX:
        raise PolicyViolationError(
            f"{planned + added} new partitions in one request are more than "
            f"{PARTITIONS_PER_REQUEST_MAX}: divide it into several"
        )


def _asked(wanted: _Creatable) -> tuple[int, int]:
    """(num.partitions, replication factor) of a request; -1 for the cluster's defaults."""
    return (
        wanted.num_partitions if wanted.HasField("num_partitions") else -1,
        wanted.replication_factor if wanted.HasField("replication_factor") else -1,
    )


def _check_size(partitions: int, wanted: _Creatable) -> None:
    if 1 + len(wanted.configs) + partitions > RECORDS_PER_BATCH_MAX:
        raise PolicyViolationError(
            f"{partitions} partitions do not fit into one atomic change of "
            f"{RECORDS_PER_BATCH_MAX} records: create the topic with fewer"
        )


def _manual_replicas(image: MetadataImage, wanted: _Creatable) -> list[tuple[int, ...]]:
    """Returns the assignment of the request; raises InvalidReplicaAssignmentError."""
    if _asked(wanted) != (-1, -1):
        raise InvalidRequestError(
            "with assignments, num_partitions and replication_factor are to be left out"
        )
    _check_size(len(wanted.assignments), wanted)
    by_index = {a.partition_index: intern_ids(a.broker_ids) for a in wanted.assignments}
    if len(by_index) != len(wanted.assignments) or set(by_index) != set(range(len(by_index))):
        raise InvalidReplicaAssignmentError("the partitions are not 0, 1, 2, ..., each once")
    replicas = [by_index[index] for index in range(len(by_index))]
    for index, ids in enumerate(replicas):
        if not ids or len(set(ids)) != len(ids):
            raise InvalidReplicaAssignmentError(
                f"partition {index}: the replicas {list(ids)} are none or not distinct"
            )
        unknown = sorted(set(ids) - set(image.brokers))
        if unknown:
            raise InvalidReplicaAssignmentError(
                f"partition {index}: no broker {unknown[0]} is registered"
            )
        if len(ids) != len(replicas[0]):
            raise InvalidReplicaAssignmentError(
                f"partition {index} has {len(ids)} replicas, partition 0 has {len(replicas[0])}"
            )
    return replicas


def new_partition(
    image: MetadataImage, name: str, index: int, replicas: tuple[int, ...]
) -> PartitionRegistration:
    """Makes a new partition: active replicas are in sync, the first of them leads, epochs are 0.

    Raises InvalidReplicaAssignmentError if none is active, which a placed partition always has.
    """
    isr = intern_ids(replica for replica in replicas if image.is_active(replica))
    if not isr:
        raise InvalidReplicaAssignmentError(
            f"{name}-{index}: all brokers of {list(replicas)} are fenced"
        )
    return PartitionRegistration(replicas=intern_ids(replicas), isr=isr, leader=isr[0])


def _without_leader(partition: PartitionRegistration, leader_epoch: int) -> PartitionRegistration:
    """Returns the partition without leader and ISR: nobody has its records. The next election
    begins an epoch above those of the tier.
    """
    state = LeaderRecoveryState.RECOVERING
    return partition._replace(
        isr=(), leader=None, leader_epoch=leader_epoch, leader_recovery_state=state
    )


def _config_records(name: str, configs: Mapping[str, str]) -> list[pb.MetadataRecord]:
    return [
        config_record(ConfigResourceType.TOPIC, name, key, value)
        for key, value in sorted(configs.items())
    ]
