"""The partitions that a node hosts, by name, with Kafka's errors for those it does not host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

from node.partition.cluster_view import ClusterView
from node.partition.hosted import HostedPartition
from tidemark.errors import (
    FatalError,
    InconsistentTopicIdError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from tidemark.types import TopicPartition


class PartitionRegistry:
    """Hosted partitions by name."""

    def __init__(
        self, node_id: int, cluster: ClusterView, on_fatal: Callable[[FatalError], None]
    ) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self.fatal = on_fatal
        self.offline: dict[TopicPartition, str] = {}  # logs that could not be opened
        self._hosted: dict[TopicPartition, HostedPartition] = {}

    def __iter__(self) -> Iterator[HostedPartition]:
        return iter(list(self._hosted.values()))

    def __len__(self) -> int:
        return len(self._hosted)

    def add(self, hosted: HostedPartition) -> None:
        assert hosted.topic_partition not in self._hosted, "hosted twice"
        self._hosted[hosted.topic_partition] = hosted

    def remove(self, topic_partition: TopicPartition) -> HostedPartition | None:
        return self._hosted.pop(topic_partition, None)

    def find(self, topic_partition: TopicPartition) -> HostedPartition | None:
        return self._hosted.get(topic_partition)

    def get(self, topic: str, partition: int, topic_id: bytes = b"") -> HostedPartition:
        """The hosted partition, by name or topic id.

        Raises as Kafka's ReplicaManager does:

        - UnknownTopicOrPartitionError or UnknownTopicIdError if the metadata has no such partition,
        - NotLeaderOrFollowerError if only other nodes host it,
        - InconsistentTopicIdError if the topic of that name has another id,
        - KafkaStorageError if its disk failed.
        """
        if not topic and topic_id:
            known = len(topic_id) == 16
            named = self._cluster.topic_name(UUID(bytes=bytes(topic_id))) if known else None
            if named is None:
                raise UnknownTopicIdError("this node knows no topic of that id (yet)")
            topic = named
        key = TopicPartition(topic, partition)
        hosted = self._hosted.get(key)
        if hosted is None:
            if key in self.offline:
                raise KafkaStorageError(f"{key} is offline: {self.offline[key]}")
            if self._cluster.leader_of(key) is None:
                raise UnknownTopicOrPartitionError(f"{key}: no such topic or partition (yet)")
            raise NotLeaderOrFollowerError(f"node {self._node_id} holds no replica of {key}")
        if topic_id and bytes(topic_id) != hosted.topic_id.bytes:
            raise InconsistentTopicIdError(f"{key} has another topic id here")
        if hosted.offline:
            raise KafkaStorageError(hosted.offline)
        return hosted

    def leader_of(self, topic: str, partition: int) -> tuple[int, int] | None:
        """(leader, epoch) as this node knows them, for answers that redirect the caller."""
        return self._cluster.leader_of(TopicPartition(topic, partition))
