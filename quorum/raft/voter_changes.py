"""Changes of the voters (KIP-853): add, remove, update. They run one at a time, through the log.
The first of them turns static voters into voters of the log (kraft.version 1).

    requested -> probed (add, update) -> caught up (add) -> Voters record appended -> committed
        -> answered

A change begins only if the high watermark is known in the leader's own epoch and the newest Voters
record is committed. Then the majorities of any two sets in use share a member. A set is in force
from its append on: a change is committed by a majority of the *new* voters. So a set without a
majority of healthy voters is refused: it could never commit itself. A removed leader no longer
counts itself, and resigns once its removal is committed. The log is the only record of an appended
change: truncation reverts it.
"""

from __future__ import annotations

from quorum.raft.config import FOREVER_MS
from quorum.raft.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    RemoveVoterRequest,
    UpdateVoterRequest,
    UpgradeVersionRequest,
    VoterChangeRequest,
    VoterChangeResponse,
)
from quorum.raft.requests import MEMBERSHIP_ID, Pending
from quorum.raft.roles import Follower, Leader, ReplicaProgress, VoterChange
from quorum.raft.state import RaftState
from quorum.raft.voters import Voter, VoterSet, reachable
from tidemark.errors import ErrorCode
from tidemark.types import Listener

KRAFT_VERSION_DYNAMIC = 1
"""The first kraft.version with voters in the log."""
MAX_CHANGE_WAIT_MS = 300_000
"""Longest time a change waits for its new voter in ms, whatever the request asks for."""
OWN_TOKEN = -1
"""Token of a change without a caller: the leader corrects its own endpoint."""


