"""The parameters of a replica: identity, timing, and its source of randomness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quorum.raft.voters import CONTROLLER_LISTENER, ReplicaKey, Voter, VoterSet
from tidemark.types import Endpoint, Listener

FOREVER_MS = 1 << 62
"""The deadline of an event that never happens."""
RECOVERY_EPOCHS = 1000
"""Epochs by which a recovery (`quorum/replica/recovery.py`) begins beyond the last known one: more
than any elections elsewhere."""
MAX_FETCH_WAIT_MS = 500
"""Longest time a fetch stays parked at the leader, in ms (Kafka's constant)."""


class Randomness(Protocol):
    """The only source of randomness; `random.Random` satisfies it."""

    def randrange(self, stop: int, /) -> int: ...


@dataclass(slots=True, frozen=True)
class ReplicaConfig:
    """Identity and timing of a replica. Times are in ms (Kafka's controller.quorum.* settings)."""

    cluster_id: str
    key: ReplicaKey
    voters: VoterSet
    endpoint: Endpoint | None = None
    """Address of this replica; None if it cannot become a voter (a plain broker)."""
    listeners: tuple[Listener, ...] = ()
    """All controller listeners, `endpoint` first. If empty, `endpoint` is the only one."""
    listener_names: tuple[str, ...] = (CONTROLLER_LISTENER,)
    """Listener names of this replica's network: a voter is reached by the first one that it has."""
    bootstrap: tuple[Endpoint, ...] = ()
    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    election_backoff_max_ms: int = 1000
    fetch_max_wait_ms: int = MAX_FETCH_WAIT_MS
    fetch_max_bytes: int = 1 << 20
    fetch_snapshot_max_bytes: int = 1 << 20
    auto_join: bool = False

    @property
    def as_voter(self) -> Voter | None:
        """This replica as the log records it; None if it cannot become a voter."""
        if self.endpoint is None:
            return None
        return Voter(self.key, self.endpoint, self.listeners)

    @property
    def deference_ms(self) -> int:
        """Time a Prospective replica waits for another candidate: long enough for an election."""
        return max(1, self.election_timeout_ms // 10)

    @property
    def update_voter_period_ms(self) -> int:
        return self.fetch_timeout_ms * 2

    @property
    def fetch_wait_ms(self) -> int:
        """Longest time a fetch is parked. Stays within the timeouts, so that an idle leader does
        not look dead.
        """
        return min(self.fetch_max_wait_ms, self.fetch_timeout_ms // 3, self.request_timeout_ms // 2)

    @property
    def check_quorum_timeout_ms(self) -> int:
        return self.fetch_timeout_ms * 3 // 2

    @property
    def begin_quorum_epoch_interval_ms(self) -> int:
        return max(1, self.fetch_timeout_ms // 2)
