"""Votes and what names a leader, in tables of small cases: grants by role, refusals, answers that
come late, and elections among five.
"""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import ElectionState, RequestFailed, ResponseReceived, Shutdown, Tick
from quorum.raft.log_view import KnownBounds
from quorum.raft.replica import Replica
from quorum.raft.roles import Candidate, Follower, Prospective, Resigned, Unattached
from quorum.raft.voters import ReplicaKey, VoterSet
from tests.quorum.raft.test_elections import (
    EPOCH,
    answer,
    asked,
    begin,
    candidate,
    end,
    header,
    prospective,
    replica_sends,
    votes,
)
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, FakeLog, ask, replica, vote
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint

AHEAD = (1, 99)


# --- grants ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre_vote", [True, False])
@pytest.mark.parametrize(
    ("make", "granted"),
    [
        (lambda: replica(state=ElectionState(EPOCH)), (True, True)),
        (lambda: replica(state=ElectionState(EPOCH, None, KEYS[2])), (True, True)),
        (lambda: replica(state=ElectionState(EPOCH, None, KEYS[3])), (True, False)),
        (lambda: replica(state=ElectionState(EPOCH, 3)), (True, False)),
        (lambda: prospective()[0], (True, False)),
        (lambda: candidate()[0], (True, False)),
        (lambda: replica(state=ElectionState(EPOCH, 1, KEYS[1])), (True, False)),
    ],
    ids=["free", "voted", "voted other", "follower", "prospective of 3", "candidate", "resigned"],
)
def test_each_role_grants_what_it_may_in_its_epoch_and_counts_it(make, granted, pre_vote) -> None:
    found = make()
    role = type(found.role)
    expected = granted[0] if pre_vote else granted[1]
    now_ms = 2001 if role is Prospective else 30
    response, effects = ask(found, vote(2, EPOCH, AHEAD, pre_vote), now_ms)
    assert response == m.VoteResponse(found.state.header(), vote_granted=expected)
    metrics = found.state.metrics
    counted = (metrics.pre_votes_granted, metrics.pre_votes_rejected)
    if not pre_vote:
        assert counted == (0, 0)
        counted = (metrics.votes_granted, metrics.votes_rejected)
    assert counted == (int(expected), int(not expected))
    assert isinstance(found.role, role)
    assert effects.election_state in (None, ElectionState(EPOCH, None, KEYS[2]))


@pytest.mark.parametrize("pre_vote", [True, False])
def test_a_log_that_lost_its_tail_grants_nothing(pre_vote) -> None:
    config = ReplicaConfig("c", KEYS[1], VoterSet.static(ENDPOINTS), ENDPOINTS[1])
    log = FakeLog([(1, 0)], 5)
    found = Replica(
        config, log, ElectionState(EPOCH), random.Random(1), bounds=KnownBounds(end_offset=6)
    )
    found.start(0)
    assert not ask(found, vote(2, EPOCH, AHEAD, pre_vote))[0].vote_granted
    found.step(Tick(), 60_000)
    assert isinstance(found.role, Unattached), "it does not stand for election"
    assert found.next_deadline_ms() < 70_000, "but looks for the leader"


def test_a_vote_in_an_epoch_with_a_known_leader_is_refused_by_who_lost_it() -> None:
    found, _ = prospective()
    assert not ask(found, vote(2, EPOCH, AHEAD), 2001)[0].vote_granted
    assert isinstance(found.role, Prospective)
    assert found.role.voted is None


# --- leaders named by messages --------------------------------------------------------------------


def test_the_leader_that_resigns_changes_nothing_for_who_has_lost_it() -> None:
    found, _ = prospective()
    assert ask(found, end(3, EPOCH, 1), 2001)[0].header.error == ErrorCode.NONE
    assert isinstance(found.role, Prospective)


def test_a_leader_is_reached_at_the_address_of_its_voter() -> None:
    found = replica(state=ElectionState(EPOCH))
    ask(found, m.BeginQuorumEpochRequest("c", KEYS[1], 2, EPOCH, None))
    assert isinstance(found.role, Follower)
    assert found.role.leader_endpoint == ENDPOINTS[2]


