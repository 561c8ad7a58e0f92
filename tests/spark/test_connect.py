"""Spark Connect, and a declarative pipeline over it: the server is the session of the room."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.spark.fake_log import FakeLog, FakePartition, records, serving
from tidemark.types import TopicPartition

pytest.importorskip("grpc_status", reason="pip install 'pyspark[connect]'")
pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
CLIENT = """
import json, sys
from pyspark.sql import SparkSession
from tidemark.spark import register, typed

remote, servers = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
register(spark)
options = {"bootstrap.servers": servers, "subscribe": "flights"}
rows = typed(spark.read.format("tidemark").options(**options).load(), "json", "carrier string")
found = rows.groupBy("value.carrier").count().orderBy("carrier").collect()
print(json.dumps([type(spark).__module__, [list(row) for row in found]]))
"""


def flights(first: int, count: int) -> list[Any]:
    """Of carriers AA and UA in turn; every tenth record is no flight."""
    return [
        replace(
            each,
            value=b"?"
            if each.offset % 10 == 9
            else json.dumps(
                {"carrier": ("AA", "UA")[each.offset % 2], "dep_delay": each.offset}
            ).encode(),
        )
        for each in records(first, count)
    ]


@pytest.fixture
def fake() -> Iterator[FakeLog]:
    log = FakePartition()
    log.append(flights(0, 30))
    with serving({TopicPartition("flights", 0): log}) as server:
        yield server


@pytest.fixture
def remote(spark: Any) -> str:
    return f"sc://127.0.0.1:{spark.conf.get('spark.connect.grpc.binding.port')}"


def python(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_client_of_spark_connect_reads_typed_rows(remote: str, fake: FakeLog) -> None:
    kind, found = json.loads(python("-c", CLIENT, remote, fake.bootstrap_servers))
    assert kind == "pyspark.sql.connect.session"
    assert found == [[None, 3], ["AA", 15], ["UA", 12]]


def test_the_example_of_a_pipeline_reads_each_record_once_over_two_runs(
    spark: Any, remote: str, fake: FakeLog, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark.pipelines", reason="pipelines came with Spark 4.1")
    shutil.copytree(ROOT / "examples" / "pipeline", tmp_path, dirs_exist_ok=True)
    spec = tmp_path / "spark-pipeline.yml"
    text = spec.read_text(encoding="utf-8")
    assert "file:///tmp/tidemark-pipeline" in text and "127.0.0.1:9092" in text
    text = text.replace("file:///tmp/tidemark-pipeline", f"file://{tmp_path}/storage")
    spec.write_text(text.replace("127.0.0.1:9092", fake.bootstrap_servers), encoding="utf-8")

    def run() -> tuple[list[tuple[Any, ...]], list[int]]:
        python("-m", "pyspark.pipelines.cli", "run", "--spec", str(spec), SPARK_REMOTE=remote)
        for table in ("delays", "flights"):  # another session of Spark wrote them
            spark.catalog.refreshTable(table)
        delays = spark.sql("SELECT carrier, n, mean FROM delays ORDER BY carrier").collect()
        offsets = spark.sql("SELECT offset FROM flights ORDER BY offset").collect()
        return [tuple(row) for row in delays], [row[0] for row in offsets]

    assert run() == ([("AA", 15, 14.0), ("UA", 12, 14.0)], list(range(30)))
    fake.partitions[TopicPartition("flights", 0)].append(flights(30, 10))
    assert run() == ([("AA", 20, 19.0), ("UA", 16, 19.0)], list(range(40)))
