"""Delivery of the log to its state machines: commits in order, snapshots if behind, leader changes.

Each listener has its own position. The leader's own listener learns of the leadership only after
its position passes the first record of the epoch. Its state then holds everything ever committed
(Kafka's RaftClient.Listener contract). A large checkpoint is loaded in steps, one a round; the
listener gets nothing else meanwhile.

A committed batch that is damaged ends the process. A state machine must not pass over it, and
nothing replaces it in a running replica: a leader sends only what follows the log's end. The next
start ends the log there, and fetches the rest anew.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

from quorum.raft.effects import LeaderAndEpoch
from quorum.raft.replica import Replica
from quorum.raft.roles import Leader
from quorum.replica.client import RaftListener
from quorum.replica.metadata_log import ReplicatedLog
from snapshot.names import SnapshotId

DELIVERY_MAX_BYTES = 1 << 18
"""Bytes that one round delivers to one listener, so that other work of the event loop is not
delayed.
"""


class _Load(NamedTuple):
    """A checkpoint that a listener is loading in steps."""

    id: SnapshotId
    steps: Generator[None, None, None]


@dataclass(slots=True)
class _Position:
    listener: RaftListener
    next_offset: int = 0
    notified: LeaderAndEpoch | None = None
    caught_up: bool = False
    load: _Load | None = None


class Listeners:
    """All listeners of a replica; `deliver` passes each its next portion."""

    def __init__(self, replica: Replica, log: ReplicatedLog) -> None:
        self._replica = replica
        self._log = log
        self._positions: list[_Position] = []
        self.has_more = False  # something may be left to deliver

    def add(self, listener: RaftListener) -> None:
        self._positions.append(_Position(listener))
        self.has_more = True

    def want_snapshot(self) -> None:
        """Asks the state machines for a checkpoint of what they have applied."""
        for position in self._positions:
            position.listener.handle_snapshot_wanted()

    def next_offset(self, listener: RaftListener) -> int:
        """The next offset to deliver to this listener."""
        return next(p.next_offset for p in self._positions if p.listener is listener)

    def deliver(self) -> bool:
        """Delivers one round. Returns True if there is more to deliver."""
        more = False
        for position in self._positions:
            if self._loads_snapshot(position):
                more = True
                continue
            more |= self._commit(position)
            self._notify_caught_up(position)
            self._notify_leader(position)
        self.has_more = more
        return more

    def _loads_snapshot(self, position: _Position) -> bool:
        """Runs one step of a load, if one is needed. Returns True if more steps follow."""
        self._begin_load(position)
        load = position.load
        if load is None:
            return False
        try:
            next(load.steps)
        except StopIteration:
            position.load, position.next_offset = None, load.id.end_offset
        return position.load is not None

    def _begin_load(self, position: _Position) -> None:
        latest, load = self._log.latest_snapshot, position.load
        reached = position.next_offset if load is None else load.id.end_offset
        if latest is None or 0 < reached >= self._log.start_offset:
            return
        if load is not None:
            load.steps.close()
        steps = position.listener.handle_load_snapshot(self._log.open_snapshot(latest))
        if steps is None:
            position.next_offset = latest.end_offset
        position.load = None if steps is None else _Load(latest, steps)

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

    def _notify_caught_up(self, position: _Position) -> None:
        """Notifies a listener that has caught up. Control records advance the position, too, so the
        kind of the last record does not matter.
        """
        committed = self._replica.committed_offset
        if not position.caught_up and committed is not None and position.next_offset >= committed:
            position.caught_up = True
            position.listener.handle_caught_up()

    def _notify_leader(self, position: _Position) -> None:
        leader = self._replica.leader_and_epoch
        role = self._replica.role
        if leader == position.notified:
            return
        if isinstance(role, Leader) and position.next_offset <= role.epoch_start_offset:
            # The end of the old leadership is reported at once, the new leadership later.
            leader = LeaderAndEpoch(None, role.epoch)
            if leader == position.notified:
                return
        position.notified = leader
        position.listener.handle_leader_change(leader)
