"""The source in a real Spark session of two local cores, found by its name alone."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader

from tests.readme import block
from tests.spark.fake_log import FakeLog, FakePartition, records, serving
from tidemark.spark import register
from tidemark.spark.versions import limits
from tidemark.types import TopicPartition

pytestmark = pytest.mark.spark
pushes = hasattr(DataSourceReader, "pushFilters")  # since Spark 4.1


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
    return reader.options(**({"subscribe": "t"} | options)).load()


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


def test_some_columns_are_read_alone(spark: Any, fake: FakeLog) -> None:
    reader = spark.read.format("tidemark").option("bootstrap.servers", fake.bootstrap_servers)
    rows = reader.option("subscribe", "t").schema("offset bigint, value binary").load()
    assert rows.columns == ["offset", "value"]
    assert rows.where("string(value) = 'v7'").agg({"offset": "sum"}).collect()[0][0] == 14
    assert read(spark, fake, columns="partition").groupBy().count().collect()[0][0] == 350


def test_a_wrong_option_reaches_the_user_in_one_line(spark: Any, fake: FakeLog) -> None:
    with pytest.raises(Exception, match="did you mean 'failOnDataLoss'") as raised:
        read(spark, fake, failOnDataLos="true")
    assert "Traceback" not in str(raised.value)


def test_the_error_of_a_task_reaches_the_user_without_a_traceback(spark: Any) -> None:
    log = FakePartition()
    log.append(records(0, 10))
    with serving({TopicPartition("lost", 0): log}) as fake:
        rows = read(spark, fake, subscribe="lost")
        rows.rdd.getNumPartitions()  # plans
        fake.topic_id = uuid.UUID(int=5)
        with pytest.raises(Exception, match="DataLossError: lost-0: the topic was") as raised:
            rows.rdd.count()
        assert "Traceback" not in str(raised.value).partition("DataLossError")[0]


def test_a_registered_source_streams_every_row_once(
    spark: Any, fake: FakeLog, tmp_path: Path
) -> None:
    """Two runs with AvailableNow over one checkpoint, and rows that came between."""
    register(spark)
    log = FakePartition()
    log.append(records(0, 24))
    limit = {"maxOffsetsPerTrigger": "10"} if limits else {}
    with serving({TopicPartition("s", 0): log}) as server:

        def run() -> list[int]:
            rows = (
                spark.readStream.format("tidemark")
                .option("bootstrap.servers", server.bootstrap_servers)
                .options(subscribe="s", columns="offset", **limit)
                .load()
            )
            writing = rows.writeStream.format("parquet").option("path", str(tmp_path / "out"))
            writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writing.trigger(availableNow=True).start()
            query.awaitTermination()
            return [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]

        assert run() == ([10, 10, 4] if limits else [24])
        log.append(records(24, 5))
        assert run() == [5]
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row["offset"] for row in found) == list(range(29))


def test_the_blocks_of_the_readme_run_as_printed(spark: Any, tmp_path: Path) -> None:
    log = FakePartition()
    log.append(records(0, 5))
    with serving({TopicPartition("greetings", 0): log}) as server:
        names: dict[str, Any] = {"spark": spark, "bootstrap_servers": server.bootstrap_servers}
        past_brokers = "Spark: the tier, past the brokers"
        for section in (
            *("Spark: some columns", "Spark: a stream", "Spark: typed values"),
            "Spark: progress of streams",
            *(["Spark: push-down"] if pushes else []),
            past_brokers,
        ):
            text = block(section, "python").replace("plan.json", str(tmp_path / "plan.json"))
            if "directory:" in text and section != past_brokers:
                text += '    assert spark.read.parquet(f"{directory}/greetings").count() == 5\n'
            exec(compile(text, f"README.md: {section}", "exec"), names)


def test_the_sql_of_the_readme_runs_as_printed(spark: Any) -> None:
    log = FakePartition()
    log.append(records(0, 5))
    with serving({TopicPartition("greetings", 0): log}) as server:
        text = block("Spark: SQL", "sql").replace("127.0.0.1:9092", server.bootstrap_servers)
        create, select = (part for part in text.split(";") if part.strip())
        spark.sql(create)
        try:
            assert sorted(row[0] for row in spark.sql(select).collect()) == [
                f"v{n}" for n in range(5)
            ]
        finally:
            spark.sql("DROP TABLE greetings")


@pytest.mark.skipif(not pushes, reason="Spark 4.1 has push-down")
def test_filters_cut_the_plan_and_not_the_result(spark: Any, fake: FakeLog) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = read(spark, fake, pushDown="true")
        some = rows.where("topic = 't' and partition in (1, 2) and offset > 40 and offset <= 60")
        assert some.rdd.getNumPartitions() == 1
        assert [r["offset"] for r in some.orderBy("offset").collect()] == list(range(41, 61))
        late = rows.where("partition = 0 and timestamp >= '1970-01-01 00:00:01.090'")
        assert late.agg({"offset": "sum"}).collect()[0][0] == sum(range(90, 100))
        assert rows.where("partition = 7").count() == 0
        assert rows.where("string(value) = 'v7' and partition != 1").count() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_sql_reads_tables_and_temporary_views_of_the_format(spark: Any, fake: FakeLog) -> None:
    given = f"OPTIONS ('bootstrap.servers' '{fake.bootstrap_servers}', subscribe 't')"
    spark.sql(f"CREATE TEMPORARY VIEW events_view USING tidemark {given}")
    spark.sql(f"CREATE TABLE events_table USING tidemark {given}")
    try:
        for name in ("events_view", "events_table"):
            query = f"SELECT partition, count(*) FROM {name} GROUP BY partition ORDER BY partition"
            assert [tuple(row) for row in spark.sql(query).collect()] == [(0, 100), (1, 250)]
        ends = '{"t": {"0": 7, "1": 0, "2": 0}}'
        query = f"SELECT count(*) FROM events_table WITH (endingOffsets '{ends}')"
        assert spark.sql(query).first()[0] == 7
        with pytest.raises(Exception, match="did you mean 'subscribe'"):
            spark.sql("CREATE TABLE typo USING tidemark OPTIONS (subscirbe 't')")
    finally:
        spark.sql("DROP TABLE events_table")
        spark.sql("DROP VIEW events_view")
