"""Reading a topic with Spark (local[2]), in rows per second.

The ceiling is Spark reading the same Arrow batches from the memory of its Python workers. It runs
in the same run, through a data source that does nothing else. The way into the JVM is the same, so
the ratio is the cost of the log, gRPC and decoding. The best of a few reads counts, after a first
one that starts the workers and loads the kernels.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, NewTopic, Producer
from tidemark.spark.offsets import OffsetRange
from tidemark.spark.options import parse_options
from tidemark.spark.slices import read_slice
from tidemark.spark.source import source_schema

PARTITIONS = 4
CHUNK_BYTES = 1 << 20
READS = 2
CASES = ((100, 8_000_000), (1_000, 1_000_000))  # bytes of a value, rows


def _session() -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("bench")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _fill(servers: str, topic: str, value_bytes: int, rows: int) -> None:
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    chunk = max(1, CHUNK_BYTES // value_bytes)
    values = pa.array([os.urandom(value_bytes) for _ in range(chunk)], pa.binary())
    batch = pa.RecordBatch.from_arrays([values], names=["value"])
    with Producer(servers) as producer:
        pending = []
        for number, first in enumerate(range(0, rows, chunk)):
            part = batch.slice(0, min(chunk, rows - first))
            pending.append(producer.send_arrow(topic, part, partition=number % PARTITIONS))
            if len(pending) > 8:
                pending.pop(0).result(60)
        for delivery in pending:
            delivery.result(60)


def _sample(servers: str, topic: str) -> bytes:
    """One Arrow batch as a task passes it to Spark, as an IPC stream."""
    from pyspark.sql.pandas.types import to_arrow_schema

    options = parse_options({"bootstrap.servers": servers, "subscribe": topic})
    schema = to_arrow_schema(source_schema(), timezone="UTC")
    batch = next(iter(read_slice(options, OffsetRange(topic, 0, 0, 1 << 40), schema)))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _memory_source(stream: bytes, rows: int) -> Any:
    """A data source that yields one batch repeatedly.

    It is a local class, so that it pickles whole.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class MemoryReader(DataSourceReader):  # type: ignore[misc]
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(PARTITIONS)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            batch = pa.ipc.open_stream(stream).read_next_batch()
            left = rows // PARTITIONS
            while left > 0:
                yield batch.slice(0, min(left, batch.num_rows))
                left -= batch.num_rows

    class MemorySource(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "memory_ceiling"

        def schema(self) -> Any:
            return source_schema()

        def reader(self, schema: Any) -> MemoryReader:
            return MemoryReader()

    return MemorySource


def _best_rate(frame: Any, rows: int) -> float:
    """Rows per second of the best read; every column goes into the JVM and no further."""
    best = 0.0
    for _ in range(READS + 1):
        begin = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        best = max(best, rows / (time.perf_counter() - begin))
    return best


def run() -> list[dict[str, Any]]:
    """One row per size of value."""
    found: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory), controllers=1, brokers=1) as cluster,
    ):
        cluster.wait_ready(60)
        servers = cluster.bootstrap_servers
        for value_bytes, rows in CASES:
            _fill(servers, f"v{value_bytes}", value_bytes, rows)
        session = _session()
        try:
            for value_bytes, rows in CASES:
                topic = f"v{value_bytes}"
                reader = session.read.format("tidemark").option("subscribe", topic)
                frame = reader.option("bootstrap.servers", servers).load()
                assert frame.count() == rows, f"{topic} does not hold {rows} rows"
                rate = _best_rate(frame, rows)
                session.dataSource.register(_memory_source(_sample(servers, topic), rows))
                ceiling = _best_rate(session.read.format("memory_ceiling").load(), rows)
                found.append(
                    {
                        "name": f"spark read, {value_bytes} B",
                        "value": rate,
                        "unit": "rows/s",
                        "ceiling": ceiling,
                        "ratio": rate / ceiling,
                    }
                )
        finally:
            session.stop()
    return found
