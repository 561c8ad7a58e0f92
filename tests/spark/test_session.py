"""The source in a real Spark session of two local cores, found by its name alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.spark.fake_log import FakeLog, FakePartition, records, serving
from tidemark.types import TopicPartition

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session for the module: starting Python workers takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").appName("tests")
        for key, value in {
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
        }.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeLog]:
    """Topic t of three partitions with 100, 250 and no records."""
    logs = {TopicPartition("t", p): FakePartition() for p in range(3)}
    logs[TopicPartition("t", 0)].append(records(0, 100))
    for first in range(0, 250, 50):
        logs[TopicPartition("t", 1)].append(records(first, 50))
    with serving(logs) as server:
        yield server


def read(spark: Any, fake: FakeLog, **options: str) -> Any:
    reader = spark.read.format("tidemark").option("bootstrap.servers", fake.bootstrap_servers)
    return reader.option("subscribe", "t").options(**options).load()


def test_importing_the_registration_loads_neither_grpc_nor_arrow() -> None:
    code = (
        "import sys, pyspark_tidemark; "
        "print([m for m in ('grpc', 'pyarrow', 'numba', 'google.protobuf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_rows_of_all_partitions_arrive_once(spark: Any, fake: FakeLog) -> None:
    rows = read(spark, fake)
    counted = {r["partition"]: r["count"] for r in rows.groupBy("partition").count().collect()}
    assert counted == {0: 100, 1: 250}
    assert rows.select("partition", "offset").distinct().count() == 350


def test_columns_and_values_are_sparks(spark: Any, fake: FakeLog) -> None:
    rows = read(spark, fake, includeHeaders="true")
    assert rows.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    row = rows.where("partition = 1 and offset = 7").selectExpr(
        "string(key) k", "string(value) v", "topic", "string(timestamp) at", "headers[0].key h"
    )
    assert tuple(row.collect()[0]) == ("k7", "v7", "t", "1970-01-01 00:00:01.007", "n")


def test_slices_become_tasks(spark: Any, fake: FakeLog) -> None:
    rows = read(spark, fake, minPartitions="7")
    assert rows.rdd.getNumPartitions() >= 7
    assert rows.agg({"offset": "sum"}).collect()[0][0] == sum(range(100)) + sum(range(250))


def test_a_wrong_option_reaches_the_user(spark: Any, fake: FakeLog) -> None:
    with pytest.raises(Exception, match="did you mean 'failOnDataLoss'"):
        read(spark, fake, failOnDataLos="true")
