"""A cold topic on MinIO, read by slices of the Spark source: past the brokers, and through them.

One process reads all slices, one after another, as a task does: values of 1,000 B and their
offsets, in Arrow batches. The row has MB of values per second of its CPU time, and the ceiling is
the same read through the brokers. The wall clock says little here, for the store, the broker and
the reader share the cores. TIDEMARK_BENCH_DIRECT_MB sets the size (10,000 for the acceptance).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from _tier_cluster import settings_of

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, AsyncAdmin, NewTopic, Producer
from tidemark.spark.offsets import OffsetRange
from tidemark.spark.options import parse_options
from tidemark.spark.planning import plan
from tidemark.spark.slices import read_slice

VALUE_BYTES = 1_000
CHUNK_ROWS = 1_000
SEGMENT_BYTES = 64 << 20
READS = 3
SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary())])


def run() -> list[dict[str, Any]]:
    """One row: direct reads beside reads through the brokers."""
    from tests.minio_fixture import MinioServer

    total_mb = int(os.environ.get("TIDEMARK_BENCH_DIRECT_MB", "512"))
    with MinioServer() as store, tempfile.TemporaryDirectory(prefix="bench-direct-") as path:
        settings = settings_of(store, "d/")
        with LocalCluster(Path(path), controllers=1, brokers=1, overrides=settings) as cluster:
            cluster.wait_ready(60)
            _fill(cluster.bootstrap_servers, total_mb)
            cold = _slices(cluster.bootstrap_servers, "true")
            rates = {}
            for mode in ("false", "true"):
                reads = cold if mode == "true" else _brokers(cold)
                options = parse_options(_options(cluster.bootstrap_servers, mode))
                rates[mode] = max(_rate(options, reads) for _ in range(READS))
            (broker,) = cluster.broker_ids
            cluster.kill(broker)  # not a byte comes from it
            options = parse_options(_options(cluster.bootstrap_servers, "true"))
            without = _rate(options, cold)
    name = f"spark: {total_mb} MB of the tier past the brokers"
    return [
        _row(f"{name} (ceiling: through them)", rates["true"], rates["false"]),
        _row(f"{name}, which are dead (ceiling: alive)", without, rates["true"]),
    ]


def _options(servers: str, mode: str) -> dict[str, str]:
    return {"bootstrap.servers": servers, "subscribe": "cold", "direct": mode}


def _slices(servers: str, mode: str) -> list[OffsetRange]:
    return [each for each in plan(parse_options(_options(servers, mode))) if each.direct]


def _brokers(slices: list[OffsetRange]) -> list[OffsetRange]:
    return [
        OffsetRange(each.topic, each.partition, each.start, each.end, each.topic_id)
        for each in slices
    ]


def _rate(options: Any, slices: list[OffsetRange]) -> float:
    """MB of values per second of this process's CPU."""
    begun, rows = time.process_time(), 0
    for each in slices:
        for batch in read_slice(options, each, SCHEMA):
            rows += batch.num_rows
    assert rows == sum(each.size for each in slices)
    return rows * VALUE_BYTES / 1e6 / (time.process_time() - begun)


def _fill(servers: str, total_mb: int) -> None:
    configs = {
        "segment.bytes": str(SEGMENT_BYTES),
        "remote.storage.enable": "true",
        "local.retention.bytes": "1",
        "retention.ms": "-1",
    }
    with Admin(servers) as admin:
        admin.create_topics([NewTopic("cold", 1, 1, configs)])
    values = pa.array([os.urandom(VALUE_BYTES) for _ in range(CHUNK_ROWS)], pa.binary())
    batch = pa.RecordBatch.from_arrays([values], names=["value"])
    with Producer(servers) as producer:
        pending = []
        for _ in range(total_mb):
            pending.append(producer.send_arrow("cold", batch, partition=0))
            if len(pending) > 8:
                pending.pop(0).result(60)
        for delivery in pending:
            delivery.result(60)
    asyncio.run(_drained(servers, total_mb))


async def _drained(servers: str, total_mb: int) -> None:
    """Waits until all but the last segments are in the tier, and nowhere else."""
    rows = (total_mb << 20) // VALUE_BYTES - 3 * SEGMENT_BYTES // VALUE_BYTES
    async with AsyncAdmin(servers) as admin, asyncio.timeout(60 + total_mb):
        while True:
            described = await admin.describe_log_dirs(topics=["cold"])
            found = [r for dirs in described.values() for d in dirs for r in d.replicas]
            if any(
                not r.remote_copy_lag_segments and r.local_log_start_offset > rows * 9 // 10
                for r in found
            ):
                return
            await asyncio.sleep(0.1)


def _row(name: str, value: float, ceiling: float) -> dict[str, Any]:
    unit = "MB per CPU second"
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "ceiling": ceiling,
        "ratio": value / ceiling,
    }
