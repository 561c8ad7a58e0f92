"""Votes and pre-votes: who asks, who grants, what follows from the answers (Raft §5.2, §5.4.1;
KIP-595; KIP-996).

A real vote is granted only when no leader of the epoch is known, no other vote was given in it,
and the candidate's log is at least as long as ours. A pre-vote promises nothing: it is granted for
an up-to-date log unless we hear from a live leader.
"""

from __future__ import annotations

from quorum.raft.core import RaftInvariantError, ReplicaCore
from quorum.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    Header,
    VoteRequest,
    VoteResponse,
)
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
from tidemark.types import Endpoint


class Elections(ReplicaCore):
    """Handlers and timers of Unattached (elections), Prospective, Candidate and Resigned."""

    # --- requests ---------------------------------------------------------------------------------

    def _on_vote_request(self, token: int, request: VoteRequest, now_ms: int) -> None:
        if not request.voter.matches(self.key):
            self._fail(token, request, ErrorCode.INVALID_VOTER_KEY)
            return
        # The log of a candidate ends before the epoch it wants; a pre-vote's epoch is its present
        # one.
        beyond = request.epoch if request.pre_vote else request.epoch - 1
        if request.last_offset < 0 or not 0 <= request.last_offset_epoch <= beyond:
            self._fail(token, request, ErrorCode.INVALID_REQUEST)
            return
        if request.epoch < self.epoch:
            self._fail(token, request, ErrorCode.FENCED_LEADER_EPOCH)
            return
        if request.epoch > self.epoch:
            self._become_unattached(request.epoch, now_ms)
        if request.pre_vote:
            granted = self._grants_pre_vote(request)
            if granted and isinstance(self.role, Prospective) and self._goes_first(request):
                self.role.defers_until_ms = now_ms + self.config.deference_ms
        else:
            granted = self._grants_vote(request)
            if granted:
                self._become_unattached(self.epoch, now_ms, voted=request.candidate)
        self._reply(token, VoteResponse(self._header(), vote_granted=granted))

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        theirs = (request.last_offset_epoch, request.last_offset)
        return theirs >= (self.log.last_epoch, self.log.end_offset)

    def _goes_first(self, request: VoteRequest) -> bool:
        """Of two that lost their leader at the same moment, and grant each other pre-votes, one
        must begin: else both vote for themselves, and an election timeout is lost."""
        theirs = (request.last_offset_epoch, request.last_offset)
        if theirs == (self.log.last_epoch, self.log.end_offset):
            return request.candidate.replica_id < self.node_id
        return True  # a longer log: a shorter one gets no pre-vote

    def _grants_vote(self, request: VoteRequest) -> bool:
        role = self.role
        if not isinstance(role, Unattached | Prospective) or self.leader_id is not None:
            return False
        if role.voted is not None:
            return role.voted.matches(request.candidate)
        return self._is_up_to_date(request)

    def _grants_pre_vote(self, request: VoteRequest) -> bool:
        match self.role:
            case Leader():
                return False
            case Follower() if self.role.has_fetched:
                return False
            case _:
                return self._is_up_to_date(request)

    def _on_begin_quorum_epoch(
        self, token: int, request: BeginQuorumEpochRequest, now_ms: int
    ) -> None:
        if not request.voter.matches(self.key):
            self._fail(token, request, ErrorCode.INVALID_VOTER_KEY)
            return
        if request.epoch < self.epoch:
            self._fail(token, request, ErrorCode.FENCED_LEADER_EPOCH)
            return
        self._learn_leader(request.leader_id, request.epoch, request.leader_endpoint, now_ms)
        role = self.role
        if isinstance(role, Prospective) and role.leader_id == request.leader_id:
            self._give_up_pre_vote(role, now_ms)  # the leader that seemed lost is heard again
        self._reply(token, BeginQuorumEpochResponse(self._header()))

    def _on_end_quorum_epoch(self, token: int, request: EndQuorumEpochRequest, now_ms: int) -> None:
        if request.epoch < self.epoch:
            self._fail(token, request, ErrorCode.FENCED_LEADER_EPOCH)
            return
        self._learn_leader(request.leader_id, request.epoch, request.leader_endpoint, now_ms)
        role = self.role
        if isinstance(role, Follower) and self.may_elect and role.leader_id == request.leader_id:
            # Its leader says that it is gone: elect without waiting, the best candidate first.
            role.has_fetched = False
            role.fetch_deadline_ms = now_ms + self._successor_backoff_ms(request)
        self._reply(token, EndQuorumEpochResponse(self._header()))

    def _successor_backoff_ms(self, request: EndQuorumEpochRequest) -> int:
        """0 for the best candidate, then the longer the worse (KIP-595 "EndQuorumEpoch")."""
        ids = [key.replica_id for key in request.preferred_candidates]
        if not ids:
            return self.rng.randrange(max(1, self.config.election_backoff_max_ms))
        position = ids.index(self.node_id) if self.node_id in ids else len(ids)
        if position == 0:
            return 0
        longest = self.config.election_backoff_max_ms
        return min(longest, (longest >> (len(ids) - 1)) << (position - 1))

    # --- what answers tell of the leader ----------------------------------------------------------

    def _learn_leader(
        self, leader_id: int | None, epoch: int, endpoint: Endpoint | None, now_ms: int
    ) -> None:
        """Takes over a higher epoch, or the leader of this one. Older news is ignored."""
        if epoch < self.epoch:
            return
        if leader_id == self.node_id:
            if epoch > self.epoch:  # a disk older than what this replica once did
                self._become_unattached(epoch, now_ms)
            return
        if leader_id is not None:
            endpoint = self._where(leader_id, endpoint)
        if leader_id is None or endpoint is None:
            if epoch > self.epoch:
                self._become_unattached(epoch, now_ms)
            return
        if epoch == self.epoch:
            if isinstance(self.role, Leader | Resigned):
                raise RaftInvariantError(
                    f"two leaders in epoch {epoch}: {self.node_id} and {leader_id}"
                )
            if isinstance(self.role, Follower | Prospective) and self.role.leader_id is not None:
                if self.role.leader_id != leader_id:
                    raise RaftInvariantError(
                        f"two leaders in epoch {epoch}: {self.role.leader_id} and {leader_id}"
                    )
                return
        self._become_follower(epoch, leader_id, endpoint, now_ms)

    def _where(self, leader_id: int, told: Endpoint | None) -> Endpoint | None:
        """Where this replica reaches the leader: of a voter's listeners the one of its own network,
        not the one that whoever told uses. An address that the log does not have is newer."""
        listeners = self.voters.listeners(leader_id)
        if told is None or told in [listener.endpoint for listener in listeners]:
            return self.voters.endpoint(leader_id)
        return told

    def _is_of_interest(self, pending: Pending, header: Header, now_ms: int) -> bool:
        """Digests what every response tells; False when there is nothing more to take from it."""
        if header.error == ErrorCode.INCONSISTENT_CLUSTER_ID:
            self.requests.back_off(pending.node_id, now_ms, self.config.fetch_timeout_ms)
            return False
        epoch_before = self.epoch
        if header.epoch >= self.epoch:
            self._learn_leader(header.leader_id, header.epoch, header.leader_endpoint, now_ms)
        if self.epoch != epoch_before:
            return False
        if header.epoch < self.epoch:
            if header.error != ErrorCode.NONE:  # it can not answer now: others are asked meanwhile
                self.requests.back_off(pending.node_id, now_ms)
            return False
        if header.error not in (ErrorCode.NONE, ErrorCode.SNAPSHOT_NOT_FOUND):
            self.requests.back_off(pending.node_id, now_ms)
            return header.error in (ErrorCode.POSITION_OUT_OF_RANGE,)
        return True

    # --- responses --------------------------------------------------------------------------------

    def _on_vote_response(self, pending: Pending, response: VoteResponse, now_ms: int) -> None:
        request = pending.request
        if not self._is_of_interest(pending, response.header, now_ms):
            return
        role = self.role
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

    # --- timers and sending -----------------------------------------------------------------------

    def _poll_prospective(self, role: Prospective, now_ms: int) -> None:
        chosen = self.voters.has_majority(role.granted)
        if chosen and now_ms >= role.defers_until_ms:
            if not self.shutting_down:
                self._become_candidate(now_ms)
        elif not chosen and (
            self.voters.has_majority(role.rejected) or now_ms >= role.election_deadline_ms
        ):
            self._give_up_pre_vote(role, now_ms)
        else:
            self._ask_for_votes(role, now_ms, pre_vote=True)

    def _poll_candidate(self, role: Candidate, now_ms: int) -> None:
        if self.voters.has_majority(role.granted):
            self._become_leader(now_ms)
        elif now_ms >= role.election_deadline_ms:
            self._become_prospective(now_ms)
        elif not self.voters.has_majority(role.rejected):
            self._ask_for_votes(role, now_ms, pre_vote=False)
        # else: lost early; the rest of the timeout is waited out, so that others get their turn

    def _ask_for_votes(self, role: Prospective | Candidate, now_ms: int, *, pre_vote: bool) -> None:
        for node in self.voters.others(self.node_id):
            answered = node in role.granted or node in role.rejected
            if answered or not self.requests.is_ready(node, now_ms):
                continue
            request = VoteRequest(
                self.config.cluster_id,
                self.voters.key(node),
                role.epoch,
                self.key,
                self.log.last_epoch,
                self.log.end_offset,
                pre_vote,
            )
            self._send_to_voter(node, request, now_ms)

    def _poll_resigned(self, role: Resigned, now_ms: int) -> None:
        if now_ms >= role.election_deadline_ms and not self.shutting_down:
            self._become_unattached(role.epoch + 1, now_ms)
            return
        for node in sorted(role.unacknowledged):
            if self.requests.is_ready(node, now_ms):
                request = EndQuorumEpochRequest(
                    self.config.cluster_id,
                    self.node_id,
                    role.epoch,
                    role.preferred_candidates,
                    self.config.endpoint,
                )
                self._send_to_voter(node, request, now_ms)

    def _on_end_quorum_epoch_response(
        self, pending: Pending, response: EndQuorumEpochResponse, now_ms: int
    ) -> None:
        if not self._is_of_interest(pending, response.header, now_ms):
            return
        if isinstance(self.role, Resigned) and pending.epoch == self.role.epoch:
            self.role.unacknowledged.discard(pending.node_id)
