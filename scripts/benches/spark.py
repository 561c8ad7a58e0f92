"""Reading a topic with Spark (local[2]): rows per second, and CPU seconds per GB of values.

The ceiling is Spark reading the same Arrow batches from the memory of its Python workers. It runs
in the same run, through a data source that does nothing else. The way into the JVM is the same, so
the ratio is the cost of the log, gRPC and decoding. CPU seconds are those of the JVM and of all
Python processes of Spark, not of the broker. The best of a few reads counts, after a first one that
starts the workers and loads the kernels.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from _spark_session import Cost, cost, drain, open_session

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


def fill(servers: str, topic: str, value_bytes: int, rows: int) -> None:
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


def best(session: Any, frame: Any) -> Cost:
    """The least time and the least CPU time of a few reads, after a first one."""
    found = [cost(session, lambda: drain(frame)) for _ in range(READS + 1)][1:]
    return Cost(min(each.wall_s for each in found), min(each.cpu_s for each in found))


def _rows(value_bytes: int, rows: int, ours: Cost, ceiling: Cost) -> list[dict[str, Any]]:
    gigabytes = value_bytes * rows / 1e9
    units = ("rows/s", "CPU s/GB")
    figures = ((rows / ours.wall_s, rows / ceiling.wall_s),)
    figures += ((ours.cpu_s / gigabytes, ceiling.cpu_s / gigabytes),)
    return [
        {
            "name": f"spark read, {value_bytes} B",
            "value": value,
            "unit": unit,
            "ceiling": least,
            "ratio": value / least,
        }
        for unit, (value, least) in zip(units, figures, strict=True)
    ]


def run() -> list[dict[str, Any]]:
    """Two rows per size of value."""
    found: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory), controllers=1, brokers=1) as cluster,
    ):
        cluster.wait_ready(60)
        servers = cluster.bootstrap_servers
        for value_bytes, rows in CASES:
            fill(servers, f"v{value_bytes}", value_bytes, rows)
        session = open_session()
        try:
            for value_bytes, rows in CASES:
                topic = f"v{value_bytes}"
                reader = session.read.format("tidemark").option("subscribe", topic)
                frame = reader.option("bootstrap.servers", servers).load()
                assert frame.count() == rows, f"{topic} does not hold {rows} rows"
                ours = best(session, frame)
                session.dataSource.register(_memory_source(_sample(servers, topic), rows))
                ceiling = best(session, session.read.format("memory_ceiling").load())
                found += _rows(value_bytes, rows, ours, ceiling)
        finally:
            session.stop()
    return found
