"""Metrics of a replica under Kafka's names (raft-metrics), and the counters of its edge.

`RaftMeter.read` is the one place that reports them. Gauges are read from the replica when they are
asked for; counters are attributes that are incremented where the event happens.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import fields

from quorum.raft.log_view import LogView
from quorum.raft.metrics import Latency, Rate
from quorum.raft.replica import Replica
from quorum.raft.roles import Leader, Prospective, Unattached
from quorum.replica.describe import OBSERVER_SESSION_MS

logger = logging.getLogger(__name__)

FAULT_LOG_INTERVAL_MS = 10_000
"""Time between two log lines about messages that were refused, in ms."""
APPENDS_TRACKED_MAX = 1_000
"""Appends whose commit is timed at once; further ones are not timed."""

Metric = int | float | str


class RaftMeter:
    """Counters of the edge of one replica. Times are those of the event loop, in ms."""

    def __init__(self, replica: Replica, log: LogView) -> None:
        self._replica = replica
        self._log = log
        self._appends: deque[tuple[int, int]] = deque()  # (end offset, time), not committed yet
        self._append_rate = Rate()
        self._fetch_rate = Rate()
        self._idle = Rate()
        self._commit_latency = Latency()
        self._fault_due_ms = 0
        self._faults_left_out = 0
        self._checkpoints_damaged = 0

    def appended(self, records: int, now_ms: int) -> None:
        """Counts records of the leader's own client that are in the log now."""
        self._append_rate.add(records, now_ms)
        if len(self._appends) < APPENDS_TRACKED_MAX:
            self._appends.append((self._log.end_offset, now_ms))

    def fetched(self, records: int, now_ms: int) -> None:
        """Counts records that were fetched from the leader."""
        self._fetch_rate.add(records, now_ms)

    def committed(self, high_watermark: int, now_ms: int) -> None:
        """Times the appends that a new high watermark covers."""
        appends = self._appends
        while appends and appends[0][0] <= high_watermark:
            self._commit_latency.add(now_ms - appends.popleft()[1])

    def checkpoint_damaged(self) -> None:
        """Counts a checkpoint that is set aside instead of being served."""
        self._checkpoints_damaged += 1

    def leader_changed(self) -> None:
        """Forgets the appends of an earlier leadership: they may be lost."""
        self._appends.clear()

    def waited(self, idle_ms: float, now_ms: int) -> None:
        """Counts time in which the driver had nothing to do."""
        self._idle.add(idle_ms, now_ms)

    def remote_fault(self, fault: str, now_ms: int) -> None:
        """Logs a message that was refused, at most one in `FAULT_LOG_INTERVAL_MS`."""
        if now_ms < self._fault_due_ms:
            self._faults_left_out += 1
            return
        more = f" ({self._faults_left_out} more before)" if self._faults_left_out else ""
        logger.error("node %d: %s%s", self._replica.node_id, fault, more)
        self._fault_due_ms, self._faults_left_out = now_ms + FAULT_LOG_INTERVAL_MS, 0

    def read(self, now_ms: int) -> dict[str, Metric]:
        """Returns all metrics by name. Rates are per second, times in ms, and -1 is unknown."""
        replica, log, counts = self._replica, self._log, self._replica.state.metrics
        leader = replica.leader_and_epoch
        voted = replica.role.voted
        elections = counts.election_latency
        metrics: dict[str, Metric] = {
            "current-state": _state_name(replica),
            "current-leader": -1 if leader.leader_id is None else leader.leader_id,
            "current-vote": -1 if voted is None else voted.replica_id,
            "current-epoch": leader.epoch,
            "high-watermark": -1 if replica.high_watermark is None else replica.high_watermark,
            "log-end-offset": log.end_offset,
            "log-end-epoch": log.last_epoch,
            "number-of-voters": len(replica.voters),
            "number-of-observers": _observer_count(replica, now_ms),
            "number-unknown-voter-connections": sum(
                1 for endpoint in replica.voters.endpoints().values() if not endpoint.host
            ),
            "uncommitted-voter-change": int(_changes_voters(replica, log)),
            "commit-latency-avg": self._commit_latency.average_ms,
            "commit-latency-max": self._commit_latency.max_ms,
            "election-latency-avg": elections.average_ms,
            "election-latency-max": elections.max_ms,
            "fetch-records-rate": self._fetch_rate.per_second(now_ms),
            "append-records-rate": self._append_rate.per_second(now_ms),
            "poll-idle-ratio-avg": min(1.0, self._idle.per_second(now_ms) / 1000),
        }
        metrics["responses-refused-total"] = replica.remote_faults
        metrics["checkpoints-damaged-total"] = self._checkpoints_damaged
        metrics["own-damage"] = replica.own_damage.name
        for count in fields(counts):
            value = getattr(counts, count.name)
            if isinstance(value, int) and not count.name.endswith("_ms"):
                metrics[f"{count.name.replace('_', '-')}-total"] = value
        return metrics


def _state_name(replica: Replica) -> str:
    """The role in Kafka's words; a follower that is no voter is an observer."""
    role = replica.role
    name = type(role).__name__.lower()
    if isinstance(role, Unattached | Prospective) and role.voted is not None:
        return f"{name}-voted"
    return "observer" if name == "follower" and not replica.voters.is_voter(replica.key) else name


def _observer_count(replica: Replica, now_ms: int) -> int:
    role = replica.role
    if not isinstance(role, Leader):
        return 0
    fetched_ms = [progress.last_fetch_ms for progress in role.observers.values()]
    return sum(1 for ms in fetched_ms if ms is not None and now_ms - ms < OBSERVER_SESSION_MS)


def _changes_voters(replica: Replica, log: LogView) -> bool:
    offset = log.voters_offset
    return offset is not None and offset >= (replica.high_watermark or 0)
