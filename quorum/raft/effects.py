"""Inputs and outputs of the replica: events and effects.

Order of effects: **persist -> send -> apply**. The edge carries out the fields of one `Effects`
from top to bottom, and all of one step before those of the next. A failure to persist ends the
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
    """The current leader and its epoch; `leader_id` is None while no leader is known."""

    leader_id: int | None
    epoch: int

    def is_leader(self, node_id: int) -> bool:
        return self.leader_id == node_id


@dataclass(slots=True, frozen=True)
class ElectionState:
    """The election state that survives a crash: the content of quorum-state."""

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None


# --- events ---------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Tick:
    """Time passed: `next_deadline_ms()` is reached."""


@dataclass(slots=True, frozen=True)
class RequestReceived:
    """A request from a peer. It is answered by a `Reply` with this token, in this step or a later
    one.
    """

    token: int
    request: AnyRequest


@dataclass(slots=True, frozen=True)
class ResponseReceived:
    correlation_id: int
    response: Response


@dataclass(slots=True, frozen=True)
class RequestFailed:
    """The request of this correlation id got no response (connection lost, timed out)."""

    correlation_id: int


@dataclass(slots=True, frozen=True)
class ResponseDamaged:
    """The response of this correlation id does not agree with its own checksum."""

    correlation_id: int


@dataclass(slots=True, frozen=True)
class LogAppended:
    """The log changed. Either the effects of this step that change it were carried out
    (`Effects.changes_log`), or the leader's own client appended records, as
    `Replica.can_append(epoch)` allows."""


@dataclass(slots=True, frozen=True)
class RecordsRefused:
    """In place of LogAppended: `Effects.append_records` are not a continuation of this log, and
    none of them was appended."""

    reason: str


@dataclass(slots=True, frozen=True)
class LogFlushed:
    """The fsync that `Effects.flush` requested is done: all below `end_offset` is durable."""

    end_offset: int


@dataclass(slots=True, frozen=True)
class SnapshotInstalled:
    """`Effects.install_snapshot` is complete: the log begins and ends at the checkpoint, or is
    longer and valid.
    """

    snapshot_id: SnapshotId


@dataclass(slots=True, frozen=True)
class SnapshotRejected:
    """`Effects.install_snapshot` found the fetched file corrupt and deleted it."""

    snapshot_id: SnapshotId


@dataclass(slots=True, frozen=True)
class OwnLogDamaged:
    """A read of this replica's own log found damage in the batch at `offset`."""

    offset: int


@dataclass(slots=True, frozen=True)
class OwnCheckpointChecked:
    """Whether the checkpoint where the log begins is damaged, without another in its place."""

    is_damaged: bool


@dataclass(slots=True, frozen=True)
class LogStartRaised:
    """A whole checkpoint took the place of the first records: the log begins there now."""


@dataclass(slots=True, frozen=True)
class Resign:
    """The client resigns the leadership of `epoch`."""

    epoch: int


@dataclass(slots=True, frozen=True)
class Shutdown:
    """Orderly shutdown: the replica starts no more elections, and a leader notifies the voters."""


Event = (
    Tick
    | RequestReceived
    | ResponseReceived
    | RequestFailed
    | ResponseDamaged
    | LogAppended
    | RecordsRefused
    | LogFlushed
    | SnapshotInstalled
    | SnapshotRejected
    | OwnLogDamaged
    | OwnCheckpointChecked
    | LogStartRaised
    | Resign
    | Shutdown
)


# --- effects --------------------------------------------------------------------------------------


# same name as tidemark/records/control.py: the effect that appends that record
@dataclass(slots=True, frozen=True)
class LeaderChange:
    """The control record that opens an epoch. The edge appends it as a batch of its own."""

    leader_id: int
    epoch: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]
    first_voters: VoterSet | None = None
    """Voters of the bootstrap checkpoint, if the log does not have them yet. KRaftVersion and
    Voters records follow in the same batch."""


@dataclass(slots=True, frozen=True)
class SnapshotPiece:
    """A piece of a checkpoint being fetched. Position 0 starts a new part file."""

    snapshot_id: SnapshotId
    position: int
    data: bytes


@dataclass(slots=True, frozen=True)
class ReadRecords:
    """A read that fills `FetchResponse.records` with whole batches from `offset` on, about
    `max_bytes` of them.
    """

    offset: int
    max_bytes: int
    doubted: bool = False
    """The follower fetches here again, though records were sent: their CRCs are compared."""


@dataclass(slots=True, frozen=True)
class ReadSnapshot:
    """A read that fills `FetchSnapshotResponse.data` with these bytes of the checkpoint file."""

    snapshot_id: SnapshotId
    position: int
    max_bytes: int
    doubted: bool = False
    """The follower begins again with this checkpoint: the file is verified anew."""


@dataclass(slots=True, frozen=True)
class Send:
    """A request to a peer. Node ids below -1 stand for bootstrap servers whose id is not known."""

    correlation_id: int
    node_id: int
    endpoint: Endpoint
    request: Request
    timeout_ms: int


@dataclass(slots=True, frozen=True)
class Reply:
    """The answer to `RequestReceived.token`; the edge first completes it with `read`, if any."""

    token: int
    response: Response
    read: ReadRecords | ReadSnapshot | None = None


@dataclass(slots=True)
class Effects:
    """The instructions of one step, carried out from top to bottom.

    1. persist: `election_state` durably (quorum-state: tmp, fsync, rename, fsync dir); then the
       log: `truncate_to`, `append_leader_change`, `append_voters` or `append_records`,
       `snapshot_piece`;
    2. begin, without waiting: `flush` (fsync the log; report LogFlushed), `install_snapshot`
       (verify, fsync, rename, restart the log there; report SnapshotInstalled or
       SnapshotRejected);
    3. send: `replies`, `sends`;
    4. apply: notify the listeners of `high_watermark` and `leader`; `tail_found`,
       `save_bounds`; log `remote_fault`.
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
    tail_found: bool = False
    """The log has everything again that this replica ever acknowledged."""
    save_bounds: bool = False
    """The bounds of the log are to be durable soon (`quorum/replica/log_bounds.py`)."""
    remote_fault: str | None = None
    """Why this step refused a message of a peer."""

    @property
    def changes_log(self) -> bool:
        """True if the log changes: the edge reports LogAppended (or RecordsRefused) right after it
        carried these effects out.
        """
        return (
            self.truncate_to is not None
            or self.append_leader_change is not None
            or self.append_voters is not None
            or bool(self.append_records)
        )
