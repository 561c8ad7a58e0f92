"""An Admin without a cluster: it answers with plain values and records the requested changes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from tidemark.client.models import (
    AlterConfigOp,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigSynonym,
    FeatureDescription,
    LogDirDescription,
    NodeDescription,
    NodeFeatures,
    NodeState,
    PartitionDescription,
    PartitionReassignment,
    QuorumDescription,
    QuorumReplica,
    TopicDescription,
    TopicListing,
)
from tidemark.errors import ApiError, UnknownTopicOrPartitionError
from tidemark.quotas.entities import QuotaEntity, QuotaFilter
from tidemark.types import Endpoint, TopicPartition

NOW_MS = 1_000_000


def broker(broker_id: int, rack: str | None = None, *, fenced: bool = False) -> NodeDescription:
    return NodeDescription(broker_id, Endpoint("h", 9000 + broker_id), rack, fenced)


def topic(
    name: str,
    *partitions: tuple[Sequence[int], Sequence[int], int | None],
    configs: Mapping[str, str] | None = None,
) -> TopicDescription:
    """Partitions as (replicas, isr, leader)."""
    return TopicDescription(
        name,
        UUID(int=len(name)),
        tuple(
            PartitionDescription(i, leader, 0, 0, tuple(replicas), tuple(isr), (), (), ())
            for i, (replicas, isr, leader) in enumerate(partitions)
        ),
        configs or {},
    )


def voter(
    node_id: int,
    end: int | None,
    caught_up_ms: int | None = NOW_MS,
    *,
    directory: int | None = None,
) -> QuorumReplica:
    known = UUID(int=directory or node_id)
    return QuorumReplica(node_id, known, end, caught_up_ms, caught_up_ms)


def quorum(leader: int | None, *voters: QuorumReplica) -> QuorumDescription:
    nodes = tuple(NodeDescription(v.replica_id, Endpoint("c", v.replica_id)) for v in voters)
    return QuorumDescription(leader, 3, 100, voters, (), nodes)


class FakeNodes:
    """Stands for `Admin.nodes`."""

    def __init__(self) -> None:
        self.states: dict[int, NodeState | ApiError] = {}
        self.lines: dict[int, list[str] | ApiError] = {}

    def describe(self) -> dict[int, NodeState | ApiError]:
        return self.states

    def logs(self) -> dict[int, list[str] | ApiError]:
        return self.lines


class FakeAdmin:
    """Stands for `tidemark.client.sync.Admin`; commands call the class itself."""

    def __init__(self) -> None:
        self.brokers = [broker(4, "a"), broker(5, "b"), broker(6, "c")]
        self.log_dirs: dict[int, list[LogDirDescription]] = {}
        self.topics: dict[str, TopicDescription] = {}
        self.quorum = quorum(1, voter(1, 100), voter(2, 100))
        self.under_way: dict[TopicPartition, PartitionReassignment] = {}
        self.features = {
            "metadata.version": FeatureDescription("metadata.version", 1, 1, 3, "0.1-IV0")
        }
        self.elections: dict[TopicPartition, ApiError | None] = {}
        self.settings: dict[ConfigResource, list[ConfigEntry]] = {}
        self.quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.nodes = FakeNodes()
        self.security: Any = None

    def __call__(self, bootstrap_servers: str) -> FakeAdmin:
        return self

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def add(self, *topics: TopicDescription) -> None:
        self.topics |= {t.name: t for t in topics}

    # Answers.

    def describe_log_dirs(
        self, brokers: Sequence[int] | None = None
    ) -> dict[int, list[LogDirDescription]]:
        wanted = [b.node_id for b in self.brokers] if brokers is None else brokers
        return {broker: self.log_dirs.get(broker, []) for broker in wanted}

    def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription("fake", self.quorum.leader_id, tuple(self.brokers))

    def describe_quorum(self) -> QuorumDescription:
        return self.quorum

    def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        return [
            TopicListing(t.name, t.topic_id, len(t.partitions), 1)
            for t in self.topics.values()
            if include_internal or not t.name.startswith("__")
        ]

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        missing = [name for name in names if name not in self.topics]
        if missing:
            raise UnknownTopicOrPartitionError(f"topic {missing[0]!r} is unknown")
        return {name: self.topics[name] for name in names}

    def describe_configs(
        self, resources: Collection[ConfigResource], names: Sequence[str] = (), **_: bool
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        return {
            r: {e.name: e for e in self.settings.get(r, []) if not names or e.name in names}
            for r in resources
        }

    def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        return {p: r for p, r in self.under_way.items() if partitions is None or p in partitions}

    def describe_node_features(self) -> list[NodeFeatures]:
        listeners = {"CONTROLLER": Endpoint("h", 1)}
        return [NodeFeatures(4, "controller", {"metadata.version": (1, 2)}, listeners)]

    def describe_features(self) -> dict[str, FeatureDescription]:
        return self.features

    def describe_client_quotas(
        self, filters: Sequence[QuotaFilter] = (), *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        self.calls.append(("describe_quotas", list(filters), strict))
        return self.quotas

    # Recorded changes.

    def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
    ) -> None:
        self.calls.append(("alter_quotas", dict(changes), validate_only))

    def incremental_alter_configs(
        self,
        changes: Mapping[ConfigResource, Sequence[AlterConfigOp]],
        *,
        validate_only: bool = False,
    ) -> None:
        self.calls.append(("alter_configs", dict(changes), validate_only))

    def create_partitions(self, counts: Mapping[str, int], **options: Any) -> None:
        self.calls.append(("create_partitions", dict(counts), options))

    def alter_partition_reassignments(
        self, reassignments: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        self.calls.append(("reassign", dict(reassignments)))

    def wait_until_reassigned(
        self, reassignments: Mapping[TopicPartition, Sequence[int]], *, timeout_ms: int
    ) -> None:
        self.calls.append(("wait", dict(reassignments), timeout_ms))

    def finish_moves(self) -> None:
        """Applies the last reassignment."""
        _, moves = next(call for call in reversed(self.calls) if call[0] == "reassign")
        for (name, index), replicas in moves.items():
            found = self.topics[name]
            parts = list(found.partitions)
            parts[index] = replace(parts[index], replicas=tuple(replicas), isr=tuple(replicas))
            self.topics[name] = replace(found, partitions=tuple(parts))

    def elect_leaders(
        self, election_type: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, ApiError | None]:
        self.calls.append(("elect", election_type, partitions))
        return self.elections

    def update_features(self, levels: Mapping[str, int], **options: Any) -> None:
        self.calls.append(("features", dict(levels), options))

    def unregister_broker(self, broker_id: int) -> None:
        self.calls.append(("unregister", broker_id))

    def add_raft_voter(
        self, voter_id: int, directory_id: UUID, endpoint: Mapping[str, Endpoint]
    ) -> None:
        self.calls.append(("add_voter", voter_id, directory_id, endpoint))

    def remove_raft_voter(self, voter_id: int, directory_id: UUID) -> None:
        self.calls.append(("remove_voter", voter_id, directory_id))


def entry(name: str, value: str, source: str, *synonyms: tuple[str, str]) -> ConfigEntry:
    """A setting; `synonyms` are (value, source) below the effective one."""
    others = tuple(ConfigSynonym(name, v, s) for v, s in ((value, source), *synonyms))
    return ConfigEntry(name, value, source, False, "STRING", "what it means", others)


def is_refusal(told: str) -> bool:
    """Whether a command said, in one line, why it does not take its arguments: no traceback, and no
    code of an error of the cluster.
    """
    return re.fullmatch(r"tidemark: [^\n]+(?<!\))\n", told) is not None
