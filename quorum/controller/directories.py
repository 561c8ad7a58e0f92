"""Log directories of brokers: where replicas are, and how a failure changes them (KIP-858).

Partitions of a broker with a single directory need no assignment. If that fails, the broker stops;
if it was replaced, the next registration shows that (`quorum.controller.elections.forgotten`).
"""

from __future__ import annotations

from uuid import UUID

from quorum.controller.cluster_control import check_broker_epoch
from quorum.controller.elections import ElectionRules
from quorum.controller.partition_change import find_partition_by_id
from quorum.controller.result import ControllerResult
from quorum.image import BrokerRegistration
from quorum.image.types import LOST_DIRECTORY
from tidemark.errors import (
    ApiError,
    InvalidRequestError,
    LogDirNotFoundError,
    NotLeaderOrFollowerError,
)
from tidemark.v1 import controller_pb2
from tidemark.v1 import metadata_pb2 as pb

_Directory = controller_pb2.AssignReplicasToDirsRequest.Directory
_Partition = controller_pb2.AssignReplicasToDirsRequest.Partition


def assign_replicas(
    rules: ElectionRules, request: controller_pb2.AssignReplicasToDirsRequest
) -> ControllerResult[controller_pb2.AssignReplicasToDirsResponse]:
    """Records the directories, each partition with its own answer.

    A replica in LOST_DIRECTORY leaves the ISR and loses its leadership; its fetches of the leader
    epoch before count no more. A replica whose directory
    is back may lead a leaderless partition. Raises StaleBrokerEpochError.
    """
    broker = check_broker_epoch(rules.image, request.broker_id, request.broker_epoch)
    response = controller_pb2.AssignReplicasToDirsResponse()
    result = ControllerResult(response)
    seen: set[tuple[bytes, int]] = set()
    for directory in request.directories:
        for asked in directory.partitions:
            answer = response.partitions.add(
                topic_id=asked.topic_id, partition_index=asked.partition_index
            )
            try:
                if (asked.topic_id, asked.partition_index) in seen:
                    raise InvalidRequestError("the partition is named twice in one request")
                seen.add((asked.topic_id, asked.partition_index))
                record = _assign(rules, broker, directory, asked)
            except ApiError as error:
                answer.error_code = int(error.code)  # type: ignore[assignment]
            else:
                if record is not None:
                    result.groups.append([record])
    return result


def _assign(
    rules: ElectionRules, broker: BrokerRegistration, directory: _Directory, asked: _Partition
) -> pb.MetadataRecord | None:
    if len(directory.id) != 16:
        raise InvalidRequestError("a directory id is not 16 bytes")
    directory_id = UUID(bytes=directory.id)
    lost = directory_id == LOST_DIRECTORY
    if not lost and directory_id not in broker.log_dirs:
        raise LogDirNotFoundError(f"broker {broker.broker_id} has no directory {directory_id}")
    topic, partition = find_partition_by_id(rules.image, asked.topic_id, asked.partition_index)
    if broker.broker_id not in partition.replicas:
        raise NotLeaderOrFollowerError(f"broker {broker.broker_id} holds no replica of it")
    directories = partition.directories_with(broker.broker_id, directory_id)
    if directories == partition.directories:
        return None
    record = pb.MetadataRecord(
        partition_change=pb.PartitionChangeRecord(
            partition_id=asked.partition_index, topic_id=asked.topic_id
        )
    )
    if lost or partition.leader is None:
        moved = partition._replace(directories=directories)
        builder = rules.builder(topic, asked.partition_index, moved)
        if lost:
            builder.target_isr = tuple(r for r in partition.isr if r != broker.broker_id)
            builder.unclean_shutdown = frozenset((broker.broker_id,))
            # The broker copies the log anew. Its earlier fetches must not bring it into the ISR.
            builder.new_epoch = partition.leader is not None
        record = builder.build() or record
    if not record.partition_change.directories:  # else it removes replicas, and their directories
        record.partition_change.directories.extend(d.bytes for d in directories)
    return record
