"""Cost of a record when all of 10,000 partitions of a node have traffic, beside 10 partitions.

Three brokers host every partition (RF 3, acks=all). Batches of one record go to the partitions in
turn, as many in a request as one leader has of a round. The ceiling is the CPU per record with 10
partitions, in requests of the same number of batches. While the partitions are created, a producer
of single records measures how long it waits.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benches.idle import Usage, rss_mb
from benches.produce_raw import _channel, _leaders

from tidemark import wire
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, AsyncAdmin, AsyncProducer, NewTopic
from tidemark.records import encode_batch
from tidemark.records.plain import Record
from tidemark.v1 import log_pb2
from tidemark.wire.exchange import Exchange

PARTITIONS = int(os.environ.get("BENCH_PARTITIONS", "10000"))
FEW = 10
PER_TOPIC = 100
SECONDS = 10.0
RECORD_BYTES = 100
BATCHES = 10  # in a request
UNDER_WAY = 4  # requests, of each leader
PAUSE_S = 0.01  # of the single records
Row = dict[str, Any]
Target = tuple[str, int]  # topic and partition


class Spent(NamedTuple):
    """Records that were acknowledged, and the CPU of the brokers for them."""

    records: int
    seconds: float
    cpu_us: float


def _row(name: str, value: float, unit: str, ceiling: float | None = None) -> Row:
    ratio = value / ceiling if ceiling else None
    return {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}


def _names(partitions: int) -> list[str]:
    return [f"many-{number}" for number in range(partitions // PER_TOPIC)]


async def _send(targets: dict[str, list[Target]]) -> tuple[int, float]:
    """(records, seconds) of producers that go over the targets of each leader in turn."""
    record = Record(0, time.time_ns() // 1_000_000, None, os.urandom(RECORD_BYTES))
    batch, sent = encode_batch([record]), 0
    began = time.perf_counter()

    async def worker(exchange: Exchange, mine: list[Target], first: int) -> None:
        nonlocal sent
        at = first * BATCHES
        while time.perf_counter() < began + SECONDS:
            chosen = [mine[(at + n) % len(mine)] for n in range(BATCHES)]
            at += BATCHES * UNDER_WAY
            data = [wire.PartitionProduceData(t, p, batch) for t, p in chosen]
            request = wire.encode_produce_request(wire.ProduceRequest(-1, 60_000, data))
            answer = log_pb2.ProduceResponse.FromString(await exchange.ask(request, 90))
            if any(result.error_code for result in answer.responses):
                raise RuntimeError(f"refused: {answer.responses[0]}")
            sent += BATCHES

    channels = {address: _channel(address) for address in targets}
    try:
        await asyncio.gather(
            *(
                worker(exchange, targets[address], number)
                for address, channel in channels.items()
                for exchange in (Exchange(channel, wire.PRODUCE_STREAM),)
                for number in range(UNDER_WAY)
            )
        )
        return sent, time.perf_counter() - began
    finally:
        for channel in channels.values():
            await channel.close()


def _spent(pids: list[int], targets: dict[str, list[Target]]) -> Spent:
    import uvloop

    before = sum(Usage.of(pid).cpu_s for pid in pids)
    records, seconds = uvloop.run(_send(targets))
    cpu_s = sum(Usage.of(pid).cpu_s for pid in pids) - before
    return Spent(records, seconds, cpu_s / records * 1e6)


def _targets(admin: Admin, names: list[str]) -> dict[str, list[Target]]:
    """The partitions of these topics by the address of their leader."""
    found: dict[str, list[Target]] = {}
    for name in names:
        for partition, address in _leaders(admin, name).items():
            found.setdefault(address, []).append((name, partition))
    return found


async def _create(servers: str) -> tuple[float, list[float]]:
    """(seconds, latencies of single records) of the creation of all partitions."""
    latencies: list[float] = []

    async def probe(producer: AsyncProducer) -> None:
        while True:
            began = time.perf_counter()
            await producer.send("few", b"x" * RECORD_BYTES, partition=0)
            latencies.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE_S)

    async with AsyncAdmin(servers) as admin, AsyncProducer(servers, acks="all") as producer:
        probing = asyncio.create_task(probe(producer))
        await asyncio.sleep(1)
        began, names = time.perf_counter(), _names(PARTITIONS)
        for first in range(0, len(names), 5):
            await admin.create_topics(
                [NewTopic(name, PER_TOPIC, 3) for name in names[first : first + 5]]
            )
        await admin.wait_until_topics_known(names)
        took_s = time.perf_counter() - began
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
    return took_s, sorted(latencies)


def run() -> list[Row]:
    import uvloop

    with (
        tempfile.TemporaryDirectory(prefix="bench-partitions-") as path,
        LocalCluster(Path(path), controllers=1, brokers=3) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
    ):
        cluster.wait_ready(60)
        pids = [p.pid for n in cluster.broker_ids if (p := cluster.node(n).process) is not None]
        admin.create_topics([NewTopic("few", FEW, 3)])
        few = _targets(admin, ["few"])
        _spent(pids, few)  # warm
        alone = _spent(pids, few)
        before_mb = max(map(rss_mb, pids))
        took_s, latencies = uvloop.run(_create(cluster.bootstrap_servers))
        each_kb = 1000 * (max(map(rss_mb, pids)) - before_mb) / PARTITIONS
        many = _targets(admin, _names(PARTITIONS))
        _spent(pids, many)  # the first append to a log opens files and fills caches
        among = _spent(pids, few)
        spread = _spent(pids, many)
    name = f"{PARTITIONS} partitions, RF 3"
    return [
        _row(f"traffic on {FEW} partitions: CPU of a record", alone.cpu_us, "us"),
        _row(f"traffic on {FEW} of {name}: CPU of a record", among.cpu_us, "us", alone.cpu_us),
        _row(f"traffic on all {name}: CPU of a record", spread.cpu_us, "us", alone.cpu_us),
        _row(f"traffic on {FEW} partitions", alone.records / alone.seconds, "records/s"),
        _row(
            f"traffic on all {name}",
            spread.records / spread.seconds,
            "records/s",
            alone.records / alone.seconds,
        ),
        _row(f"creation of {name}", took_s, "s"),
        _row("while it runs: p50 of a record", latencies[len(latencies) // 2] * 1e3, "ms"),
        _row("while it runs: p99 of a record", latencies[len(latencies) * 99 // 100] * 1e3, "ms"),
        _row(f"{name}: memory of each, idle", each_kb, "KB", 10.0),
    ]
