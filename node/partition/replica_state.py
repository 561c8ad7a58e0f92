"""What a leader knows of one remote replica: how far it is, when it was last caught up, which
process it is.

The rule of "caught up" is Kafka's (ReplicaState): a fetch that reaches the leader's end is caught
up at that moment; one that reaches where the leader ended at the previous fetch was caught up at
the time of that previous fetch. So a follower that keeps pace with a busy leader counts as caught
up although it is never exactly at the end. In a session (KIP-227) each request stands for all its
partitions, named or not: what it says of the others is looked up when the leader's log moves.
"""

from __future__ import annotations

from dataclasses import dataclass

_NEVER_MS = 0


@dataclass(slots=True)
class Pulse:
    """When a follower last asked within a session; one for all partitions of the session."""

    last_request_ms: int = _NEVER_MS


@dataclass(slots=True)
class ReplicaState:
    """Offsets are None until the replica's first fetch in this leader epoch. Times are milliseconds
    of the caller's clock."""

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
        """Takes note of a fetch that arrived while the leader's log ended at `end`."""
        if fetch_offset >= end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.leader_end_at_last_fetch and self.last_fetch_ms:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.leader_end_at_last_fetch = end
        self.last_fetch_ms = now_ms

    def look_up_pulse(self, leader_end: int) -> None:
        """Before the leader's log moves on from `leader_end`: was the follower there, its session's
        last request has said so, whether it named the partition or not."""
        if self.pulse is not None and self.log_end_offset == leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.pulse.last_request_ms)

    def is_caught_up(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        """At the leader's end now, or there within the last `lag_max_ms`."""
        if self.log_end_offset == leader_end:
            return True
        return now_ms - self.last_caught_up_ms <= lag_max_ms

    def restart(self, in_sync: bool, now_ms: int, new_epoch: bool) -> None:
        """A new registration of the partition: members of the ISR get a full lag time to show
        themselves."""
        if new_epoch:
            self.log_end_offset = None
            self.log_start_offset = None
            self.broker_epoch = None
            self.last_fetch_ms = _NEVER_MS
            self.leader_end_at_last_fetch = 0
            self.pulse = None
            self.last_caught_up_ms = now_ms if in_sync else _NEVER_MS

    def forget_pace(self) -> None:
        """The controller took it out of the ISR: only what it fetches from now on counts for being
        caught up."""
        self.last_caught_up_ms = self.last_fetch_ms = _NEVER_MS
        self.pulse = None
