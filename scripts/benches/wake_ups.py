"""Cost of one record to a consumer of 1,000 partitions and to one of 10, the ceiling.

Each record is sent when the consumer has the one before it, so each wakes the consumer's fetch
once. A unary Fetch names all partitions in each request, a session (KIP-227) those that moved.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benches.idle import Usage

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, AsyncConsumer, AsyncProducer, NewTopic
from tidemark.types import TopicPartition

PARTITIONS = int(os.environ.get("BENCH_WAKE_UPS_PARTITIONS", "1000"))
FEW = 10
SECONDS = 5.0
Row = dict[str, Any]


async def _one_by_one(servers: str, topic: str, count: int) -> tuple[int, list[float]]:
    """(records, latencies in s) of records that are sent one after the other."""
    latencies: list[float] = []
    async with (
        AsyncProducer(servers, linger_ms=0) as producer,
        AsyncConsumer(servers, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([TopicPartition(topic, number) for number in range(count)])
        await consumer.poll(1_000)
        began = time.perf_counter()
        while (sent := time.perf_counter()) < began + SECONDS:
            await producer.send(topic, b"x" * 100, partition=len(latencies) % count)
            while not await consumer.poll(1_000):
                pass
            latencies.append(time.perf_counter() - sent)
    return len(latencies), sorted(latencies)


def _measured(pid: int, servers: str, topic: str, count: int) -> dict[str, float]:
    import uvloop

    broker, client = Usage.of(pid).cpu_s, time.process_time()
    records, latencies = uvloop.run(_one_by_one(servers, topic, count))
    return {
        "CPU of the broker": (Usage.of(pid).cpu_s - broker) / records * 1e6,
        "CPU of the clients": (time.process_time() - client) / records * 1e6,
        "p50": latencies[records // 2] * 1e6,
    }


def run() -> list[Row]:
    """Rows for both consumers."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-wake-ups-") as path,
        LocalCluster(Path(path), controllers=1, brokers=1) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
    ):
        cluster.wait_ready(60)
        admin.create_topics([NewTopic("few", FEW, 1), NewTopic("many", PARTITIONS, 1)])
        admin.wait_until_topics_known(["few", "many"])
        (pid,) = [p.pid for n in cluster.broker_ids if (p := cluster.node(n).process) is not None]
        servers = cluster.bootstrap_servers
        _measured(pid, servers, "few", FEW)  # warm
        few = _measured(pid, servers, "few", FEW)
        many = _measured(pid, servers, "many", PARTITIONS)
    return [
        {
            "name": f"a record to a consumer of {count} partitions, {what}",
            "value": value,
            "unit": "us",
            "ceiling": None if found is few else few[what],
            "ratio": None if found is few else value / few[what],
        }
        for count, found in ((FEW, few), (PARTITIONS, many))
        for what, value in found.items()
    ]
