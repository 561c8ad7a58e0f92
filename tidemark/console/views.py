"""Brokers, topics, partitions, the tier and the quorum as values for pages (pure).

Each function makes JSON values of what an admin client tells. None stands for unknown: a broker
that does not answer leaves sizes and offsets unknown, and they are not shown as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.client.models import (
    ClusterDescription,
    LogDirDescription,
    PartitionDescription,
    QuorumDescription,
    QuorumReplica,
    ReplicaDescription,
    TopicDescription,
)
from tidemark.types import TopicPartition, uuid_to_text

ROWS_MAX = 2_000
"""Rows of one table; what is left out is told."""

_OF_TIER = {
    "log_start": "log_start_offset",
    "local_start": "local_log_start_offset",
    "tiered_to": "highest_remote_offset",
    "log_end": "log_end_offset",
    "remote_bytes": "remote_log_size_bytes",
    "local_bytes": "size_bytes",
    "lag_segments": "remote_copy_lag_segments",
    "lag_bytes": "remote_copy_lag_bytes",
}


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts that pages are made of. `topics_left_out` counts those that were not asked for.

    `log_dirs` is empty where brokers did not tell, with the reason in `log_dirs_error`.
    """

    cluster: ClusterDescription
    topics: Sequence[TopicDescription]
    log_dirs: Mapping[int, Sequence[LogDirDescription]]
    log_dirs_error: str | None = None
    topics_left_out: int = 0

    def led(self) -> dict[TopicPartition, ReplicaDescription]:
        """The leaders' replicas, by partition."""
        leaders = {
            (TopicPartition(topic.name, partition.partition), partition.leader)
            for topic in self.topics
            for partition in topic.partitions
        }
        return {
            replica.topic_partition: replica
            for broker_id, directories in self.log_dirs.items()
            for directory in directories
            for replica in directory.replicas
            if not replica.is_future and (replica.topic_partition, broker_id) in leaders
        }

    def notes(self) -> dict[str, Any]:
        """The facts that a page lacks."""
        return {"log_dirs_error": self.log_dirs_error, "topics_left_out": self.topics_left_out}


def _rows(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"rows": list(rows[:ROWS_MAX]), "rows_left_out": max(0, len(rows) - ROWS_MAX)}


def _states(partitions: Iterable[PartitionDescription]) -> dict[str, int]:
    found = {"partitions": 0, "offline": 0, "under_replicated": 0, "not_preferred": 0}
    for one in partitions:
        found["partitions"] += 1
        found["offline"] += one.leader is None
        found["under_replicated"] += len(one.isr) < len(one.replicas)
        found["not_preferred"] += one.leader is not None and one.leader != one.replicas[0]
    return found


