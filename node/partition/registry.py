"""The partitions that a node hosts, by name, with Kafka's errors for those it does not host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

from node.partition.cluster_view import ClusterView
from node.partition.hosted import HostedPartition
from tidemark.errors import (
    ApiError,
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
        self.role_listeners: dict[str, Callable[[HostedPartition], None]] = {}  # by topic
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
        - InconsistentTopicIdError if the topic of that name has another id: it was deleted and made
          anew, or this node has not learned of that yet,
        - KafkaStorageError if its disk failed.
        """
        key = TopicPartition(topic, partition)
        hosted = self._hosted.get(key)
        if topic_id and (hosted is None or hosted.topic_id.bytes != topic_id):
            key = TopicPartition(self._named(topic, topic_id), partition)
            hosted = self._hosted.get(key)
        if hosted is None:
            if key in self.offline:
                raise KafkaStorageError(f"{key} is offline: {self.offline[key]}")
            if self._cluster.leader_of(key) is None:
                raise UnknownTopicOrPartitionError(f"{key}: no such topic or partition (yet)")
            if self.is_opening(key):
                raise NotLeaderOrFollowerError(f"node {self._node_id} opens {key}: try it again")
            raise NotLeaderOrFollowerError(f"node {self._node_id} holds no replica of {key}")
        if hosted.offline:
            raise KafkaStorageError(hosted.offline)
        return hosted

    def is_opening(self, topic_partition: TopicPartition) -> bool:
        """Whether this node is to lead a partition whose log is not open yet."""
        if topic_partition in self._hosted or topic_partition in self.offline:
            return False
        leader = self._cluster.leader_of(topic_partition)
        return leader is not None and leader[0] == self._node_id

    def _named(self, topic: str, topic_id: bytes) -> str:
        """Returns the name of the topic with this id; `topic`, if it is given, has to be it. An id
        of zeros is none, as in Kafka.
        """
        if not any(topic_id):
            return topic
        known = self._cluster.topic_id(topic)
        if known is not None and known.bytes == topic_id:
            return topic
        named = self._cluster.topic_name(UUID(bytes=topic_id)) if len(topic_id) == 16 else None
        if topic and (known is not None or named is not None):
            raise InconsistentTopicIdError(
                f"{topic} has another topic id here: it was made anew, or this node does not know"
                " that yet; refresh the metadata"
            )
        if named is None:
            raise UnknownTopicIdError(
                "this node knows no topic of that id: it was deleted, or is not known here yet;"
                " refresh the metadata"
            )
        return named

    def leader_of(
        self, topic: str, partition: int, topic_id: bytes = b""
    ) -> tuple[int, int] | None:
        """(leader, epoch) as this node knows them, for answers that redirect the caller."""
        if topic_id:
            try:
                topic = self._named(topic, topic_id)
            except ApiError:
                return None
        return self._cluster.leader_of(TopicPartition(topic, partition))
