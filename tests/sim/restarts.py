"""Restarts of simulated nodes: on the disk as it is, on another one, or on a damaged one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from commitlog.disk.memory_files import MemoryDirectory
from tests.sim.disk_faults import break_a_checkpoint, copy_disk
from tests.sim.rot import rot_at_rest
from tidemark.errors import CorruptMessageError, FatalError, StorageError

if TYPE_CHECKING:
    from tests.sim.node import SimNode
    from tests.sim.world import World

LEFT_ROOM_MAX_BYTES = 64
"""Room left on the disk of a starting node, in bytes: less than most files need."""
ROT_RATE = 0.3
"""Share of restarts of worlds with rotting disks that find a damaged file."""


class Restarts:
    """Brings nodes of one world back."""

    def __init__(self, world: World) -> None:
        self._world = world
        # own draws: the faults of a world do not depend on whether its disks rot
        self._rng = random.Random(world.seed ^ 0x707)
        self._rots = self._rng.random() < 0.5

    def later(self, node: SimNode) -> None:
        world = self._world
        world.at(world.now_ms + 1 + world.rng.randrange(1500), lambda: self.restart(node))

    def restart(self, node: SimNode) -> None:
        """Restarts a node: unchanged, or with another disk, a damaged file or a new address."""
        world = self._world
        if node.alive or (node.writes_fail and world.chance(0.5) and not self._starts_full(node)):
            return
        node.make_room()
        if world.faulty and node.incarnation > 0:
            self._change_something(node)
        whole = node.wounds.undamaged_disk() if node.wounds.running is not None else None
        if world.faulty and node.incarnation > 0 and self._rots and self._rng.random() < ROT_RATE:
            whole = self._damage(node) or whole
        self._start(node, whole)

    def _change_something(self, node: SimNode) -> None:
        world, seen, kind = self._world, self._world.seen, self._world.rng.random()
        administrator = world.administrator
        if kind < 0.15 and administrator.may_lose_disk(node):
            static = not node.is_mere_broker and not world.dynamic
            kind_of_node = "static voter" if static else "restart"
            seen[f"{kind_of_node} with an empty disk"] += 1
            node.lose_disk()
        elif kind < 0.25 and node.is_mere_broker:
            seen["restart with an older disk"] += node.old_disk is not None
            node.take_old_disk()
        elif kind < 0.3 and node.old_disk is not None and administrator.may_forget(node):
            kind_of_node = "dynamic" if node.log.kraft_version else "static"
            seen[f"{kind_of_node} voter with an older disk"] += 1
            node.take_old_disk()
        elif kind < 0.35:
            if break_a_checkpoint(node, world.rng):
                seen["checkpoint broken on disk"] += 1
        elif kind < 0.42 and administrator.may_be_missed(node):
            seen["restart at another address"] += 1
            node.move()
        elif kind < 0.6 and not node.wounds.is_open:
            node.old_disk = copy_disk(node.disk, world.seed)
            node.old_voters = node.log.voters

    def _damage(self, node: SimNode) -> MemoryDirectory | None:
        """Damages one file of the node. Returns a copy of the disk before that, or None."""
        administrator = self._world.administrator
        if not administrator.may_rot(node):
            return None
        whole = copy_disk(node.disk, self._world.seed * 1000 + node.node_id)
        unnoticed = node.is_mere_broker or administrator.others_have(node)
        damage = rot_at_rest(node, self._rng, unnoticed=unnoticed)
        if damage is None:
            return None
        self._world.seen[f"damaged at rest: {damage.kind}"] += 1
        node.wounds.owe(damage.lost_from)
        if damage.kind == "log-bounds":
            self._world.checks.on_bounds_lost(node)
        return whole

    def _start(self, node: SimNode, whole: MemoryDirectory | None) -> None:
        try:
            node.start()
        except (StorageError, FatalError, CorruptMessageError) as error:
            if whole is not None:
                self._world.seen["damaged node refuses to start"] += 1
                node.restore_disk(whole)  # from a copy, as the message instructs the operator
                self._start(node, None)
                return
            if node.is_mere_broker and isinstance(error, FatalError):
                node.lose_disk()
            else:
                raise
            node.start()

    def _starts_full(self, node: SimNode) -> bool:
        """Tries to start on a disk that others filled, down to the room that the crash freed. If
        that fails the operator makes room."""
        world = self._world
        if node.wounds.running is not None:
            return True
        node.fill_disk(world.rng.randrange(LEFT_ROOM_MAX_BYTES))
        world.seen["start on a full disk"] += 1
        try:
            node.start()
        except StorageError as error:
            assert world.is_planned(node, error), error
            world.seen["start on a full disk refused"] += 1
            node.lose_power()
            node.make_room()
            self.later(node)
        return False
