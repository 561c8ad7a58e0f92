"""The client against real nodes: one controller and three brokers as processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, AsyncConsumer, Consumer, NewTopic, OffsetSpec, Producer
from tidemark.errors import (
    InvalidConfigError,
    InvalidReplicationFactorError,
    MessageTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from tidemark.quotas.entities import QuotaEntity, QuotaFilter
from tidemark.types import TopicPartition

SETTINGS = {
    "broker.session.timeout.ms": "2000",
    "replica.selector.class": "RackAwareReplicaSelector",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with LocalCluster(directory, controllers=1, brokers=3, overrides=SETTINGS) as cluster:
        cluster.wait_ready(60)
        yield cluster


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers) as admin:
        yield admin


def read(cluster: LocalCluster, topic: str, count: int) -> list[tuple[int, int, bytes | None]]:
    with Consumer(cluster.bootstrap_servers) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        consumer.seek_to_beginning()
        found: list[tuple[int, int, bytes | None]] = []
        while len(found) < count:
            polled = consumer.poll(20_000)
            assert len(polled), f"{len(found)} of {count}"
            found += [(r.partition, r.offset, r.value) for r in polled]
        return found


def test_topics_are_created_described_listed_and_deleted(admin: Admin) -> None:
    admin.create_topics([NewTopic("life", 2, 3, configs={"min.insync.replicas": "2"})])
    described = admin.describe_topics(["life"])["life"]
    assert [len(p.replicas) for p in described.partitions] == [3, 3]
    assert described.configs == {"min.insync.replicas": "2"}
    assert "life" in [topic.name for topic in admin.list_topics()]
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic("life", 1, 1)])
    with pytest.raises(InvalidReplicationFactorError):
        admin.create_topics([NewTopic("wide", 1, 9)])
    with pytest.raises(InvalidConfigError):
        admin.create_topics([NewTopic("odd", 1, 1, configs={"no.such.setting": "1"})])
    admin.delete_topics(["life"])
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.describe_topics(["life"])
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics(["life"])


def test_the_cluster_its_quorum_and_its_disks(cluster: LocalCluster, admin: Admin) -> None:
    described = admin.describe_cluster()
    assert described.cluster_id == cluster.cluster_id
    assert [(b.node_id, b.rack) for b in described.brokers] == [(2, "a"), (3, "b"), (4, "c")]
    quorum = admin.describe_quorum()
    assert quorum.leader_id == 1
    assert [r.replica_id for r in quorum.voters] == [1]
    assert sorted(admin.describe_log_dirs()) == [2, 3, 4]


def test_produce_straight_after_create_and_read_everything_back(
    cluster: LocalCluster, admin: Admin
) -> None:
    admin.create_topics([NewTopic("events", 3, 3)])
    with Producer(cluster.bootstrap_servers, compression_type="lz4") as producer:
        deliveries = [
            producer.send("events", b"%d" % n, key=b"%d" % (n % 7), timestamp_ms=1_000_000 + n)
            for n in range(3000)
        ]
        written = [delivery.result(30) for delivery in deliveries]
    rows = read(cluster, "events", 3000)
    assert sorted(rows) == sorted((w.partition, w.offset, b"%d" % n) for n, w in enumerate(written))
    with Consumer(cluster.bootstrap_servers) as consumer:
        partitions = consumer.partitions_for("events")
        assert sum(consumer.end_offsets(partitions).values()) == 3000
        found = consumer.offsets_for_times(dict.fromkeys(partitions, 1_001_500))
        for partition, answer in found.items():
            later = [w for w in written if w.partition == partition.partition]
            first = next(w for w in later if w.timestamp_ms >= 1_001_500)
            assert answer is not None
            assert (answer.offset, answer.timestamp_ms) == (first.offset, first.timestamp_ms)
    assert sum(found_at(admin, partitions, OffsetSpec.LATEST)) == 3000
    for spec in (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL):
        assert found_at(admin, partitions, spec) == [0, 0, 0]
    newest = [max(w.offset for w in written if w.partition == p.partition) for p in partitions]
    assert found_at(admin, partitions, OffsetSpec.MAX_TIMESTAMP) == newest
    for spec in (OffsetSpec.LATEST_TIERED, OffsetSpec.EARLIEST_PENDING_UPLOAD):
        assert set(admin.list_offsets(dict.fromkeys(partitions, spec)).values()) == {None}
    with pytest.raises(ValueError, match="-7 is no timestamp"):
        admin.list_offsets({partitions[0]: -7})


def found_at(admin: Admin, partitions: list[TopicPartition], asked: int) -> list[int | None]:
    answers = admin.list_offsets(dict.fromkeys(partitions, asked)).values()
    return [None if answer is None else answer.offset for answer in answers]


def test_a_consumer_in_another_rack_reads_from_the_follower_there(
    cluster: LocalCluster, admin: Admin
) -> None:
    """Also while the leader hangs; its successor leads two seconds later."""
    admin.create_topics([NewTopic("near", 1, 3)])
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(10):
            producer.send("near", b"%d" % number)
    (partition,) = admin.describe_topics(["near"])["near"].partitions
    follower = next(r for r in partition.replicas if r != partition.leader)
    rack = {b.node_id: b.rack for b in admin.describe_cluster().brokers}[follower]

    async def read() -> None:
        async with AsyncConsumer(cluster.bootstrap_servers, client_rack=rack or "") as consumer:
            near = TopicPartition("near", 0)
            consumer.assign([near])
            for hangs in (False, True):
                consumer.seek(near, 0)
                if hangs:
                    cluster.pause(partition.leader)
                records = await consumer.poll(20_000)
                assert [r.value for r in records] == [b"%d" % number for number in range(10)]
                preference = consumer._assignment.partitions[near].preference
                assert preference is not None
                assert preference.node == follower

    try:
        asyncio.run(read())
    finally:
        cluster.resume(partition.leader)


def test_quotas_throttle_a_named_client_and_tell_it_so(cluster: LocalCluster, admin: Admin) -> None:
    admin.create_topics([NewTopic("limited", 1, 1)])
    named = QuotaEntity("ANONYMOUS", "naïve etl")
    admin.alter_client_quotas({named: {"producer_byte_rate": 100, "consumer_byte_rate": 100}})
    deadline_s = time.monotonic() + 20
    while named not in admin.describe_client_quotas([QuotaFilter("client-id")]):
        assert time.monotonic() < deadline_s
    with (
        Producer(cluster.bootstrap_servers, client_id="naïve etl") as producer,
        Producer(cluster.bootstrap_servers) as other,
        Consumer(cluster.bootstrap_servers, client_id="naïve etl") as consumer,
    ):
        consumer.assign([TopicPartition("limited", 0)])
        consumer.seek_to_beginning()
        while not producer.metrics()["produce-throttle-time-max"]:
            assert time.monotonic() < deadline_s
            producer.send("limited", b"x" * 1_050).result(10)
        other.send("limited", b"y" * 3_000).result(10)
        assert len(consumer.poll(10_000))
        assert consumer.metrics()["fetch-throttle-time-max"] > 0
        assert other.metrics()["produce-throttle-time-max"] == 0
        admin.alter_client_quotas({named: {"producer_byte_rate": None, "consumer_byte_rate": None}})
    while admin.describe_client_quotas():
        assert time.monotonic() < deadline_s


def test_a_record_too_large_for_its_topic_is_refused(cluster: LocalCluster, admin: Admin) -> None:
    admin.create_topics([NewTopic("small", 1, 1, configs={"max.message.bytes": "500"})])
    with Producer(cluster.bootstrap_servers) as producer:
        fitting = [producer.send("small", b"x" * 100) for _ in range(50)]
        assert [d.result(20).offset for d in fitting] == list(range(50))
        with pytest.raises(MessageTooLargeError):
            producer.send("small", b"x" * 1000).result(20)


def test_a_leader_that_is_killed_and_restarted_costs_no_record(
    cluster: LocalCluster, admin: Admin
) -> None:
    admin.create_topics([NewTopic("kept", 1, 3, configs={"min.insync.replicas": "2"})])
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send("kept", b"0").result(20)
        leader = admin.describe_topics(["kept"])["kept"].partitions[0].leader
        assert leader is not None
        cluster.kill(leader)
        for number in range(1, 50):
            producer.send("kept", b"%d" % number)
        assert producer.send("kept", b"50").result(60).offset == 50
        cluster.restart(leader)
        cluster.wait_ready(60)
    rows = read(cluster, "kept", 51)
    assert rows == [(0, n, b"%d" % n) for n in range(51)]
    assert TopicPartition("kept", 0) in {
        replica.topic_partition
        for log_dir in admin.describe_log_dirs([leader])[leader]
        for replica in log_dir.replicas
    }
