"""What goes into the replica and what comes out of it.

Order of effects: **persist -> send -> apply**. The edge carries out the fields of one `Effects`
from top to bottom, those of one step before those of the next. A failure to persist ends the
process; a failure to send is a lost message.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quorum.raft.messages import AnyRequest, Request, Response
from quorum.raft.voters import ReplicaKey, VoterSet
from snapshot.names import SnapshotId
from tidemark.types import Endpoint


@dataclass(slots=True, frozen=True)
class LeaderAndEpoch:
    """Who leads in which epoch; `leader_id` is None while nobody is known to."""

    leader_id: int | None
    epoch: int

    def is_leader(self, node_id: int) -> bool:
        return self.leader_id == node_id


@dataclass(slots=True, frozen=True)
class ElectionState:
    """What survives a crash of the elections: the content of quorum-state."""

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None


# --- events ---------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Tick:
    """Time passed: `next_deadline_ms()` is reached."""


@dataclass(slots=True, frozen=True)
class RequestReceived:
    """A peer asks; the answer comes as a `Reply` with this token, in this step or a later one."""

    token: int
    request: AnyRequest


@dataclass(slots=True, frozen=True)
class ResponseReceived:
    correlation_id: int
    response: Response


@dataclass(slots=True, frozen=True)
class RequestFailed:
    """The request of this correlation id was not answered (connection lost, timed out)."""

    correlation_id: int


@dataclass(slots=True, frozen=True)
class LogAppended:
    """The log changed: this step's `Effects` that change it were carried out
    (`Effects.changes_log`), or the leader's own client appended records (allowed while
    `Replica.can_append(epoch)`)."""


@dataclass(slots=True, frozen=True)
class LogFlushed:
    """An fsync asked for by `Effects.flush` is done: everything below `end_offset` is durable."""

    end_offset: int


@dataclass(slots=True, frozen=True)
class SnapshotInstalled:
    """`Effects.install_snapshot` is done: the log now begins and ends at the checkpoint, or is
    longer and valid.
    """

    snapshot_id: SnapshotId


@dataclass(slots=True, frozen=True)
class SnapshotRejected:
    """`Effects.install_snapshot` found the fetched file corrupt and removed it."""

    snapshot_id: SnapshotId


@dataclass(slots=True, frozen=True)
class Resign:
    """The client gives up the leadership of `epoch`."""

    epoch: int


@dataclass(slots=True, frozen=True)
class Shutdown:
    """Leave in an orderly way: no election is begun any more, a leader tells the voters."""


Event = (
    Tick
    | RequestReceived
    | ResponseReceived
    | RequestFailed
    | LogAppended
    | LogFlushed
    | SnapshotInstalled
    | SnapshotRejected
    | Resign
    | Shutdown
)


# --- effects --------------------------------------------------------------------------------------


# same name as tidemark/records/control.py: the effect that appends that record
@dataclass(slots=True, frozen=True)
class LeaderChange:
    """The control record that opens an epoch; the edge appends it as a batch of its own."""

    leader_id: int
    epoch: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]
    first_voters: VoterSet | None = None
    """The voters of the bootstrap checkpoint, which the log does not have yet: KRaftVersion and
    Voters follow in the same batch."""


@dataclass(slots=True, frozen=True)
class SnapshotPiece:
    """Bytes of a checkpoint under way; position 0 begins a new part file."""

    snapshot_id: SnapshotId
    position: int
    data: bytes


@dataclass(slots=True, frozen=True)
class ReadRecords:
    """Fill `FetchResponse.records` with whole batches from `offset` on, about `max_bytes` of
    them.
    """

    offset: int
    max_bytes: int


@dataclass(slots=True, frozen=True)
class ReadSnapshot:
    """Fill `FetchSnapshotResponse.data` with these bytes of the checkpoint file."""

    snapshot_id: SnapshotId
    position: int
    max_bytes: int


@dataclass(slots=True, frozen=True)
class Send:
    """A request to a peer; node ids below -1 stand for bootstrap servers whose id is not known."""

    correlation_id: int
    node_id: int
    endpoint: Endpoint
    request: Request
    timeout_ms: int


@dataclass(slots=True, frozen=True)
class Reply:
    """The answer to `RequestReceived.token`; `read` says what the edge puts into it first."""

    token: int
    response: Response
    read: ReadRecords | ReadSnapshot | None = None


@dataclass(slots=True)
class Effects:
    """Carry out from top to bottom.

    1. persist: `election_state` durably (quorum-state: tmp, fsync, rename, fsync dir); then the
       log: `truncate_to`, `append_leader_change`, `append_voters` or `append_records`,
       `snapshot_piece`;
    2. begin, without waiting: `flush` (fsync the log; report LogFlushed), `install_snapshot`
       (verify, fsync, rename, restart the log there; report SnapshotInstalled or
       SnapshotRejected);
    3. send: `replies`, `sends`;
    4. apply: tell the listeners of `high_watermark` and `leader`.
    """

    election_state: ElectionState | None = None
    truncate_to: int | None = None
    append_leader_change: LeaderChange | None = None
    append_voters: VoterSet | None = None
    append_records: bytes = b""
    snapshot_piece: SnapshotPiece | None = None
    flush: bool = False
    install_snapshot: SnapshotId | None = None
    replies: list[Reply] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    high_watermark: int | None = None
    leader: LeaderAndEpoch | None = None

    @property
    def changes_log(self) -> bool:
        """The edge reports LogAppended right after carrying this out."""
        return (
            self.truncate_to is not None
            or self.append_leader_change is not None
            or self.append_voters is not None
            or bool(self.append_records)
        )
