"""The storms of the whole cluster. Each waits a random time, makes one fault, and ends it.

What the cluster promises bounds them. A record is acknowledged when all in-sync replicas have it in
memory, as with Kafka. So only one broker at a time loses power or disks, and only while every
broker is in every ISR. Until it is there again, no other broker is killed or stopped. The
controller takes any stop without a marker for a loss (KIP-966), and the last leader may be the one
that lost. A broker that stops in order may leave the ISR to it. Otherwise processes are killed at
any time, all at once as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar

from commitlog.disk.memory_files import Keep
from tests.sim.cluster.plans import Plans
from tests.sim.cluster.spoiling import flip_a_bit
from tidemark.errors import TidemarkError
from tidemark.testing.cluster import CLIENTS
from tidemark.testing.node import SimNode
from tidemark.types import TopicPartition
from tidemark.wire import FETCH_STREAM

if TYPE_CHECKING:
    from tests.sim.cluster.world import ClusterWorld

_DISK_ERRORS = ("input/output error", "the disk is full", "is offline", "no space left")


class Faults:
    """All faults of one world."""

    empty_rate: ClassVar[float] = 0.5
    """How often a mere broker that loses power gets empty disks."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._rng = world.rng
        self._tasks: dict[asyncio.Task[None], bool] = {}  # starts; True: no longer waiting
        self._broken: dict[int, str] = {}  # nodes whose disks fail, with the fault
        self._lost: dict[int, int] = {}  # brokers that lost something, with their epochs then
        self.plans = Plans(world, self)
        self.is_over = False

    def _trouble(self) -> None:
        """Makes links and disks of this seed slow, lossy or wrong from now on."""
        world, rng = self._world, self._rng
        network = world.cluster.network
        network.delay_ms_max = rng.choice([2.0, 2.0, 10.0, 40.0])
        network.late_rate = rng.choice([0.0, 0.002, 0.02])
        network.break_rate = rng.choice([0.0, 0.005, 0.03])
        if world.topics_change:
            rot_rate = rng.choice([0.0, 0.0, 0.02])
            network.change_answer = lambda call, answer: self._rot(call, answer, rot_rate)
        for node in world.cluster.nodes.values():
            node.job_ms_max = rng.choice([1.0, 1.0, 10.0, 60.0])
            node.skew_ms = rng.choice([0, 0, 0, 1_200_000, -1_200_000])

    def storms(self) -> list[Coroutine[Any, Any, None]]:
        """One coroutine for each kind of fault."""
        rng = self._rng
        self._trouble()
        if self._world.is_aimed:
            self._world.cluster.network.late_rate = 0.0  # a plan makes its own
            return [self.plans.run()]
        moves = []
        if self._world.topics_change:
            moves = [self._storm(rng.choice([2_000, 8_000]), self._reassign)]
        return [
            self._storm(rng.choice([1_500, 4_000, 9_000]), self._crash),
            self._storm(rng.choice([1_500, 4_000, 9_000]), self._cut),
            self._storm(rng.choice([2_500, 8_000]), self._pause),
            self._storm(rng.choice([3_000, 10_000]), self._stop_in_order),
            self._storm(rng.choice([4_000, 10_000]), self._break_disk),
            self._storm(5_000, self._jump_clock),
            *moves,
        ]

    async def _storm(self, mean_ms: int, fault: Any) -> None:
        while True:
            await asyncio.sleep(self._rng.randrange(1, 2 * mean_ms) / 1000)
            with self._world.watch():
                await fault()

    def explains(self, node: SimNode, error: BaseException) -> bool:
        """Whether a planned fault ended this process; it starts again later."""
        if node.node_id not in self._broken:
            return False
        cause = f"{error} {error.__cause__}"
        if not any(text in cause.lower() for text in _DISK_ERRORS):
            return False
        self._world.seen["process ended by its disk"] += 1
        self._start_later(node)
        return True

    # --- processes --------------------------------------------------------------------------------

    def _running(self) -> list[SimNode]:
        nodes = self._world.cluster.nodes.values()
        return [node for node in nodes if node.life is not None]

    def _one(self, *, leader_rate: float = 0.4) -> SimNode | None:
        """A running node; often the active controller or the leader of a partition."""
        running = self._running()
        if not running:
            return None
        cluster = self._world.cluster
        if self._rng.random() < leader_rate:
            chosen = self._rng.choice([cluster.active_controller(), cluster.leader("orders")])
            for node in running:
                if node.node_id == chosen:
                    return node
        return self._rng.choice(running)

    def _start_later(self, node: SimNode, limit_ms: int = 3_000) -> None:
        async def run() -> None:
            await asyncio.sleep(self._rng.randrange(1, limit_ms) / 1000)
            self._tasks[task] = True
            with self._world.watch():
                await self.start(node)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks[task] = False
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))

    async def start(self, node: SimNode) -> None:
        """Starts a node on whole disks, unless it runs."""
        if node.life is not None:
            return
        self._mend(node)
        self._world.line(f"n{node.node_id} starts")
        life_before = node.life
        try:
            await node.start()
        except asyncio.CancelledError:
            if node.life is life_before:
                raise
        view = self._world.nodes[node.node_id]
        if node.server is not None and node.server.loader is not None:
            node.server.loader.add_publisher(view)

    def _may_lose(self) -> bool:
        """Whether any one broker may lose unsynced bytes: all others have all that is committed."""
        world = self._world
        nodes = world.cluster.nodes.values()
        alive = all(n.life is not None and n.life.held is None for n in nodes)
        return alive and not self._broken and self.may_kill() and world.is_in_sync()

    def may_kill(self) -> bool:
        """Whether a broker may be killed: none that lost something is still out of an ISR."""
        image = self._world.newest_image()
        if self._lost and image is not None and self._world.is_in_sync():
            for node_id, epoch in list(self._lost.items()):
                broker = image.brokers.get(node_id)
                if broker is not None and broker.epoch > epoch:
                    del self._lost[node_id]
        return not self._lost

    async def _crash(self) -> None:
        rng, world = self._rng, self._world
        may_kill = self.may_kill()
        if may_kill and rng.random() < 0.08:
            world.seen["all killed at once"] += 1
            world.note("all nodes are killed")
            for node in self._running():
                node.kill()
                self._start_later(node)
            return
        node = self._one()
        if node is None or (node.config.is_broker and not may_kill):
            return
        power = rng.random() < 0.6 and self._may_lose()
        empty = power and not node.config.is_controller and rng.random() < self.empty_rate
        world.seen["power lost" if power else "killed"] += 1
        world.note(f"n{node.node_id} {'loses power' if power else 'is killed'}")
        if power:
            self.lose_power(node)
        else:
            node.kill()
        if empty:
            self._empty(node)
        self._start_later(node)

    def lose_power(self, node: SimNode, keep: Keep = "random") -> int:
        """Ends a process with its machine's power; returns its broker's epoch, -1 if unknown."""
        world = self._world
        image = world.newest_image()
        broker = None if image is None else image.brokers.get(node.node_id)
        if broker is not None:
            self._lost[node.node_id] = broker.epoch
        before = [(d.disk.lost_changes, d.disk.torn_appends) for d in node.disks.by_path.values()]
        node.kill(power=True, keep=keep)
        world.partitions.lost(node.node_id)
        for (lost, torn), directory in zip(before, node.disks.by_path.values(), strict=True):
            world.seen["unsynced writes lost"] += directory.disk.lost_changes - lost
            world.seen["write torn"] += directory.disk.torn_appends - torn
        return -1 if broker is None else broker.epoch

    def _empty(self, node: SimNode) -> None:
        """Replaces the disks of a mere broker by empty, formatted ones."""
        world = self._world
        world.seen["disks replaced by empty ones"] += 1
        world.note(f"n{node.node_id} gets empty disks")
        node.disks.by_path.clear()
        node.format(world.cluster_id)
        world.nodes[node.node_id].lost_disk()

    async def _pause(self) -> None:
        node = self._one()
        if node is None or node.life is None or node.life.held is not None:
            return
        life = node.life
        self._world.seen["paused"] += 1
        self._world.note(f"n{node.node_id} is paused")
        life.pause()
        await asyncio.sleep(self._rng.randrange(1, 5_000) / 1000)
        if life.alive and life.held is not None:
            self._world.note(f"n{node.node_id} goes on")
            life.resume()

    async def _stop_in_order(self) -> None:
        node = self._one()
        if node is None or node.life is None or node.life.held is not None:
            return
        if node.config.is_broker and not self.may_kill():
            return
        self._world.seen["stopped in order"] += 1
        self._world.note(f"n{node.node_id} is stopped in order")
        life = node.life
        await node.stop()
        if node.life is None and not life.alive:
            self._start_later(node)

    # --- network, clocks, disks -------------------------------------------------------------------

    async def _cut(self) -> None:
        rng, network = self._rng, self._world.cluster.network
        ids = [CLIENTS, *self._world.cluster.nodes]
        if rng.random() < 0.5:
            side = {rng.choice(ids)}
        else:
            side = set(rng.sample(ids, rng.randrange(1, len(ids))))
        ways = [(a, b) for a in ids if a in side for b in ids if b not in side]
        one_way = rng.random() < 0.5
        if not one_way:
            ways += [(b, a) for a, b in ways]
        elif rng.random() < 0.5:
            ways = [(b, a) for a, b in ways]
        self._world.seen["cut one way" if one_way else "cut both ways"] += 1
        self._world.note(f"cut {ways}")
        network.cut(ways)
        try:
            await asyncio.sleep(rng.randrange(1, 4_000) / 1000)
        finally:
            if not self.is_over:
                self._world.note(f"uncut {ways}")
                network.uncut(ways)

    async def _jump_clock(self) -> None:
        node = self._one(leader_rate=0.2)
        if node is not None:
            jump_ms = self._rng.choice([-600_000, -5_000, 5_000, 600_000])
            # A topic refuses timestamps that are an hour ahead of the leader's clock.
            node.skew_ms = max(-1_500_000, min(1_500_000, node.skew_ms + jump_ms))
            self._world.seen["clock jumped"] += 1
            self._world.note(f"n{node.node_id} has its clock at {node.skew_ms:+} ms")

    async def _break_disk(self) -> None:
        rng, world = self._rng, self._world
        node = self._one()
        if node is None or self._broken or node.life is None:
            return
        kind = rng.choice(["full", "slow", "fsync", "write"])
        if kind in ("fsync", "write") and not self._may_lose():
            kind = "slow"
        directory = rng.choice(list(node.disks.by_path.values()))
        world.seen[f"disk: {kind}"] += 1
        world.note(f"n{node.node_id} disk {directory.path}: {kind}")
        if kind != "slow":
            self._broken[node.node_id] = kind
        if kind == "full":
            directory.set_capacity(directory.disk.used_bytes + rng.randrange(3_000))
        elif kind == "slow":
            node.job_ms_max = 400.0
        elif kind == "fsync":
            directory.fail_fsync("*")
        else:
            directory.fail_writes("*.log")
        await asyncio.sleep(rng.randrange(200, 3_000) / 1000)
        if kind == "slow":
            node.job_ms_max = 1.0
        elif kind == "full":
            self._mend(node)
        elif node.life is not None and not self.is_over and self.may_kill():
            # A failed directory stays offline until the process starts again.
            node.kill()
            self._start_later(node)

    def _rot(self, call: Any, answer: bytes, rate: float) -> bytes:
        """Damages batches on their way to a consumer."""
        if self.is_over or call.path != FETCH_STREAM or call.source.node_id != CLIENTS:
            return answer
        if self._rng.random() >= rate:
            return answer
        self._world.seen["batch damaged on the way"] += 1
        return flip_a_bit(answer, self._rng)

    async def _reassign(self) -> None:
        """Moves a partition to two or three brokers in another order, and its leader after it."""
        rng, world = self._rng, self._world
        partition = TopicPartition(*rng.choice([("orders", 0), ("orders", 1), ("plain", 0)]))
        ids = [node.node_id for node in world.cluster.brokers]
        replicas = rng.sample(ids, rng.choice([2, 3, 3]))
        world.seen["reassigned"] += 1
        world.note(f"{partition} goes to {replicas}")

        async def run() -> None:
            async with world.cluster.asyncio.admin() as admin:
                await admin.alter_partition_reassignments({partition: replicas})
                await asyncio.sleep(rng.random())
                await admin.elect_leaders("PREFERRED", [partition])

        life = world.cluster.clients.life
        assert life is not None
        with contextlib.suppress(TidemarkError, TimeoutError):
            async with asyncio.timeout(3):
                await life.spawn(run())

    def _mend(self, node: SimNode) -> None:
        self._broken.pop(node.node_id, None)
        for directory in node.disks.by_path.values():
            directory.set_capacity(1 << 40)
            disk = directory.disk
            disk.failing_fsyncs.clear()
            disk.failing_writes.clear()

    # --- the end ----------------------------------------------------------------------------------

    def heal(self) -> None:
        """Ends all faults, and starts everything again that is down or half down."""
        self.is_over = True
        world = self._world
        for task, is_starting in list(self._tasks.items()):
            if not is_starting:  # a start that is cut short would leave half a server
                task.cancel()
        world.cluster.network.heal()
        for node in world.cluster.nodes.values():
            was_broken = node.node_id in self._broken
            self._mend(node)
            node.job_ms_max = 1.0
            if node.life is not None:
                node.life.resume()
                if was_broken or node.is_stopping or _has_offline_directory(node):
                    node.kill()
            if node.life is None:
                self._start_later(node, 500)


def _has_offline_directory(node: SimNode) -> bool:
    """Whether a directory failed, for want of space as well: it is used again after a restart."""
    broker = None if node.server is None else node.server.broker
    return broker is not None and any(hosted.offline for hosted in broker.partitions)
