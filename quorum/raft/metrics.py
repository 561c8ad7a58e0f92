"""Counters of a replica: plain attributes, incremented where the event happens.

`quorum.replica.metrics` reports them, with the gauges, under Kafka's names (raft-metrics).
"""

from __future__ import annotations

from dataclasses import dataclass, field

WINDOW_MS = 30_000
"""Length of the two windows that a rate is averaged over (Kafka's constants)."""


@dataclass(slots=True)
class Latency:
    """Durations since the start of the process, in ms."""

    count: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0

    def add(self, duration_ms: float) -> None:
        self.count += 1
        self.total_ms += duration_ms
        self.max_ms = max(self.max_ms, duration_ms)

    @property
    def average_ms(self) -> float:
        return self.total_ms / self.count if self.count else 0.0


@dataclass(slots=True)
class Rate:
    """A sum, per second over the current window and the one before."""

    total: float = 0
    _began_ms: int | None = None
    _now: float = 0
    _before: float | None = None

    def add(self, amount: float, now_ms: int) -> None:
        self._advance(now_ms)
        self.total += amount
        self._now += amount

    def per_second(self, now_ms: int) -> float:
        self._advance(now_ms)
        began_ms = now_ms if self._began_ms is None else self._began_ms
        past_ms = 0 if self._before is None else WINDOW_MS
        elapsed_ms = max(1, now_ms - began_ms + past_ms)
        return (self._now + (self._before or 0)) * 1000 / elapsed_ms

    def _advance(self, now_ms: int) -> None:
        if self._began_ms is None:
            self._began_ms = now_ms
        passed = (now_ms - self._began_ms) // WINDOW_MS
        if passed > 0:
            self._before = self._now if passed == 1 else 0
            self._now = 0
            self._began_ms += passed * WINDOW_MS


@dataclass(slots=True)
class RaftMetrics:
    """Counts since the start of the process."""

    elections_started: int = 0
    elections_won: int = 0
    votes_granted: int = 0
    votes_rejected: int = 0
    pre_votes_granted: int = 0
    pre_votes_rejected: int = 0
    pre_votes_unsupported: int = 0
    """Voters that turned out to know no pre-vote."""
    requests_refused: int = 0
    """Requests of peers beyond the bounds, or with another leader of the same epoch."""
    own_log_damages: int = 0
    """Damaged batches found in this replica's own log while it served them."""
    election_latency: Latency = field(default_factory=Latency)
    election_began_ms: int | None = None

    def election_begins(self, now_ms: int) -> None:
        if self.election_began_ms is None:
            self.election_began_ms = now_ms

    def election_ends(self, now_ms: int) -> None:
        """Counts the time from the first pre-vote until a leader is known."""
        if self.election_began_ms is not None:
            self.election_latency.add(now_ms - self.election_began_ms)
            self.election_began_ms = None
