"""How a simulated node answers what it reads: by production's checks, at virtual times.

`quorum/replica/reads.py` reads, `quorum/replica/served_checkpoints.py` verifies. Damage that is
found is handled as `quorum/replica/server.py` does.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from quorum.raft import messages as m
from quorum.raft.effects import (
    LogStartRaised,
    OwnLogDamaged,
    ReadRecords,
    ReadSnapshot,
    Reply,
)
from quorum.replica.reads import complete
from quorum.replica.served_checkpoints import ServedCheckpoints
from snapshot.names import SnapshotId
from tidemark.errors import ErrorCode

if TYPE_CHECKING:
    from tests.sim.node import SimNode

VERIFIED_WITHIN_MS = 6
"""A checkpoint is verified in less than this."""


T = TypeVar("T")


def result_of(work: Coroutine[object, object, T]) -> T:
    """Runs a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError(f"{work} waits")


class VerifiedAtOnce(ServedCheckpoints):
    """Verifies in the calling step, in place of a thread."""

    async def damage(self, snapshot_id: SnapshotId) -> str | None:
        reason = self._verify(snapshot_id)
        self._note(snapshot_id, reason)
        return reason


class Serving:
    """Answers, and replaces what is damaged, for one life of a node."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._served = VerifiedAtOnce(node.log)

    def answer(self, reply: Reply) -> None:
        node, world, read = self._node, self._node.world, reply.read
        if not node.canary.verifies_served:
            if isinstance(read, ReadRecords | ReadSnapshot):
                reply = replace(reply, read=replace(read, doubted=False))
        elif isinstance(read, ReadSnapshot) and self._served.must_verify(read):
            delay_ms = world.rng.randrange(1, VERIFIED_WITHIN_MS)
            world.after(delay_ms, node, lambda: self._verify_and_answer(reply, read))
            return
        response, damage = complete(node.log, reply)
        if damage is not None:
            world.seen["own log found damaged"] += 1
            offset = damage.offset
            world.after(0, node, lambda: node.step(OwnLogDamaged(offset)))
            world.after(0, node, self.clean)
            node.listeners.want_snapshot()
        if isinstance(response, m.FetchSnapshotResponse) and response.data and world.chance(0.06):
            world.seen["checkpoint rots on the way"] += 1
            response = replace(response, data=bytes([response.data[0] ^ 4]) + response.data[1:])
        world.send_response(node, *node.tokens.pop(reply.token), response)

    def _verify_and_answer(self, reply: Reply, read: ReadSnapshot) -> None:
        if result_of(self._served.damage(read.snapshot_id)) is None:
            self.answer(replace(reply, read=replace(read, doubted=False)))
            return
        self._node.run(lambda: self._set_aside(read.snapshot_id))
        if self._node.alive:
            header = replace(reply.response.header, error=ErrorCode.SNAPSHOT_NOT_FOUND)
            self.answer(Reply(reply.token, m.FetchSnapshotResponse(header)))

    def _set_aside(self, snapshot_id: SnapshotId) -> None:
        node = self._node
        if node.log.snapshot_size_bytes(snapshot_id) is None:
            return
        node.world.seen["checkpoint set aside"] += 1
        if not node.log.drop_snapshot(snapshot_id):
            node.listeners.want_snapshot()

    def clean(self) -> None:
        """Cleans the log, and begins it behind its damage where a whole checkpoint is there."""
        node = self._node
        cleaned = False

        def clean() -> None:
            nonlocal cleaned
            begin_at = result_of(self._served.replacement(node.replica.state.damaged_offset))
            cleaned = node.log.clean(node.wall_ms(), begin_at)

        node.run(clean)
        if cleaned and node.alive and node.replica.state.damaged_offset is not None:
            node.world.seen["checkpoint takes the place of damage"] += 1
            node.step(LogStartRaised())
