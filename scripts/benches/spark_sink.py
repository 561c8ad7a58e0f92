"""Writing with the Spark sink, in rows per second of CPU of the task.

The ceiling of a task is a plain producer that sends the same batches, without a transaction and
without gathering them. That of a job is the same frame into a data source that drops its rows. It
runs in the same session, so the ratio is the cost of producing. Medians of rounds with all ways in
each.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, NewTopic, Producer
from tidemark.spark.sink.options import parse_sink_options
from tidemark.spark.sink.tasks import write_attempt

PARTITIONS = 4
BATCH_ROWS = 10_000  # as Spark gives them
ROUNDS = 3
CASES = ((100, 2_000_000), (1_000, 300_000))  # bytes of a value, rows
JOB_ROWS = 2_000_000


def _cpu_rate(rows: int, work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return rows / (time.process_time() - begin)


def _plain(servers: str, batch: pa.RecordBatch, count: int) -> None:
    with Producer(servers) as producer:
        for _ in range(count):
            producer.send_arrow("t", batch)
        producer.flush()


def _attempt(servers: str, transactional_id: str, batch: pa.RecordBatch, count: int) -> None:
    options = parse_sink_options({"bootstrap.servers": servers, "topic": "t"}, is_stream=True)
    attempt, rows = write_attempt(options, [transactional_id], [batch] * count)
    assert attempt is not None and rows == count * batch.num_rows
    with Admin(servers) as admin:
        admin.transactions.end(*attempt, committed=True)


def _task_rows(servers: str) -> Iterator[dict[str, Any]]:
    for value_bytes, rows in CASES:
        values = pa.array([os.urandom(value_bytes) for _ in range(BATCH_ROWS)], pa.binary())
        batch = pa.RecordBatch.from_arrays([values], names=["value"])
        count = rows // BATCH_ROWS
        found: list[tuple[float, float]] = []
        for number in range(ROUNDS + 1):
            own_id = f"bench/{value_bytes}/{number}"
            rate = _cpu_rate(rows, lambda: _attempt(servers, own_id, batch, count))  # noqa: B023
            found.append((rate, _cpu_rate(rows, lambda: _plain(servers, batch, count))))  # noqa: B023
        rate, ceiling = (statistics.median(each) for each in zip(*found[1:], strict=True))
        yield _row(f"spark sink, task, {value_bytes} B", rate, "rows/s of CPU", ceiling)


def _dropping_source() -> type[Any]:
    """A data source that takes rows and drops them. A local class, so that it pickles whole."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class DroppingWriter(DataSourceArrowWriter):  # type: ignore[misc]
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class DroppingSource(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "dropping"

        def writer(self, schema: Any, overwrite: bool) -> DroppingWriter:
            return DroppingWriter()

    return DroppingSource


def _job_row(servers: str) -> dict[str, Any]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        session.dataSource.register(_dropping_source())
        frame = session.range(JOB_ROWS, numPartitions=4)
        frame = frame.selectExpr("CAST(repeat('v', 100) AS BINARY) AS value")
        rates: dict[str, list[float]] = {"tidemark": [], "dropping": []}
        for _ in range(ROUNDS + 1):
            for name, kept in rates.items():
                writer = frame.write.format(name).option("bootstrap.servers", servers)
                begin = time.perf_counter()
                writer.option("topic", "t").mode("append").save()
                kept.append(JOB_ROWS / (time.perf_counter() - begin))
    finally:
        session.stop()
    rate, ceiling = (statistics.median(kept[1:]) for kept in rates.values())
    return _row("spark sink, job of local[2], 100 B", rate, "rows/s", ceiling)


def _row(name: str, rate: float, unit: str, ceiling: float) -> dict[str, Any]:
    return {"name": name, "value": rate, "unit": unit, "ceiling": ceiling, "ratio": rate / ceiling}


def run() -> list[dict[str, Any]]:
    """A row per size of value for tasks, and one for a whole job."""
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory), controllers=1, brokers=1) as cluster,
    ):
        cluster.wait_ready(60)
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topics([NewTopic("t", PARTITIONS, 1)])
        return [*_task_rows(servers), _job_row(servers)]