@pytest.mark.parametrize(
    ("told", "epoch"),
    [
        (m.Header(ErrorCode.NONE, 1, EPOCH + 1, ENDPOINTS[1]), EPOCH + 1),
        (m.Header(ErrorCode.NONE, 1, EPOCH, ENDPOINTS[1]), EPOCH),
        (m.Header(ErrorCode.NONE, 9, EPOCH + 1, None), EPOCH + 1),
        (m.Header(ErrorCode.NONE, 9, EPOCH, None), EPOCH),
    ],
    ids=["an earlier life", "an earlier life, known", "without an address", "known epoch"],
)
def test_who_cannot_be_followed_brings_only_its_epoch(told, epoch) -> None:
    found = replica(state=ElectionState(EPOCH))
    (sent,) = replica_sends(found)
    answer(found, sent.correlation_id, m.FetchResponse(told, None, 0), 2)
    assert isinstance(found.role, Unattached)
    assert found.epoch == epoch


def test_who_follows_is_not_told_by_others_that_it_leads() -> None:
    found = replica(state=ElectionState(EPOCH, 3))
    (sent,) = replica_sends(found)
    told = m.Header(ErrorCode.NONE, 1, EPOCH, ENDPOINTS[1])
    answer(found, sent.correlation_id, m.FetchResponse(told, None, 0), 2)
    assert isinstance(found.role, Follower)
    assert found.role.leader_id == 3
    assert not found.role.has_fetched


# --- responses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "rests_ms"),
    [
        (header(error=ErrorCode.INCONSISTENT_CLUSTER_ID), 2000),
        (header(error=ErrorCode.BROKER_NOT_AVAILABLE), 20),
        (header(EPOCH - 1, error=ErrorCode.BROKER_NOT_AVAILABLE), 20),
        (header(EPOCH - 1), 0),
        (header(), 0),
    ],
    ids=["other cluster", "not available", "not available, earlier", "earlier", "good"],
)
def test_how_long_a_server_rests_after_its_answer(told, rests_ms) -> None:
    found, effects = prospective()
    answer(found, asked(effects, 2), m.VoteResponse(told, vote_granted=False), 2001)
    requests = found.state.requests
    assert requests.is_backing_off(2, 2000 + rests_ms) == (rests_ms > 0)
    assert not requests.is_backing_off(2, 2001 + rests_ms)


def unsupported() -> m.VoteResponse:
    return m.VoteResponse(header(error=ErrorCode.UNSUPPORTED_VERSION), vote_granted=False)


def test_a_voter_too_old_for_pre_votes_begins_the_election() -> None:
    found, effects = prospective()
    answer(found, asked(effects, 2), unsupported(), 2001)
    assert isinstance(found.role, Candidate)
    assert found.epoch == EPOCH + 1
    assert found.state.metrics.pre_votes_unsupported == 1


def test_a_voter_too_old_for_votes_is_asked_again_later() -> None:
    found, effects = candidate()
    answer(found, asked(effects, 2), unsupported(), 30)
    assert isinstance(found.role, Candidate)
    assert (found.epoch, found.state.metrics.pre_votes_unsupported) == (EPOCH, 0)
    assert found.state.requests.is_backing_off(2, 49)


def test_a_node_that_shuts_down_begins_no_election_without_pre_votes() -> None:
    found, effects = prospective()
    found.step(Shutdown(), 2001)
    answer(found, asked(effects, 2), unsupported(), 2002)
    assert isinstance(found.role, Prospective)


@pytest.mark.parametrize("granted", [True, False])
def test_answers_of_an_ended_attempt_do_not_count_in_the_next(granted) -> None:
    """The ids of the requests change, so that a late pre-vote is no vote."""
    found, effects = prospective()
    first, second = asked(effects, 2), asked(effects, 3)
    answer(found, first, votes(True), 2001)
    assert isinstance(found.role, Candidate)
    answer(found, second, votes(granted), 2002)
    assert isinstance(found.role, Candidate)
    assert (found.role.granted, found.role.rejected) == ({1}, set())


# --- elections among five -------------------------------------------------------------------------


