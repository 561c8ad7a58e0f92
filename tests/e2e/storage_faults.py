"""The faults of brokers and their disks in a storage chaos: seeded actions that wait for events.

At most one broker is away or has a broken disk at any time. Before an action takes something from
it, the others are in every ISR. All acknowledged records must therefore be kept, and the load can
continue.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from node.runtime.storage import format_storage
from tests.e2e.storage_load import EVENTS, PARTITIONS, TOPICS, Load
from tests.tools import tool
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin
from tidemark.client.models import LogDirDescription, TopicPartitionReplica
from tidemark.config import load_server_config
from tidemark.errors import ApiError
from tidemark.types import TopicPartition

DISKS = ("a", "b")
WRITES = "write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,ftruncate"
_POLL_S = 0.1


def disk_of(root: Path, broker: int, name: str) -> Path:
    """One of log.dirs of a broker."""
    return root / "disks" / f"{broker}{name}"


class Faults:
    """The actions on one cluster; `done` lists them in order."""

    def __init__(self, cluster: LocalCluster, load: Load, admin: Admin, seed: int) -> None:
        self.cluster, self.load, self.admin = cluster, load, admin
        self.rng = random.Random(seed)
        self.done: list[str] = []

    def run(self, actions: list[str]) -> None:
        """Runs these actions; afterwards every broker runs and its disks are good."""
        for action in actions:
            self.done.append(action)
            getattr(self, action)()
            self.load.wait_more(100)

    # Actions.

    def kill(self) -> None:
        """Kills a broker with SIGKILL and restarts it."""
        broker = self._victim()
        self.cluster.kill(broker)
        self.load.wait_more(200)
        self._back(broker)

    def pause(self) -> None:
        """Stops a broker with SIGSTOP until the others continue without it; then SIGCONT."""
        broker = self._victim()
        self.cluster.pause(broker)
        self.load.wait_more(200)
        self.cluster.resume(broker)
        self.cluster.wait_ready(90)

    def kill_controller(self) -> None:
        """Kills the active controller with SIGKILL and restarts it."""
        leader = self.admin.describe_quorum().leader_id
        assert leader is not None
        self.cluster.kill(leader)
        self.load.wait_more(50)
        self.cluster.restart(leader)

    def move(self) -> None:
        """Assigns random directories to some replicas, without waiting for the moves."""
        wanted = {}
        for broker in self.cluster.broker_ids:
            for topic in TOPICS:
                for partition in range(PARTITIONS):
                    if self.rng.random() < 0.6:
                        replica = TopicPartitionReplica(TopicPartition(topic, partition), broker)
                        disk = disk_of(self.cluster.directory, broker, self.rng.choice(DISKS))
                        wanted[replica] = str(disk)
        answers = self.admin.alter_replica_log_dirs(wanted)
        refused = {replica: error for replica, error in answers.items() if error is not None}
        assert not refused, refused

    def elect(self) -> None:
        """Elects preferred leaders."""
        self.admin.elect_leaders("PREFERRED")

    def delete_records(self) -> None:
        """Deletes the first part of the acknowledged records."""
        for partition in range(PARTITIONS):
            offset = int(self.load.end_of(EVENTS, partition) * self.rng.uniform(0.2, 0.7))
            self.admin.delete_records({TopicPartition(EVENTS, partition): offset})

    def broken_disk(self) -> None:
        """Makes a disk refuse writes; it comes back as it was."""
        broker, disk = self._break()
        self._end(broker)
        assert disk.is_dir()
        self._back(broker)

    def replaced_disk(self) -> None:
        """Makes a disk refuse writes; an empty one replaces it."""
        broker, disk = self._break()
        self._end(broker)
        shutil.rmtree(disk)
        self._format(broker)
        self._back(broker)

    def absent_disk(self) -> None:
        """Removes a disk; its broker continues and starts without it, and it comes back."""
        broker = self._victim()
        disk = self._fuller(broker)
        away = disk.with_name(f"{disk.name}.away")
        disk.rename(away)
        self._until_offline(broker, disk)
        self.load.wait_more(100)
        self._end(broker)
        self._back(broker)
        self.load.wait_more(100)
        self.move_on(broker, disk)
        self.load.wait_more(100)
        self._end(broker)
        assert not disk.exists(), "something was made in place of a disk that is away"
        away.rename(disk)
        self._back(broker)

    def lost_disk(self) -> None:
        """Replaces a disk by an empty one while its broker is down."""
        broker = self._victim()
        disk = self._fuller(broker)
        self.cluster.kill(broker)
        shutil.rmtree(disk)
        self._format(broker)
        self.load.wait_more(100)
        self._back(broker)

    # Steps.

    def move_on(self, broker: int, gone: Path) -> None:
        """Requests moves of a broker's remaining replicas, also into the missing directory."""
        disks = [disk_of(self.cluster.directory, broker, name) for name in DISKS]
        for disk in disks:
            replicas = {
                TopicPartitionReplica(TopicPartition(topic, p), broker): str(disk)
                for topic in TOPICS
                for p in range(PARTITIONS)
                if self.rng.random() < 0.5
            }
            self.admin.alter_replica_log_dirs(replicas)

    def _victim(self) -> int:
        """A broker that is not needed: the others are in every ISR."""
        broker = self.rng.choice(self.cluster.broker_ids)
        others = set(self.cluster.broker_ids) - {broker}
        self.wait_for_isr(others)
        return broker

    def wait_for_isr(self, brokers: set[int], timeout_s: float = 90) -> None:
        """Returns when these brokers are in the ISR of every partition."""

        def out_of_sync() -> list[str]:
            topics = self.admin.describe_topics(TOPICS)
            return [
                f"{topic.name}-{p.partition}: isr {p.isr}, leader {p.leader}"
                for topic in topics.values()
                for p in topic.partitions
                if not brokers <= set(p.isr)
            ]

        self.until(lambda: not out_of_sync(), timeout_s, out_of_sync)

    def until(self, holds: Callable[[], bool], timeout_s: float, why: Callable[[], object]) -> None:
        """Polls until `holds` is true; fails with `why` after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, f"{self.done}, after {timeout_s} s: {why()}"
            time.sleep(_POLL_S)

    def log_dirs(self, broker: int) -> dict[str, LogDirDescription]:
        """The directories of a broker by the last component of their path."""
        described = self.admin.describe_log_dirs([broker], TOPICS)[broker]
        return {Path(directory.log_dir).name: directory for directory in described}

    def _fuller(self, broker: int) -> Path:
        """The disk with more replicas: it is written to."""
        found = {name: len(d.replicas) for name, d in self.log_dirs(broker).items()}
        names = [f"{broker}{name}" for name in DISKS]
        most = max(names, key=lambda name: (found.get(name, 0), name))
        return disk_of(self.cluster.directory, broker, most.removeprefix(str(broker)))

    def _break(self) -> tuple[int, Path]:
        """Makes a disk of a broker refuse writes; returns when the broker has noticed."""
        broker = self._victim()
        disk = self._fuller(broker)
        process = self.cluster.node(broker).process
        assert process is not None
        files = sorted(path for path in disk.rglob("*") if path.is_file())
        chosen = [part for file in [disk, *files] for part in ("-P", str(file))]
        output = self.cluster.directory / f"strace-{len(self.done)}.out"
        strace = subprocess.Popen(
            [
                *(tool("strace"), "-f", "-qq", "-o", str(output), "-p", str(process.pid)),
                *(*chosen, "-e", f"trace={WRITES}", "-e", f"inject={WRITES}:error=EIO"),
            ],
            stdin=subprocess.DEVNULL,
        )
        try:
            self._until_offline(broker, disk)
            self.load.wait_more(100)
        finally:
            strace.send_signal(signal.SIGINT)
            strace.wait(30)
        return broker, disk

    def _until_offline(self, broker: int, disk: Path) -> None:
        def offline() -> bool:
            try:
                return self.log_dirs(broker)[disk.name].error is not None
            except ApiError:
                return False

        self.until(offline, 60, lambda: f"broker {broker} still takes {disk} for good")

    def _end(self, broker: int) -> None:
        """Sends SIGKILL or SIGTERM."""
        if self.rng.random() < 0.5:
            self.cluster.kill(broker)
        else:
            node = self.cluster.node(broker)
            assert node.process is not None
            os.kill(node.process.pid, signal.SIGTERM)
            assert node.process.wait(60) == 0, node.output_tail()

    def _back(self, broker: int) -> None:
        self.cluster.restart(broker)
        self.cluster.wait_ready(90)

    def _format(self, broker: int) -> None:
        config = load_server_config(self.cluster.node(broker).properties_file, {})
        format_storage(config, self.cluster.cluster_id, ignore_formatted=True)
