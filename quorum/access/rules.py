"""The rights that each RPC needs: one row per method of proto/.

    FREE        whoever has logged in; PUBLIC also who has not
    NODE        nodes alone: ClusterAction on the cluster
    Whole       one operation for the request as a whole
    Each        one operation per item; items that are denied have errors in the answer
    Shown       the answer is shown without what may not be described

A row may have several. Produce and Fetch are checked where their messages are decoded
(`node/serving/log_service.py`), `CHECKED_WITHIN` here. A test holds the table against proto/.
Operations and resources are those of Kafka's documentation of its protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tidemark.errors import ErrorCode
from tidemark.security import acls
from tidemark.security.acls import CLUSTER, CLUSTER_NAME, GROUP, TOPIC, TRANSACTIONAL_ID
from tidemark.types import ConfigResourceType
from tidemark.v1 import group_pb2

Needed = tuple[int, int, str]
"""An operation, a type of resource and the resource's name."""


class CheckedRequest(NamedTuple):
    """A request, and what its parts are looked up in: `topic_name` of a topic id, None if there is
    no such topic."""

    request: Any
    topic_name: Callable[[bytes], str | None]


Needs = Callable[[Any, CheckedRequest], list[Needed]]
"""Tells the rights that an item, or the request itself, needs."""

DENIED: Mapping[int, ErrorCode] = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Whole(NamedTuple):
    """All that the request needs, or it is refused."""

    needed: Needs


class Each(NamedTuple):
    """One of what an item needs, for each in the field `items` of the request.

    A denied item is taken out. Field `answers` of the response gets an entry for it. It has the
    fields that both have, and in the field `key` the text of an item that is one. With `nodes`, a
    node needs nothing.
    """

    items: str
    needed: Needs
    answers: str
    key: str = ""
    nodes: bool = False


class Shown(NamedTuple):
    """Entries in the field `answers` of the response are shown if the operation is allowed."""

    answers: str
    operation: int
    resource_type: int
    name: str


class OffsetsShown(NamedTuple):
    """Offsets of topics that may be described are shown. A topic that the request names has an
    error; others are left out.
    """


class GroupsShown(NamedTuple):
    """Groups are shown whose members' topics may all be described; the others have an error."""


class TransactionsShown(NamedTuple):
    """Of a transaction the topics are shown that may be described."""


Rule = Whole | Each | Shown | OffsetsShown | GroupsShown | TransactionsShown


class Row(NamedTuple):
    """The rights that a method needs. `changes` are told to the audit log."""

    rules: tuple[Rule, ...] = ()
    is_public: bool = False
    is_for_nodes: bool = False
    changes: bool = False


PUBLIC, FREE, NODE = Row(is_public=True), Row(), Row(is_for_nodes=True)
CHECKED_WITHIN = Row()


def _cluster(operation: int, *, changes: bool = False) -> Row:
    return Row((Whole(lambda _, __: [(operation, CLUSTER, CLUSTER_NAME)]),), changes=changes)


def _named(operation: int, kind: int, field: str = "") -> Needs:
    """Of the item itself, or of its `field`."""
    if not field:
        return lambda item, _: [(operation, kind, item)]
    return lambda item, _: [(operation, kind, getattr(item, field))]


def _topic(operation: int, field: str) -> Needs:
    """Of a topic that is named by its `field`, or by its id. An unknown id needs nothing: the
    handler tells that it is unknown.
    """

    def needed(item: Any, asked: CheckedRequest) -> list[Needed]:
        name = getattr(item, field) or asked.topic_name(item.topic_id)
        return [] if name is None else [(operation, TOPIC, name)]

    return needed


def _config(operation: int) -> Needs:
    def needed(item: Any, _: CheckedRequest) -> list[Needed]:
        if item.resource.resource_type == ConfigResourceType.TOPIC:
            return [(operation, TOPIC, item.resource.resource_name)]
        return [(operation, CLUSTER, CLUSTER_NAME)]

    return needed


def _coordinator(key: Any, asked: CheckedRequest) -> list[Needed]:
    is_group = asked.request.key_type == group_pb2.GROUP
    return [(acls.DESCRIBE, GROUP if is_group else TRANSACTIONAL_ID, key)]


