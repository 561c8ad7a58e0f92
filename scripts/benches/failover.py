"""How long partitions take no acks=all record when a broker stops, in real processes.

Three brokers host partitions of replication factor 3. Some of them have a producer of their own,
which sends its next record when the last one is acknowledged. A gap is the longest time between two
acknowledgements of one partition. The ceiling of a SIGKILL is the session timeout. That of a stop
in order and of a rolling restart is a second: two replicas of each partition are always there.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import AsyncAdmin, AsyncProducer, NewTopic

PARTITIONS = int(os.environ.get("BENCH_FAILOVER_PARTITIONS", "600"))
PER_TOPIC = 100
PROBES = 12
SESSION_MS = 9_000
PAUSE_S = 0.005
WELL_S = 120.0
WANTED_S = 1.0


class Probes:
    """Producers of single records, each on a partition of its own."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers = servers
        self._topic = topic
        self._tasks: list[asyncio.Task[None]] = []
        self._last = [0.0] * PROBES
        self._gaps = [0.0] * PROBES
        self._news = asyncio.Event()
        self.errors = 0
        self.acknowledged = 0

    async def __aenter__(self) -> Probes:
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(PROBES)]
        await self._until(lambda: all(self._last))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, partition: int) -> None:
        async with AsyncProducer(self._servers, acks="all") as producer:
            while True:
                try:
                    await producer.send(self._topic, b"x" * 100, partition=partition)
                except Exception:
                    self.errors += 1
                else:
                    self._acknowledged(partition)
                await asyncio.sleep(PAUSE_S)

    def _acknowledged(self, partition: int) -> None:
        now = time.monotonic()
        if self._last[partition]:
            self._gaps[partition] = max(self._gaps[partition], now - self._last[partition])
        self._last[partition] = now
        self.acknowledged += 1
        self._news.set()

    def begin(self) -> None:
        """Forgets the gaps so far."""
        self._gaps = [0.0] * PROBES

    async def longest(self, settled_s: float = 1.0) -> float:
        """The longest gap of any partition since `begin`, once each has gone on for a while."""
        since = time.monotonic()
        await self._until(lambda: min(self._last) >= since + settled_s)
        return max(self._gaps)

    async def _until(self, is_met: Callable[[], bool]) -> None:
        """Waits until a condition holds after an acknowledgement."""
        while not is_met():
            self._news.clear()
            await self._news.wait()


def run() -> list[dict[str, Any]]:
    settings = {"broker.session.timeout.ms": str(SESSION_MS)}
    with (
        tempfile.TemporaryDirectory(prefix="bench-failover-") as path,
        LocalCluster(Path(path), controllers=1, brokers=3, overrides=settings) as cluster,
    ):
        cluster.wait_ready(60)
        return asyncio.run(_rows(cluster))


async def _rows(cluster: LocalCluster) -> list[dict[str, Any]]:
    servers, session_s = cluster.bootstrap_servers, SESSION_MS / 1000
    async with AsyncAdmin(servers) as admin:
        await _create(admin)
        async with Probes(servers, "probe") as probes:
            rows = []

            async def measure(what: str, ceiling: float, *steps: Callable[[], Any]) -> None:
                await _until_well(admin)
                probes.begin()
                for step in steps:
                    await asyncio.to_thread(step)
                    await asyncio.sleep(0)
                gap = await probes.longest()
                rows.append(_row(f"failover: longest gap, {what}", gap, "s", ceiling))

            first, second, third = cluster.broker_ids
            await measure("nothing happens", WANTED_S, lambda: time.sleep(3))
            await measure("a stop in order", WANTED_S, _stop(cluster, first))
            await asyncio.to_thread(cluster.restart, first)
            await measure("SIGKILL (ceiling: session timeout)", session_s, _kill(cluster, second))
            await asyncio.to_thread(cluster.restart, second)
            again = [_kill(cluster, third), lambda: cluster.restart(third)]
            await measure("SIGKILL and a start at once (ceiling: session)", session_s, *again)
            rolled, begun = _Rolled(cluster, admin), time.monotonic()
            await _until_well(admin)
            probes.begin()
            await rolled.run()
            took_s, gap = time.monotonic() - begun, await probes.longest()
            name = f"failover: rolling restart of 3 brokers, {PARTITIONS} partitions"
            rows += [
                _row(f"{name}: longest gap", gap, "s", WANTED_S),
                _row(f"{name}: took", took_s, "s", None),
                _row("failover: errors at the producers", probes.errors, "records", None),
                _row("failover: acknowledged", probes.acknowledged, "records", None),
            ]
    return rows


def _kill(cluster: LocalCluster, broker: int) -> Callable[[], None]:
    return lambda: cluster.kill(broker)


def _stop(cluster: LocalCluster, broker: int) -> Callable[[], None]:
    def stop() -> None:
        process = cluster.node(broker).process
        assert process is not None
        process.terminate()
        process.wait(60)

    return stop


class _Rolled:
    """Restarts broker after broker; the next one when all replicas are in sync again."""

    def __init__(self, cluster: LocalCluster, admin: AsyncAdmin) -> None:
        self._cluster = cluster
        self._admin = admin

    async def run(self) -> None:
        for broker in self._cluster.broker_ids:
            await asyncio.to_thread(self._cluster.restart, broker)
            await _until_well(self._admin)


async def _create(admin: AsyncAdmin) -> None:
    topics = [NewTopic("probe", PROBES, 3, configs={"min.insync.replicas": "2"})]
    for number in range(PARTITIONS // PER_TOPIC):
        topics.append(NewTopic(f"other-{number}", PER_TOPIC, 3))
    for first in range(0, len(topics), 5):
        await admin.create_topics(topics[first : first + 5])
    await admin.wait_until_topics_known([topic.name for topic in topics])


async def _until_well(admin: AsyncAdmin) -> None:
    """Waits until every replica is in sync and every partition is led by its first replica."""
    async with asyncio.timeout(WELL_S):
        while True:
            topics = await admin.describe_topics(
                [topic.name for topic in await admin.list_topics()]
            )
            partitions = [p for topic in topics.values() for p in topic.partitions]
            if all(set(p.isr) == set(p.replicas) for p in partitions):
                if all(p.leader == p.replicas[0] for p in partitions):
                    return
                await admin.elect_leaders("PREFERRED")
            await asyncio.sleep(0.25)


def _row(name: str, value: float, unit: str, ceiling: float | None) -> dict[str, Any]:
    ratio = None if not ceiling else round(value / ceiling, 3)
    return {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}
