"""Partitions that nobody uses, in real processes: what they cost in memory and CPU, and how long a
start after a clean stop takes.

One broker with 10,000 partitions, then three brokers with 1,000 partitions of replication factor 3
each (every broker leads a third and follows two thirds). CPU is that of /proc/PID/stat over some
idle seconds, in percent of one core, beside the same broker without partitions.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, NewTopic

PARTITIONS = int(os.environ.get("BENCH_IDLE_PARTITIONS", "10000"))
REPLICATED = int(os.environ.get("BENCH_IDLE_REPLICATED", "3000"))
IDLE_S = 10.0
SETTLE_S = 12.0
PER_TOPIC = 100
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def idle_cpu_percent(pids: list[int]) -> list[float]:
    """CPU of each process over `IDLE_S`, in percent of one core."""
    time.sleep(SETTLE_S)
    before, begin = [cpu_s(pid) for pid in pids], time.monotonic()
    time.sleep(IDLE_S)
    took_s = time.monotonic() - begin
    return [100 * (cpu_s(p) - b) / took_s for p, b in zip(pids, before, strict=True)]


def create(bootstrap: str, partitions: int, factor: int) -> None:
    with Admin(bootstrap) as admin:
        for first in range(0, partitions, PER_TOPIC * 5):
            topics = range(first, min(partitions, first + PER_TOPIC * 5), PER_TOPIC)
            names = [f"idle-{factor}-{n // PER_TOPIC}" for n in topics]
            admin.create_topics([NewTopic(name, PER_TOPIC, factor) for name in names])
        admin.wait_until_topics_known(names)


def wait_for_logs(directory: Path, count: int, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while sum(1 for e in directory.iterdir() if e.name.startswith("idle-")) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{directory} never had {count} logs")
        time.sleep(0.1)


def _pid(cluster: LocalCluster, node_id: int) -> int:
    process = cluster.node(node_id).process
    assert process is not None
    return process.pid


def _row(name: str, value: float, unit: str, ceiling: float | None = None) -> dict[str, Any]:
    ratio = None if not ceiling else value / ceiling
    return {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}


def one_broker(path: Path) -> list[dict[str, Any]]:
    """RSS and idle CPU with many partitions, and a start after a clean stop."""
    with LocalCluster(path, controllers=1, brokers=1) as cluster:
        cluster.wait_ready(60)
        broker = cluster.broker_ids[0]
        node = cluster.node(broker)
        [empty] = idle_cpu_percent([_pid(cluster, broker)])
        create(cluster.bootstrap_servers, PARTITIONS, 1)
        wait_for_logs(node.data_directory, PARTITIONS)
        [full] = idle_cpu_percent([_pid(cluster, broker)])
        memory = rss_mb(_pid(cluster, broker))
        rows = [
            _row(
                f"RSS of a broker, {PARTITIONS} idle partitions (ceiling: aim)", memory, "MB", 500.0
            ),
            _row("its idle CPU (ceiling: without partitions)", full, "% of a core", empty),
        ]
        stopped = time.monotonic()
        process = node.process
        assert process is not None
        process.terminate()
        process.wait(120)
        began = time.monotonic()
        cluster.restart(broker)
        cluster.wait_ready(120)
        rows.append(_row("clean stop", began - stopped, "s"))
        rows.append(_row("start after it until ready", time.monotonic() - began, "s"))
        rows.append(_row("CPU of the start", cpu_s(_pid(cluster, broker)), "s"))
    return rows


def three_brokers(path: Path) -> list[dict[str, Any]]:
    """Idle followers: what replication of nothing costs."""
    with LocalCluster(path, controllers=1, brokers=3) as cluster:
        cluster.wait_ready(60)
        pids = [_pid(cluster, n) for n in cluster.broker_ids]
        empty = idle_cpu_percent(pids)
        create(cluster.bootstrap_servers, REPLICATED, 3)
        for n in cluster.broker_ids:
            wait_for_logs(cluster.node(n).data_directory, REPLICATED)
        full = idle_cpu_percent(pids)
        memory = max(map(rss_mb, pids))
    name = f"three brokers, {REPLICATED} idle partitions RF 3"
    return [
        _row(f"{name}: RSS of the largest", memory, "MB"),
        _row(f"{name}: CPU of each (ceiling: none)", sum(full) / 3, "% of a core", sum(empty) / 3),
    ]


def run() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for part in (one_broker, three_brokers):
        path = Path(tempfile.mkdtemp(prefix="tidemark-idle-"))
        try:
            rows += part(path)
        finally:
            shutil.rmtree(path, ignore_errors=True)
    return rows
