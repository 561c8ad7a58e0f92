"""A broker whose only disk was replaced, on real processes: nothing acknowledged is lost to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from node.runtime.storage import format_storage
from tidemark.cli.leaderless import in_service, way_back
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, Consumer, NewTopic, Producer
from tidemark.client.models import PartitionDescription
from tidemark.config import load_server_config
from tidemark.types import TopicPartition

TOPIC = "events"
SETTINGS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
ELR = "eligible.leader.replicas.version"


def partition(admin: Admin) -> PartitionDescription:
    (found,) = admin.describe_topics([TOPIC])[TOPIC].partitions
    return found


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def produce(cluster: LocalCluster, begin: int, count: int) -> None:
    """Returns when all are acknowledged by the whole ISR."""
    with Producer(cluster.bootstrap_servers, acks="all") as producer:
        sent = [producer.send(TOPIC, b"%d" % n) for n in range(begin, begin + count)]
        for delivery in sent:
            delivery.result(60)


def consume(cluster: LocalCluster) -> list[int]:
    tp = TopicPartition(TOPIC, 0)
    found: list[int] = []
    with Consumer(cluster.bootstrap_servers) as consumer:
        consumer.assign([tp])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([tp])[tp]
        while consumer.position(tp) < end:
            for batch in consumer.poll_arrow(timeout_ms=20_000).values():
                found += [int(value) for value in batch.column("value").to_pylist()]
    return found


@pytest.mark.parametrize("elr", [0, 1])
def test_an_empty_disk_leads_nothing_and_the_right_one_brings_all_records_back(
    tmp_path: Path, elr: int
) -> None:
    with LocalCluster(tmp_path, controllers=1, brokers=3, overrides=SETTINGS) as cluster:
        cluster.wait_ready(60)
        last, *others = cluster.broker_ids
        with Admin(cluster.bootstrap_servers) as admin:
            if admin.describe_features()[ELR].level != elr:
                admin.update_features({ELR: elr}, downgrade=None if elr else "UNSAFE")
            configs = {"min.insync.replicas": "1"}
            admin.create_topics([NewTopic(TOPIC, 1, 3, configs=configs)])
            produce(cluster, 0, 50)
            for broker in others:
                cluster.kill(broker)
            until(lambda: partition(admin).isr == (last,), "the others stay in sync")
            produce(cluster, 50, 100)
            cluster.kill(last)

            disk = cluster.node(last).data_directory
            kept = disk.rename(disk.with_name("kept"))
            config = load_server_config(cluster.node(last).properties_file, {})
            format_storage(config, cluster.cluster_id)
            for broker in (last, *others):
                cluster.restart(broker)
            cluster.wait_ready(60)
            offline = partition(admin)
            assert offline.leader is None
            told = way_back(offline, in_service(admin.describe_cluster()))
            assert told.startswith(f"give broker {last} the log directory")
            output = cluster.node(last).output_file
            assert "which this node does not have any more. Give the" in output.read_text("utf-8")

            cluster.kill(last)
            disk.rename(disk.with_name("empty"))
            kept.rename(disk)
            cluster.restart(last)
            cluster.wait_ready(60)
            until(lambda: partition(admin).leader == last, "nobody leads")
            assert consume(cluster) == list(range(150))
            until(lambda: len(partition(admin).isr) == 3, "the others do not catch up")
            produce(cluster, 150, 10)
            assert consume(cluster) == list(range(160))
