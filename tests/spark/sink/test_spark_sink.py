"""The sink in a real Spark session, with real brokers: batches, failures, a killed driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, Consumer, NewTopic, Producer
from tidemark.types import TopicPartition

pytestmark = pytest.mark.spark

SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("sink")
    with LocalCluster(directory, controllers=1, brokers=1, overrides=SETTINGS) as cluster:
        cluster.wait_ready(60)
        yield cluster.bootstrap_servers


def create(servers: str, *names: str) -> None:
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name, 2, 1) for name in names])


def records(servers: str, topic: str) -> list[Any]:
    """All that readers with read_committed get."""
    partitions = [TopicPartition(topic, number) for number in range(2)]
    with Consumer(
        servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as reader:
        reader.assign(partitions)
        ends = reader.end_offsets(partitions)
        found: list[Any] = []
        while any(reader.position(tp) < end for tp, end in ends.items()):
            found += list(reader.poll(500))
        return found


def open_ids(servers: str) -> list[str]:
    with Admin(servers) as admin:
        return [each.transactional_id for each in admin.transactions.list(states=["Ongoing"])]


def write(frame: Any, servers: str, **options: str) -> None:
    options = {"bootstrap.servers": servers} | options
    frame.write.format("tidemark").options(**options).mode("append").save()


def test_all_columns_of_a_batch_arrive_once(spark: Any, servers: str) -> None:
    create(servers, "a", "b")
    rows = spark.range(1_000, numPartitions=3).selectExpr(
        "if(id % 4 = 0, 'a', 'b') as topic",
        "if(id % 3 = 0, null, concat('k', id)) as key",
        "cast(cast(id as string) as binary) as value",
        "if(id % 5 = 0, cast(id % 2 as int), null) as partition",
        "timestamp_millis(1000 + id) as timestamp",
        "array(struct('h' as key, cast('x' as binary) as value)) as headers",
    )
    write(rows, servers, **{"linger.ms": "0", "kafka.compression.type": "lz4"})
    found = {name: records(servers, name) for name in ("a", "b")}
    for name, wanted in (("a", range(0, 1_000, 4)), ("b", [n for n in range(1_000) if n % 4])):
        numbers = sorted(int(record.value) for record in found[name])
        assert numbers == list(wanted)
    for record in found["a"] + found["b"]:
        number = int(record.value)
        assert record.key == (None if number % 3 == 0 else b"k%d" % number)
        assert record.timestamp_ms == 1000 + number
        assert list(record.headers) == [("h", b"x")]
        assert number % 5 or record.partition == number % 2
    assert not open_ids(servers)


def test_a_batch_job_that_is_repeated_writes_once(spark: Any, servers: str) -> None:
    create(servers, "again")
    job = {"topic": "again", "sinkId": "job"}
    for parts in (2, 3):
        frame = spark.range(100, numPartitions=parts).selectExpr("cast(id as string) as value")
        write(frame, servers, batchId="7", **job)
    frame = spark.range(100, 150, numPartitions=1).selectExpr("cast(id as string) as value")
    write(frame, servers, batchId="8", **job)
    assert sorted(int(record.value) for record in records(servers, "again")) == list(range(150))
    with pytest.raises(Exception, match="batches of one sinkId grow"):
        write(frame, servers, batchId="7", **job)
    assert not open_ids(servers)


def test_a_job_whose_task_fails_leaves_nothing(spark: Any, servers: str) -> None:
    create(servers, "failed")
    frame = spark.range(1_000, numPartitions=2).selectExpr(
        "if(id = 900, raise_error('a bad row'), cast(id as string)) as value"
    )
    with pytest.raises(Exception, match="a bad row"):
        write(frame, servers, topic="failed")
    assert not open_ids(servers)
    assert records(servers, "failed") == []


DRIVER = """
import os, signal, sys
from pyspark.sql import SparkSession
from tidemark.spark.source import TidemarkDataSource

servers, checkpoint, group = sys.argv[1], sys.argv[2], os.getpgrp()

class Dying(TidemarkDataSource):
    # The process of the driver that commits ends all others, and itself, behind the decision.
    @classmethod
    def name(cls):
        return "dying"

    def streamWriter(self, schema, overwrite):
        from tidemark.spark.sink import core

        def die(*_):
            os.killpg(group, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

        core._commit_all = die
        return TidemarkDataSource.streamWriter(self, schema, overwrite)

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(Dying)
rows = spark.readStream.format("tidemark").option("bootstrap.servers", servers)
rows = rows.option("subscribe", "from").option("maxOffsetsPerTrigger", "200").load()
rows = rows.select("key", "value").repartition(3)
query = rows.writeStream.format("dying").option("bootstrap.servers", servers)
query = query.option("topic", "to").option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
"""


def test_a_driver_killed_behind_its_decision_writes_each_row_once(
    spark: Any, servers: str, tmp_path: Path
) -> None:
    """The next one drops the replay of the batch, which is partitioned in another way."""
    create(servers, "from", "to")
    with Producer(servers) as producer:
        for number in range(500):
            producer.send("from", b"%d" % number, b"k%d" % (number % 50))
    checkpoint = str(tmp_path / "checkpoint")
    said = tmp_path / "said"
    with said.open("w") as output:  # no pipe: a worker may outlive the driver for a moment
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, servers, checkpoint],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            timeout=400,
        )
    assert done.returncode == -signal.SIGKILL, said.read_text()[-2_000:]
    assert records(servers, "to") == [] and open_ids(servers)
    rows = spark.readStream.format("tidemark").option("bootstrap.servers", servers)
    rows = rows.option("subscribe", "from").option("maxOffsetsPerTrigger", "200").load()
    rows = rows.select("key", "value").repartition(2)
    query = rows.writeStream.format("tidemark").option("bootstrap.servers", servers)
    query = query.option("topic", "to").option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    found = records(servers, "to")
    assert sorted(int(record.value) for record in found) == list(range(500))
    assert not open_ids(servers)
