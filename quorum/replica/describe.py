"""DescribeQuorum (KIP-595, KIP-836): the quorum as one replica sees it."""

from __future__ import annotations

from quorum.raft.log_view import LogView
from quorum.raft.replica import Replica
from quorum.raft.roles import Leader, ReplicaProgress
from quorum.raft.voters import Voter
from quorum.replica.client import QuorumInfo, ReplicaInfo
from tidemark.types import OwnDamage

OBSERVER_SESSION_MS = 300_000
"""Observers that have not fetched for so long are not described, in ms (Kafka's constant)."""


def _unheard(replica: Replica, voter: Voter) -> ReplicaInfo:
    """A voter as seen by a replica that does not lead, which knows its own disk only."""
    damage = replica.own_damage if voter.key.matches(replica.key) else OwnDamage.NONE
    key = voter.key
    return ReplicaInfo(key.replica_id, key.directory_id, None, None, None, voter.listeners, damage)


def describe(replica: Replica, log: LogView, loop_ms: int, wall_ms: int) -> QuorumInfo:
    """Returns the quorum as `replica` sees it. Its timers run on `loop_ms`; the result has wall
    clock times.
    """
    role = replica.role
    leader = replica.leader_and_epoch

    def wall(moment_ms: int | None) -> int | None:
        return None if moment_ms is None else wall_ms - (loop_ms - moment_ms)

    def of(progress: ReplicaProgress) -> ReplicaInfo:
        key = progress.key
        listeners = replica.voters.listeners(key.replica_id)
        if key.replica_id == replica.node_id:
            own, end_offset = replica.key.directory_id, log.end_offset
            damage = replica.own_damage
            return ReplicaInfo(key.replica_id, own, end_offset, wall_ms, wall_ms, listeners, damage)
        return ReplicaInfo(
            key.replica_id,
            key.directory_id,
            progress.end_offset,
            wall(progress.last_fetch_ms),
            wall(progress.last_caught_up_ms),
            listeners if replica.voters.is_voter(key) else (),
            progress.own_damage,
        )

    def is_current(observer: ReplicaProgress) -> bool:
        fetched_ms = observer.last_fetch_ms
        return fetched_ms is not None and loop_ms - fetched_ms < OBSERVER_SESSION_MS

    high_watermark = replica.high_watermark
    if isinstance(role, Leader):
        high_watermark = replica.state.advertised_high_watermark  # unknown before its first commit
        voters = tuple(of(progress) for progress in role.voters.values())
        observers = tuple(
            of(progress) for progress in role.observers.values() if is_current(progress)
        )
        if replica.node_id not in role.voters:  # removed, and leads until that is committed
            observers += (of(ReplicaProgress(replica.key)),)
    else:
        voters = tuple(_unheard(replica, voter) for voter in replica.voters)
        observers = ()
    return QuorumInfo(
        leader.leader_id,
        leader.epoch,
        high_watermark,
        voters,
        observers,
        replica.voters.endpoints(),
        log.kraft_version,
    )