def _total(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def overview(facts: ClusterFacts, groups: int | None, version: str) -> dict[str, Any]:
    """The cluster at a glance; `groups` is None where they are unknown."""
    brokers = facts.cluster.brokers
    replicas = facts.led().values()
    directories = [one for each in facts.log_dirs.values() for one in each]
    return {
        "cluster_id": facts.cluster.cluster_id,
        "controller": facts.cluster.controller_id,
        "version": version,
        "brokers": len(brokers),
        "fenced": sum(broker.fenced for broker in brokers),
        "topics": sum(not topic.name.startswith("__") for topic in facts.topics),
        "internal_topics": sum(topic.name.startswith("__") for topic in facts.topics),
        "groups": groups,
        "failed_directories": sum(one.error is not None for one in directories),
        "bytes": _total(replica.size_bytes for replica in replicas),
        "remote_bytes": _total(replica.remote_log_size_bytes for replica in replicas),
        **_states(one for topic in facts.topics for one in topic.partitions),
        **facts.notes(),
    }


def brokers(facts: ClusterFacts) -> dict[str, Any]:
    """A row for each registered broker, and one for each of its log directories."""
    leads: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    for topic in facts.topics:
        for one in topic.partitions:
            holds.update(one.replicas)
            in_sync.update(one.isr)
            if one.leader is not None:
                leads[one.leader] += 1
    rows = []
    for broker in sorted(facts.cluster.brokers, key=lambda each: each.node_id):
        own = facts.log_dirs.get(broker.node_id, ())
        rows.append(
            {
                "broker": broker.node_id,
                "address": broker.endpoint.address,
                "rack": broker.rack,
                "state": "fenced" if broker.fenced else "active",
                "leads": leads[broker.node_id],
                "replicas": holds[broker.node_id],
                "in_sync": in_sync[broker.node_id],
                "bytes": _total(one.size_bytes for each in own for one in each.replicas),
            }
        )
    directories = [
        {
            "broker": broker_id,
            "directory": one.log_dir,
            "state": "online" if one.error is None else one.error,
            "message": one.error_message,
            "replicas": len(one.replicas) if one.error is None else None,
            "usable_bytes": one.usable_bytes if one.error is None and one.total_bytes else None,
            "total_bytes": one.total_bytes if one.error is None and one.total_bytes else None,
        }
        for broker_id, each in sorted(facts.log_dirs.items())
        for one in each
    ]
    return {"brokers": _rows(rows), "directories": _rows(directories), **facts.notes()}


def topics(facts: ClusterFacts) -> dict[str, Any]:
    """A row for each topic."""
    sizes: dict[str, list[ReplicaDescription]] = {}
    for partition, replica in facts.led().items():
        sizes.setdefault(partition.topic, []).append(replica)
    rows = [
        {
            "topic": topic.name,
            "replication": max((len(one.replicas) for one in topic.partitions), default=0),
            **_states(topic.partitions),
            "records": _total(
                one.high_watermark - one.log_start_offset for one in sizes.get(topic.name, ())
            ),
            "bytes": _total(one.size_bytes for one in sizes.get(topic.name, ())),
            "remote_bytes": _total(one.remote_log_size_bytes for one in sizes.get(topic.name, ())),
        }
        for topic in facts.topics
    ]
    return {"topics": _rows(rows), **facts.notes()}


def topic(facts: ClusterFacts) -> dict[str, Any]:
    """The only topic of the facts: a row for each partition, and the topic's own settings."""
    (described,) = facts.topics
    led = facts.led()
    rows = []
    for one in described.partitions:
        replica = led.get(TopicPartition(described.name, one.partition))
        rows.append(
            {
                "partition": one.partition,
                "leader": one.leader,
                "leader_epoch": one.leader_epoch,
                "replicas": list(one.replicas),
                "isr": list(one.isr),
                "elr": list(one.elr),
                "offline_replicas": list(one.offline_replicas),
                "log_start": None if replica is None else replica.log_start_offset,
                "high_watermark": None if replica is None else replica.high_watermark,
                "log_end": None if replica is None else replica.log_end_offset,
                "bytes": None if replica is None else replica.size_bytes,
            }
        )
    return {
        "topic": described.name,
        "topic_id": uuid_to_text(described.topic_id),
        "configs": [{"name": k, "value": v} for k, v in sorted(described.configs.items())],
        **_states(described.partitions),
        "rows": _rows(rows),
        **facts.notes(),
    }


def tier(facts: ClusterFacts) -> dict[str, Any]:
    """A row for each partition that is tiered, or is to be; and one without a known leader."""
    tiered = {
        topic.name for topic in facts.topics if topic.configs.get("remote.storage.enable") == "true"
    }
    led = facts.led()
    rows = []
    for topic in facts.topics:
        for one in topic.partitions:
            replica = led.get(TopicPartition(topic.name, one.partition))
            has_remote = replica is not None and replica.highest_remote_offset is not None
            if topic.name not in tiered and not has_remote:
                continue
            rows.append(_tiered(topic.name, one, replica))
    return {"partitions": _rows(rows), "topics": len({row["topic"] for row in rows})} | (
        facts.notes()
    )


def _tiered(
    name: str, one: PartitionDescription, replica: ReplicaDescription | None
) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": name, "partition": one.partition, "leader": one.leader}
    return row | {key: replica and getattr(replica, field) for key, field in _OF_TIER.items()}


def quorum(
    described: QuorumDescription, timeline: Mapping[str, Any], now_ms: int
) -> dict[str, Any]:
    """Voters and observers with their lag behind the leader, and the timeline."""
    leader = next((v for v in described.voters if v.replica_id == described.leader_id), None)
    end = None if leader is None else leader.log_end_offset
    names = {node.node_id: node.endpoint.address for node in described.nodes}

    def row(replica: QuorumReplica, role: str) -> dict[str, Any]:
        known = end is not None and replica.log_end_offset is not None
        is_leader = replica.replica_id == described.leader_id
        return {
            "node": replica.replica_id,
            "role": "leader" if is_leader else role,
            "address": names.get(replica.replica_id),
            "log_end": replica.log_end_offset,
            "lag": max(0, end - replica.log_end_offset) if known else None,  # type: ignore[operator]
            "fetched_ms_ago": _ago(replica.last_fetch_timestamp_ms, now_ms),
            "caught_up_ms_ago": _ago(replica.last_caught_up_timestamp_ms, now_ms),
            "damage": replica.own_damage.name.lower(),
        }

    rows = [row(one, "voter") for one in described.voters]
    rows += [row(one, "observer") for one in described.observers]
    return {
        "leader": described.leader_id,
        "epoch": described.leader_epoch,
        "high_watermark": described.high_watermark,
        "replicas": _rows(rows),
        "timeline": dict(timeline),
    }


def _ago(moment_ms: int | None, now_ms: int) -> int | None:
    return None if moment_ms is None else max(0, now_ms - moment_ms)
