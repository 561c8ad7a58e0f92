"""Three controllers and five brokers as processes, under a load and faults of their network and
disks, judged by the history of the clients.

    python -m tests.e2e.network_storm DIRECTORY --seed 7 --seconds 30 [--links proxies]

The exit status is 0 if every promise was kept. The history is `DIRECTORY/history.jsonl`, and
`python -m tidemark.testing.checker` judges it again. Beside it are the logs of clients and nodes. A
seed repeats the choices of faults and clients, not the timing of real processes.

In network namespaces the command runs itself again, in namespaces of its own. They end with it,
and all processes, mounts and links in them, whatever ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import logging
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.links import Links, Namespaces, Proxies
from tests.e2e.network_faults import (
    UNSHARE,
    Disk,
    FileLimit,
    NetworkFaults,
    SmallDisk,
    may_use_namespaces,
    process_of,
)
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import AsyncAdmin, AsyncConsumer, AsyncProducer, NewTopic
from tidemark.errors import TidemarkError
from tidemark.testing.checker import broken, judge, report
from tidemark.testing.history import History
from tidemark.testing.workload import Workload, WorkloadPace

CONTROLLERS, BROKERS = 3, 5
NAMESPACES, PROXIES, AUTO = "namespaces", "proxies", "auto"
_FULL_BYTES = 80 << 20
_FILE_LIMIT_BYTES = 64 << 10
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "2500",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.request.timeout.ms": "1000",
    "auto.leader.rebalance.enable": "false",  # the faults elect; afterwards leaders stay
}
SMALL = {"segment.bytes": "100000", "index.interval.bytes": "1000"}
TOPICS = {
    # One replica may be the whole ISR: a tail that only it has is lost, or waits for it.
    "pairs": NewTopic("pairs", 2, 2, configs=SMALL | {"min.insync.replicas": "1"}),
    "trios": NewTopic("trios", 3, 3, configs=SMALL | {"min.insync.replicas": "2"}),
}
PACE = WorkloadPace(
    send_ms=120,
    read_ms=120,
    delivery_timeout_ms=15_000,
    request_timeout_ms=2_000,
    max_block_ms=5_000,
    slack_ms=6_000,
    finish_ms=30_000,
)


class _Clients:
    """Makes the clients of a real cluster."""

    def __init__(self, servers: str, rng: random.Random) -> None:
        self._servers, self._rng = servers, rng

    def producer(self, **settings: Any) -> AsyncProducer:
        return AsyncProducer(self._servers, random_seed=self._rng.getrandbits(32), **settings)

    def consumer(self, **settings: Any) -> AsyncConsumer:
        return AsyncConsumer(self._servers, random_seed=self._rng.getrandbits(32), **settings)


@contextlib.asynccontextmanager
async def storm_cluster(
    directory: Path, kind: str
) -> AsyncIterator[tuple[LocalCluster, Links, tuple[int, Disk]]]:
    """The running cluster, its network, and the broker whose disk gets full."""
    nodes = range(1, CONTROLLERS + BROKERS + 1)
    small = CONTROLLERS + BROKERS
    made: list[LocalCluster] = []
    links: Links
    if kind == NAMESPACES:
        links = Namespaces(nodes)
    else:
        names = {n: "CONTROLLER" if n <= CONTROLLERS else "PLAINTEXT" for n in nodes}
        links = Proxies(names, lambda node: process_of(made[0], node) if made else None)
    await links.start()
    cluster = LocalCluster(
        directory,
        controllers=CONTROLLERS,
        brokers=BROKERS,
        overrides=SETTINGS,
        node_overrides=links.settings,
        ports=[links.ports[node] for node in nodes],
        hosts=links.hosts,
        launchers=links.launchers,
    )
    made.append(cluster)
    disk: Disk
    if kind == NAMESPACES:
        disk = SmallDisk(cluster.node(small).data_directory, _FULL_BYTES)
    else:
        disk = FileLimit(cluster, small, _FILE_LIMIT_BYTES)
    try:
        await asyncio.to_thread(cluster.start)
        yield cluster, links, (small, disk)
    finally:
        await asyncio.to_thread(cluster.stop)
        await links.stop()


async def settled(admin: AsyncAdmin, timeout_s: float) -> None:
    """Returns when every partition has all its replicas in sync. Raises AssertionError."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    lagging: object = "nothing was described"
    while loop.time() < deadline:
        with contextlib.suppress(TidemarkError):
            topics = await admin.describe_topics(list(TOPICS))
            lagging = [
                f"{topic.name}-{p.partition}: leader {p.leader}, isr {p.isr} of {p.replicas}"
                for topic in topics.values()
                for p in topic.partitions
                if set(p.isr) != set(p.replicas) or p.leader is None
            ]
            if not lagging:
                return
        await asyncio.sleep(0.2)
    raise AssertionError(f"after {timeout_s:.0f} s without faults: {lagging}")


