"""Answers that every node gives from its image."""

from __future__ import annotations

from uuid import UUID

from quorum.replica.client import QuorumInfo, ReplicaInfo
from quorum.replica.service import describe_to_proto
from quorum.services import admin_answers
from tests.quorum.controller.scenario import Scenario
from tidemark.types import Endpoint
from tidemark.v1 import admin_pb2


def cluster() -> Scenario:
    s = Scenario()
    s.start_brokers(1, 2, 3, racks="abc")
    s.create("flights", (1, 2, 3), (2, 3, 1), retention_ms="-1")
    s.create("__remote_log_metadata", (3,))
    s.keep_alive(18_000, 1, 2)
    return s


def test_topics_are_listed_by_name_and_internal_ones_on_demand() -> None:
    image = cluster().image
    listed = admin_answers.list_topics(image, admin_pb2.ListTopicsRequest())
    assert [(t.name, t.num_partitions, t.replication_factor) for t in listed.topics] == [
        ("flights", 2, 3)
    ]
    everything = admin_pb2.ListTopicsRequest(include_internal=True)
    names = [t.name for t in admin_answers.list_topics(image, everything).topics]
    assert names == ["__remote_log_metadata", "flights"]


def test_a_description_tells_leaders_isr_and_who_is_offline() -> None:
    image = cluster().image
    request = admin_pb2.DescribeTopicsRequest(topic_names=["flights", "nothing"])
    flights, nothing = admin_answers.describe_topics(image, request).topics
    assert nothing.error_code == 3
    assert dict(flights.configs) == {"retention.ms": "-1"}
    [first, second] = flights.partitions
    assert (first.leader_id, list(first.isr), list(first.offline_replicas)) == (1, [1, 2], [3])
    assert (second.partition_index, second.leader_id) == (1, 2)
    lost = admin_pb2.DescribeTopicsRequest(topic_names=["__remote_log_metadata"])
    [topic] = admin_answers.describe_topics(image, lost).topics
    assert (topic.partitions[0].leader_id, list(topic.partitions[0].isr)) == (-1, [3])


def test_a_replica_whose_log_directory_is_gone_is_offline() -> None:
    s = Scenario()
    old, new = UUID(int=1, version=4), UUID(int=2, version=4)
    s.register(1, log_dirs=(old,))
    s.heartbeat(1)
    s.create("flights", (1,))
    s.advance(18_000)
    s.register(1, incarnation=2, log_dirs=(new,))
    s.heartbeat(1)
    request = admin_pb2.DescribeTopicsRequest(topic_names=["flights"])
    (partition,) = admin_answers.describe_topics(s.image, request).topics[0].partitions
    assert (partition.leader_id, list(partition.offline_replicas)) == (-1, [1])


def test_the_cluster_is_described_as_a_listener_reaches_it() -> None:
    image = cluster().image
    answer = admin_answers.describe_cluster(
        image, cluster_id="c", controller_id=None, listener="PLAINTEXT"
    )
    assert (answer.cluster_id, answer.controller_id) == ("c", -1)
    nodes = [(b.node_id, b.port, b.rack, b.fenced) for b in answer.brokers]
    assert nodes == [(1, 9_001, "a", False), (2, 9_002, "b", False), (3, 9_003, "c", True)]
    other = admin_answers.describe_cluster(image, cluster_id="c", controller_id=7, listener="NONE")
    assert other.brokers[0].port == 9_001, "without that listener, its first"


def test_what_is_unknown_of_the_quorum_is_told_as_minus_one() -> None:
    directory = UUID(int=5, version=4)
    info = QuorumInfo(
        leader_id=None,
        leader_epoch=3,
        high_watermark=None,
        voters=(ReplicaInfo(1, directory, 10, 20, 30), ReplicaInfo(2, None, None, None, None)),
        observers=(),
        endpoints={1: Endpoint("h", 9)},
    )
    answer = describe_to_proto(info)
    assert (answer.leader_id, answer.leader_epoch, answer.high_watermark) == (-1, 3, -1)
    first, second = answer.current_voters
    assert (first.replica_directory_id, first.log_end_offset) == (directory.bytes, 10)
    assert (second.replica_directory_id, second.last_fetch_timestamp_ms) == (b"", -1)
    assert (answer.nodes[0].node_id, answer.nodes[0].port) == (1, 9)