class VoterChanges:
    """Handlers and timers of voter changes, on the leader and on replicas that request one."""

    def __init__(self, state: RaftState) -> None:
        self._state = state

    def poll(self, role: Leader | Follower, now_ms: int) -> None:
        """Advances the change of a leader, or the membership request of a follower."""
        if isinstance(role, Leader):
            self._poll_change(role, now_ms)
        else:
            self._poll_membership(role, now_ms)

    def deadline_ms(self, role: Leader | Follower) -> int:
        """When `poll` is due at the latest."""
        if isinstance(role, Leader):
            return self._change_deadline_ms(role)
        return self._membership_deadline_ms(role)

    # --- the leader -------------------------------------------------------------------------------

    def _is_committed(self, offset: int | None) -> bool:
        return offset is None or offset < (self._state.high_watermark or 0)

    def on_voter_change_request(
        self, token: int, request: VoterChangeRequest | UpgradeVersionRequest, now_ms: int
    ) -> None:
        state = self._state
        role = state.role
        if isinstance(request, UpdateVoterRequest) and request.epoch != state.epoch:
            ahead = request.epoch > state.epoch
            error = ErrorCode.UNKNOWN_LEADER_EPOCH if ahead else ErrorCode.FENCED_LEADER_EPOCH
            self._refuse(token, error, f"epoch {request.epoch} is not the leader's, {state.epoch}")
        elif not isinstance(role, Leader):
            state.fail(token, request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            refusal = self._refusal(role, request, now_ms)
            if refusal is not None:
                self._refuse(token, *refusal)
                return
            wait_ms = state.config.request_timeout_ms
            if not isinstance(request, UpdateVoterRequest):
                wait_ms = min(max(request.timeout_ms, 0), MAX_CHANGE_WAIT_MS)
            if role.change is not None:  # the update of a voter, which will repeat it
                text = "another change of the voters came before the voter answered: try again"
                self._finish_change(role, role.change, ErrorCode.REQUEST_TIMED_OUT, text)
            role.change = VoterChange(token, request, now_ms + wait_ms)

    def _requested_voter(self, request: AddVoterRequest | UpdateVoterRequest) -> Voter:
        """The voter described by a request, with the listener through which this replica reaches
        it.
        """
        named = (Listener(self._state.config.listener_names[0], *request.endpoint),)
        listeners = request.listeners or named
        endpoint = reachable(listeners, self._state.config.listener_names)
        return Voter(request.voter, endpoint, listeners)

    def _refuse(self, token: int, error: ErrorCode, message: str) -> None:
        self._state.reply(token, VoterChangeResponse(self._state.header(error), message))

    def _refusal(
        self, role: Leader, request: VoterChangeRequest | UpgradeVersionRequest, now_ms: int
    ) -> tuple[ErrorCode, str] | None:
        """Why the change cannot begin (KIP-853, "AddVoter" and "RemoveVoter"); None if it can."""
        state = self._state
        if not self._may_begin(role):
            return ErrorCode.REQUEST_TIMED_OUT, (
                "another change of the voters is not finished, or the leader is too new: try again"
            )
        if isinstance(request, UpgradeVersionRequest):
            return self._upgrade_refusal(role, request)
        if state.log.kraft_version < KRAFT_VERSION_DYNAMIC:
            return ErrorCode.UNSUPPORTED_VERSION, (
                "the voters are static (kraft.version 0), named by controller.quorum.voters: "
                "`tidemark features upgrade kraft.version=1` makes them dynamic"
            )
        if isinstance(request, AddVoterRequest):
            return self._addition_refusal(role, request, now_ms)
        key = request.voter
        known = state.voters.key(key.replica_id) if key.replica_id in state.voters.ids else None
        if known != key:
            return ErrorCode.VOTER_NOT_FOUND, f"{key} is none of the voters {state.voters}"
        if isinstance(request, UpdateVoterRequest):
            if state.voters.listeners(key.replica_id) == self._requested_voter(request).listeners:
                return ErrorCode.NONE, "nothing to change"
            return self._listener_refusal(request)
        if len(state.voters) == 1:
            return ErrorCode.INVALID_REQUEST, f"{key.replica_id} is the only voter: it must stay"
        return self._health_refusal(role, state.voters.without(key.replica_id), now_ms)

    def _addition_refusal(
        self, role: Leader, request: AddVoterRequest, now_ms: int
    ) -> tuple[ErrorCode, str] | None:
        key, voters = request.voter, self._state.voters
        if key.replica_id in voters.ids:
            known = voters.key(key.replica_id)
            return ErrorCode.DUPLICATE_VOTER, f"{key.replica_id} is a voter: {known}"
        if key.replica_id < 0 or key.directory_id is None:
            return ErrorCode.INVALID_REQUEST, "a voter needs an id and a directory id"
        wider = voters.with_voter(self._requested_voter(request))
        return self._listener_refusal(request) or self._health_refusal(role, wider, now_ms)

    def _listener_refusal(
        self, request: AddVoterRequest | UpdateVoterRequest
    ) -> tuple[ErrorCode, str] | None:
        """Why the listeners of a voter cannot be recorded; None if they can. The leader must have a
        listener in common with it, and no two voters share an endpoint.
        """
        state, node_id = self._state, request.voter.replica_id
        wanted = self._requested_voter(request)
        names = state.config.listener_names
        if not any(listener.name in names for listener in wanted.listeners):
            named = ", ".join(listener.name for listener in wanted.listeners)
            return ErrorCode.INVALID_REQUEST, (
                f"voter {node_id} has the listeners {named}, but the leader, {state.node_id}, "
                f"reaches voters by {', '.join(names)}: name the endpoint of such a listener, too"
            )
        shared = self._shared_endpoint(wanted)
        if shared is None:
            return None
        other, listener = shared
        return ErrorCode.INVALID_REQUEST, (
            f"{listener.host}:{listener.port} is an endpoint of voter {other} already: correct the "
            f"listeners of {node_id}, or if {other} moved away let it report first, or remove it"
        )

    def _shared_endpoint(self, wanted: Voter) -> tuple[int, Listener] | None:
        """A listener of `wanted` whose endpoint is another voter's, and that voter's id."""
        theirs = {
            listener.endpoint: node
            for node in self._state.voters.others(wanted.key.replica_id)
            for listener in self._state.voters.listeners(node)
        }
        for listener in wanted.listeners:
            if listener.endpoint in theirs:
                return theirs[listener.endpoint], listener
        return None

    def _health_refusal(
        self, role: Leader, voters: VoterSet, now_ms: int
    ) -> tuple[ErrorCode, str] | None:
        """Why these voters cannot be the next set: they have no healthy majority. None if they
        have. A new voter counts, because its addition waits until it has caught up.
        """
        node_id = self._state.node_id
        silent = [
            node
            for node in voters.others(node_id)
            if node in role.voters and not self._is_healthy(role.voters[node], now_ms)
        ]
        if len(voters) - len(silent) >= voters.majority:
            return None
        waited_ms = self._state.config.check_quorum_timeout_ms
        return ErrorCode.NOT_ENOUGH_REPLICAS, (
            f"the voters would be {', '.join(map(str, voters.ids))}, but "
            f"{', '.join(map(str, silent))} did not fetch the end of the log within {waited_ms} "
            "ms, and the rest is no majority: start the silent voters, or remove them first"
        )

    def _is_healthy(self, progress: ReplicaProgress, now_ms: int) -> bool:
        """Whether a replica fetched recently and was near the log end then, so that it will not
        delay commits. (For a new voter, Kafka accepts a last fetch up to an hour ago.)
        """
        fetched_ms, caught_up_ms = progress.last_fetch_ms, progress.last_caught_up_ms
        if fetched_ms is None or caught_up_ms is None:
            return False
        return now_ms - min(fetched_ms, caught_up_ms) < self._state.config.check_quorum_timeout_ms

    def _upgrade_refusal(
        self, role: Leader, request: UpgradeVersionRequest
    ) -> tuple[ErrorCode, str] | None:
        """Why the upgrade cannot begin; None if it can. Every voter must have fetched in this
        epoch, which is how its directory id is learned.
        """
        before, wanted = self._state.log.kraft_version, request.kraft_version
        if wanted == before:
            return ErrorCode.NONE, "nothing to change"
        if wanted != KRAFT_VERSION_DYNAMIC:
            return ErrorCode.INVALID_UPDATE_VERSION, (
                f"kraft.version can go from 0 to {KRAFT_VERSION_DYNAMIC}, not from {before} to "
                f"{wanted}"
            )
        silent = [
            str(node)
            for node, progress in role.voters.items()
            if node != self._state.node_id and progress.key.directory_id is None
        ]
        if silent:
            return ErrorCode.INVALID_UPDATE_VERSION, (
                f"voters {', '.join(silent)} have not fetched from this leader yet, so their "
                "directory ids are not known: start them, and try again"
            )
        return (ErrorCode.NONE, "it could begin") if request.validate_only else None

    def _may_begin(self, role: Leader) -> bool:
        """Whether no change is under way. The update of a voter that is still probed is replaced:
        an endpoint that does not answer must not delay an administrator.
        """
        change = role.change
        if change is not None and not isinstance(change.request, UpdateVoterRequest):
            return False
        return self._has_committed(role) and self._is_last_committed()

    def _has_committed(self, role: Leader) -> bool:
        """Whether a record of the leader's own epoch is committed (Ongaro 2015). Before that, an
        earlier leader's change may be in force elsewhere.
        """
        known = self._state.high_watermark
        return known is not None and known > role.epoch_start_offset

    def _is_last_committed(self) -> bool:
        """Whether the newest Voters record of the log is committed."""
        return self._is_committed(self._state.log.voters_offset)

    def _poll_change(self, role: Leader, now_ms: int) -> None:
        if self._state.awaiting_log:
            return
        change = role.change
        if change is None:
            self._poll_own_voter(role, now_ms)
        elif change.appended:
            if self._is_committed(self._state.log.voters_offset):
                self._finish_change(role, change, ErrorCode.NONE)
                self._poll_own_voter(role, now_ms)
            elif now_ms >= change.deadline_ms:
                text = "the change is appended, but not committed in time: it may yet be"
                self._finish_change(role, change, ErrorCode.REQUEST_TIMED_OUT, text)
        elif now_ms >= change.deadline_ms:
            text = "the voter does not answer at its endpoint"
            if change.probed:
                text = "the new voter does not fetch, or is too far behind"
            self._finish_change(role, change, ErrorCode.REQUEST_TIMED_OUT, text)
        else:
            self._advance_change(role, change, now_ms)

    def _advance_change(self, role: Leader, change: VoterChange, now_ms: int) -> None:
        state = self._state
        request = change.request
        match request:
            case UpgradeVersionRequest():
                self._append_voters(change, self._dynamic_voters(role))
            case RemoveVoterRequest():
                self._append_voters(change, state.voters.without(request.voter.replica_id))
            case AddVoterRequest() | UpdateVoterRequest() if not change.probed:
                self._probe(role, change, request, now_ms)
            case UpdateVoterRequest():
                self._append_voters(change, state.voters.with_voter(self._requested_voter(request)))
            case AddVoterRequest():
                if self._is_caught_up(role, request, now_ms):
                    self._append_voters(
                        change, state.voters.with_voter(self._requested_voter(request))
                    )
                    if not request.ack_when_committed:
                        self._finish_change(role, change, ErrorCode.NONE)

    def _dynamic_voters(self, role: Leader) -> VoterSet:
        """The static voters with the directory ids from their fetches."""
        state = self._state
        keys = {node: progress.key for node, progress in role.voters.items()}
        keys[state.node_id] = state.key
        return VoterSet(
            Voter(keys[v.key.replica_id], v.endpoint, v.listeners) for v in state.voters
        )

    def _append_voters(self, change: VoterChange, voters: VoterSet) -> None:
        change.appended = True  # the log tracks its offset: other appends may come first
        self._state.effects.append_voters = voters
        self._state.awaiting_log = True

    def _finish_change(
        self, role: Leader, change: VoterChange, error: ErrorCode, message: str = ""
    ) -> None:
        role.change = None
        if change.token != OWN_TOKEN:
            self._refuse(change.token, error, message)

    def _probe(
        self,
        role: Leader,
        change: VoterChange,
        request: AddVoterRequest | UpdateVoterRequest,
        now_ms: int,
    ) -> None:
        """Verifies the identity of a voter: it must accept BeginQuorumEpoch at its endpoint, for
        its id, directory id and cluster.
        """
        state = self._state
        node_id = request.voter.replica_id
        if state.requests.is_ready(node_id, now_ms):
            probe = BeginQuorumEpochRequest(
                state.config.cluster_id,
                request.voter,
                state.node_id,
                role.epoch,
                state.config.endpoint,
            )
            state.send(node_id, self._requested_voter(request).endpoint, probe, now_ms)
            change.probe_id = state.effects.sends[-1].correlation_id

    def _is_caught_up(self, role: Leader, request: AddVoterRequest, now_ms: int) -> bool:
        """Whether the new voter reached the log end in this epoch and fetched recently."""
        progress = role.observers.get(request.voter)
        return progress is not None and self._is_healthy(progress, now_ms)

    def on_probe_response(self, pending: Pending, response: BeginQuorumEpochResponse) -> None:
        """Applies the response of a voter to its probe. Ignores other BeginQuorumEpoch responses:
        those to the probe of an earlier change may come from another endpoint.
        """
        role = self._state.role
        if not isinstance(role, Leader) or role.change is None or pending.epoch != role.epoch:
            return
        change, request = role.change, role.change.request
        if change.probe_id != pending.correlation_id or not isinstance(
            request, AddVoterRequest | UpdateVoterRequest
        ):
            return
        if response.header.error == ErrorCode.NONE:
            change.probed = True
        elif response.header.error in (
            ErrorCode.INVALID_VOTER_KEY,
            ErrorCode.INCONSISTENT_CLUSTER_ID,
        ):
            error = response.header.error.name
            where = self._requested_voter(request).endpoint.address
            text = f"who answers at {where} is not {request.voter}: {error}"
            self._finish_change(role, change, ErrorCode.INVALID_REQUEST, text)

    def _poll_own_voter(self, role: Leader, now_ms: int) -> None:
        """Resigns if this leader was removed; records its endpoint if that changed."""
        state = self._state
        if not self._may_begin(role):
            return
        if not state.is_voter:
            state.become_resigned(now_ms)
            return
        request = self._own_update()
        if request is None or state.log.kraft_version < KRAFT_VERSION_DYNAMIC:
            return
        if self._shared_endpoint(self._requested_voter(request)) is None:
            deadline_ms = now_ms + state.config.request_timeout_ms
            role.change = VoterChange(OWN_TOKEN, request, deadline_ms, probed=True)
            self._advance_change(role, role.change, now_ms)

    def _own_update(self) -> UpdateVoterRequest | None:
        """The update that records this voter's current listeners; None if the log has them."""
        state = self._state
        own = state.config.as_voter
        if own is None or state.voters.listeners(state.node_id) == own.listeners:
            return None
        return UpdateVoterRequest(
            state.config.cluster_id, state.epoch, state.key, own.endpoint, own.listeners
        )

    def _change_deadline_ms(self, role: Leader) -> int:
        change = role.change
        if change is None:
            return FOREVER_MS
        request = change.request
        if not change.probed and isinstance(request, AddVoterRequest | UpdateVoterRequest):
            ready_ms = self._state.requests.ready_at_ms(request.voter.replica_id)
            return min(change.deadline_ms, ready_ms)
        return change.deadline_ms

    # --- replicas that request a change -----------------------------------------------------------

    def _membership_request(self) -> VoterChangeRequest | None:
        """The request about itself that this replica sends to its leader, if any."""
        state = self._state
        own, voters = state.config.as_voter, state.voters
        if own is None or state.log.kraft_version < KRAFT_VERSION_DYNAMIC:
            return None
        cluster_id, timeout_ms = state.config.cluster_id, state.config.request_timeout_ms
        if state.is_voter:
            return self._own_update()
        if not state.config.auto_join:
            return None
        if state.node_id in voters.ids:  # its disk was replaced: remove the voter with the old one
            return RemoveVoterRequest(cluster_id, voters.key(state.node_id), timeout_ms)
        return AddVoterRequest(
            cluster_id, state.key, own.endpoint, timeout_ms, listeners=own.listeners
        )

    def _poll_membership(self, role: Follower, now_ms: int) -> None:
        """Sends the membership request, if any, every 2 x fetch timeout (KIP-853 "UpdateVoter")."""
        state = self._state
        if now_ms < role.membership_due_ms or not role.has_fetched or state.shutting_down:
            return
        request = self._membership_request()
        if request is not None and state.requests.is_ready(MEMBERSHIP_ID, now_ms):
            role.membership_due_ms = now_ms + state.config.update_voter_period_ms
            state.send(MEMBERSHIP_ID, role.leader_endpoint, request, now_ms)

    def _membership_deadline_ms(self, role: Follower) -> int:
        idle = self._state.shutting_down or not role.has_fetched
        if idle or self._membership_request() is None:
            return FOREVER_MS
        return max(self._state.requests.ready_at_ms(MEMBERSHIP_ID), role.membership_due_ms)
