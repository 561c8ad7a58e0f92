"""The state machine of a simulated node."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quorum.raft.effects import LeaderAndEpoch
from quorum.replica.client import CommittedBatch

if TYPE_CHECKING:
    from tests.sim.node import SimNode


class Image:
    """The state machine: keys and values; its digest stands for the image (RULES.md I8)."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.values: dict[bytes, bytes] = {}
        self.offset = 0
        self.wants_snapshot = False

    def handle_commit(self, batches: Sequence[CommittedBatch]) -> None:
        for batch in batches:
            assert batch.base_offset >= self.offset, (batch.base_offset, self.offset)
            for value in batch.values:
                key, _, text = value.partition(b"=")
                self.values[key] = text
            self.offset = batch.last_offset + 1
            self._node.world.checks.on_applied(self._node, self.offset, self.digest())
        if self.wants_snapshot:
            self._make_snapshot_soon()

    def handle_load_snapshot(self, reader) -> None:
        values = [value for batch in reader.batches() for value in batch]
        self.values = dict(value.split(b"=", 1) for value in values)
        self.offset = reader.id.end_offset
        self._node.world.checks.on_snapshot_loaded(self._node, reader.id, self.digest())

    def handle_caught_up(self) -> None:
        self._node.world.checks.on_caught_up(self._node)

    def handle_snapshot_wanted(self) -> None:
        """Makes a checkpoint now, or with the next commit."""
        self.wants_snapshot = True
        self._make_snapshot_soon()

    def _make_snapshot_soon(self) -> None:
        self._node.world.after(1, self._node, self._node.make_snapshot)

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        self._node.world.checks.on_leader_told(self._node, leader)

    def records(self) -> list[bytes]:
        return [key + b"=" + value for key, value in sorted(self.values.items())]

    def digest(self) -> str:
        return hashlib.sha256(b"\n".join(self.records())).hexdigest()[:16]
