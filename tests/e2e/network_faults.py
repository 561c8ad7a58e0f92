"""Faults of a network and of processes under one seed, two at a time.

Links are cut in one direction, flap, or all end at one node. Processes are killed or stopped, and
one broker's disk gets full. Preferred elections move leaders on top of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import resource
import subprocess
from pathlib import Path
from typing import Protocol

from tests.e2e.links import CLIENTS, Links
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import AsyncAdmin
from tidemark.errors import TidemarkError
from tidemark.testing.history import History

_AT_ONCE = 2
_BALLAST_PIECE_BYTES = 1 << 20


class Disk(Protocol):
    """A disk that gets full."""

    def fill(self) -> None:
        """Leaves no room."""

    def free(self) -> None:
        """Ends `fill`."""


class SmallDisk:
    """A file system of its own for a broker's directory; a ballast file fills it."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)]
        subprocess.run(command, check=True)
        self._ballast = directory / "ballast"

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            piece = bytes(_BALLAST_PIECE_BYTES)
            while piece:
                try:
                    file.write(piece)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece = piece[: len(piece) // 2]

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)


class FileLimit:
    """A broker's files may not grow (EFBIG): where nothing may be mounted, the nearest thing to a
    full disk. Files that are shorter than the limit still grow up to it.
    """

    def __init__(self, cluster: LocalCluster, node_id: int, limit_bytes: int) -> None:
        self._cluster, self._node_id, self._limit_bytes = cluster, node_id, limit_bytes

    def fill(self) -> None:
        self._set(self._limit_bytes)

    def free(self) -> None:
        self._set(resource.RLIM_INFINITY)

    def _set(self, limit_bytes: int) -> None:
        process = self._cluster.node(self._node_id).process
        if process is not None and process.poll() is None:
            limits = (limit_bytes, resource.RLIM_INFINITY)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)


