"""The quorum's requests and responses as plain values, with the field names of
proto/tidemark/v1/raft.proto.

The edge turns them into protobuf and back; the core and the simulator never see protobuf.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorum.raft.voters import ReplicaKey
from snapshot.names import SnapshotId
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint, Listener


@dataclass(slots=True, frozen=True)
class VoteRequest:
    """Asks `voter` for its vote (or pre-vote: would you vote for me?) in `epoch` (KIP-595,
    KIP-996).
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
    """A leader announces itself to a voter that does not fetch from it."""

    cluster_id: str
    voter: ReplicaKey
    leader_id: int
    epoch: int
    leader_endpoint: Endpoint | None


@dataclass(slots=True, frozen=True)
class EndQuorumEpochRequest:
    """A leader gives up; the preferred candidates come best first."""

    cluster_id: str
    leader_id: int
    epoch: int
    preferred_candidates: tuple[ReplicaKey, ...]
    leader_endpoint: Endpoint | None


@dataclass(slots=True, frozen=True)
class FetchRequest:
    """Asks for records, and acknowledges: a voter holds everything below `fetch_offset` durably."""

    cluster_id: str
    replica: ReplicaKey
    epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int | None
    max_wait_ms: int
    max_bytes: int


@dataclass(slots=True, frozen=True)
class FetchSnapshotRequest:
    """Asks for a piece of a checkpoint file."""

    cluster_id: str
    replica: ReplicaKey
    epoch: int
    snapshot_id: SnapshotId
    position: int
    max_bytes: int


@dataclass(slots=True, frozen=True)
class AddVoterRequest:
    """Makes an observer a voter (KIP-853); answered when the change is committed, or, without
    `ack_when_committed`, as soon as it is appended. No `listeners`: `endpoint` is the only one.
    """

    cluster_id: str
    voter: ReplicaKey
    endpoint: Endpoint
    timeout_ms: int
    ack_when_committed: bool = True
    listeners: tuple[Listener, ...] = ()


@dataclass(slots=True, frozen=True)
class RemoveVoterRequest:
    """Makes a voter an observer, the leader too; answered when the change is committed."""

    cluster_id: str
    voter: ReplicaKey
    timeout_ms: int = 30_000


@dataclass(slots=True, frozen=True)
class UpdateVoterRequest:
    """A voter tells the leader of `epoch` where it answers now. No `listeners`: `endpoint` is the
    only one."""

    cluster_id: str
    epoch: int
    voter: ReplicaKey
    endpoint: Endpoint
    listeners: tuple[Listener, ...] = ()


@dataclass(slots=True, frozen=True)
class UpgradeVersionRequest:
    """Turns static voters into voters of the log (kraft.version 1). Asked of the leader by its own
    controller, and never sent: it has no form on the wire. `validate_only`: only whether it could
    begin."""

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
"""What a replica answers: the quorum's requests, and its own process's."""


@dataclass(slots=True, frozen=True)
class Header:
    """What every response begins with: how it went, and who leads as far as the answering node
    knows.
    """

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
    """Records, or where the fetcher's log diverges, or the checkpoint it must load first."""

    header: Header
    high_watermark: int | None = None
    log_start_offset: int = 0
    diverging_epoch: tuple[int, int] | None = None
    snapshot_id: SnapshotId | None = None
    records: bytes = b""


@dataclass(slots=True, frozen=True)
class FetchSnapshotResponse:
    header: Header
    snapshot_id: SnapshotId | None = None
    size: int = 0
    position: int = 0
    data: bytes = b""


@dataclass(slots=True, frozen=True)
class VoterChangeResponse:
    """What became of a change of the voters; `message` says why it was refused."""

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
    """The response of `request`'s kind that says nothing but the header."""
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
