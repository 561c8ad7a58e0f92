"""Rival changes of the voters: two leaders, cut off from each other, change the same set of four by
one voter each (Ongaro 2015).

The first leader's change reaches nobody. Its successor is asked again and again to remove it, while
only one other voter hears. A leader that begins a change before anything of its own epoch is
committed then commits it by two of three. The first one and the fourth voter are another majority.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from quorum.raft.roles import Leader

if TYPE_CHECKING:
    from tests.sim.node import SimNode
    from tests.sim.world import World

BEGIN_WITHIN_MS = 3_000
VOTERS = 4
NEW_LEADER_WITHIN_MS = 2_500
COMMITTED_WITHIN_MS = 500
SECOND_MAJORITY_MS = 2_500


class Rivals:
    """Plays the scene once in some worlds with dynamic voters."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(world.seed ^ 0x4114)
        self._cut: set[tuple[int, int]] = set()
        self.at_work = False

    def plan(self) -> None:
        if self._world.dynamic and self._rng.random() < 0.6:
            self._world.at(1 + self._rng.randrange(BEGIN_WITHIN_MS), self._begin)

    def _begin(self) -> None:
        """Begins as soon as a leader of four running voters has committed them."""
        world = self._world
        leader = next(iter(world.leaders()), None)
        if leader is None or not self._is_settled(leader):
            if world.faulty and world.now_ms < 2 * BEGIN_WITHIN_MS:
                world.at(world.now_ms + 20, self._begin)
            return
        world.seen["rival changes of the voters"] += 1
        self.at_work = True
        others = [world.nodes[n] for n in leader.replica.voters.others(leader.node_id)]
        removed = self._rng.choice(others)
        self._isolate([leader])
        world.administrator.remove(leader, removed.key)
        self._until(
            lambda: self._successor(leader) is not None,
            NEW_LEADER_WITHIN_MS,
            lambda: self._succeed(leader, removed, others),
        )

    def _is_settled(self, leader: SimNode) -> bool:
        replica, voters = leader.replica, leader.replica.voters
        if len(voters) != VOTERS or not voters.is_voter(leader.key) or leader.is_paused:
            return False
        nodes = [self._world.nodes[v.key.replica_id] for v in voters]
        offset = leader.log.voters_offset or 0
        return offset < (replica.high_watermark or 0) and all(
            n.alive and not n.is_paused and n.replica.voters == voters for n in nodes
        )

    def _successor(self, first: SimNode) -> SimNode | None:
        leaders = [n for n in self._world.leaders() if n is not first]
        return next(iter(leaders), None)

    def _succeed(self, first: SimNode, removed: SimNode, others: list[SimNode]) -> None:
        """Lets the successor talk to one voter only, and asks it to remove the first leader."""
        second = self._successor(first)
        candidates = [n for n in others if n not in (second, removed)]
        if second is None or second not in others:
            self._end()
            return
        apart = self._rng.choice(candidates)
        self._isolate([apart])
        self._until(
            lambda: self._ask(second, first),
            COMMITTED_WITHIN_MS,
            lambda: self._meet(first, apart),
        )

    def _ask(self, second: SimNode, first: SimNode) -> bool:
        """Asks once more. Returns whether the change is committed."""
        role = second.replica.role
        if not second.alive or second.is_paused or not isinstance(role, Leader):
            return False
        if second.replica.voters.is_voter(first.key):
            if role.change is None:
                self._world.administrator.remove(second, first.key)
            return False
        return (second.log.voters_offset or 0) < (second.replica.high_watermark or 0)

    def _meet(self, first: SimNode, apart: SimNode) -> None:
        """Joins the first leader and the voter that heard of nothing."""
        self._heal()
        self._isolate([first, apart])
        self._world.at(self._world.now_ms + SECOND_MAJORITY_MS, self._end)

    def _end(self) -> None:
        self._heal()
        self.at_work = False

    def _isolate(self, side: list[SimNode]) -> None:
        ids = {n.node_id for n in side}
        ways = {(a, b) for a in ids for b in self._world.nodes if b not in ids}
        self._cut |= ways | {(b, a) for a, b in ways}
        self._world.cut |= self._cut

    def _heal(self) -> None:
        self._world.cut -= self._cut
        self._cut.clear()

    def _until(self, holds: Callable[[], bool], limit_ms: int, then: Callable[[], None]) -> None:
        """Looks every millisecond; goes on when it holds, and ends the scene after the limit."""
        world, deadline_ms = self._world, self._world.now_ms + limit_ms

        def look() -> None:
            if not world.faulty or world.now_ms > deadline_ms:
                self._end()
            elif holds():
                then()
            else:
                world.at(world.now_ms + 1, look)

        look()
