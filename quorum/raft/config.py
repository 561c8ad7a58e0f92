"""What a replica is given when it is made: identity, timing, and its source of chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quorum.raft.voters import CONTROLLER_LISTENER, ReplicaKey, Voter, VoterSet
from tidemark.types import Endpoint, Listener

FOREVER_MS = 1 << 62
"""A deadline that never comes."""
MAX_FETCH_WAIT_MS = 500
"""How long a fetch may be parked at the leader (Kafka's constant)."""


class Randomness(Protocol):
    """The one source of chance: `random.Random` fits."""

    def randrange(self, stop: int, /) -> int: ...


@dataclass(slots=True, frozen=True)
class ReplicaConfig:
    """Identity and timing of a replica; all times in milliseconds (Kafka's controller.quorum.*
    settings).
    """

    cluster_id: str
    key: ReplicaKey
    voters: VoterSet
    endpoint: Endpoint | None = None
    """Where this replica answers; None for one that can not become a voter (a plain broker)."""
    listeners: tuple[Listener, ...] = ()
    """All its controller listeners, `endpoint` the first; none: only that one."""
    listener_names: tuple[str, ...] = (CONTROLLER_LISTENER,)
    """By which of a voter's listeners it is reached, the first that the voter has."""
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
        """What the log should say of this replica; None for one that can not become a voter."""
        if self.endpoint is None:
            return None
        return Voter(self.key, self.endpoint, self.listeners)

    @property
    def deference_ms(self) -> int:
        """How long a Prospective lets another one go first: long enough for an election."""
        return max(1, self.election_timeout_ms // 10)

    @property
    def update_voter_period_ms(self) -> int:
        return self.fetch_timeout_ms * 2

    @property
    def fetch_wait_ms(self) -> int:
        """The longest a fetch is parked: within the timeouts, or an idle leader looks dead."""
        return min(self.fetch_max_wait_ms, self.fetch_timeout_ms // 3, self.request_timeout_ms // 2)

    @property
    def check_quorum_timeout_ms(self) -> int:
        return self.fetch_timeout_ms * 3 // 2

    @property
    def begin_quorum_epoch_interval_ms(self) -> int:
        return max(1, self.fetch_timeout_ms // 2)