def _heartbeat(request: Any, _: CheckedRequest) -> list[Needed]:
    names = request.subscribed_topic_names.names
    topics: list[Needed] = [(acls.DESCRIBE, TOPIC, name) for name in names]
    return [(acls.READ, GROUP, request.group_id), *topics]


def _transactional(*operations: int) -> Whole:
    return Whole(lambda r, _: [(o, TRANSACTIONAL_ID, r.transactional_id) for o in operations])


def _producer_id(request: Any, _: CheckedRequest) -> list[Needed]:
    if request.transactional_id:
        return [(acls.WRITE, TRANSACTIONAL_ID, request.transactional_id)]
    return [(acls.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME)]


_ADMIN: Mapping[str, Row] = {
    "CreateTopics": Row(
        (
            Each(
                "topics",
                lambda t, _: [(acls.CREATE, CLUSTER, CLUSTER_NAME), (acls.CREATE, TOPIC, t.name)],
                "topics",
                nodes=True,  # their internal topics
            ),
        ),
        changes=True,
    ),
    "DeleteTopics": Row(
        (Each("topic_names", _named(acls.DELETE, TOPIC), "topics", "name"),), changes=True
    ),
    "ListTopics": Row((Shown("topics", acls.DESCRIBE, TOPIC, "name"),)),
    "DescribeTopics": Row(
        (
            Each("topic_names", _named(acls.DESCRIBE, TOPIC), "topics", "name"),
            Shown("topics", acls.DESCRIBE, TOPIC, "name"),
        )
    ),
    "DescribeCluster": FREE,
    "DescribeMetadataQuorum": _cluster(acls.DESCRIBE),
    "DescribeLogDirs": _cluster(acls.DESCRIBE),
    "AlterReplicaLogDirs": _cluster(acls.ALTER, changes=True),
    "IncrementalAlterConfigs": Row(
        (Each("resources", _config(acls.ALTER_CONFIGS), "responses"),),
        changes=True,
    ),
    "DescribeConfigs": Row((Each("resources", _config(acls.DESCRIBE_CONFIGS), "results"),)),
    "CreatePartitions": Row(
        (Each("topics", _named(acls.ALTER, TOPIC, "name"), "results"),), changes=True
    ),
    "AlterPartitionReassignments": _cluster(acls.ALTER, changes=True),
    "ListPartitionReassignments": _cluster(acls.DESCRIBE),
    "ElectLeaders": _cluster(acls.ALTER, changes=True),
    "UpdateFeatures": _cluster(acls.ALTER, changes=True),
    "DescribeFeatures": FREE,
    "DescribeClientQuotas": _cluster(acls.DESCRIBE_CONFIGS),
    "AlterClientQuotas": _cluster(acls.ALTER_CONFIGS, changes=True),
    "UnregisterBroker": _cluster(acls.ALTER, changes=True),
    "AddRaftVoter": _cluster(acls.ALTER, changes=True),
    "RemoveRaftVoter": _cluster(acls.ALTER, changes=True),
    "CreateAcls": _cluster(acls.ALTER, changes=True),
    "DeleteAcls": _cluster(acls.ALTER, changes=True),
    "DescribeAcls": _cluster(acls.DESCRIBE),
    "AlterUserScramCredentials": _cluster(acls.ALTER, changes=True),
    "DescribeUserScramCredentials": _cluster(acls.DESCRIBE),
    "DescribeNode": _cluster(acls.DESCRIBE),
    "DescribeNodeLog": _cluster(acls.ALTER_CONFIGS),  # as for the levels of the node's loggers
}

