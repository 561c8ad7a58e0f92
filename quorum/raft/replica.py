"""The Raft replica: `step(event, now_ms) -> Effects`, `next_deadline_ms()`, `validate()`.

Each step handles its event, then polls the role (timers and requests to send) until the role no
longer changes. The same class runs in production and in the simulator. This module only dispatches;
the parts do the work on one shared `RaftState`.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorum.raft.bounds import fault_of_request, fault_of_response
from quorum.raft.config import FOREVER_MS, Randomness, ReplicaConfig
from quorum.raft.effects import (
    Effects,
    ElectionState,
    Event,
    LeaderAndEpoch,
    LogAppended,
    LogFlushed,
    LogStartRaised,
    OwnCheckpointChecked,
    OwnLogDamaged,
    RecordsRefused,
    RequestFailed,
    RequestReceived,
    Resign,
    ResponseDamaged,
    ResponseReceived,
    Shutdown,
    SnapshotInstalled,
    SnapshotRejected,
)
from quorum.raft.elections import Elections
from quorum.raft.following import Following
from quorum.raft.leading import Leading
from quorum.raft.log_view import NO_BOUNDS, KnownBounds, LogView
from quorum.raft.messages import (
    AddVoterRequest,
    AnyRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveVoterRequest,
    Response,
    UpdateVoterRequest,
    UpgradeVersionRequest,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from quorum.raft.refusals import refuse, refuse_response
from quorum.raft.requests import Pending
from quorum.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from quorum.raft.state import RaftInvariantError, RaftState, note_damage, own_damage
from quorum.raft.voter_changes import VoterChanges
from quorum.raft.voters import ReplicaKey, VoterSet
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint, OwnDamage

_MAX_POLLS = 8
"""Limit of role changes in one step: more would be an endless loop."""

_EXPECTED: dict[type, type] = {
    VoteRequest: VoteResponse,
    BeginQuorumEpochRequest: BeginQuorumEpochResponse,
    EndQuorumEpochRequest: EndQuorumEpochResponse,
    FetchRequest: FetchResponse,
    FetchSnapshotRequest: FetchSnapshotResponse,
    AddVoterRequest: VoterChangeResponse,
    RemoveVoterRequest: VoterChangeResponse,
    UpdateVoterRequest: VoterChangeResponse,
}


@dataclass(slots=True, frozen=True)
class Parts:
    """The classes that make up a replica. A test may replace any of them with a broken one."""

    state: type[RaftState] = RaftState
    elections: type[Elections] = Elections
    following: type[Following] = Following
    leading: type[Leading] = Leading
    voter_changes: type[VoterChanges] = VoterChanges


class Replica:
    """One replica of the metadata log. It does no IO and is not thread-safe."""

    def __init__(
        self,
        config: ReplicaConfig,
        log: LogView,
        election_state: ElectionState,
        rng: Randomness,
        parts: Parts = Parts(),
        bounds: KnownBounds = NO_BOUNDS,
    ) -> None:
        self.state = state = parts.state(config, log, election_state, rng, bounds)
        self._elections = parts.elections(state)
        self._following = parts.following(state)
        self._leading = parts.leading(state)
        self._voter_changes = parts.voter_changes(state)
        self._reported_leader = LeaderAndEpoch(None, -1)
        self._validated_role: Role | None = None

    # --- views ------------------------------------------------------------------------------------

    @property
    def key(self) -> ReplicaKey:
        return self.state.key

    @property
    def node_id(self) -> int:
        return self.state.node_id

    @property
    def role(self) -> Role:
        return self.state.role

    @property
    def epoch(self) -> int:
        return self.state.role.epoch

    @property
    def voters(self) -> VoterSet:
        return self.state.voters

    @property
    def remote_faults(self) -> int:
        """Answers of other replicas that were refused because they cannot be right."""
        return self.state.remote_faults

    @property
    def own_damage(self) -> OwnDamage:
        return own_damage(self.state)

    @property
    def high_watermark(self) -> int | None:
        """The end of the records known to be committed, exclusive; None before any is."""
        return self.state.high_watermark

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        return self.state.leader_and_epoch

    @property
    def leader_endpoint(self) -> Endpoint | None:
        return self.state.leader_endpoint

    @property
    def committed_offset(self) -> int | None:
        """Offset a listener must reach to have caught up: everything committed before this epoch
        began. None until the leader reports it.

        The replica's own `high_watermark` does not serve: after a restart it starts at the newest
        checkpoint.
        """
        role = self.state.role
        match role:
            case Leader():
                return role.epoch_start_offset + 1
            case Follower():
                return role.leader_high_watermark
            case _:
                return None

    def can_append(self, epoch: int) -> bool:
        """Whether the client of this replica may append records of `epoch` to the log now."""
        state = self.state
        return (
            isinstance(state.role, Leader) and state.role.epoch == epoch and not state.awaiting_log
        )

    @property
    def shutdown_complete(self) -> bool:
        """True after Shutdown once every voter that must be notified has acknowledged."""
        role = self.state.role
        return self.state.shutting_down and not (isinstance(role, Resigned) and role.unacknowledged)

    # --- events -----------------------------------------------------------------------------------

    def start(self, now_ms: int) -> Effects:
        """Sets the role after a (re)start from quorum-state and log. Call once, before the first
        step.
        """
        self.state.effects = Effects()
        self.state.restore_role(now_ms)
        return self._finish(now_ms)

    def step(self, event: Event, now_ms: int) -> Effects:
        """Handles one event and returns what must be done, in the order of `Effects`."""
        state = self.state
        state.effects = Effects()
        state.requests.expire(now_ms)
        match event:  # a Tick needs no handler: every event is followed by a poll
            case RequestReceived():
                self._on_request(event.token, event.request, now_ms)
            case ResponseReceived():
                self._on_response(event, now_ms)
            case RequestFailed():
                pending = state.requests.complete(event.correlation_id)
                if pending is not None:
                    state.requests.back_off(pending.node_id, now_ms)
            case ResponseDamaged():
                self._on_response_damaged(event, now_ms)
            case LogAppended():
                self._on_log_appended(now_ms)
            case RecordsRefused():
                state.awaiting_log = False
                self._following.refuse(event.reason, now_ms)
            case LogFlushed():
                durable = min(event.end_offset, state.log.end_offset)
                state.flushed_offset = max(state.flushed_offset, durable)
            case SnapshotInstalled():
                state.checkpoint_damaged = False  # the log begins with another one
                self._following.on_snapshot_installed(event.snapshot_id, now_ms)
                self._note_log_start(now_ms)
            case SnapshotRejected():
                self._following.on_snapshot_rejected(event.snapshot_id, now_ms)
            case OwnLogDamaged():
                state.metrics.own_log_damages += 1
                note_damage(state, max(event.offset, state.damaged_offset or 0), now_ms)
            case OwnCheckpointChecked():
                state.checkpoint_damaged = event.is_damaged
            case LogStartRaised():
                self._note_log_start(now_ms)
            case Resign():
                if isinstance(state.role, Leader) and state.role.epoch == event.epoch:
                    state.become_resigned(now_ms)
            case Shutdown():
                state.shutting_down = True
                if isinstance(state.role, Leader):
                    state.become_resigned(now_ms)
        return self._finish(now_ms)

    def _note_log_start(self, now_ms: int) -> None:
        """Ends the damage of the own log if a checkpoint has taken its place."""
        state = self.state
        if state.damaged_offset is not None and state.damaged_offset < state.log.start_offset:
            note_damage(state, None, now_ms)

    def _on_log_appended(self, now_ms: int) -> None:
        state = self.state
        state.awaiting_log = False
        state.refresh_voters(now_ms)
        if isinstance(state.role, Follower):
            self._following.on_log_appended(state.role, now_ms)

    def _on_response_damaged(self, event: ResponseDamaged, now_ms: int) -> None:
        pending = self.state.requests.complete(event.correlation_id)
        if pending is not None:
            self.state.requests.back_off(pending.node_id, now_ms)
            self._following.refuse("it does not agree with its checksum", now_ms)

    def _on_request(self, token: int, request: AnyRequest, now_ms: int) -> None:
        state = self.state
        if request.cluster_id and request.cluster_id != state.config.cluster_id:
            state.fail(token, request, ErrorCode.INCONSISTENT_CLUSTER_ID)
            return
        if state.shutting_down:
            state.fail(token, request, ErrorCode.BROKER_NOT_AVAILABLE)
            return
        fault = fault_of_request(request, state.node_id, state.epoch)
        if fault:
            refuse(state, token, request, fault)
            return
        match request:
            case VoteRequest():
                self._elections.on_vote_request(token, request, now_ms)
            case BeginQuorumEpochRequest():
                self._elections.on_begin_quorum_epoch(token, request, now_ms)
            case EndQuorumEpochRequest():
                self._elections.on_end_quorum_epoch(token, request, now_ms)
            case FetchRequest():
                self._leading.on_fetch_request(token, request, now_ms)
            case FetchSnapshotRequest():
                self._leading.on_fetch_snapshot_request(token, request, now_ms)
            case (
                AddVoterRequest()
                | RemoveVoterRequest()
                | UpdateVoterRequest()
                | UpgradeVersionRequest()
            ):
                self._voter_changes.on_voter_change_request(token, request, now_ms)

    def _on_response(self, event: ResponseReceived, now_ms: int) -> None:
        requests, response = self.state.requests, event.response
        pending = requests.complete(event.correlation_id)
        if pending is None:
            return
        if type(response) is not _EXPECTED[type(pending.request)]:
            requests.back_off(pending.node_id, now_ms)
            return
        fault = fault_of_response(response, self.state.epoch)
        if fault:
            self._refuse_response(pending, fault, now_ms)
            return
        if response.header.error == ErrorCode.UNSUPPORTED_VERSION and (
            isinstance(response, VoteResponse)
        ):
            self._elections.on_vote_unsupported(pending, now_ms)
            return
        is_current = self._elections.apply_header(pending, response.header, now_ms)
        if isinstance(response, BeginQuorumEpochResponse):  # errors of a probe count, too
            self._voter_changes.on_probe_response(pending, response)
        if is_current:
            self._dispatch_response(pending, response, now_ms)
        elif isinstance(response, FetchResponse):
            self._following.pause_server(pending, now_ms)

    def _refuse_response(self, pending: Pending, fault: str, now_ms: int) -> None:
        role = self.state.role
        fetched = isinstance(pending.request, FetchRequest | FetchSnapshotRequest)
        if fetched and isinstance(role, Follower) and role.leader_id == pending.node_id:
            self._following.refuse(fault, now_ms)
        else:
            refuse_response(self.state, pending, fault, now_ms)

    def _dispatch_response(self, pending: Pending, response: Response, now_ms: int) -> None:
        match response:  # a VoterChangeResponse has no handler: the log shows the outcome
            case VoteResponse():
                self._elections.on_vote_response(pending, response)
            case BeginQuorumEpochResponse():
                self._leading.on_begin_quorum_epoch_response(pending)
            case EndQuorumEpochResponse():
                self._elections.on_end_quorum_epoch_response(pending)
            case FetchResponse():
                self._following.on_fetch_response(pending, response, now_ms)
            case FetchSnapshotResponse():
                self._following.on_fetch_snapshot_response(pending, response, now_ms)

    # --- polling ----------------------------------------------------------------------------------

    def _finish(self, now_ms: int) -> Effects:
        state = self.state
        for _ in range(_MAX_POLLS):
            role = state.role
            self._poll(now_ms)
            if state.role is role:
                break
        else:
            raise RaftInvariantError(f"the role does not settle: {state.role}")
        if state.role is not self._validated_role:
            self._validated_role = state.role
            self._require_valid()
        leader = state.leader_and_epoch
        if leader != self._reported_leader:
            self._reported_leader = leader
            state.effects.leader = leader
        return state.effects

    def _poll(self, now_ms: int) -> None:
        role = self.state.role
        match role:
            case Unattached() | Follower():
                self._following.poll(role, now_ms)
            case Prospective() | Candidate() | Resigned():
                self._elections.poll(role, now_ms)
            case Leader():
                self._leading.poll(role, now_ms)
        if isinstance(role, Leader | Follower) and self.state.role is role:
            self._voter_changes.poll(role, now_ms)

    def next_deadline_ms(self) -> int | None:
        """When the next `Tick` is due; None if only other events can change anything."""
        role = self.state.role
        match role:
            case Unattached() | Follower():
                due_ms = self._following.deadline_ms(role)
            case Prospective() | Candidate() | Resigned():
                due_ms = self._elections.deadline_ms(role)
            case Leader():
                due_ms = self._leading.deadline_ms(role)
        due_ms = min(due_ms, self.state.requests.next_deadline_ms())
        if isinstance(role, Leader | Follower):
            due_ms = min(due_ms, self._voter_changes.deadline_ms(role))
        return due_ms if due_ms < FOREVER_MS else None

    # --- checks -----------------------------------------------------------------------------------

    def _require_valid(self) -> None:
        """Raises RaftInvariantError before anything of a wrong step is written or sent."""
        try:
            self.validate()
        except AssertionError as error:
            raise RaftInvariantError(f"an invariant is broken: {error!r}, {self.role}") from error

    def validate(self) -> None:
        """Asserts the invariants. Tests and the simulator call it after every step.

        The replica itself calls it where the role changes, since most of them break there. After
        each step it would cost 2-3 us, which is a tenth of a step without news.
        """
        state, role, known = self.state, self.state.role, self.state.election_state
        assert known.epoch == role.epoch, (known, role)
        assert state.flushed_offset <= state.log.end_offset, (state.flushed_offset, state.log)
        if state.high_watermark is not None:
            assert state.high_watermark <= state.log.end_offset
        latest = state.log.latest_snapshot
        if latest is not None:
            assert latest.end_offset <= (state.high_watermark or 0), (latest, state.high_watermark)
        assert state.log.last_epoch <= role.epoch, (state.log.last_epoch, role)
        match role:
            case Candidate():
                assert role.voted == state.key == known.voted
            case Leader() | Resigned():
                assert known.leader_id == state.node_id
            case Follower():
                assert known.leader_id == role.leader_id != state.node_id
            case _:
                assert known.voted == role.voted
        if state.lost_tail or state.left_out:
            assert isinstance(role, Unattached | Follower), role
        if state.damaged_offset is not None:
            assert isinstance(role, Unattached | Follower | Resigned), role
        if isinstance(role, Leader):
            assert set(role.voters) == set(state.voters.ids)
        if not state.awaiting_log:
            assert state.voters == (state.log.voters or state.config.voters)