def five(state: ElectionState, now_ms: int):
    keys = {n: ReplicaKey(n, UUID(int=n)) for n in range(1, 6)}
    endpoints = {n: Endpoint("h", n) for n in keys}
    config = ReplicaConfig("c", keys[1], VoterSet.static(endpoints), endpoints[1])
    found = Replica(config, FakeLog(), state, random.Random(1))
    effects = found.start(0)
    if now_ms:
        effects = found.step(Tick(), now_ms)
    return found, {send.node_id: send.correlation_id for send in effects.sends}


BACKOFF_MS = ReplicaConfig("c", KEYS[1], VoterSet.static(ENDPOINTS)).retry_backoff_ms


def test_voters_that_answered_are_not_asked_again() -> None:
    found, ids = five(ElectionState(EPOCH, 3), 2000)
    assert set(ids) == {2, 3, 4, 5}
    assert not answer(found, ids[2], votes(True), 2001).sends
    assert not answer(found, ids[3], votes(False), 2001).sends
    assert not found.step(RequestFailed(ids[4]), 2001).sends
    assert isinstance(found.role, Prospective)
    assert found.next_deadline_ms() == 2001 + BACKOFF_MS
    again = found.step(Tick(), 2001 + BACKOFF_MS)
    assert [send.node_id for send in again.sends] == [4], "5 has not answered yet"


def test_a_lost_election_is_waited_out_without_further_requests() -> None:
    found, ids = five(ElectionState(EPOCH, None, KEYS[1]), 0)
    found.step(RequestFailed(ids[5]), 1)
    for node in (2, 3, 4):
        answer(found, ids[node], votes(False), 2)
    assert isinstance(found.role, Candidate)
    assert not found.step(Tick(), 1 + BACKOFF_MS).sends
    assert found.next_deadline_ms() == found.role.election_deadline_ms


def test_an_undecided_election_asks_again_when_the_backoff_ends() -> None:
    found, ids = five(ElectionState(EPOCH, None, KEYS[1]), 0)
    found.step(RequestFailed(ids[5]), 1)
    answer(found, ids[2], votes(False), 2)
    assert found.next_deadline_ms() == 1 + BACKOFF_MS
    assert [s.node_id for s in found.step(Tick(), 1 + BACKOFF_MS).sends] == [5]


# --- timers ---------------------------------------------------------------------------------------


def test_a_resigned_leader_does_not_repeat_what_is_on_its_way() -> None:
    found = replica(state=ElectionState(EPOCH, 1, KEYS[1]))
    assert isinstance(found.role, Resigned)
    assert not found.step(Tick(), 1).sends


def test_pre_votes_of_a_node_that_shuts_down_end_in_time_and_wake_nobody() -> None:
    found, effects = prospective()
    found.step(Shutdown(), 2001)
    for send in effects.sends:
        found.step(RequestFailed(send.correlation_id), 2001)
    deadline_ms = found.role.election_deadline_ms
    found.role.rejected = {2, 3}  # nobody is left to ask
    assert found.next_deadline_ms() == deadline_ms

    found, effects = prospective()
    found.step(Shutdown(), 2001)
    answer(found, asked(effects, 2), votes(True), 2002)
    answer(found, asked(effects, 3), votes(True), 2002)
    assert isinstance(found.role, Prospective)
    assert found.next_deadline_ms() is None


@pytest.mark.parametrize("request_", [begin(1, EPOCH), end(1, EPOCH, 1)])
def test_nobody_else_speaks_with_the_id_of_this_node(request_) -> None:
    found = replica(state=ElectionState(EPOCH, 3))
    assert ask(found, request_)[0].header.error == ErrorCode.INVALID_REQUEST
    assert found.role.leader_id == 3  # type: ignore[union-attr]


def test_a_late_answer_to_a_resignation_counts_for_no_later_role() -> None:
    found = replica(state=ElectionState(EPOCH, 1, KEYS[1]))
    pending = {p.node_id: p.correlation_id for p in found.state.requests._pending.values()}
    ask(found, begin(2, EPOCH + 1))
    effects = found.step(ResponseReceived(pending[2], m.EndQuorumEpochResponse(header())), 5)
    assert isinstance(found.role, Follower)
    assert not effects.replies
