"""The Raft replica: `step(event, now_ms) -> Effects`, `next_deadline_ms()`, `validate()`.

Every step handles its event, then polls the role (its timers and what it has to send) until the
role stays the same. The same class runs in production and in the simulator. The parts: `roles`
(what a replica can be), `core` (transitions), `elections`, `following`, `leading`,
`reconfiguration`.
"""

from __future__ import annotations

from quorum.raft.core import FOREVER_MS, RaftInvariantError
from quorum.raft.effects import (
    Effects,
    Event,
    LogAppended,
    LogFlushed,
    RequestFailed,
    RequestReceived,
    Resign,
    ResponseReceived,
    Shutdown,
    SnapshotInstalled,
    SnapshotRejected,
)
from quorum.raft.leading import OBSERVER_SESSION_MS
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
    UpdateVoterRequest,
    UpgradeVersionRequest,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from quorum.raft.reconfiguration import Reconfiguring
from quorum.raft.requests import Pending
from quorum.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
)
from tidemark.errors import ErrorCode

_MAX_POLLS = 8
"""Role changes one step can make: more would be a loop."""

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


class Replica(Reconfiguring):
    """One replica of the metadata log; not thread-safe, and without any IO."""

    def start(self, now_ms: int) -> Effects:
        """The role after a (re)start, from quorum-state and log; call once, before the first
        step.
        """
        self._effects = Effects()
        state = self.election_state
        log_epoch = self.log.last_epoch
        deadline_ms = self._election_deadline_ms(now_ms)
        if state.epoch < log_epoch:
            self.role = Unattached(log_epoch, None, deadline_ms)
            self._persist(None, None)
        elif state.leader_id == self.node_id and self.may_elect:
            # An (offset, epoch) pair must never be written twice: it leads no more in this epoch.
            others = set(self.voters.others(self.node_id))
            self.role = Resigned(state.epoch, state.voted, deadline_ms, (), others)
        elif state.leader_id is not None and state.leader_id != self.node_id:
            self._start_as_follower(state.leader_id, now_ms)
        elif state.voted == self.key and self.may_elect:
            self.role = Candidate(state.epoch, self.key, deadline_ms, {self.node_id})
        else:
            self.role = Unattached(state.epoch, state.voted, deadline_ms)
        return self._finish(now_ms)

    def _start_as_follower(self, leader_id: int, now_ms: int) -> None:
        state = self.election_state
        endpoint = self.voters.endpoint(leader_id)
        if endpoint is None:
            self.role = Unattached(state.epoch, state.voted, self._election_deadline_ms(now_ms))
            return
        deadline_ms = now_ms + self.config.fetch_timeout_ms
        self.role = Follower(state.epoch, state.voted, leader_id, endpoint, deadline_ms)

    def step(self, event: Event, now_ms: int) -> Effects:
        """Takes one event and says what must be done, in the order of `Effects`."""
        self._effects = Effects()
        self.requests.expire(now_ms)
        match event:  # a Tick needs no handler: the poll finds what is due, as after every event
            case RequestReceived():
                self._on_request(event.token, event.request, now_ms)
            case ResponseReceived():
                self._on_response(event, now_ms)
            case RequestFailed():
                pending = self.requests.complete(event.correlation_id)
                if pending is not None:
                    self.requests.back_off(pending.node_id, now_ms)
            case LogAppended():
                self._on_log_appended(now_ms)
            case LogFlushed():
                self.flushed_offset = max(
                    self.flushed_offset, min(event.end_offset, self.log.end_offset)
                )
            case SnapshotInstalled():
                self._on_snapshot_installed(event.snapshot_id, now_ms)
            case SnapshotRejected():
                self._on_snapshot_gone(event.snapshot_id)
            case Resign():
                if isinstance(self.role, Leader) and self.role.epoch == event.epoch:
                    self._become_resigned(now_ms)
            case Shutdown():
                self.shutting_down = True
                if isinstance(self.role, Leader):
                    self._become_resigned(now_ms)
        return self._finish(now_ms)

    def can_append(self, epoch: int) -> bool:
        """Whether the client of this replica may append records of `epoch` to the log now."""
        return isinstance(self.role, Leader) and self.role.epoch == epoch and not self._awaiting_log

    @property
    def shutdown_complete(self) -> bool:
        """After Shutdown: everybody who had to know of it knows."""
        role = self.role
        return self.shutting_down and not (isinstance(role, Resigned) and role.unacknowledged)

    def _on_log_appended(self, now_ms: int) -> None:
        self._awaiting_log = False
        self._refresh_voters(now_ms)
        if isinstance(self.role, Follower):
            self._follow_high_watermark(self.role)

    def _on_request(self, token: int, request: AnyRequest, now_ms: int) -> None:
        if request.cluster_id and request.cluster_id != self.config.cluster_id:
            self._fail(token, request, ErrorCode.INCONSISTENT_CLUSTER_ID)
            return
        if self.shutting_down:
            self._fail(token, request, ErrorCode.BROKER_NOT_AVAILABLE)
            return
        match request:
            case VoteRequest():
                self._on_vote_request(token, request, now_ms)
            case BeginQuorumEpochRequest():
                self._on_begin_quorum_epoch(token, request, now_ms)
            case EndQuorumEpochRequest():
                self._on_end_quorum_epoch(token, request, now_ms)
            case FetchRequest():
                self._on_fetch_request(token, request, now_ms)
            case FetchSnapshotRequest():
                self._on_fetch_snapshot_request(token, request, now_ms)
            case (
                AddVoterRequest()
                | RemoveVoterRequest()
                | UpdateVoterRequest()
                | UpgradeVersionRequest()
            ):
                self._on_voter_change_request(token, request, now_ms)

    def _on_response(self, event: ResponseReceived, now_ms: int) -> None:
        pending = self.requests.complete(event.correlation_id)
        if pending is None:
            return
        response = event.response
        if type(response) is not _EXPECTED[type(pending.request)]:
            self.requests.back_off(pending.node_id, now_ms)
            return
        self._dispatch_response(pending, event, now_ms)

    def _dispatch_response(self, pending: Pending, event: ResponseReceived, now_ms: int) -> None:
        match event.response:
            case VoteResponse():
                self._on_vote_response(pending, event.response, now_ms)
            case BeginQuorumEpochResponse():
                self._on_begin_quorum_epoch_response(pending, event.response, now_ms)
            case EndQuorumEpochResponse():
                self._on_end_quorum_epoch_response(pending, event.response, now_ms)
            case FetchResponse():
                self._on_fetch_response(pending, event.response, now_ms)
            case FetchSnapshotResponse():
                self._on_fetch_snapshot_response(pending, event.response, now_ms)
            case VoterChangeResponse():
                self._on_voter_change_response(pending, event.response, now_ms)

    # --- polling ----------------------------------------------------------------------------------

    def _finish(self, now_ms: int) -> Effects:
        for _ in range(_MAX_POLLS):
            role = self.role
            self._poll(now_ms)
            if self.role is role:
                break
        else:
            raise RaftInvariantError(f"the role does not settle: {self.role}")
        told = self.leader_and_epoch
        if told != self._told_leader:
            self._told_leader = told
            self._effects.leader = told
        return self._effects

    def _poll(self, now_ms: int) -> None:
        role = self.role
        match role:
            case Unattached():
                self._poll_unattached(role, now_ms)
            case Prospective():
                self._poll_prospective(role, now_ms)
            case Candidate():
                self._poll_candidate(role, now_ms)
            case Follower():
                self._poll_follower(role, now_ms)
                if self.role is role:
                    self._poll_membership(role, now_ms)
            case Leader():
                self._poll_leader(role, now_ms)
                if self.role is role:
                    self._poll_voter_change(role, now_ms)
            case Resigned():
                self._poll_resigned(role, now_ms)

    def next_deadline_ms(self) -> int | None:
        """When `Tick` is due at the latest; None when only events can change anything."""
        deadlines = [self._role_deadline_ms(), self.requests.next_deadline_ms()]
        deadlines.extend(self.requests.ready_at_ms(node) for node in self._peers_wanted())
        known = [d for d in deadlines if d is not None and d < FOREVER_MS]
        return min(known, default=None)

    def _role_deadline_ms(self) -> int | None:
        role = self.role
        match role:
            case Prospective() if self.voters.has_majority(role.granted):
                return None if self.shutting_down else role.defers_until_ms
            case Unattached() | Prospective() | Candidate() | Resigned():
                stopped = self.shutting_down and isinstance(role, Unattached | Resigned)
                watching = isinstance(role, Unattached) and not self.may_elect
                return None if stopped or watching else role.election_deadline_ms
            case Follower():
                if self.shutting_down:
                    return None
                membership_ms = self._membership_deadline_ms(role)
                due_ms = FOREVER_MS if membership_ms is None else membership_ms
                fetch_ms = role.fetch_deadline_ms if self.may_elect else FOREVER_MS
                return min(fetch_ms, due_ms)
            case Leader():
                deadlines = [self._check_quorum_deadline_ms(role)]
                deadlines.extend(p.deadline_ms for p in role.parked.values())
                change_ms = self._change_deadline_ms(role)
                if change_ms is not None:
                    deadlines.append(change_ms)
                for node in self.voters.others(self.node_id):
                    ready_ms = self.requests.ready_at_ms(node)
                    if ready_ms is not None:
                        deadlines.append(max(ready_ms, self._begin_due_ms(role, node)))
                return min(deadlines)

    def _peers_wanted(self) -> list[int]:
        """Peers this role would send to as soon as their pause is over."""
        role = self.role
        match role:
            case Prospective() | Candidate():
                if self.voters.has_majority(role.rejected):
                    return []
                answered = role.granted | role.rejected
                return [n for n in self.voters.others(self.node_id) if n not in answered]
            case Resigned():
                return sorted(role.unacknowledged)
            case Unattached() if not self.requests.has_pending():
                return [node for node, _ in self._servers_to_ask()]
            case Follower() if not self._waits_before_fetch(role):
                return [role.leader_id, *(node for node, _ in self._servers_to_ask())]
            case _:
                return []

    def _waits_before_fetch(self, role: Follower) -> bool:
        installing = role.download is not None and role.download.installing
        unflushed = self.syncs_before_fetch and self.flushed_offset < self.log.end_offset
        return self._awaiting_log or installing or unflushed or self.requests.has_pending()

    # --- checks -----------------------------------------------------------------------------------

    def validate(self) -> None:
        """Asserts what must always hold; for tests and the simulator, after every step."""
        role, state = self.role, self.election_state
        assert state.epoch == role.epoch, (state, role)
        assert self.flushed_offset <= self.log.end_offset, (self.flushed_offset, self.log)
        if self.high_watermark is not None:
            assert self.high_watermark <= self.log.end_offset
        latest = self.log.latest_snapshot
        if latest is not None:
            assert latest.end_offset <= (self.high_watermark or 0), (latest, self.high_watermark)
        assert self.log.last_epoch <= role.epoch, (self.log.last_epoch, role)
        match role:
            case Candidate():
                assert role.voted == self.key == state.voted
            case Leader() | Resigned():
                assert state.leader_id == self.node_id
            case Follower():
                assert state.leader_id == role.leader_id != self.node_id
            case _:
                assert state.voted == role.voted
        if isinstance(role, Leader):
            assert set(role.voters) == set(self.voters.ids)
        if not self._awaiting_log:
            assert self.voters == (self.log.voters or self.config.voters)

    def is_current_observer(self, last_fetch_ms: int | None, now_ms: int) -> bool:
        """Whether an observer fetched lately enough to be described."""
        return last_fetch_ms is not None and now_ms - last_fetch_ms < OBSERVER_SESSION_MS
