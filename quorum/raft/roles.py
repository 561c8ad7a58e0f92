"""The roles of a replica, one small dataclass each, and the table of allowed transitions.

    from         to            because
    Unattached   Unattached    a higher epoch; a vote given
                 Prospective   the election timeout passed                         (voters only)
                 Follower      a leader was found
    Prospective  Unattached    a higher epoch; a vote given; lost, no leader known; may not elect
                 Candidate     a majority of pre-votes
                 Follower      a leader was found; lost, and the leader is known
    Candidate    Unattached    a higher epoch; may not elect any more
                 Prospective   the election timeout passed
                 Leader        a majority of votes
                 Follower      a leader was found
    Follower     Unattached    a higher epoch
                 Prospective   the fetch timeout passed                            (voters only)
                 Follower      a leader of a higher epoch
    Leader       Unattached    a higher epoch
                 Follower      a leader of a higher epoch
                 Resigned      resign(), shutdown, no fetch from a majority (check-quorum), removed,
                               own log damaged
    Resigned     Unattached    a higher epoch; the election timeout passed (epoch + 1)
                 Follower      a leader of a higher epoch

Observers (non-voters) are only Unattached or Follower. One whose removal is not known to be
committed may still be elected (`RaftState.may_elect`). The voters can change with each append,
truncation and checkpoint (KIP-853). A leader that is removed keeps leading until its removal is
committed, then resigns. Source: KIP-595, KIP-853, KIP-996.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quorum.raft.messages import FetchRequest, UpgradeVersionRequest, VoterChangeRequest
from quorum.raft.voters import ReplicaKey
from snapshot.names import SnapshotId
from tidemark.types import Endpoint, OwnDamage


@dataclass(slots=True)
class Unattached:
    """No leader is known in this epoch. A vote may have been given."""

    epoch: int
    voted: ReplicaKey | None
    election_deadline_ms: int


@dataclass(slots=True)
class Prospective:
    """Requests pre-votes without raising the epoch. Exists in memory only: quorum-state does not
    change.
    """

    epoch: int
    voted: ReplicaKey | None
    leader_id: int | None
    leader_endpoint: Endpoint | None
    election_deadline_ms: int
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    defers_until_ms: int = 0  # a better Prospective replica goes first


@dataclass(slots=True)
class Candidate:
    """Has voted for itself in this epoch, and requests votes."""

    epoch: int
    voted: ReplicaKey
    election_deadline_ms: int
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)


@dataclass(slots=True)
class SnapshotDownload:
    """A checkpoint being fetched from the leader, in pieces. It restarts with another leader, whose
    file may have different bytes.
    """

    snapshot_id: SnapshotId
    position: int = 0
    installing: bool = False


@dataclass(slots=True)
class Follower:
    """Fetches from the leader of this epoch."""

    epoch: int
    voted: ReplicaKey | None
    leader_id: int
    leader_endpoint: Endpoint
    fetch_deadline_ms: int
    has_fetched: bool = False  # from then on pre-votes are refused: the leader is alive
    leader_high_watermark: int | None = None
    download: SnapshotDownload | None = None
    appends: bool = False  # fetched records are being appended, sent with this high watermark:
    sent_high_watermark: int | None = None
    faults: int = 0  # answers of the leader refused since the last useful one
    resume_ms: int = 0  # after a refused answer: when the next fetch may be sent
    membership_due_ms: int = 0  # when the next membership request may be sent


@dataclass(slots=True)
class ReplicaProgress:
    """Progress of a voter or observer, as the leader tracks it."""

    key: ReplicaKey
    end_offset: int | None = None
    last_fetch_ms: int | None = None
    last_caught_up_ms: int | None = None
    leader_end_offset_at_last_fetch: int = -1
    last_begin_ms: int | None = None  # when BeginQuorumEpoch was last sent to it
    acknowledged: bool = False  # it answered BeginQuorumEpoch, or fetched
    sent_offset: int | None = None  # fetch offset of the last answer that had records
    sent_snapshot: SnapshotId | None = None  # checkpoint whose first piece was sent last
    own_damage: OwnDamage = OwnDamage.NONE  # on its disk, by its last fetch


@dataclass(slots=True)
class ParkedFetch:
    """A fetch that waits for records or for a new high watermark."""

    token: int
    request: FetchRequest
    deadline_ms: int
    progress: ReplicaProgress | None = None


@dataclass(slots=True)
class VoterChange:
    """A change of the voters in progress. Once it is `appended`, the newest Voters record of the
    log is its own: no other change begins before that is committed."""

    token: int
    request: VoterChangeRequest | UpgradeVersionRequest
    deadline_ms: int
    appended: bool = False
    probed: bool = False  # the voter answered at its new endpoint
    probe_id: int | None = None  # correlation id of the last probe


@dataclass(slots=True)
class Leader:
    """Leads this epoch. `voters` holds every voter, itself included."""

    epoch: int
    voted: ReplicaKey | None
    epoch_start_offset: int
    started_ms: int
    granting_voters: tuple[int, ...]
    voters: dict[int, ReplicaProgress]
    observers: dict[ReplicaKey, ReplicaProgress] = field(default_factory=dict)
    parked: dict[int, ParkedFetch] = field(default_factory=dict)  # by token, oldest first
    change: VoterChange | None = None
    voters_changed_ms: int = 0  # check-quorum counts anew for other voters


@dataclass(slots=True)
class Resigned:
    """Led this epoch and resigned (or restarted). It must never write in this epoch again."""

    epoch: int
    voted: ReplicaKey | None
    election_deadline_ms: int
    preferred_candidates: tuple[ReplicaKey, ...]
    unacknowledged: set[int]


Role = Unattached | Prospective | Candidate | Follower | Leader | Resigned

TRANSITIONS: dict[type, frozenset[type]] = {
    Unattached: frozenset({Unattached, Prospective, Follower}),
    Prospective: frozenset({Unattached, Candidate, Follower}),
    Candidate: frozenset({Unattached, Prospective, Leader, Follower}),
    Follower: frozenset({Unattached, Prospective, Follower}),
    Leader: frozenset({Unattached, Follower, Resigned}),
    Resigned: frozenset({Unattached, Follower}),
}
OBSERVER_ROLES: frozenset[type] = frozenset({Unattached, Follower})
