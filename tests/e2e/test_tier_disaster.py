"""All disks of all brokers are lost, those of the controllers are not: topics come back from the
tier. The remote log metadata was on the brokers' disks, too.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from typer.testing import CliRunner

from node.runtime.storage import format_storage
from tests.node.cluster import batch
from tidemark.cli.local_cluster import LocalCluster
from tidemark.cli.main import app
from tidemark.client import Admin, Consumer, NewTopic
from tidemark.config import load_server_config
from tidemark.errors import ErrorCode, TidemarkError
from tidemark.types import OffsetSpec, TopicPartition
from tidemark.v1 import log_pb2, log_pb2_grpc

SHARED, ALONE = TopicPartition("shared", 0), TopicPartition("alone", 0)
METADATA = TopicPartition("__remote_log_metadata", 0)
SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "directory",
    "remote.log.metadata.topic.num.partitions": "1",
    "remote.log.manager.task.interval.ms": "200",
    "remote.log.manager.task.retry.backoff.max.ms": "1000",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
}
CONFIGS = {
    "segment.bytes": "16384",
    "retention.ms": "-1",
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
}
PRODUCER, PER_BATCH, BATCHES = 77, 25, 12
runner = CliRunner()


def until(condition: Callable[[], bool], what: str, timeout_s: float = 45) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def leader_of(admin: Admin, partition: TopicPartition) -> int | None:
    return admin.describe_topics([partition.topic])[partition.topic].partitions[0].leader


class Writer:
    """One producer, whose sequence numbers are its offsets, and its leader's address."""

    def __init__(self, cluster: LocalCluster, admin: Admin, partition: TopicPartition) -> None:
        found = leader_of(admin, partition)
        assert found is not None
        self._address = cluster.node(found).address
        self._partition = partition
        self.told = ""

    def send(self, *sequences: int) -> list[tuple[int, int]]:
        """Sends a batch for each first sequence; returns error codes and base offsets."""
        found = []
        with grpc.insecure_channel(self._address) as channel:
            produce = log_pb2_grpc.LogStub(channel).Produce
            for first in sequences:
                values = [f"{first + number:0100d}" for number in range(PER_BATCH)]
                raw = batch(*values, producer_id=PRODUCER, producer_epoch=0, base_sequence=first)
                request = log_pb2.ProduceRequest(acks=-1, timeout_ms=20_000)
                request.partition_data.add(
                    topic=self._partition.topic, index=self._partition.partition, records=raw
                )
                answer = produce(request, timeout=30).responses[0]
                self.told = answer.error_message
                found.append((int(answer.error_code), answer.base_offset))
        return found


def offset(admin: Admin, partition: TopicPartition, spec: OffsetSpec) -> int:
    try:
        return int(admin.list_offsets({partition: spec}, timeout_ms=1000)[partition].offset)
    except TidemarkError:
        return -1  # it is being restored


def refusal(cluster: LocalCluster, admin: Admin) -> str:
    """Returns what the leader tells a producer."""
    if leader_of(admin, SHARED) is None:  # this broker has not heard of the election yet
        return ""
    writer = Writer(cluster, admin, SHARED)
    assert writer.send(0)[0][0] != ErrorCode.NONE
    return writer.told


def tiered_end(admin: Admin, partition: TopicPartition) -> int:
    """Returns the end of the tier, when all but the active segment is in it."""
    local = -1

    def copied() -> bool:
        nonlocal local
        local = offset(admin, partition, OffsetSpec.EARLIEST_LOCAL)
        return local > PER_BATCH * BATCHES // 2

    until(copied, f"{partition} is not copied")
    return local


def values(cluster: LocalCluster, partition: TopicPartition, end: int) -> list[int]:
    found: list[int] = []
    with Consumer(cluster.bootstrap_servers) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        deadline = time.monotonic() + 45
        while len(found) < end and time.monotonic() < deadline:
            for table in consumer.poll_arrow(timeout_ms=5000).values():
                found += [int(value) for value in table.column("value").to_pylist()]
    return found


def call(cluster: LocalCluster, *arguments: str) -> str:
    where = ["--bootstrap-server", cluster.bootstrap_servers]
    result = runner.invoke(app, [*arguments, *where])
    assert result.exit_code == 0, (arguments, result.output, result.exception)
    return result.output


def lose_all_disks(cluster: LocalCluster) -> None:
    for broker in cluster.broker_ids:
        cluster.kill(broker)
    for broker in cluster.broker_ids:
        node = cluster.node(broker)
        shutil.rmtree(node.data_directory)
        node.data_directory.mkdir()
        format_storage(load_server_config(node.properties_file, {}), cluster.cluster_id)
        cluster.restart(broker)
    cluster.wait_ready()


@contextmanager
def filled(path: Path) -> Iterator[tuple[LocalCluster, Admin, dict[TopicPartition, int]]]:
    """A cluster with two topics in the tier, and the end of each there."""
    settings = SETTINGS | {"rsm.config.dir": str(path / "tier")}
    with LocalCluster(path / "data", controllers=1, brokers=3, overrides=settings) as cluster:
        cluster.wait_ready()
        with Admin(cluster.bootstrap_servers) as admin:
            three, one = NewTopic(SHARED.topic, 1, 3, CONFIGS), NewTopic(ALONE.topic, 1, 1, CONFIGS)
            admin.create_topics([three, one])
            for partition in (SHARED, ALONE):
                sent = Writer(cluster, admin, partition).send(
                    *range(0, PER_BATCH * BATCHES, PER_BATCH)
                )
                assert [code for code, _ in sent] == [0] * BATCHES
            yield cluster, admin, {p: tiered_end(admin, p) for p in (SHARED, ALONE)}


def test_tiered_topics_survive_the_loss_of_all_brokers_disks(tmp_path: Path) -> None:
    with filled(tmp_path) as (cluster, admin, ends):
        lose_all_disks(cluster)
        health = runner.invoke(
            app, ["cluster", "health", "--bootstrap-server", cluster.bootstrap_servers]
        )
        assert "elect-leaders --election-type unclean" in health.output
        named = [str(partition) for partition in (METADATA, SHARED, ALONE)]
        call(cluster, "elect-leaders", "--election-type", "unclean", *named)
        until(lambda: "tidemark tier rebuild" in refusal(cluster, admin), "nobody tells the way")
        config = str(cluster.node(cluster.broker_ids[0]).properties_file)
        report = json.loads(call(cluster, "tier", "rebuild", "-c", config, "--json"))
        assert {topic["state"] for topic in report["topics"]} == {"rebuilt"}
        for partition, end in ends.items():
            assert offset(admin, partition, OffsetSpec.EARLIEST) == 0
            assert offset(admin, partition, OffsetSpec.LATEST) == end
            assert values(cluster, partition, end) == list(range(end))
            again, old, gap, following = Writer(cluster, admin, partition).send(
                end - PER_BATCH, 0, end + 1, end
            )
            assert again == (0, end - PER_BATCH)
            assert old[0] == gap[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert following == (0, end)
            found = values(cluster, partition, end + PER_BATCH)
            assert found == list(range(end + PER_BATCH))
        until(
            lambda: len(admin.describe_topics([SHARED.topic])[SHARED.topic].partitions[0].isr) == 3,
            "the others do not catch up",
        )
