"""A cluster whose nodes change their release one at a time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tidemark.cli.local_cluster import LocalCluster, LocalNode
from tidemark.client import Admin
from tidemark.config.properties import format_properties
from tidemark.errors import ApiError

SETTINGS = {
    "broker.session.timeout.ms": "6000",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
LEVEL = "metadata.version"


def launcher_of(packages: Path | None) -> tuple[str, ...]:
    """Words before a command that let it import an earlier release; None: this one."""
    return ("env", f"PYTHONPATH={packages}") if packages else ()


def earlier_cluster(directory: Path, packages: Path) -> LocalCluster:
    """Three controllers and three brokers, formatted and run by an earlier release.

    Not started yet.
    """
    launcher = launcher_of(packages)
    cluster = LocalCluster(
        directory, overrides=SETTINGS, launchers=dict.fromkeys(range(1, 7), launcher)
    )
    for node in cluster.nodes:
        node.properties_file.parent.mkdir(parents=True, exist_ok=True)
        node.properties_file.write_text(format_properties(node.settings), encoding="utf-8")
        command = ("storage", "format", "-c", str(node.properties_file))
        tidemark(*command, "--cluster-id", cluster.cluster_id, launcher=launcher)
    return cluster


def tidemark(*arguments: str, launcher: Iterable[str] = ()) -> str:
    """Output of a command that has to succeed. Raises AssertionError with its errors."""
    command = [*launcher, sys.executable, "-P", "-m", "tidemark.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def until(holds: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    """Waits; errors of calls count as not yet."""
    deadline, last = time.monotonic() + timeout_s, ""
    while True:
        try:
            if holds():
                return
        except ApiError as error:
            last = repr(error)
        assert time.monotonic() < deadline, f"{what}: not in {timeout_s:.0f} s; {last}"
        time.sleep(0.1)


def is_whole(admin: Admin) -> bool:
    """Whether all replicas are in sync, and all voters have what is committed."""
    for topic in admin.describe_topics([t.name for t in admin.list_topics()]).values():
        if any(len(p.isr) < len(p.replicas) or p.leader is None for p in topic.partitions):
            return False
    quorum = admin.describe_quorum()
    return quorum.high_watermark is not None and all(
        (voter.log_end_offset or 0) >= quorum.high_watermark for voter in quorum.voters
    )


def replace(cluster: LocalCluster, admin: Admin, node: LocalNode, packages: Path | None) -> None:
    """Stops a node, starts it in the other release, and waits until nothing waits for it."""
    node.launcher = launcher_of(packages)
    cluster.restart(node.node_id)
    cluster.wait_ready(60)
    until(lambda: is_whole(admin), f"in sync after {node.role} {node.node_id}")