async def storm(directory: Path, seed: int, seconds: float, kind: str) -> bool:
    """Runs it, prints the verdicts, and returns whether every promise was kept."""
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)

    say(f"seed {seed}, links by {kind}")
    # A line is written as it comes: the history is there when something hangs.
    with (directory / "history.jsonl").open("w", encoding="utf-8", buffering=1) as file:
        history = History(lambda: loop.time() * 1000, file)
        async with storm_cluster(directory / "cluster", kind) as (cluster, links, disk):
            await asyncio.to_thread(cluster.wait_ready, 60)
            say("the cluster serves")
            servers = cluster.bootstrap_servers
            counts = {name: topic.num_partitions or 1 for name, topic in TOPICS.items()}
            async with AsyncAdmin(servers, request_timeout_ms=2_000) as admin:
                await admin.create_topics(list(TOPICS.values()))
                faults = NetworkFaults(cluster, links, disk, admin, history, seed)
                clients = _Clients(servers, rng)
                async with Workload(clients, history, rng, counts, PACE) as workload:
                    await faults.run(seconds)
                    say(f"the faults are over: {faults.done}")
                    await asyncio.to_thread(cluster.wait_ready, 60)
                    await settled(admin, 60)
                    say("all replicas are in sync")
                    await workload.finish()
                    say("the logs are read to their ends")
    verdicts = judge(history.entries)
    print(report(history.entries, verdicts), flush=True)
    say(f"{len(history.entries)} lines")
    return not broken(verdicts)


def _end_with_parent() -> None:
    """Has the kernel kill this process when its parent ends (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a storm; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.network_storm")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--links", choices=(AUTO, NAMESPACES, PROXIES), default=AUTO)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    _end_with_parent()
    kind = parsed.links
    if kind == AUTO:
        kind = NAMESPACES if may_use_namespaces() else PROXIES
    if kind == NAMESPACES and not parsed.inside:
        # The first process of a process namespace is nobody's child and has to be a shell: nodes
        # take a parent with the id 1 for a sign that theirs has ended.
        command = [sys.executable, "-m", "tests.e2e.network_storm", str(parsed.directory)]
        command += ["--seed", str(parsed.seed), "--seconds", str(parsed.seconds)]
        command += ["--links", NAMESPACES, "--inside"]
        shell = ["sh", "-c", '"$@"; exit $?', "storm", *command]
        return subprocess.run(
            [*UNSHARE, *shell], preexec_fn=_end_with_parent, check=False
        ).returncode
    parsed.directory.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=parsed.directory / "clients.log", level=logging.INFO)
    try:
        kept = asyncio.run(storm(parsed.directory, parsed.seed, parsed.seconds, kind))
    except Exception:
        _show_outputs(parsed.directory)
        raise
    return 0 if kept else 1


def _show_outputs(directory: Path) -> None:
    """Prints the last lines of each node's output."""
    for output in sorted((directory / "cluster" / "output").glob("*.log")):
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
        print(f"--- {output.name}", *lines[-5:], sep="\n", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
