"""Memory and CPU of idle partitions in real processes, and the times of clean stops and starts.

Two clusters of one broker, one with 10,000 partitions, are idle side by side. CPU is that of
/proc/PID/stat for both over the same minute, so that other load on the machine affects both alike.
The number of wake-ups of their threads is a measure without a clock. Retention passes run every 20
s instead of every 5 minutes, so that the minute has some of each.

Then there are three brokers without and with 3,000 partitions of replication factor 3; each leads a
third and follows two thirds.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, NewTopic, Producer

PARTITIONS = int(os.environ.get("BENCH_IDLE_PARTITIONS", "10000"))
REPLICATED = int(os.environ.get("BENCH_IDLE_REPLICATED", "3000"))
IDLE_S = float(os.environ.get("BENCH_IDLE_SECONDS", "60"))
SETTLE_S = 75.0  # every pass sees new logs once; the rarest runs each minute
PER_TOPIC = 100
WRITTEN = 10
"""One of so many partitions is written to before the last stop."""

_SETTINGS = {"log.retention.check.interval.ms": "20000"}
_TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """A process so far: user and system time, and how often its threads went to sleep."""

    cpu_s: float
    switches: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        switches = 0
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for line in (thread / "status").read_text(encoding="ascii").splitlines():
                if line.startswith("voluntary_ctxt_switches:"):
                    switches += int(line.split()[1])
        return cls((int(stat[11]) + int(stat[12])) / _TICKS, switches)


class Idle(NamedTuple):
    """Percent of one core, and wake-ups per second."""

    cpu_percent: float
    wakeups: float


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def idle(pids: list[int]) -> list[Idle]:
    """The load of each process over the same `IDLE_S`."""
    time.sleep(SETTLE_S)
    before, begin = [Usage.of(pid) for pid in pids], time.monotonic()
    time.sleep(IDLE_S)
    after, took_s = [Usage.of(pid) for pid in pids], time.monotonic() - begin
    return [
        Idle(100 * (a.cpu_s - b.cpu_s) / took_s, (a.switches - b.switches) / took_s)
        for a, b in zip(after, before, strict=True)
    ]


def topics(partitions: int, factor: int) -> list[str]:
    return [f"idle-{factor}-{n}" for n in range(partitions // PER_TOPIC)]


def create(bootstrap: str, partitions: int, factor: int) -> None:
    names = topics(partitions, factor)
    with Admin(bootstrap) as admin:
        for first in range(0, len(names), 5):
            admin.create_topics([NewTopic(n, PER_TOPIC, factor) for n in names[first : first + 5]])
        admin.wait_until_topics_known(names)


def wait_for_logs(directory: Path, count: int, timeout_s: float = 600) -> None:
    deadline = time.monotonic() + timeout_s
    while sum(1 for e in directory.iterdir() if e.name.startswith("idle-")) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{directory} never had {count} logs")
        time.sleep(0.1)


def write_some(bootstrap: str, partitions: int) -> None:
    """Writes a record to each tenth partition."""
    with Producer(bootstrap) as producer:
        for name in topics(partitions, 1):
            for number in range(0, PER_TOPIC, WRITTEN):
                producer.send(name, b"x" * 100, partition=number)
        producer.flush()


def _pid(cluster: LocalCluster, node_id: int) -> int:
    process = cluster.node(node_id).process
    assert process is not None
    return process.pid


def _row(name: str, value: float, unit: str, ceiling: float | None = None) -> dict[str, Any]:
    ratio = None if not ceiling else value / ceiling
    return {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}


def _idle_rows(name: str, full: Idle, empty: Idle) -> list[dict[str, Any]]:
    return [
        _row(f"{name}: CPU (ceiling: without)", full.cpu_percent, "% of a core", empty.cpu_percent),
        _row(f"{name}: wake-ups (ceiling: without)", full.wakeups, "1/s", empty.wakeups),
    ]


def stop(cluster: LocalCluster, what: str) -> list[dict[str, Any]]:
    """Stops the only broker cleanly. Rows of the time, and of the broker's own CPU in it."""
    (broker,) = cluster.broker_ids
    process = cluster.node(broker).process
    assert process is not None
    before, began = Usage.of(process.pid), time.monotonic()
    process.terminate()
    cpu_s = before.cpu_s
    while process.poll() is None:
        try:
            cpu_s = Usage.of(process.pid).cpu_s
        except (FileNotFoundError, ProcessLookupError):
            continue
        time.sleep(0.01)
    return [
        _row(f"clean stop, {what}", time.monotonic() - began, "s"),
        _row(f"clean stop, {what}: CPU", cpu_s - before.cpu_s, "s"),
    ]


def start(cluster: LocalCluster, what: str) -> list[dict[str, Any]]:
    (broker,) = cluster.broker_ids
    began = time.monotonic()
    cluster.restart(broker)
    cluster.wait_ready(120)
    return [
        _row(f"start after it until ready, {what}", time.monotonic() - began, "s"),
        _row(f"start, {what}: CPU", Usage.of(_pid(cluster, broker)).cpu_s, "s"),
    ]


def one_broker(path: Path) -> list[dict[str, Any]]:
    """Memory and idle CPU beside a broker without partitions; stops and starts."""
    settings = {"controllers": 1, "brokers": 1, "broker_overrides": _SETTINGS}
    with (
        LocalCluster(path / "empty", **settings) as empty,
        LocalCluster(path / "full", **settings) as cluster,
    ):
        for each in (empty, cluster):
            each.wait_ready(60)
        (broker,) = cluster.broker_ids
        create(cluster.bootstrap_servers, PARTITIONS, 1)
        wait_for_logs(cluster.node(broker).data_directory, PARTITIONS)
        without, with_them = idle([_pid(empty, broker), _pid(cluster, broker)])
        memory, least = rss_mb(_pid(cluster, broker)), rss_mb(_pid(empty, broker))
        name = f"{PARTITIONS} idle partitions"
        rows = [
            _row(f"{name}: RSS (ceiling: aim)", memory, "MB", 500.0),
            _row(f"{name}: memory of each", 1000 * (memory - least) / PARTITIONS, "KB"),
            *_idle_rows(name, with_them, without),
        ]
        rows += stop(empty, "without partitions")
        rows += start(empty, "without partitions")
        rows += stop(cluster, "all new and empty")
        rows += start(cluster, "all empty")
        write_some(cluster.bootstrap_servers, PARTITIONS)
        rows += stop(cluster, f"{PARTITIONS // WRITTEN} with one new record")
        rows += start(cluster, f"{PARTITIONS // WRITTEN} with one record")
        rows += stop(cluster, "nothing happened since the start")
    return rows


def three_brokers(path: Path) -> list[dict[str, Any]]:
    """Rows of idle followers: the cost of replication without records."""
    with LocalCluster(path, controllers=1, brokers=3, broker_overrides=_SETTINGS) as cluster:
        cluster.wait_ready(60)
        pids = [_pid(cluster, n) for n in cluster.broker_ids]
        empty = idle(pids)
        create(cluster.bootstrap_servers, REPLICATED, 3)
        for n in cluster.broker_ids:
            wait_for_logs(cluster.node(n).data_directory, REPLICATED)
        full = idle(pids)
        memory = max(map(rss_mb, pids))

    def mean(of: list[Idle]) -> Idle:
        return Idle(sum(i.cpu_percent for i in of) / 3, sum(i.wakeups for i in of) / 3)

    name = f"three brokers, {REPLICATED} idle partitions RF 3"
    return [
        _row(f"{name}: RSS of the largest", memory, "MB"),
        *_idle_rows(f"{name}, each", mean(full), mean(empty)),
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