_GROUPS: Mapping[str, Row] = {
    "FindCoordinator": Row((Each("coordinator_keys", _coordinator, "coordinators", "key"),)),
    "ConsumerGroupHeartbeat": Row((Whole(_heartbeat),)),
    "ConsumerGroupDescribe": Row(
        (Each("group_ids", _named(acls.DESCRIBE, GROUP), "groups", "group_id"), GroupsShown())
    ),
    "OffsetCommit": Row(
        (
            Whole(_named(acls.READ, GROUP, "group_id")),
            Each("topics", _topic(acls.READ, "name"), "topics"),
        )
    ),
    "TxnOffsetCommit": Row(
        (
            _transactional(acls.WRITE),
            Whole(lambda r, _: [(acls.READ, GROUP, r.offsets.group_id)]),
            Each("offsets.topics", _topic(acls.READ, "name"), "topics"),
        )
    ),
    "OffsetFetch": Row(
        (Each("groups", _named(acls.DESCRIBE, GROUP, "group_id"), "groups"), OffsetsShown())
    ),
    "OffsetDelete": Row(
        (
            Whole(_named(acls.DELETE, GROUP, "group_id")),
            Each("topics", _named(acls.READ, TOPIC, "name"), "topics"),
        ),
        changes=True,
    ),
    "ListGroups": Row((Shown("groups", acls.DESCRIBE, GROUP, "group_id"),)),
    "DeleteGroups": Row(
        (Each("group_ids", _named(acls.DELETE, GROUP), "results", "group_id"),), changes=True
    ),
}

_LOG: Mapping[str, Row] = {
    "Produce": CHECKED_WITHIN,
    "ProduceStream": CHECKED_WITHIN,
    "Fetch": CHECKED_WITHIN,
    "FetchStream": CHECKED_WITHIN,
    "ListOffsets": Row(
        (Each("partitions", _named(acls.DESCRIBE, TOPIC, "topic"), "partitions", nodes=True),)
    ),
    "Metadata": Row(
        (
            Each("topics", _named(acls.DESCRIBE, TOPIC), "topics", "name"),
            Shown("topics", acls.DESCRIBE, TOPIC, "name"),
        )
    ),
    "InitProducerId": Row((Whole(_producer_id),)),
    "DeleteRecords": Row(
        (Each("partitions", _named(acls.DELETE, TOPIC, "topic"), "partitions"),), changes=True
    ),
    "PlanRead": Row((Whole(_topic(acls.READ, "topic")),)),
}

_TRANSACTIONS: Mapping[str, Row] = {
    "EndTxn": Row((_transactional(acls.WRITE),)),
    "PrepareTxn": Row((_transactional(acls.WRITE, acls.TWO_PHASE_COMMIT),)),
    "ListTransactions": Row(
        (Shown("transactions", acls.DESCRIBE, TRANSACTIONAL_ID, "transactional_id"),)
    ),
    "DescribeTransactions": Row(
        (
            Each(
                "transactional_ids",
                _named(acls.DESCRIBE, TRANSACTIONAL_ID),
                "transactions",
                "transactional_id",
            ),
            TransactionsShown(),
        )
    ),
    "DescribeProducers": Row((Each("topics", _named(acls.READ, TOPIC, "name"), "topics"),)),
}

_SERVICES: Mapping[str, Mapping[str, Row]] = {
    "tidemark.v1.Admin": _ADMIN,
    "tidemark.v1.Groups": _GROUPS,
    "tidemark.v1.Log": _LOG,
    "tidemark.v1.Transactions": _TRANSACTIONS,
    "tidemark.v1.Authentication": {"SaslAuthenticate": PUBLIC},
}

ROWS: Mapping[str, Row] = {
    f"/{service}/{name}": row for service, rows in _SERVICES.items() for name, row in rows.items()
}
"""By path of the method."""

NODE_SERVICES = frozenset(
    f"tidemark.v1.{name}" for name in ("Raft", "Controller", "Replication", "TransactionMarkers")
)
_PUBLIC_SERVICES = frozenset({"grpc.health.v1.Health"})
_FREE_SERVICES = frozenset({"grpc.reflection.v1alpha.ServerReflection"})


def row_of(path: str) -> Row | None:
    """The row of the method at `path`; None: it is in no table, and refused where ACLs count."""
    service = path[1:].partition("/")[0]
    if service in NODE_SERVICES:
        return NODE
    if service in _PUBLIC_SERVICES:
        return PUBLIC
    return FREE if service in _FREE_SERVICES else ROWS.get(path)
