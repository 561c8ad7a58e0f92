"""Spark reading a topic of Tidemark, beside Spark's own source reading the same rows from Kafka.

The ceiling of each figure is that of spark-kafka, in the same session of local[2], read by turns.
More than 100 % of rows/s, and less of CPU s/GB, is for Tidemark. CPU is that of the JVM and of all
Python processes of Spark, brokers left out; GB are those of values. Both have one broker, four
partitions, batches of up to 1 MiB, and no compression. Maven gets the jars of the installed Spark's
version, or of BENCH_SPARK_KAFKA_VERSION where it has none of that.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import pyspark
from _peer_kafka import Kafka, fetched
from _spark_session import Cost, cost, drain, open_session
from spark import PARTITIONS, fill

from tidemark.cli.local_cluster import LocalCluster

VERSION = os.environ.get("BENCH_SPARK_KAFKA_VERSION", pyspark.__version__)
CACHE = Path.home() / ".cache" / "tidemark" / f"spark-kafka-{VERSION}"
CASES = {100: 4_000_000, 1_000: 1_000_000}  # bytes of a value, rows
ROUNDS = 3
_BIG_BATCHES = ("batch.size=1000000", "linger.ms=50", "buffer.memory=67108864")
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>peer</groupId><artifactId>spark</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId>
<version>{VERSION}</version></dependency></dependencies></project>"""
_OF_SOURCE = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
Row = dict[str, Any]


def jars() -> str:
    """Those that Spark lacks, for its setting spark.jars."""
    return ",".join(str(p) for p in fetched(CACHE, _POM).glob("*.jar") if _is_wanted(p.name))


def _is_wanted(name: str) -> bool:
    return name.startswith(_OF_SOURCE)


def _median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(each) for each in zip(*costs[1:], strict=True)))


def _by_turns(session: Any, ours: Any, theirs: Any) -> tuple[Cost, Cost]:
    """Medians of calls, without the first of each."""
    found: tuple[list[Cost], list[Cost]] = ([], [])
    for _ in range(ROUNDS + 1):
        for kept, work in zip(found, (ours, theirs), strict=True):
            kept.append(cost(session, work))
    return _median(found[0]), _median(found[1])


def _compared(name: str, rows: int, gigabytes: float, ours: Cost, theirs: Cost) -> list[Row]:
    pairs = (
        ("rows/s", rows / ours.wall_s, rows / theirs.wall_s),
        ("CPU s/GB", ours.cpu_s / gigabytes, theirs.cpu_s / gigabytes),
    )
    return [
        {
            "name": f"beside spark-kafka {VERSION}: {name}",
            "value": value,
            "unit": unit,
            "ceiling": other,
            "ratio": value / other,
        }
        for unit, value, other in pairs
    ]


def _rows(session: Any, servers: str, kafka: str, value_bytes: int, rows: int) -> list[Row]:
    topic, gigabytes = f"v{value_bytes}", value_bytes * rows / 1e9
    own = session.read.format("tidemark").option("bootstrap.servers", servers)
    own = own.option("subscribe", topic)
    other = session.read.format("kafka").option("kafka.bootstrap.servers", kafka)
    frame, peer = own.load(), other.option("subscribe", topic).load()
    counted = own.option("columns", "partition").load()
    assert counted.count() == peer.count() == rows, f"{topic} does not hold {rows} rows"
    read = _by_turns(session, lambda: drain(frame), lambda: drain(peer))
    count = _by_turns(session, counted.count, peer.count)
    return [
        *_compared(f"batch read, {value_bytes} B", rows, gigabytes, *read),
        *_compared(f"count, {value_bytes} B", rows, gigabytes, *count),
    ]


def run() -> list[Row]:
    """A read and a count per size of value, each with rows/s and CPU s/GB."""
    jars()
    with (
        tempfile.TemporaryDirectory(prefix="bench-peer-") as path,
        LocalCluster(Path(path) / "tidemark", controllers=1, brokers=1) as cluster,
    ):
        cluster.wait_ready(60)
        servers = cluster.bootstrap_servers
        (Path(path) / "kafka").mkdir()
        with Kafka(Path(path) / "kafka", brokers=1) as kafka:
            for value_bytes, rows in CASES.items():
                fill(servers, f"v{value_bytes}", value_bytes, rows)
                kafka.create(f"v{value_bytes}", PARTITIONS)
                kafka.produce(f"v{value_bytes}", rows, value_bytes, -1, *_BIG_BATCHES)
            session = open_session({"spark.jars": jars()})
            try:
                return [
                    row
                    for value_bytes, rows in CASES.items()
                    for row in _rows(session, servers, kafka.servers, value_bytes, rows)
                ]
            finally:
                session.stop()
