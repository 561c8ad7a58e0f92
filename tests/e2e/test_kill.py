"""SIGKILL and SIGSTOP on real processes: no acknowledged record is lost, none appears twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, Consumer, NewTopic, Producer
from tidemark.types import TopicPartition

PARTITIONS = 3
SETTINGS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, controllers=3, brokers=3, overrides=SETTINGS) as cluster:
        cluster.wait_ready(60)
        with Admin(cluster.bootstrap_servers) as admin:
            topic = NewTopic("events", PARTITIONS, 3, configs={"min.insync.replicas": "2"})
            admin.create_topics([topic])
        yield cluster


def events(begin: int, count: int) -> pa.RecordBatch:
    """Events whose value is their number, so that missing and duplicate ones can be named."""
    values = [b"%d" % number for number in range(begin, begin + count)]
    keys = [b"%d" % (number % 97) for number in range(begin, begin + count)]
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.binary()), pa.array(values, pa.binary())], names=["key", "value"]
    )


def read_all(cluster: LocalCluster, least: int) -> list[int]:
    """Reads at least that many events, and on to the ends of the partitions.

    The first end offsets may be old ones. A leader that wakes names those of its time until it
    learns of its successor, as in Kafka.
    """
    partitions = [TopicPartition("events", p) for p in range(PARTITIONS)]
    found: list[int] = []
    with Consumer(cluster.bootstrap_servers) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while len(found) < least or _is_before_the_end(consumer, partitions):
            polled = consumer.poll_arrow(timeout_ms=20_000)
            assert polled, f"nothing came for 20 s with {len(found)} read"
            for batch in polled.values():
                found += [int(value) for value in batch.column("value").to_pylist()]
    return found


def _is_before_the_end(consumer: Consumer, partitions: list[TopicPartition]) -> bool:
    ends = consumer.end_offsets(partitions)
    return any(consumer.position(tp) < ends[tp] for tp in partitions)


def test_acknowledged_events_survive_the_kill_of_controller_leader_and_follower(
    cluster: LocalCluster,
) -> None:
    rng = random.Random(7)
    with (
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers, acks="all", delivery_timeout_ms=120_000) as producer,
    ):
        futures = []
        for step in range(30):
            futures.append(producer.send_arrow("events", events(step * 500, 500)))
            if step in (8, 20):
                broker = rng.choice([4, 5, 6])
                controller = admin.describe_quorum().leader_id
                assert controller is not None
                cluster.kill(broker)
                cluster.kill(controller)
                for future in futures:
                    future.result()
                cluster.restart(broker)
                cluster.restart(controller)
                cluster.wait_ready(60)
        for future in futures:
            future.result()
    assert sorted(read_all(cluster, 15_000)) == list(range(15_000))


def test_acknowledged_events_survive_the_kill_of_every_process_at_once(
    cluster: LocalCluster,
) -> None:
    with Producer(cluster.bootstrap_servers, acks="all") as producer:
        for step in range(5):
            producer.send_arrow("events", events(step * 1000, 1000)).result()
    for node in (1, 2, 3, 4, 5, 6):
        cluster.kill(node)
    for node in (1, 2, 3, 4, 5, 6):
        cluster.restart(node)
    cluster.wait_ready(60)
    with Producer(cluster.bootstrap_servers, acks="all", delivery_timeout_ms=60_000) as producer:
        producer.send_arrow("events", events(5000, 1000)).result()
    assert sorted(read_all(cluster, 6_000)) == list(range(6_000))


def test_a_stopped_leader_that_wakes_again_acknowledges_nothing_that_is_lost(
    cluster: LocalCluster,
) -> None:
    with (
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers, acks="all", delivery_timeout_ms=120_000) as producer,
    ):
        producer.send_arrow("events", events(0, 1000)).result()
        zombie = admin.describe_topics(["events"])["events"].partitions[0].leader
        assert zombie is not None
        cluster.pause(zombie)
        pending = [producer.send_arrow("events", events(1000 + 500 * i, 500)) for i in range(8)]
        for future in pending:
            future.result()  # the others took over
        cluster.resume(zombie)
        cluster.wait_ready(60)
        producer.send_arrow("events", events(5000, 1000)).result()
    assert sorted(read_all(cluster, 6_000)) == list(range(6_000))