class NetworkFaults:
    """Draws faults until the time is up; afterwards nothing is broken. `done` counts them."""

    def __init__(
        self,
        cluster: LocalCluster,
        links: Links,
        disk: tuple[int, Disk],
        admin: AsyncAdmin,
        history: History,
        seed: int,
    ) -> None:
        self._cluster, self._links, self._admin = cluster, links, admin
        self._history = history
        self._full_node, self._disk = disk
        self._rng = random.Random(seed)
        self._hit: set[int] = set()
        self.done: dict[str, int] = {}

    async def run(self, duration_s: float) -> None:
        """Runs faults for this time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + duration_s
        running: set[asyncio.Task[None]] = set()
        faults = (
            self.one_way,
            self.one_way,
            self.deaf_or_mute,
            self.deaf_or_mute,
            self.flapping,
            self.kill,
            self.kill,
            self.pause,
            self.pause,
            self.full_disk,
        )
        while loop.time() < end:
            if len(running) < _AT_ONCE:
                fault = self._rng.choice(faults)
                self.done[fault.__name__] = self.done.get(fault.__name__, 0) + 1
                running.add(asyncio.create_task(fault(end - loop.time())))
            await asyncio.sleep(self._rng.uniform(0.2, 1.0))
            running = {task for task in running if not _is_over(task)}
            if self._rng.random() < 0.3:
                await self._elect()
        await asyncio.gather(*running)

    def _seconds(self, least: float, most: float, left_s: float) -> float:
        return min(self._rng.uniform(least, most), max(least, left_s))

    def _victim(self, *, brokers_only: bool = False) -> int | None:
        """A node that no other fault has taken. At most one controller of three is away."""
        ids = [*self._cluster.broker_ids]
        if not brokers_only and not self._hit & {*self._cluster.controller_ids}:
            ids += self._cluster.controller_ids
        free = [node for node in ids if node not in self._hit]
        return self._rng.choice(free) if free else None

    # Faults.

    async def one_way(self, left_s: float) -> None:
        """Cuts the way from one node, or the clients, to another one."""
        nodes = (CLIENTS, *self._cluster.controller_ids, *self._cluster.broker_ids)
        source, target = self._rng.sample(nodes, 2)
        self._history.note_fault(f"cut {source} -> {target}")
        self._links.cut(source, target)
        await asyncio.sleep(self._seconds(1, 8, left_s))
        self._links.mend(source, target)
        self._history.note_fault(f"mended {source} -> {target}")

    async def deaf_or_mute(self, left_s: float) -> None:
        """Cuts all ways to a node, or all from it."""
        node = self._victim()
        if node is None:
            return
        self._hit.add(node)
        nodes = (CLIENTS, *self._cluster.controller_ids, *self._cluster.broker_ids)
        others = [other for other in nodes if other != node]
        if self._rng.random() < 0.3:
            others = [other for other in others if other != CLIENTS]  # clients still reach it
        mute = self._rng.random() < 0.5
        ways = [(node, other) if mute else (other, node) for other in others]
        self._history.note_fault(f"{node} is {'mute' if mute else 'deaf'}")
        for way in ways:
            self._links.cut(*way)
        await asyncio.sleep(self._seconds(2, 8, left_s))
        for way in ways:
            self._links.mend(*way)
        self._history.note_fault(f"{node} is heard and hears")
        self._hit.discard(node)

    async def flapping(self, left_s: float) -> None:
        """A link between two nodes flaps, in one direction or both."""
        nodes = (*self._cluster.controller_ids, *self._cluster.broker_ids)
        one, other = self._rng.sample(nodes, 2)
        ways = [(one, other), (other, one)][: self._rng.randint(1, 2)]
        end_s = asyncio.get_running_loop().time() + self._seconds(2, 6, left_s)
        self._history.note_fault(f"{ways} flap")
        while asyncio.get_running_loop().time() < end_s:
            for way in ways:
                self._links.cut(*way)
            await asyncio.sleep(self._rng.uniform(0.05, 0.6))
            for way in ways:
                self._links.mend(*way)
            await asyncio.sleep(self._rng.uniform(0.05, 0.4))
        self._history.note_fault(f"{ways} flap no more")

    async def kill(self, left_s: float) -> None:
        """SIGKILL, and a new process."""
        node = self._victim()
        if node is None:
            return
        self._hit.add(node)
        self._history.note_fault(f"{node} is killed")
        await asyncio.to_thread(self._cluster.kill, node)
        await asyncio.sleep(self._seconds(0.1, 3, left_s))
        self._history.note_fault(f"{node} is started")
        await asyncio.to_thread(self._cluster.restart, node)
        await asyncio.sleep(3)  # it needs the time to start, or soon most nodes are away
        self._hit.discard(node)

    async def pause(self, left_s: float) -> None:
        """SIGSTOP and SIGCONT."""
        node = self._victim()
        if node is None:
            return
        self._hit.add(node)
        self._history.note_fault(f"{node} is stopped")
        self._cluster.pause(node)
        await asyncio.sleep(self._seconds(0.5, 8, left_s))
        self._cluster.resume(node)
        self._history.note_fault(f"{node} goes on")
        self._hit.discard(node)

    async def full_disk(self, left_s: float) -> None:
        """A broker's disk has no room. If its process ends, it is started when there is room."""
        node = self._full_node
        if node in self._hit:
            return
        self._hit.add(node)
        self._history.note_fault(f"the disk of {node} is full")
        await asyncio.to_thread(self._disk.fill)
        await asyncio.sleep(self._seconds(2, 6, left_s))
        self._disk.free()
        self._history.note_fault(f"the disk of {node} has room")
        await asyncio.sleep(0.5)
        if not self._cluster.node(node).is_running:
            self._history.note_fault(f"{node} had ended and is started")
            await asyncio.to_thread(self._cluster.restart, node)
            await asyncio.sleep(3)
        self._hit.discard(node)

    async def _elect(self) -> None:
        """Gives leadership back to preferred replicas."""
        with contextlib.suppress(TidemarkError):
            await self._admin.elect_leaders("PREFERRED", timeout_ms=1_000)
            self._history.note_fault("preferred leaders are elected")


def _is_over(task: asyncio.Task[None]) -> bool:
    if task.done():
        task.result()
    return task.done()


def process_of(cluster: LocalCluster, node_id: int) -> int | None:
    """The process id of a node that runs."""
    process = cluster.node(node_id).process
    return process.pid if process is not None and process.poll() is None else None


def may_use_namespaces() -> bool:
    """Whether this machine permits network namespaces, and has the tools for them."""
    probe = "ip link set lo up && mount -t tmpfs tmpfs /run && ip netns add probe"
    with contextlib.suppress(OSError):
        command = [*UNSHARE, "sh", "-c", probe]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


UNSHARE = (
    "unshare",
    *(() if os.geteuid() == 0 else ("--user", "--map-root-user")),
    *("--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"),
)
"""Namespaces in which a command is alone; all processes in them end with it."""
