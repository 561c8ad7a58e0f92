"""Produce requests of ready-made batches, acks=all on three nodes, RF 3: the limit of the nodes.

One client process sends encoded batches, without accumulator and codec, in requests of one size. A
few are under way to every leader, beside raw gRPC puts of the same size and number in the same run.
Rows are requests/s, MB/s, latency, and the CPU time of all processes per GB, which is more reliable
than wall time on a shared machine. At 128 KiB and 16 KiB the cost of a request dominates.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benches.client_paths import raw_put, raw_server

from tidemark import wire
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, NewTopic
from tidemark.records import encode_batch
from tidemark.records.plain import Record
from tidemark.v1 import log_pb2
from tidemark.wire.exchange import Exchange

SECONDS = 4.0
RECORD_BYTES = 1000
PARTITIONS = 6
CASES = ((1 << 20, 8), (128 << 10, 16), (16 << 10, 32))  # bytes of a request, under way

Row = dict[str, Any]
Call = Callable[[bytes], Awaitable[Any]]


def batch_of(size_bytes: int) -> bytes:
    """One batch of about `size_bytes`, of 1,000-byte records."""
    count = max(1, size_bytes // (RECORD_BYTES + 12))
    value = os.urandom(RECORD_BYTES)
    now_ms = time.time_ns() // 1_000_000
    return encode_batch([Record(n, now_ms, None, value) for n in range(count)])


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of these processes and this one."""
    total = 0.0
    for pid in [*pids, os.getpid()]:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


async def load(calls: list[tuple[Call, bytes]], under_way: int) -> tuple[int, float, list[float]]:
    """(requests, seconds, latencies) of `under_way` workers that take turns over the calls."""
    for call, request in calls:
        await call(request)
    latencies: list[float] = []
    began = time.perf_counter()
    end = began + SECONDS

    async def worker(number: int) -> None:
        while (now := time.perf_counter()) < end:
            call, request = calls[number % len(calls)]
            number += under_way + 1
            await call(request)
            latencies.append(time.perf_counter() - now)

    await asyncio.gather(*(worker(number) for number in range(under_way)))
    return len(latencies), time.perf_counter() - began, latencies


def _rows(name: str, size: int, pids: list[int], run: Callable[[], Any]) -> list[Row]:
    before = cpu_seconds(pids)
    count, seconds, latencies = run()
    spent = cpu_seconds(pids) - before
    latencies.sort()
    return [
        _row(name, count * size / 1e6 / seconds, "MB/s"),
        _row(name, count / seconds, "requests/s"),
        _row(f"{name}, p50", latencies[count // 2] * 1e3, "ms"),
        _row(f"{name}, p99", latencies[count * 99 // 100] * 1e3, "ms"),
        _row(f"{name}, CPU per GB", spent / (count * size / 1e9), "s"),
        _row(f"{name}, CPU per request", spent / count * 1e6, "us"),
    ]


def _row(name: str, value: float, unit: str) -> Row:
    return {"name": name, "value": value, "unit": unit, "ceiling": None, "ratio": None}


def _channel(address: str) -> Any:
    import grpc.aio

    return grpc.aio.insecure_channel(address, options=wire.CHANNEL_OPTIONS)


async def _raw_put(port: int, size: int, under_way: int) -> tuple[int, float, list[float]]:
    async with _channel(f"127.0.0.1:{port}") as channel:
        return await load([(raw_put(channel), b"x" * size)], under_way)


async def _produce(
    leaders: dict[int, str], topic: str, batch: bytes, under_way: int
) -> tuple[int, float, list[float]]:
    channels = {address: _channel(address) for address in leaders.values()}
    exchanges = {
        address: Exchange(channel, wire.PRODUCE_STREAM) for address, channel in channels.items()
    }
    calls: list[tuple[Call, bytes]] = []
    for partition, address in leaders.items():
        data = wire.PartitionProduceData(topic, partition, batch)
        request = wire.encode_produce_request(wire.ProduceRequest(-1, 30_000, [data]))
        calls.append((_checked(exchanges[address]), request))
    try:
        return await load(calls, under_way)
    finally:
        for channel in channels.values():
            await channel.close()


def _checked(exchange: Exchange) -> Call:
    async def call(request: bytes) -> None:
        answer = log_pb2.ProduceResponse.FromString(await exchange.ask(request, 60))
        if answer.responses[0].error_code:
            raise RuntimeError(f"refused: {answer.responses[0]}")

    return call


def _leaders(admin: Admin, topic: str) -> dict[int, str]:
    nodes = {node.node_id: node.endpoint.address for node in admin.describe_cluster().brokers}
    found = admin.describe_topics([topic])[topic].partitions
    return {p.partition: nodes[p.leader] for p in found if p.leader is not None}


def run() -> list[Row]:
    """Raw puts, then produce requests, by size."""
    import uvloop

    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory:
        cluster = LocalCluster(Path(directory), controllers=1, brokers=3)
        with cluster, raw_server() as (port, raw_pid), Admin(cluster.bootstrap_servers) as admin:
            cluster.wait_ready(60)
            processes = [cluster.node(n).process for n in cluster.broker_ids]
            pids = [process.pid for process in processes if process is not None]
            for size, under_way in CASES:
                name = f"{size >> 10} KiB x {under_way}"
                raw = _rows(
                    f"raw gRPC put {name}",
                    size,
                    [raw_pid],
                    lambda s=size, u=under_way: uvloop.run(_raw_put(port, s, u)),
                )
                topic = f"raw-{size}"
                admin.create_topics([NewTopic(topic, PARTITIONS, 3)])
                leaders, batch = _leaders(admin, topic), batch_of(size)
                mine = _rows(
                    f"produce acks=all RF 3 {name}",
                    len(batch),
                    pids,
                    lambda t=topic, b=batch, u=under_way, n=leaders: uvloop.run(
                        _produce(n, t, b, u)
                    ),
                )
                for own, ceiling in zip(mine[:2], raw[:2], strict=True):
                    own["ceiling"] = ceiling["value"]
                    own["ratio"] = own["value"] / ceiling["value"]
                rows += raw + mine
    return rows
