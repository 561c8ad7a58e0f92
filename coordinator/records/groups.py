"""Records of `__consumer_offsets`: offsets, and groups of the consumer protocol (KIP-848).

Those of classic groups have their number here as well: both kinds of groups share the topic. Types
10 to 15 and 17 to 23 are of share groups and streams groups, which Tidemark does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from coordinator.records.offset_codec import OffsetCodec
from coordinator.records.types import RecordType, RecordTypes
from tidemark.records.kafka_schema import Field, Struct
from tidemark.types import ZERO_UUID

_FLEXIBLE_NEVER = 32767


@dataclass(frozen=True, slots=True)
class OffsetCommitKey:
    """A partition whose offset a group commits."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class LegacyOffsetCommitKey(OffsetCommitKey):
    """The key of releases before 0.8.2; it is only read."""


@dataclass(frozen=True, slots=True)
class OffsetCommitValue:
    """A committed offset; times in ms, -1 where there is none."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = -1
    topic_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class LegacyOffsetCommitValue:
    """A committed offset of releases before 0.8.2."""

    offset: int
    metadata: str
    commit_timestamp: int


@dataclass(frozen=True, slots=True)
class GroupMetadataKey:
    """A classic group."""

    group: str


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """A member of a classic group."""

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes
    rebalance_timeout_ms: int = 0
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupMetadataValue:
    """The state of a classic group."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    members: tuple[ClassicMember, ...]
    current_state_timestamp: int = -1


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataKey:
    """A consumer group."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataValue:
    """The epoch of a consumer group, and the hash of the metadata that its members subscribe to."""

    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerGroupPartitionMetadataKey:
    """The topics of a consumer group, up to Kafka 4.0."""

    group_id: str


@dataclass(frozen=True, slots=True)
class PartitionRacks:
    """The racks of a partition's replicas."""

    partition: int
    racks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribedTopic:
    """A topic of a consumer group, up to Kafka 4.0."""

    topic_id: UUID
    topic_name: str
    num_partitions: int
    partition_metadata: tuple[PartitionRacks, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupPartitionMetadataValue:
    """The topics of a consumer group, up to Kafka 4.0."""

    topics: tuple[SubscribedTopic, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupMemberMetadataKey:
    """A member of a consumer group."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    """A protocol that a member which came from a classic group supports."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class ClassicMemberMetadata:
    """The rest of the classic protocol, of a member that still uses it."""

    session_timeout_ms: int
    supported_protocols: tuple[ClassicProtocol, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupMemberMetadataValue:
    """A member: who it is, and what it subscribes to."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ClassicMemberMetadata | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMetadataKey:
    """The target assignment of a consumer group."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    """The group epoch that the target assignment is of, and when it was made (ms)."""

    assignment_epoch: int
    assignment_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMemberKey:
    """The target assignment of a member."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class TargetPartitions:
    """Partitions of a topic in a target assignment."""

    topic_id: UUID
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMemberValue:
    """The partitions that a member is to have."""

    topic_partitions: tuple[TargetPartitions, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupCurrentMemberAssignmentKey:
    """The current assignment of a member."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class CurrentPartitions:
    """Partitions of a topic that a member has; `assignment_epochs` are the member epochs at which
    it got each of them, or None."""

    topic_id: UUID
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupCurrentMemberAssignmentValue:
    """The partitions that a member has, and those that it was told to revoke."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[CurrentPartitions, ...]
    partitions_pending_revocation: tuple[CurrentPartitions, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupRegularExpressionKey:
    """A pattern that members of a group subscribe to."""

    group_id: str
    regular_expression: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupRegularExpressionValue:
    """The topics that a pattern matched, at a version of the metadata and a time (ms)."""

    topics: tuple[str, ...]
    version: int
    timestamp: int


_GROUP = (Field("groupId", "str"),)
_MEMBER = (*_GROUP, Field("memberId", "str"))
_COMMITTED = (Field("group", "str"), Field("topic", "str"), Field("partition", "i32"))
_CLASSIC_MEMBER = Struct(
    ClassicMember,
    (
        Field("memberId", "str"),
        Field("groupInstanceId", "str", since=3, default=None),
        Field("clientId", "str"),
        Field("clientHost", "str"),
        Field("rebalanceTimeout", "i32", since=1, unit="_ms"),
        Field("sessionTimeout", "i32", unit="_ms"),
        Field("subscription", "bytes"),
        Field("assignment", "bytes"),
    ),
)
_PARTITION_RACKS = Struct(PartitionRacks, (Field("partition", "i32"), Field("racks", ["str"])))
_SUBSCRIBED = Struct(
    SubscribedTopic,
    (
        Field("topicId", "uuid"),
        Field("topicName", "str"),
        Field("numPartitions", "i32"),
        Field("partitionMetadata", [_PARTITION_RACKS]),
    ),
)
_CLASSIC_PROTOCOL = Struct(ClassicProtocol, (Field("name", "str"), Field("metadata", "bytes")))
_CLASSIC_METADATA = Struct(
    ClassicMemberMetadata,
    (Field("sessionTimeoutMs", "i32"), Field("supportedProtocols", [_CLASSIC_PROTOCOL])),
    nullable=True,
)
# Kafka's default of the field is an empty struct, so None is in the bytes.
_NOT_CLASSIC = ClassicMemberMetadata(0, ())
_OF_TOPIC = (Field("topicId", "uuid"), Field("partitions", ["i32"]))
_TARGET = Struct(TargetPartitions, _OF_TOPIC)
_CURRENT = Struct(
    CurrentPartitions, (*_OF_TOPIC, Field("assignmentEpochs", ["i32"], tag=0, default=None))
)

OFFSET_COMMIT = RecordType(
    1,
    Struct(OffsetCommitKey, _COMMITTED),
    Struct(
        OffsetCommitValue,
        (
            Field("offset", "i64"),
            Field("leaderEpoch", "i32", since=3, default=-1),
            Field("metadata", "str"),
            Field("commitTimestamp", "i64"),
            Field("expireTimestamp", "i64", since=1, until=1, default=-1),
            Field("topicId", "uuid", since=4, tag=0),
        ),
    ),
    highest=4,
    written=4,
    flexible_since=4,
)

GROUP_RECORDS = RecordTypes(
    (
        RecordType(
            0,
            Struct(LegacyOffsetCommitKey, _COMMITTED),
            Struct(
                LegacyOffsetCommitValue,
                (Field("offset", "i64"), Field("metadata", "str"), Field("commitTimestamp", "i64")),
            ),
            flexible_since=_FLEXIBLE_NEVER,
        ),
        OFFSET_COMMIT,
        RecordType(
            2,
            Struct(GroupMetadataKey, (Field("group", "str"),)),
            Struct(
                GroupMetadataValue,
                (
                    Field("protocolType", "str"),
                    Field("generation", "i32"),
                    Field("protocol", "str"),
                    Field("leader", "str"),
                    Field("currentStateTimestamp", "i64", since=2, default=-1),
                    Field("members", [_CLASSIC_MEMBER]),
                ),
            ),
            highest=4,
            written=3,
            flexible_since=4,
        ),
        RecordType(
            3,
            Struct(ConsumerGroupMetadataKey, _GROUP),
            Struct(
                ConsumerGroupMetadataValue,
                (Field("epoch", "i32"), Field("metadataHash", "i64", tag=0)),
            ),
        ),
        RecordType(
            4,
            Struct(ConsumerGroupPartitionMetadataKey, _GROUP),
            Struct(ConsumerGroupPartitionMetadataValue, (Field("topics", [_SUBSCRIBED]),)),
        ),
        RecordType(
            5,
            Struct(ConsumerGroupMemberMetadataKey, _MEMBER),
            Struct(
                ConsumerGroupMemberMetadataValue,
                (
                    Field("instanceId", "str"),
                    Field("rackId", "str"),
                    Field("clientId", "str"),
                    Field("clientHost", "str"),
                    Field("subscribedTopicNames", ["str"]),
                    Field("subscribedTopicRegex", "str"),
                    Field("rebalanceTimeoutMs", "i32"),
                    Field("serverAssignor", "str"),
                    Field("classicMemberMetadata", _CLASSIC_METADATA, tag=0, default=_NOT_CLASSIC),
                ),
            ),
        ),
        RecordType(
            6,
            Struct(ConsumerGroupTargetAssignmentMetadataKey, _GROUP),
            Struct(
                ConsumerGroupTargetAssignmentMetadataValue,
                (Field("assignmentEpoch", "i32"), Field("assignmentTimestamp", "i64", tag=0)),
            ),
        ),
        RecordType(
            7,
            Struct(ConsumerGroupTargetAssignmentMemberKey, _MEMBER),
            Struct(
                ConsumerGroupTargetAssignmentMemberValue, (Field("topicPartitions", [_TARGET]),)
            ),
        ),
        RecordType(
            8,
            Struct(ConsumerGroupCurrentMemberAssignmentKey, _MEMBER),
            Struct(
                ConsumerGroupCurrentMemberAssignmentValue,
                (
                    Field("memberEpoch", "i32"),
                    Field("previousMemberEpoch", "i32"),
                    Field("state", "i8"),
                    Field("assignedPartitions", [_CURRENT]),
                    Field("partitionsPendingRevocation", [_CURRENT]),
                ),
            ),
        ),
        RecordType(
            16,
            Struct(ConsumerGroupRegularExpressionKey, (*_GROUP, Field("regularExpression", "str"))),
            Struct(
                ConsumerGroupRegularExpressionValue,
                (Field("topics", ["str"]), Field("version", "i64"), Field("timestamp", "i64")),
            ),
        ),
    ),
    OffsetCodec(OffsetCommitKey, OffsetCommitValue),
)
