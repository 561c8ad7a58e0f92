"""The sink in a real Spark session, with real brokers: batches, failures, a killed driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.readme import block
from tests.spark.sink.dying import dying, query
from tidemark.cli.local_cluster import LocalCluster
from tidemark.cli.main import app
from tidemark.client import Admin, Consumer, NewTopic, Producer
from tidemark.spark.sink.options import parse_sink_options
from tidemark.spark.sink.tasks import write_attempt
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


def test_an_insert_writes_to_the_topic_of_its_table(spark: Any, servers: str) -> None:
    if spark.version.startswith("4.0."):
        pytest.skip("Spark 4.0 wants data for each column, and forgets the table's metadata then")
    create(servers, "inserted", "other")
    given = f"OPTIONS ('bootstrap.servers' '{servers}', subscribe 'inserted')"
    spark.sql(f"CREATE TABLE inserted USING tidemark {given}")
    try:
        value = "CAST(CAST(id AS STRING) AS BINARY)"
        for batch in (0, 1, 1):  # the last is the one before, again
            spark.sql(
                f"INSERT INTO inserted WITH (sinkId 'insert', batchId '{batch}') (key, value)"
                f" SELECT {value}, {value} FROM range({10 * batch}, {10 * batch + 10})"
            )
        committed = "WITH ('isolation.level' 'read_committed')"
        query = f"SELECT string(key) k, string(value) v FROM inserted {committed}"
        found = spark.sql(query).collect()
        assert sorted(int(row.k) for row in found) == list(range(20))
        assert all(row.k == row.v for row in found)
        to = {"bootstrap.servers": servers, "topic": "other"}
        rows = spark.sql(f"SELECT value FROM inserted {committed}")
        rows.write.format("tidemark").options(**to).mode("append").save()
        assert (len(records(servers, "inserted")), len(records(servers, "other"))) == (20, 20)
        with pytest.raises(Exception, match="a topic is not overwritten"):
            spark.sql("INSERT OVERWRITE inserted (value) VALUES (CAST('a' AS BINARY))")
    finally:
        spark.sql("DROP TABLE inserted")


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


def test_a_topic_that_does_not_exist_is_told_before_tasks_run(spark: Any, servers: str) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) as value")
    with pytest.raises(Exception, match="topic 'nope' is unknown"):
        write(rows, servers, topic="nope")
    with pytest.raises(Exception, match="written by coordinators alone"):
        write(rows, servers, topic="__consumer_offsets")


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
        write(frame, servers, topic="failed", **{"transaction.timeout.ms": "8000"})
    until_s = time.monotonic() + 60
    while open_ids(servers) and time.monotonic() < until_s:
        time.sleep(0.2)  # a task that was killed may have begun behind the abort
    assert records(servers, "failed") == []


def fill(servers: str) -> None:
    with Admin(servers) as admin:
        known = {listed.name for listed in admin.list_topics()}
        if old := known & {"from", "to"}:
            admin.delete_topics(sorted(old))
    create(servers, "from", "to")
    with Producer(servers) as producer:
        for number in range(500):
            producer.send("from", b"%d" % number, b"k%d" % (number % 50))


def check_the_next_driver(spark: Any, servers: str, checkpoint: str) -> None:
    """It drops the replay of the batch, which is partitioned in another way."""
    assert records(servers, "to") == [] and open_ids(servers)
    query(spark, servers, checkpoint, "tidemark", 2).awaitTermination()
    found = records(servers, "to")
    assert sorted(int(record.value) for record in found) == list(range(500))
    assert not open_ids(servers)


def test_a_driver_that_dies_behind_its_decision_writes_each_row_once(
    spark: Any, servers: str, tmp_path: Path
) -> None:
    """Its process that commits, and the one that aborts."""
    fill(servers)
    spark.dataSource.register(dying(None))
    with pytest.raises(Exception, match=r"(?i)exit|crash|EOF|terminated"):
        query(spark, servers, str(tmp_path), "dying", 3).awaitTermination()
    check_the_next_driver(spark, servers, str(tmp_path))


@pytest.mark.soak
def test_a_driver_killed_behind_its_decision_writes_each_row_once(
    spark: Any, servers: str, tmp_path: Path
) -> None:
    """All of it, by SIGKILL."""
    fill(servers)
    said, checkpoint = tmp_path / "said", str(tmp_path / "checkpoint")
    with said.open("w") as output:  # no pipe: a worker may outlive the driver for a moment
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.sink.dying", servers, checkpoint],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            timeout=250,
        )
    assert done.returncode == -signal.SIGKILL, said.read_text()[-2_000:]
    check_the_next_driver(spark, servers, checkpoint)


def test_the_block_of_the_readme_runs_as_printed(spark: Any, servers: str) -> None:
    create(servers, "squares")
    names = {"spark": spark, "bootstrap_servers": servers}
    exec(compile(block("Spark: a sink", "python"), "README.md: Spark: a sink", "exec"), names)
    assert sum(int(record.value) for record in records(servers, "squares")) == 328_350


def test_what_a_job_left_open_is_ended_by_a_command(servers: str) -> None:
    create(servers, "left")
    options = parse_sink_options({"bootstrap.servers": servers, "topic": "left"}, is_stream=True)
    rows = pa.record_batch({"value": ["x"]})
    attempt, _ = write_attempt(options, ["tidemark-sink-left/0/0"], [rows])
    assert attempt is not None
    with Admin(servers) as admin:
        admin.transactions.prepare(*attempt)
    command = ["transactions", "recover-sink", "--sink-id", "left", "--bootstrap-server", servers]
    for aborted in (1, 0):
        done = CliRunner().invoke(app, [*command, "--json"])
        assert json.loads(done.stdout) == {
            "sink_id": "left",
            "last_batch": None,
            "aborted": aborted,
            "lost": [],
        }
    assert not open_ids(servers) and records(servers, "left") == []
