"""Delivery to the state machines over the log: commits in order, snapshots when behind, leader
changes at the right time.

Each listener has its own position. On the leader a listener hears of the leadership only when its
position passed the first record of the epoch: its state then holds everything that was ever
committed (Kafka's RaftClient.Listener contract).
"""

from __future__ import annotations

from dataclasses import dataclass

from quorum.raft.effects import LeaderAndEpoch
from quorum.raft.replica import Replica
from quorum.raft.roles import Leader
from quorum.raft_client import RaftListener
from quorum.replicated_log import ReplicatedLog

DELIVERY_MAX_BYTES = 1 << 20
"""What one round gives to one listener: other work of the event loop gets its turn in between."""


@dataclass(slots=True)
class _Position:
    listener: RaftListener
    next_offset: int = 0
    told: LeaderAndEpoch | None = None


class Listeners:
    """All listeners of a replica; `deliver` gives each its next portion."""

    def __init__(self, replica: Replica, log: ReplicatedLog) -> None:
        self._replica = replica
        self._log = log
        self._positions: list[_Position] = []

    def add(self, listener: RaftListener) -> None:
        self._positions.append(_Position(listener))

    def next_offset(self, listener: RaftListener) -> int:
        """The offset that this listener gets next."""
        return next(p.next_offset for p in self._positions if p.listener is listener)

    def deliver(self) -> bool:
        """One round; True when there is more to deliver."""
        more = False
        for position in self._positions:
            self._load_snapshot(position)
            more |= self._commit(position)
            self._tell_leader(position)
        return more

    def _load_snapshot(self, position: _Position) -> None:
        latest = self._log.latest_snapshot
        if latest is None:
            return
        new = position.next_offset == 0
        if new or position.next_offset < self._log.start_offset:
            position.listener.handle_load_snapshot(self._log.open_snapshot(latest))
            position.next_offset = latest.end_offset

    def _commit(self, position: _Position) -> bool:
        high_watermark = self._replica.high_watermark
        if high_watermark is None or position.next_offset >= high_watermark:
            return False
        batches, following = self._log.read_committed(
            position.next_offset, high_watermark, DELIVERY_MAX_BYTES
        )
        if following == position.next_offset:
            return False
        position.next_offset = following
        if batches:
            position.listener.handle_commit(batches)
        return following < high_watermark

    def _tell_leader(self, position: _Position) -> None:
        leader = self._replica.leader_and_epoch
        role = self._replica.role
        if leader == position.told:
            return
        if isinstance(role, Leader) and position.next_offset <= role.epoch_start_offset:
            # It hears at once that the old leader is gone, of its own leadership later.
            leader = LeaderAndEpoch(None, role.epoch)
            if leader == position.told:
                return
        position.told = leader
        position.listener.handle_leader_change(leader)
