"""State of one remote replica at its leader: its offsets, when it was last caught up, its process.

A replica counts as caught up by Kafka's rule (ReplicaState). A fetch at the leader's end is caught
up at that moment. A fetch at the end that the leader had at the previous fetch was caught up at the
time of that previous fetch. So a follower that keeps pace with a busy leader counts as caught up,
although it is never exactly at the end.

In a session (KIP-227) each request stands for all partitions of the session. For partitions it does
not name, its time is looked up when the leader's log moves.
"""

from __future__ import annotations

from dataclasses import dataclass

_NEVER_MS = -(2**62)  # long before any time: a monotonic clock may begin at 0 with the machine


@dataclass(slots=True)
class Pulse:
    """Time of a follower's last request in a session; shared by all partitions of the session."""

    last_request_ms: int = _NEVER_MS


@dataclass(slots=True)
class ReplicaState:
    """Offsets are None until the replica's first fetch in this leader epoch. Times are in ms of the
    caller's clock."""

    log_end_offset: int | None = None
    log_start_offset: int | None = None
    broker_epoch: int | None = None  # the process that fetched last (KIP-903)
    last_caught_up_ms: int = _NEVER_MS
    last_fetch_ms: int = _NEVER_MS
    leader_end_at_last_fetch: int = 0
    pulse: Pulse | None = None  # of the session that fetches it

    def on_fetch(
        self, fetch_offset: int, log_start_offset: int, broker_epoch: int, end: int, now_ms: int
    ) -> None:
        """Records a fetch that arrived while the leader's log ended at `end`."""
        if fetch_offset >= end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.leader_end_at_last_fetch and self.last_fetch_ms != _NEVER_MS:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.leader_end_at_last_fetch = end
        self.last_fetch_ms = now_ms

    def look_up_pulse(self, leader_end: int) -> None:
        """Applies the session's last request before the leader's log moves on from `leader_end`.

        If the follower was at that end, the request confirmed it, whether it named the partition or
        not.
        """
        if self.pulse is not None and self.log_end_offset == leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.pulse.last_request_ms)

    def is_caught_up(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        """Whether the replica is at the leader's end, or was within the last `lag_max_ms`."""
        if self.log_end_offset == leader_end:
            return True
        return now_ms - self.last_caught_up_ms <= lag_max_ms

    def restart(self, in_sync: bool, now_ms: int, new_epoch: bool) -> None:
        """Applies a new registration; a new epoch resets the state and gives ISR members a full lag
        time."""
        if new_epoch:
            self.log_end_offset = None
            self.log_start_offset = None
            self.broker_epoch = None
            self.last_fetch_ms = _NEVER_MS
            self.leader_end_at_last_fetch = 0
            self.pulse = None
            self.last_caught_up_ms = now_ms if in_sync else _NEVER_MS

    def reset_pace(self) -> None:
        """Resets the pace of a replica removed from the ISR: only later fetches count for being
        caught up."""
        self.last_caught_up_ms = self.last_fetch_ms = _NEVER_MS
        self.pulse = None
