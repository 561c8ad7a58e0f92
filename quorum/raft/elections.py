"""Votes and pre-votes: requests, grants and results (Raft §5.2, §5.4.1; KIP-595; KIP-996).

A real vote requires that no leader of the epoch is known and that no other vote was given in it.
The candidate's log must be at least as long as this one. A pre-vote is not binding: it is granted
for an up-to-date log unless this replica has fetched from a live leader.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorum.raft.config import FOREVER_MS
from quorum.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    Header,
    VoteRequest,
    VoteResponse,
)
from quorum.raft.refusals import refuse, refuse_response
from quorum.raft.requests import Pending
from quorum.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from quorum.raft.state import RaftState
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint


class Elections:
    """Votes and leader discovery in every role; timers of Prospective, Candidate and Resigned."""

    def __init__(self, state: RaftState) -> None:
        self._state = state

    # --- requests ---------------------------------------------------------------------------------

    def on_vote_request(self, token: int, request: VoteRequest, now_ms: int) -> None:
        state = self._state
        if not request.voter.matches(state.key):
            state.fail(token, request, ErrorCode.INVALID_VOTER_KEY)
            return
        # A candidate's log ends before the epoch it wants; a pre-vote carries its current epoch.
        beyond = request.epoch if request.pre_vote else request.epoch - 1
        if request.last_offset < 0 or not 0 <= request.last_offset_epoch <= beyond:
            state.fail(token, request, ErrorCode.INVALID_REQUEST)
            return
        if request.epoch < state.epoch:
            state.fail(token, request, ErrorCode.FENCED_LEADER_EPOCH)
            return
        if request.epoch > state.epoch:
            state.become_unattached(request.epoch, now_ms)
        if request.pre_vote:
            granted = self._grants_pre_vote(request)
            state.metrics.pre_votes_granted += granted
            state.metrics.pre_votes_rejected += not granted
            if granted and isinstance(state.role, Prospective) and self._goes_first(request):
                state.role.defers_until_ms = now_ms + state.config.deference_ms
        else:
            granted = self._grants_vote(request)
            state.metrics.votes_granted += granted
            state.metrics.votes_rejected += not granted
            if granted:
                state.become_unattached(state.epoch, now_ms, voted=request.candidate)
        state.reply(token, VoteResponse(state.header(), vote_granted=granted))

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        if self._state.lost_tail or self._state.left_out:
            return False  # this log does not show what this replica, or its quorum, acknowledged
        theirs = (request.last_offset_epoch, request.last_offset)
        return theirs >= (self._state.log.last_epoch, self._state.log.end_offset)

    def _goes_first(self, request: VoteRequest) -> bool:
        """Whether the requester should become a candidate before this replica does.

        Two replicas that lose their leader at the same moment grant each other pre-votes. One must
        go first, or both vote for themselves and an election timeout is lost."""
        state = self._state
        theirs = (request.last_offset_epoch, request.last_offset)
        if theirs == (state.log.last_epoch, state.log.end_offset):
            return request.candidate.replica_id < state.node_id
        return True  # a longer log: a shorter one gets no pre-vote

    def _grants_vote(self, request: VoteRequest) -> bool:
        role = self._state.role
        if not isinstance(role, Unattached | Prospective) or self._state.leader_id is not None:
            return False
        if role.voted is not None:
            return role.voted.matches(request.candidate)
        return self._is_up_to_date(request)

    def _grants_pre_vote(self, request: VoteRequest) -> bool:
        match self._state.role:
            case Leader():
                return False
            case Follower() if self._state.role.has_fetched:
                return False
            case _:
                return self._is_up_to_date(request)

    def on_begin_quorum_epoch(
        self, token: int, request: BeginQuorumEpochRequest, now_ms: int
    ) -> None:
        state = self._state
        if not request.voter.matches(state.key):
            state.fail(token, request, ErrorCode.INVALID_VOTER_KEY)
            return
        if request.epoch < state.epoch:
            state.fail(token, request, ErrorCode.FENCED_LEADER_EPOCH)
            return
        if self._contradicts(request.leader_id, request.epoch):
            refuse(state, token, request, self._contradiction(request.leader_id))
            return
        self._learn_leader(request.leader_id, request.epoch, request.leader_endpoint, now_ms)
        role = state.role
        if isinstance(role, Prospective) and role.leader_id == request.leader_id:
            state.give_up_pre_vote(role, now_ms)  # the leader is reachable again
        state.reply(token, BeginQuorumEpochResponse(state.header()))

    def on_end_quorum_epoch(self, token: int, request: EndQuorumEpochRequest, now_ms: int) -> None:
        state = self._state
        if request.epoch < state.epoch:
            state.fail(token, request, ErrorCode.FENCED_LEADER_EPOCH)
            return
        if self._contradicts(request.leader_id, request.epoch):
            refuse(state, token, request, self._contradiction(request.leader_id))
            return
        self._learn_leader(request.leader_id, request.epoch, request.leader_endpoint, now_ms)
        role = state.role
        if isinstance(role, Follower) and state.may_elect and role.leader_id == request.leader_id:
            # The leader has resigned: elect without waiting, the best candidate first.
            role.has_fetched = False
            role.fetch_deadline_ms = now_ms + self._successor_backoff_ms(request)
        state.reply(token, EndQuorumEpochResponse(state.header()))

    def _successor_backoff_ms(self, request: EndQuorumEpochRequest) -> int:
        """Returns 0 for the best candidate, and longer delays for worse ones (KIP-595
        "EndQuorumEpoch").
        """
        state = self._state
        ids = [key.replica_id for key in request.preferred_candidates]
        if not ids:
            return state.rng.randrange(max(1, state.config.election_backoff_max_ms))
        position = ids.index(state.node_id) if state.node_id in ids else len(ids)
        if position == 0:
            return 0
        longest = state.config.election_backoff_max_ms
        return min(longest, (longest >> (len(ids) - 1)) << (position - 1))

    # --- leaders named by messages ----------------------------------------------------------------

    def _contradicts(self, leader_id: int | None, epoch: int) -> bool:
        """Whether a message names another leader of this epoch than the known one. An epoch has one
        leader (RULES.md I1), so a peer that names two is wrong.
        """
        state = self._state
        if leader_id is None or epoch != state.epoch or leader_id == state.node_id:
            return False
        return state.leader_id not in (None, leader_id)

    def _contradiction(self, leader_id: int | None) -> str:
        state = self._state
        return f"{leader_id} leads in epoch {state.epoch}, but {state.leader_id} does"

    def _learn_leader(
        self, leader_id: int | None, epoch: int, endpoint: Endpoint | None, now_ms: int
    ) -> None:
        """Adopts a higher epoch, or the leader of the current one. Older information is ignored."""
        state = self._state
        if epoch < state.epoch:
            return
        if leader_id == state.node_id:
            if epoch > state.epoch:  # this disk is older than an earlier life of the replica
                state.become_unattached(epoch, now_ms)
            return
        if leader_id is not None:
            endpoint = state.voters.reachable_endpoint(leader_id, endpoint)
        if leader_id is None or endpoint is None:
            if epoch > state.epoch:
                state.become_unattached(epoch, now_ms)
            return
        if epoch == state.epoch and state.leader_id is not None:
            return  # known already; `_contradicts` has refused another one
        state.become_follower(epoch, leader_id, endpoint, now_ms)

    def apply_header(self, pending: Pending, header: Header, now_ms: int) -> bool:
        """Applies the epoch and leader of a response; False if its body is stale or an error."""
        state = self._state
        if header.error == ErrorCode.INCONSISTENT_CLUSTER_ID:
            state.requests.back_off(pending.node_id, now_ms, state.config.fetch_timeout_ms)
            return False
        if self._contradicts(header.leader_id, header.epoch):
            refuse_response(state, pending, self._contradiction(header.leader_id), now_ms)
            return False
        epoch_before = state.epoch
        self._learn_leader(header.leader_id, header.epoch, header.leader_endpoint, now_ms)
        if state.epoch != epoch_before:
            return False
        if header.epoch < state.epoch:
            if header.error != ErrorCode.NONE:  # the server cannot answer now: ask others meanwhile
                state.requests.back_off(pending.node_id, now_ms)
            return False
        if header.error not in (ErrorCode.NONE, ErrorCode.SNAPSHOT_NOT_FOUND):
            state.requests.back_off(pending.node_id, now_ms)
            return header.error in (ErrorCode.POSITION_OUT_OF_RANGE,)
        return True

    # --- responses --------------------------------------------------------------------------------

    def on_vote_unsupported(self, pending: Pending, now_ms: int) -> None:
        """Begins the election without pre-votes when a voter is too old for them (KIP-996)."""
        state, request = self._state, pending.request
        state.requests.back_off(pending.node_id, now_ms)
        if not isinstance(request, VoteRequest) or not request.pre_vote:
            return
        state.metrics.pre_votes_unsupported += 1
        role = state.role
        asked_now = isinstance(role, Prospective) and pending.epoch == role.epoch
        if asked_now and not state.shutting_down:
            state.become_candidate(now_ms)

    def on_vote_response(self, pending: Pending, response: VoteResponse) -> None:
        request = pending.request
        role = self._state.role
        if not isinstance(request, VoteRequest) or pending.epoch != role.epoch:
            return
        wanted = Prospective if request.pre_vote else Candidate
        if not isinstance(role, wanted):
            return
        assert isinstance(role, Prospective | Candidate)
        if response.vote_granted:
            role.granted.add(pending.node_id)
        else:
            role.rejected.add(pending.node_id)

    def on_end_quorum_epoch_response(self, pending: Pending) -> None:
        state = self._state
        if isinstance(state.role, Resigned) and pending.epoch == state.role.epoch:
            state.role.unacknowledged.discard(pending.node_id)

    # --- timers and sending -----------------------------------------------------------------------

    def poll(self, role: Prospective | Candidate | Resigned, now_ms: int) -> None:
        """Runs the timers of the role and sends the requests that are due."""
        match role:
            case Prospective():
                self._poll_prospective(role, now_ms)
            case Candidate():
                self._poll_candidate(role, now_ms)
            case Resigned():
                self._poll_resigned(role, now_ms)

    def _poll_prospective(self, role: Prospective, now_ms: int) -> None:
        state = self._state
        chosen = state.voters.has_majority(role.granted)
        if chosen and now_ms >= role.defers_until_ms:
            if not state.shutting_down:
                state.become_candidate(now_ms)
        elif not chosen and (
            state.voters.has_majority(role.rejected) or now_ms >= role.election_deadline_ms
        ):
            state.give_up_pre_vote(role, now_ms)
        else:
            self._request_votes(role, now_ms, pre_vote=True)

    def _poll_candidate(self, role: Candidate, now_ms: int) -> None:
        state = self._state
        if state.voters.has_majority(role.granted):
            state.become_leader(now_ms)
        elif now_ms >= role.election_deadline_ms:
            state.become_prospective(now_ms)
        elif not state.voters.has_majority(role.rejected):
            self._request_votes(role, now_ms, pre_vote=False)
        # Otherwise the election is lost early; wait out the timeout so that others get their turn.

    def _request_votes(self, role: Prospective | Candidate, now_ms: int, *, pre_vote: bool) -> None:
        state = self._state
        for node in state.voters.others(state.node_id):
            answered = node in role.granted or node in role.rejected
            if answered or not state.requests.is_ready(node, now_ms):
                continue
            request = VoteRequest(
                state.config.cluster_id,
                state.voters.key(node),
                role.epoch,
                state.key,
                state.log.last_epoch,
                state.log.end_offset,
                pre_vote,
            )
            state.send_to_voter(node, request, now_ms)

    def _poll_resigned(self, role: Resigned, now_ms: int) -> None:
        state = self._state
        if now_ms >= role.election_deadline_ms and not state.shutting_down:
            state.become_unattached(role.epoch + 1, now_ms)
            return
        for node in sorted(role.unacknowledged):
            if state.requests.is_ready(node, now_ms):
                request = EndQuorumEpochRequest(
                    state.config.cluster_id,
                    state.node_id,
                    role.epoch,
                    role.preferred_candidates,
                    state.config.endpoint,
                )
                state.send_to_voter(node, request, now_ms)

    def deadline_ms(self, role: Prospective | Candidate | Resigned) -> int:
        """When `poll` is due at the latest."""
        ready_ms = map(self._state.requests.ready_at_ms, self._unanswered(role))
        return min([self._timer_ms(role), *ready_ms])

    def _timer_ms(self, role: Prospective | Candidate | Resigned) -> int:
        state = self._state
        chosen = isinstance(role, Prospective) and state.voters.has_majority(role.granted)
        if state.shutting_down and (chosen or isinstance(role, Resigned)):
            return FOREVER_MS
        if isinstance(role, Prospective) and chosen:
            return role.defers_until_ms
        return role.election_deadline_ms

    def _unanswered(self, role: Prospective | Candidate | Resigned) -> Iterable[int]:
        """Voters that get a request as soon as their backoff ends."""
        state = self._state
        if isinstance(role, Resigned):
            return role.unacknowledged
        if state.voters.has_majority(role.rejected):
            return ()
        answered = role.granted | role.rejected
        return [node for node in state.voters.others(state.node_id) if node not in answered]
