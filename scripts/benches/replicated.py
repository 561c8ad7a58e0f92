"""Cost of one produce request at RF 3, acks=all, for the leader and for each follower.

One partition has one leader, so that the CPU of a process is that of a role. One client process
keeps requests of one ready-made batch under way on several calls. The ceiling is the same load at
replication factor 1. CPU and switches of threads depend less on other load than wall time does. A
paced row sends 1,000 requests a second: its latency shows whether an answer waits for company.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benches.idle import Usage
from benches.produce_raw import _channel, _checked, _leaders

from tidemark import wire
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, NewTopic
from tidemark.records import encode_batch
from tidemark.records.plain import Record
from tidemark.wire.exchange import Exchange

SECONDS = float(os.environ.get("BENCH_REPLICATED_SECONDS", "4"))
CASES = ((100, 8, 8), (1 << 10, 8, 8), (16 << 10, 4, 8))  # bytes, calls, under way on each
PACED = 1_000  # requests a second
Row = dict[str, Any]


class Load(NamedTuple):
    """Requests that were answered, and their latencies in s, sorted."""

    count: int
    seconds: float
    latencies: list[float]


def _request(topic: str, size: int) -> bytes:
    record = Record(0, time.time_ns() // 1_000_000, None, os.urandom(size))
    data = wire.PartitionProduceData(topic, 0, encode_batch([record]))
    return wire.encode_produce_request(wire.ProduceRequest(-1, 30_000, [data]))


async def _closed(address: str, request: bytes, calls: int, under_way: int) -> Load:
    """Each of `calls` open calls has `under_way` requests without an answer."""
    channel = _channel(address)
    asks = [_checked(Exchange(channel, wire.PRODUCE_STREAM)) for _ in range(calls)]
    latencies: list[float] = []
    for ask in asks:
        await ask(request)
    began = time.perf_counter()

    async def worker(number: int) -> None:
        while (now := time.perf_counter()) < began + SECONDS:
            await asks[number % calls](request)
            latencies.append(time.perf_counter() - now)

    await asyncio.gather(*(worker(number) for number in range(calls * under_way)))
    took_s = time.perf_counter() - began
    await channel.close()
    return Load(len(latencies), took_s, sorted(latencies))


async def _paced(address: str, request: bytes) -> Load:
    """Sends on one open call at a fixed rate, whenever answers come."""
    channel = _channel(address)
    ask = _checked(Exchange(channel, wire.PRODUCE_STREAM))
    await ask(request)
    latencies: list[float] = []
    began = time.perf_counter()

    async def one(due: float) -> None:
        await ask(request)
        latencies.append(time.perf_counter() - due)

    async with asyncio.TaskGroup() as group:
        for number in range(int(SECONDS * PACED)):
            due = began + number / PACED
            if (wait_s := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            group.create_task(one(max(due, time.perf_counter() - 0.001)))
    took_s = time.perf_counter() - began
    await channel.close()
    return Load(len(latencies), took_s, sorted(latencies))


def _row(name: str, value: float, unit: str, ceiling: float | None = None) -> Row:
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "ceiling": ceiling,
        "ratio": value / ceiling if ceiling else None,
    }


def _measured(name: str, pids: list[int], load: Any) -> list[Row]:
    """Rows of one load. The first pid is the leader's."""
    import uvloop

    before, mine = [Usage.of(pid) for pid in pids], time.process_time()
    done: Load = uvloop.run(load)
    mine = time.process_time() - mine
    after = [Usage.of(pid) for pid in pids]
    cpu_us = [(a.cpu_s - b.cpu_s) / done.count * 1e6 for a, b in zip(after, before, strict=True)]
    switches = sum(a.switches - b.switches for a, b in zip(after, before, strict=True))
    rows = [
        _row(name, done.count / done.seconds, "requests/s"),
        _row(f"{name}: CPU of the leader", cpu_us[0], "us/request"),
        _row(f"{name}: CPU of the brokers", sum(cpu_us), "us/request"),
        _row(f"{name}: CPU of the client", mine / done.count * 1e6, "us/request"),
        _row(f"{name}: switches of the brokers", switches / done.count, "1/request"),
        _row(f"{name}: p50", done.latencies[done.count // 2] * 1e3, "ms"),
        _row(f"{name}: p99", done.latencies[done.count * 99 // 100] * 1e3, "ms"),
    ]
    if len(pids) > 1:
        each = sum(cpu_us[1:]) / (len(pids) - 1)
        rows.insert(2, _row(f"{name}: CPU of a follower", each, "us/request"))
    return rows


def run() -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-replicated-") as directory:
        cluster = LocalCluster(Path(directory), controllers=1, brokers=3)
        with cluster, Admin(cluster.bootstrap_servers) as admin:
            cluster.wait_ready(60)
            by_address = {cluster.node(n).address: n for n in cluster.broker_ids}
            for size, calls, under_way in CASES:
                alone: list[Row] = []
                for factor in (1, 3):
                    topic = f"replicated-{size}-{factor}"
                    admin.create_topics([NewTopic(topic, 1, factor)])
                    address = _leaders(admin, topic)[0]
                    leader = by_address[address]
                    ids = [leader, *(n for n in cluster.broker_ids if n != leader)]
                    pids = [p.pid for n in ids if (p := cluster.node(n).process) is not None]
                    name = f"{size} B in {calls} x {under_way}, RF {factor}"
                    load = _closed(address, _request(topic, size), calls, under_way)
                    mine = _measured(name, pids if factor > 1 else pids[:1], load)
                    if factor > 1:
                        mine[0]["ceiling"] = alone[0]["value"]
                        mine[0]["ratio"] = mine[0]["value"] / alone[0]["value"]
                        paced = _paced(address, _request(topic, size))
                        mine += _measured(f"{size} B at {PACED}/s, RF {factor}", pids, paced)
                    alone = mine
                    rows += mine
    return rows
