"""Answers of the admin service as values of `models`: -1 becomes None, raw ids become UUIDs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tidemark.client.models import (
    ClusterDescription,
    ConfigEntry,
    ConfigSynonym,
    LogDirDescription,
    NodeDescription,
    PartitionDescription,
    QuorumDescription,
    QuorumReplica,
    ReplicaDescription,
    TopicDescription,
    TopicListing,
)
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint, OwnDamage, TopicPartition
from tidemark.v1 import admin_pb2, common_pb2, raft_pb2

_LOGGER_SOURCE = 6  # Kafka's number


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw) if len(raw) == 16 else UUID(int=0)


def listing(topic: Any) -> TopicListing:
    """The listing of a topic in the answer of ListTopics or CreateTopics."""
    return TopicListing(
        topic.name, _uuid(topic.topic_id), topic.num_partitions, topic.replication_factor
    )


def topic(message: admin_pb2.DescribeTopicsResponse.Topic) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(
            p.partition_index,
            _known(p.leader_id),
            p.leader_epoch,
            p.partition_epoch,
            tuple(p.replicas),
            tuple(p.isr),
            tuple(p.eligible_leader_replicas),
            tuple(p.last_known_elr),
            tuple(p.offline_replicas),
        )
        for p in sorted(message.partitions, key=lambda p: p.partition_index)
    )
    return TopicDescription(
        message.name, _uuid(message.topic_id), partitions, dict(sorted(message.configs.items()))
    )


def node(message: common_pb2.Node) -> NodeDescription:
    return NodeDescription(
        message.node_id,
        Endpoint(message.host, message.port),
        message.rack or None,
        message.fenced,
    )


def cluster(message: admin_pb2.DescribeClusterResponse) -> ClusterDescription:
    brokers = sorted(message.brokers, key=lambda b: b.node_id)
    return ClusterDescription(
        message.cluster_id, _known(message.controller_id), tuple(map(node, brokers))
    )


def quorum(message: raft_pb2.DescribeQuorumResponse) -> QuorumDescription:
    def replica(state: raft_pb2.DescribeQuorumResponse.ReplicaState) -> QuorumReplica:
        return QuorumReplica(
            state.replica_id,
            _uuid(state.replica_directory_id) if state.replica_directory_id else None,
            _known(state.log_end_offset),
            _known(state.last_fetch_timestamp_ms),
            _known(state.last_caught_up_timestamp_ms),
            {e.name: Endpoint(e.host, e.port) for e in state.listeners},
            OwnDamage(state.own_damage),
        )

    return QuorumDescription(
        _known(message.leader_id),
        message.leader_epoch,
        _known(message.high_watermark),
        tuple(map(replica, sorted(message.current_voters, key=lambda r: r.replica_id))),
        tuple(map(replica, sorted(message.observers, key=lambda r: r.replica_id))),
        tuple(map(node, sorted(message.nodes, key=lambda n: n.node_id))),
    )


def log_dir(broker_id: int, message: admin_pb2.DescribeLogDirsResponse.LogDir) -> LogDirDescription:
    replicas = tuple(
        ReplicaDescription(
            TopicPartition(p.topic, p.partition_index),
            p.partition_size,
            p.offset_lag,
            p.is_leader,
            p.log_start_offset,
            p.local_log_start_offset,
            _known(p.highest_remote_offset),
            p.high_watermark,
            p.log_end_offset,
            p.remote_log_size_bytes,
            p.remote_copy_lag_bytes,
            p.remote_copy_lag_segments,
            p.is_future,
            p.uncleanable_reason,
        )
        for p in sorted(message.partitions, key=lambda p: (p.topic, p.partition_index))
    )
    failed = bool(message.error_code)
    return LogDirDescription(
        broker_id,
        message.log_dir,
        ErrorCode(message.error_code).name if failed else None,
        message.total_bytes,
        message.usable_bytes,
        replicas,
        message.error_message,
    )


def _source_name(source: int) -> str:
    if source == _LOGGER_SOURCE:
        return "DYNAMIC_BROKER_LOGGER_CONFIG"
    return admin_pb2.DescribeConfigsResponse.Source.Name(source)  # type: ignore[arg-type]


def config_entry(message: admin_pb2.DescribeConfigsResponse.Entry) -> ConfigEntry:
    name_of = _source_name
    return ConfigEntry(
        message.name,
        message.value,
        name_of(message.source),
        message.read_only,
        message.type,
        message.documentation,
        tuple(ConfigSynonym(s.name, s.value, name_of(s.source)) for s in message.synonyms),
    )
