"""The values that clients take and return: plain, immutable, with Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from tidemark.types import ConfigResource as ConfigResource
from tidemark.types import ConfigResourceType as ConfigResourceType
from tidemark.types import Endpoint, TopicPartition
from tidemark.types import OffsetSpec as OffsetSpec
from tidemark.types import OwnDamage as OwnDamage

Header = tuple[str, bytes | None]

_PREPARED_MS = 2**31 - 1  # the timeout of a prepared transaction (KIP-939)


class RecordMetadata(NamedTuple):
    """Partition and offset of a written record.

    `offset` is -1 with acks=0; `timestamp_ms` is the stored one.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class BatchMetadata(NamedTuple):
    """Partition and offsets of a written batch of `send_arrow`.

    Its records have `record_count` offsets from `base_offset` on (-1 with acks=0).
    """

    topic: str
    partition: int
    base_offset: int
    record_count: int


class ConsumerRecord(NamedTuple):
    """A record as read; `key` and `value` may be None."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class OffsetAndMetadata(NamedTuple):
    """An offset to commit: that of the next record to read. `leader_epoch` is that of the record
    before it, None if unknown; `metadata` a text of the application."""

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


class ConsumerGroupMetadata(NamedTuple):
    """A consumer as a member of its group, at one time (KIP-447). Without a `member_id`, offsets
    are those of a group without members."""

    group_id: str
    member_id: str = ""
    member_epoch: int = -1
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group with its state and type: consumer, or classic for one that only commits offsets."""

    group_id: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    """A member: who it is, its subscription, its partitions, and those that it is to have."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    member_epoch: int
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: tuple[TopicPartition, ...]
    target_assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members; `state` is Empty, Assigning, Reconciling or Stable."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[GroupMemberDescription, ...]


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id with the state of its last transaction, at the broker that answered.

    `state` is Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort.
    """

    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id; `start_time_ms` is None and `partitions` empty where no transaction is
    open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int | None
    last_update_time_ms: int
    partitions: tuple[TopicPartition, ...]

    @property
    def is_prepared(self) -> bool:
        """Whether the open transaction is prepared; of CompleteAbort, whether the last one was, and
        was aborted by others than its owner."""
        return self.timeout_ms == _PREPARED_MS


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer that the leader of a partition knows (KIP-664); None stands for none.

    `last_sequence` is of its epoch, `coordinator_epoch` of its last marker, and
    `txn_start_offset` that of its open transaction.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_timestamp_ms: int
    coordinator_epoch: int | None
    txn_start_offset: int | None


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that is open in a partition, and that no coordinator will end."""

    topic_partition: TopicPartition
    producer: ProducerState


class OffsetAndTimestamp(NamedTuple):
    """The record found for a timestamp: the first at or after it."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TierRebuild:
    """Old identity of a topic whose records are in the tier alone.

    `leader_epochs` are the newest ones in the tier, by partition; 0 if there is none.
    """

    topic_id: UUID
    leader_epochs: Sequence[int]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; a count of None takes the cluster's default.

    `assignments` places replicas by hand: partition -> broker ids, preferred leader first. The two
    counts are None then. With `rebuild` the topic has no leader until an unclean election.
    """

    name: str
    num_partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    rebuild: TierRebuild | None = None


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic in a listing."""

    name: str
    topic_id: UUID
    num_partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition in the metadata log; `leader` is None if there is none."""

    partition: int
    leader: int | None
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, its partitions by number, and the settings set on the topic itself."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionDescription, ...]
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A registered broker, or a voter."""

    node_id: int
    endpoint: Endpoint
    rack: str | None = None
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster: all registered brokers, fenced ones included, and the active controller.

    `controller_id` is None if it is unknown.
    """

    cluster_id: str
    controller_id: int | None
    brokers: tuple[NodeDescription, ...]


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A voter or observer of the metadata quorum, as its leader sees it. None stands for unknown or
    never.

    `listeners` are the endpoints of a voter, by name. `own_damage` is on the replica's own disk, as
    of its last fetch.
    """

    replica_id: int
    directory_id: UUID | None
    log_end_offset: int | None
    last_fetch_timestamp_ms: int | None
    last_caught_up_timestamp_ms: int | None
    listeners: Mapping[str, Endpoint] = field(default_factory=dict)
    own_damage: OwnDamage = OwnDamage.NONE


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The metadata quorum."""

    leader_id: int | None
    leader_epoch: int
    high_watermark: int | None
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    nodes: tuple[NodeDescription, ...]


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """A replica on a broker's disk, and its part of the tier.

    Offsets are exclusive ends unless the field says otherwise.
    """

    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_leader: bool
    log_start_offset: int
    local_log_start_offset: int
    highest_remote_offset: int | None  # inclusive; None if nothing is tiered
    high_watermark: int
    log_end_offset: int
    remote_log_size_bytes: int
    remote_copy_lag_bytes: int
    remote_copy_lag_segments: int
    is_future: bool = False  # a future log (KIP-113); its lag is behind the current replica
    uncleanable_reason: str = ""  # why the cleaner skips it until the broker restarts


class TopicPartitionReplica(NamedTuple):
    """A replica: a partition on a broker."""

    topic_partition: TopicPartition
    broker_id: int


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker, and its replicas.

    `error` is the name of an error, None if the directory works, and `error_message` its text. The
    replicas of an offline directory are missing.
    """

    broker_id: int
    log_dir: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    replicas: tuple[ReplicaDescription, ...]
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class ListenerCertificate:
    """The certificate that a listener shows, as its files are now.

    With an `error_message` they can not be read, and the listener keeps its former one.
    """

    listener: str
    subject: str
    not_after_ms: int
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class FailedTask:
    """Work of a broker on remote segments whose last `failures` tries failed, since `since_ms`."""

    task: str
    topic_partition: TopicPartition
    failures: int
    since_ms: int
    last_error: str


@dataclass(frozen=True, slots=True)
class NodeState:
    """State of a node's process that no metadata has."""

    node_id: int
    version: str
    certificates: tuple[ListenerCertificate, ...]
    failed_tasks: tuple[FailedTask, ...]


@dataclass(frozen=True, slots=True)
class AlterConfigOp:
    """One change of a setting; `op` is SET, DELETE, or for lists APPEND or SUBTRACT.

    `value` of the latter two has the items, comma-separated.
    """

    name: str
    value: str | None = None
    op: str = "SET"


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value of a setting at one level, and the level; see ConfigEntry.source."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting and its effective value.

    `source` is TOPIC_CONFIG, DYNAMIC_BROKER_CONFIG, DYNAMIC_DEFAULT_BROKER_CONFIG,
    STATIC_BROKER_CONFIG or DEFAULT_CONFIG. `synonyms` are in order of precedence, the effective one
    first.
    """

    name: str
    value: str
    source: str
    read_only: bool
    type: str
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A reassignment under way; `replicas` includes those being added and removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FeatureDescription:
    """A feature: its `level` in the cluster (0 is off), and the levels that the answering node
    supports.

    `release` is the name of the level, if it has one.
    """

    name: str
    level: int
    supported_min: int
    supported_max: int
    release: str = ""


@dataclass(frozen=True, slots=True)
class NodeFeatures:
    """A registered node: its `role` (broker or controller), supported levels and listeners by name.

    The levels are the least and the greatest of each feature.
    """

    node_id: int
    role: str
    features: Mapping[str, tuple[int, int]]
    listeners: Mapping[str, Endpoint]
