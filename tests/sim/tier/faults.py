"""The faults of the cluster, and those of the tier.

Besides the weather of the bucket (`tests.sim.tier.store`) objects are damaged for a while, and the
leader epochs of stopped brokers are lost. Crashes are aimed at brokers that copy, that start above
the tier, or that restore a log from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar

from commitlog.disk.checkpoints import LEADER_EPOCH_CHECKPOINT
from tests.sim.cluster.faults import Faults
from tests.sim.cluster.views import CURRENT
from tests.sim.tier.programs import LOSSY, SINGLE
from tidemark.testing.node import SimNode
from tidemark.wire import REPLICA_FETCH_STREAM

if TYPE_CHECKING:
    from tests.sim.tier.world import TierWorld


class TierFaults(Faults):
    """The storms of one seed."""

    empty_rate: ClassVar[float] = 0.6
    epochs_lost_rate: ClassVar[float] = 0.15
    """How often a broker that starts has lost leader epochs."""
    corrupt_rate_min: ClassVar[float] = 0.0

    def __init__(self, world: TierWorld) -> None:
        super().__init__(world)
        self._tier = world
        self._bucket = world.bucket
        self._bucket.on_copy = lambda: self.on_work(CURRENT.get().node, "copy")
        self._aim: str | None = None
        """The work during which a broker is killed next."""

    def storms(self) -> list[Coroutine[Any, Any, None]]:
        rng, bucket = self._rng, self._bucket
        bucket.error_rate = rng.choice([0.0, 0.02, 0.2])
        bucket.lost_answer_rate = rng.choice([0.0, 0.05, 0.3])
        bucket.half_upload_rate = rng.choice([0.0, 0.05, 0.2])
        bucket.late_rate = rng.choice([0.0, 0.05, 0.2])
        bucket.corrupt_rate = max(self.corrupt_rate_min, rng.choice([0.0, 0.02, 0.2]))
        storms = super().storms()
        for node in self._world.cluster.nodes.values():
            node.store_ms_max = rng.choice([5.0, 50.0, 2_000.0])
        if LOSSY in self._tier.extra:
            storms += [self._storm(4_000, self._lose_a_tail), self._storm(4_000, self._lose_single)]
        return [
            *storms,
            self._storm(rng.choice([2_000, 6_000]), self._take_away),
            self._storm(rng.choice([1_000, 4_000]), self._damage),
            self._storm(rng.choice([1_500, 5_000]), self._take_aim),
        ]

    async def _take_away(self) -> None:
        self._bucket.is_away = True
        self._world.note("the store is away")
        try:
            await asyncio.sleep(self._rng.randrange(100, 6_000) / 1000)
        finally:
            self._bucket.is_away = False
            self._world.note("the store is back")

    async def _damage(self) -> None:
        path = self._bucket.damage(self._rng)
        self._world.note(f"damaged: {path}")
        try:
            await asyncio.sleep(self._rng.randrange(100, 4_000) / 1000)
        finally:
            self._bucket.repair()

    # --- crashes amid work ------------------------------------------------------------------------

    async def _take_aim(self) -> None:
        self._aim = self._rng.choice(["copy", "bootstrap", "bootstrap", "restore"])

    def on_work(self, node: SimNode, what: str) -> None:
        """Kills a node a little later if this is the work that is aimed at."""
        if self.is_over or self._aim != what:
            return
        self._aim = None
        delay_s = self._rng.random() * max(5.0, node.store_ms_max) / 1000
        asyncio.get_running_loop().create_task(self._kill_amid(node, node.life, what, delay_s))

    async def _kill_amid(self, node: SimNode, life: Any, what: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        with self._world.watch():
            # A broker that lost something has nothing that the others lack, so it may do so again.
            if self.is_over or node.life is not life or node.node_id in self._broken:
                return
            is_lost = node.node_id in self._lost
            if node.config.is_controller and not self.may_kill():
                return
            if not (is_lost or self.may_kill()):
                return
            self._world.seen[f"killed amid a {what}"] += 1
            self._world.note(f"n{node.node_id} is killed amid a {what}")
            if is_lost and not node.config.is_controller and self._rng.random() < 0.5:
                self.lose_power(node)
            else:
                node.kill()
            self._start_later(node)

    # --- unclean elections ------------------------------------------------------------------------

    async def _lose_a_tail(self) -> None:
        """A leader goes on alone, and ends. Another one is elected without its last records."""
        world, network = self._world, self._world.cluster.network
        leader = world.cluster.leader(LOSSY.name)
        if leader is None or not self.may_kill():
            return
        node = world.cluster.nodes[leader]
        ways = [(n.node_id, leader) for n in world.cluster.brokers if n.node_id != leader]
        network.cut(ways, REPLICA_FETCH_STREAM)
        try:
            await asyncio.sleep(self._rng.randrange(2_500, 5_000) / 1000)
        finally:
            if not self.is_over:
                network.uncut(ways, REPLICA_FETCH_STREAM)
        if node.life is not None and self.may_kill() and node.node_id not in self._broken:
            world.seen["killed: the only replica in sync"] += 1
            world.note(f"n{leader} is killed, the only replica in sync")
            node.kill()
            self._start_later(node)

    async def _lose_single(self) -> None:
        """The only replica of a partition loses its disks."""
        leader = self._world.cluster.leader(SINGLE.name)
        node = None if leader is None else self._world.cluster.nodes[leader]
        if node is None or node.config.is_controller or not self._may_lose():
            return
        self._world.note(f"n{leader} loses power and disks, with the only replica")
        self.lose_power(node)
        self._empty(node)
        self._start_later(node)

    # --- lost leader epochs -----------------------------------------------------------------------

    async def start(self, node: SimNode) -> None:
        if node.life is None and not self.is_over and self._rng.random() < self.epochs_lost_rate:
            self._lose_epochs(node)
        await super().start(node)

    def _lose_epochs(self, node: SimNode) -> None:
        """Removes the leader epochs of a tiered partition from the disks of a stopped broker."""
        found = [
            (directory, name)
            for directory in node.disks.by_path.values()
            for name in directory.list()
            if directory.is_directory(name)
            and name.rpartition("-")[0] in self._tier.unlimited
            and directory.subdirectory(name).exists(LEADER_EPOCH_CHECKPOINT)
        ]
        if not found:
            return
        directory, name = self._rng.choice(found)
        partition = directory.subdirectory(name)
        partition.remove(LEADER_EPOCH_CHECKPOINT)
        partition.fsync()
        self._world.seen["leader epochs lost"] += 1
        self._world.note(f"n{node.node_id} loses the leader epochs of {name}")
        self._tier.epochs_lost(node.node_id, *name.rsplit("-", 1))

    def heal(self) -> None:
        self._bucket.calm()
        for node in self._world.cluster.nodes.values():
            node.store_ms_max = 1.0
        super().heal()
