"""Requests and responses of the quorum as plain values, with the field names of
proto/tidemark/v1/raft.proto.

The edge converts them to protobuf and back; the core and the simulator never see protobuf.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorum.raft.voters import ReplicaKey
from snapshot.names import SnapshotId
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint, Listener, OwnDamage


@dataclass(slots=True, frozen=True)
class VoteRequest:
    """Requests a vote or a pre-vote of `voter` in `epoch` (KIP-595, KIP-996). A pre-vote only asks
    whether the vote would be granted.
    """

    cluster_id: str
    voter: ReplicaKey
    epoch: int
    candidate: ReplicaKey
    last_offset_epoch: int
    last_offset: int
    pre_vote: bool


@dataclass(slots=True, frozen=True)
class BeginQuorumEpochRequest:
    """Announces a leader to a voter that does not fetch from it."""

    cluster_id: str
    voter: ReplicaKey
    leader_id: int
    epoch: int
    leader_endpoint: Endpoint | None


@dataclass(slots=True, frozen=True)
class EndQuorumEpochRequest:
    """Announces that a leader resigned. The preferred candidates come best first."""

    cluster_id: str
    leader_id: int
    epoch: int
    preferred_candidates: tuple[ReplicaKey, ...]
    leader_endpoint: Endpoint | None


@dataclass(slots=True, frozen=True)
class FetchRequest:
    """Requests records and acknowledges: a voter holds everything below `fetch_offset` durably."""

    cluster_id: str
    replica: ReplicaKey
    epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int | None
    max_wait_ms: int
    max_bytes: int
    own_damage: OwnDamage = OwnDamage.NONE


@dataclass(slots=True, frozen=True)
class FetchSnapshotRequest:
    """Requests a piece of a checkpoint file."""

    cluster_id: str
    replica: ReplicaKey
    epoch: int
    snapshot_id: SnapshotId
    position: int
    max_bytes: int


@dataclass(slots=True, frozen=True)
class AddVoterRequest:
    """Makes an observer a voter (KIP-853). Answered when the change is committed, or as soon as it
    is appended if `ack_when_committed` is false. If `listeners` is empty, `endpoint` is the only
    one.
    """

    cluster_id: str
    voter: ReplicaKey
    endpoint: Endpoint
    timeout_ms: int
    ack_when_committed: bool = True
    listeners: tuple[Listener, ...] = ()


@dataclass(slots=True, frozen=True)
class RemoveVoterRequest:
    """Makes a voter an observer; the leader, too, can be removed. Answered when the change is
    committed.
    """

    cluster_id: str
    voter: ReplicaKey
    timeout_ms: int = 30_000


@dataclass(slots=True, frozen=True)
class UpdateVoterRequest:
    """Reports the current listeners of a voter to the leader of `epoch`. If `listeners` is empty,
    `endpoint` is the only one."""

    cluster_id: str
    epoch: int
    voter: ReplicaKey
    endpoint: Endpoint
    listeners: tuple[Listener, ...] = ()


@dataclass(slots=True, frozen=True)
class UpgradeVersionRequest:
    """Turns static voters into voters of the log (kraft.version 1). Only the leader's own
    controller makes it: it has no wire format. With `validate_only` it only checks whether the
    upgrade could begin."""

    cluster_id: str
    kraft_version: int
    validate_only: bool = False
    timeout_ms: int = 30_000


VoterChangeRequest = AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest

Request = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | FetchRequest
    | FetchSnapshotRequest
    | VoterChangeRequest
)
AnyRequest = Request | UpgradeVersionRequest
"""Requests a replica answers: those of the quorum, and those of its own process."""


@dataclass(slots=True, frozen=True)
class Header:
    """The beginning of every response: the error, and the leader known to the answering node."""

    error: ErrorCode
    leader_id: int | None
    epoch: int
    leader_endpoint: Endpoint | None = None


@dataclass(slots=True, frozen=True)
class VoteResponse:
    header: Header
    vote_granted: bool


@dataclass(slots=True, frozen=True)
class BeginQuorumEpochResponse:
    header: Header


@dataclass(slots=True, frozen=True)
class EndQuorumEpochResponse:
    header: Header


# same name as tidemark/wire/fetch.py: the quorum and the log each have a Fetch
@dataclass(slots=True, frozen=True)
class FetchResponse:
    """Records, or the point where the fetcher's log diverges, or the checkpoint to load first."""

    header: Header
    high_watermark: int | None = None
    log_start_offset: int = 0
    diverging_epoch: tuple[int, int] | None = None
    snapshot_id: SnapshotId | None = None
    records: bytes = b""
    checksum: int | None = None
    """`quorum.replica.sealing`: of all other fields. None from an older node."""


@dataclass(slots=True, frozen=True)
class FetchSnapshotResponse:
    header: Header
    snapshot_id: SnapshotId | None = None
    size: int = 0
    position: int = 0
    data: bytes = b""


@dataclass(slots=True, frozen=True)
class VoterChangeResponse:
    """The outcome of a voter change; `message` explains a refusal."""

    header: Header
    message: str = ""


Response = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchResponse
    | FetchSnapshotResponse
    | VoterChangeResponse
)


def error_response(request: AnyRequest, header: Header) -> Response:
    """Returns a response of the request's type that has only a header."""
    match request:
        case VoteRequest():
            return VoteResponse(header, vote_granted=False)
        case BeginQuorumEpochRequest():
            return BeginQuorumEpochResponse(header)
        case EndQuorumEpochRequest():
            return EndQuorumEpochResponse(header)
        case FetchRequest():
            return FetchResponse(header)
        case FetchSnapshotRequest():
            return FetchSnapshotResponse(header)
        case (
            AddVoterRequest()
            | RemoveVoterRequest()
            | UpdateVoterRequest()
            | UpgradeVersionRequest()
        ):
            return VoterChangeResponse(header)
