"""Elections, one message at a time: who is told, who counts, and what a stale one may not do."""

from __future__ import annotations

import pytest

from quorum.raft import messages as m
from quorum.raft.effects import (
    Effects,
    ElectionState,
    RequestFailed,
    ResponseReceived,
    Shutdown,
    Tick,
)
from quorum.raft.replica import Replica
from quorum.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, ask, replica
from tidemark.errors import ErrorCode

EPOCH = 4


def header(
    epoch: int = EPOCH, leader: int | None = None, error: ErrorCode = ErrorCode.NONE
) -> m.Header:
    return m.Header(error, leader, epoch, None if leader is None else ENDPOINTS[leader])


def begin(leader: int, epoch: int, voter: int = 1) -> m.BeginQuorumEpochRequest:
    return m.BeginQuorumEpochRequest("c", KEYS[voter], leader, epoch, ENDPOINTS[leader])


def end(leader: int, epoch: int, *candidates: int) -> m.EndQuorumEpochRequest:
    named = tuple(KEYS[n] for n in candidates)
    return m.EndQuorumEpochRequest("c", leader, epoch, named, ENDPOINTS[leader])


def asked(effects: Effects, node: int) -> int:
    """The correlation id of the request to a node."""
    (found,) = [send.correlation_id for send in effects.sends if send.node_id == node]
    return found


def candidate() -> tuple[Replica, Effects]:
    """A candidate of epoch 4 that restarted, with its requests for votes."""
    found = replica(state=ElectionState(EPOCH, None, KEYS[1]))
    role = found.role
    assert isinstance(role, Candidate)
    for pending in list(found.state.requests._pending.values()):
        found.step(RequestFailed(pending.correlation_id), 1)
    return found, found.step(Tick(), 1 + found.state.config.retry_backoff_ms)


def prospective() -> tuple[Replica, Effects]:
    """A follower of 3 that lost it, with its requests for pre-votes."""
    found = replica(state=ElectionState(EPOCH, 3))
    effects = found.step(Tick(), 2000)
    assert isinstance(found.role, Prospective)
    return found, effects


def answer(found: Replica, correlation_id: int, response: m.Response, now_ms: int) -> Effects:
    effects = found.step(ResponseReceived(correlation_id, response), now_ms)
    found.validate()
    return effects


def votes(granted: bool, epoch: int = EPOCH) -> m.VoteResponse:
    return m.VoteResponse(header(epoch), vote_granted=granted)


# --- leaders that announce themselves or resign ---------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (begin(2, EPOCH, voter=2), ErrorCode.INVALID_VOTER_KEY),
        (begin(2, EPOCH - 1), ErrorCode.FENCED_LEADER_EPOCH),
        (end(2, EPOCH - 1, 1), ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_announcements_for_another_or_of_an_old_epoch_are_refused(request_, error) -> None:
    found = replica(state=ElectionState(EPOCH))
    response, effects = ask(found, request_)
    assert response.header.error == error
    assert isinstance(found.role, Unattached)
    assert effects.election_state is None


def test_a_leader_that_is_reachable_again_ends_the_pre_votes() -> None:
    found, _ = prospective()
    ask(found, begin(3, EPOCH), now_ms=2001)
    assert isinstance(found.role, Follower)
    assert (found.role.leader_id, found.epoch) == (3, EPOCH)


def test_another_leader_of_the_epoch_ends_no_pre_votes() -> None:
    found, _ = prospective()
    assert ask(found, begin(2, EPOCH), now_ms=2001)[0].header.error == ErrorCode.INVALID_REQUEST
    assert isinstance(found.role, Prospective)


def test_a_resignation_without_candidates_spreads_the_followers() -> None:
    found = replica(state=ElectionState(EPOCH, 3))
    ask(found, end(3, EPOCH), now_ms=10)
    assert isinstance(found.role, Follower)
    assert 10 < found.role.fetch_deadline_ms < 10 + found.state.config.election_backoff_max_ms


def test_an_observer_is_not_hurried_by_a_resignation() -> None:
    observer = replica(node=3, voters=(1, 2), state=ElectionState(EPOCH, 2))
    before_ms = observer.role.fetch_deadline_ms  # type: ignore[union-attr]
    ask(observer, end(2, EPOCH, 1), now_ms=10)
    assert observer.role.fetch_deadline_ms == before_ms  # type: ignore[union-attr]


def test_a_higher_epoch_with_its_leader_is_followed_and_without_one_is_adopted() -> None:
    found = replica(state=ElectionState(EPOCH, 3))
    ask(found, begin(2, EPOCH + 2))
    assert isinstance(found.role, Follower)
    assert (found.epoch, found.role.leader_id) == (EPOCH + 2, 2)
    (sent,) = found.step(Tick(), 5).sends or found.step(Tick(), 2100).sends[:1]
    assert sent is not None


# --- headers of responses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "role", "epoch", "leader"),
    [
        (header(EPOCH), Unattached, EPOCH, None),
        (header(EPOCH, 2), Follower, EPOCH, 2),
        (header(EPOCH + 1, 2), Follower, EPOCH + 1, 2),
        (header(EPOCH + 1), Unattached, EPOCH + 1, None),
        (header(EPOCH - 1, 2), Unattached, EPOCH, None),
    ],
    ids=["nothing new", "the leader", "a later leader", "a later epoch", "an old leader"],
)
def test_a_response_tells_of_later_epochs_and_leaders_only(told, role, epoch, leader) -> None:
    found = replica(state=ElectionState(EPOCH))
    effects = found.step(Tick(), 1)
    (sent,) = effects.sends or replica_sends(found)
    answer(found, sent.correlation_id, m.FetchResponse(told, None, 0), 2)
    assert (type(found.role), found.epoch) == (role, epoch)
    assert getattr(found.role, "leader_id", None) == leader


def replica_sends(found: Replica) -> list:
    """The request in flight since the start."""
    pending = list(found.state.requests._pending.values())
    assert len(pending) == 1
    return pending


@pytest.mark.parametrize("code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.BROKER_NOT_AVAILABLE])
def test_a_server_that_answers_with_an_error_rests(code) -> None:
    found, effects = prospective()
    answer(found, asked(effects, 2), votes(True).__class__(header(error=code), True), 2001)
    assert isinstance(found.role, Prospective)
    assert found.role.granted == {1}
    assert found.state.requests.is_backing_off(2, 2001)
    assert not found.state.requests.is_backing_off(3, 2001)


# --- votes ----------------------------------------------------------------------------------------


def test_a_vote_of_an_earlier_epoch_does_not_count() -> None:
    found, effects = prospective()
    answer(found, asked(effects, 2), votes(True, EPOCH - 1), 2001)
    assert isinstance(found.role, Prospective)
    assert found.role.granted == {1}


def test_rejected_pre_votes_end_at_once_and_the_known_leader_is_followed_again() -> None:
    found, effects = prospective()
    answer(found, asked(effects, 2), votes(False), 2001)
    assert isinstance(found.role, Prospective)
    answer(found, asked(effects, 3), votes(False), 2002)
    assert isinstance(found.role, Follower)
    assert found.role.leader_id == 3


def test_pre_votes_without_answers_end_with_the_election_timeout() -> None:
    found, effects = prospective()
    for send in effects.sends:
        found.step(RequestFailed(send.correlation_id), 2001)
    assert isinstance(found.role, Prospective)
    deadline_ms = found.role.election_deadline_ms
    found.step(Tick(), deadline_ms - 1)
    assert isinstance(found.role, Prospective)
    found.step(Tick(), deadline_ms)
    assert isinstance(found.role, Follower)


def test_a_majority_of_votes_makes_a_leader_and_refusals_make_it_wait() -> None:
    found, effects = candidate()
    answer(found, asked(effects, 2), votes(True), 30)
    assert isinstance(found.role, Leader)

    found, effects = candidate()
    answer(found, asked(effects, 2), votes(False), 30)
    effects_after = answer(found, asked(effects, 3), votes(False), 31)
    assert isinstance(found.role, Candidate)
    assert not effects_after.sends, "the election is lost: nobody is asked again"
    deadline_ms = found.next_deadline_ms()
    assert deadline_ms == found.role.election_deadline_ms
    found.step(Tick(), deadline_ms - 1)
    assert isinstance(found.role, Candidate)
    found.step(Tick(), deadline_ms)
    assert isinstance(found.role, Prospective)


def test_only_voters_that_did_not_answer_are_asked_again_after_the_backoff() -> None:
    found = replica(state=ElectionState(EPOCH, 3), voters=(1, 2, 3))
    effects = found.step(Tick(), 2000)
    found.step(RequestFailed(asked(effects, 2)), 2001)
    answer(found, asked(effects, 3), votes(False), 2002)
    backoff_ms = found.state.config.retry_backoff_ms
    assert not found.step(Tick(), 2000 + backoff_ms).sends
    again = found.step(Tick(), 2001 + backoff_ms)
    assert [send.node_id for send in again.sends] == [2]


def test_a_resigned_leader_tells_each_voter_until_it_acknowledges() -> None:
    found = replica(state=ElectionState(EPOCH, 1, KEYS[1]))
    assert isinstance(found.role, Resigned)
    pending = {p.node_id: p.correlation_id for p in found.state.requests._pending.values()}
    assert set(pending) == {2, 3}
    answer(found, pending[2], m.EndQuorumEpochResponse(header()), 5)
    assert found.role.unacknowledged == {3}
    found.step(RequestFailed(pending[3]), 6)
    effects = found.step(Tick(), 6 + found.state.config.retry_backoff_ms)
    assert [send.node_id for send in effects.sends] == [3]
    deadline_ms = found.role.election_deadline_ms
    found.step(Tick(), deadline_ms)
    assert isinstance(found.role, Unattached)
    assert found.epoch == EPOCH + 1


def test_a_node_that_shuts_down_stays_resigned_and_becomes_no_candidate() -> None:
    found = replica(state=ElectionState(EPOCH, 1, KEYS[1]))
    found.step(Shutdown(), 1)
    found.step(Tick(), 60_000)
    assert isinstance(found.role, Resigned)

    found, effects = prospective()
    found.step(Shutdown(), 2001)
    answer(found, asked(effects, 2), votes(True), 2002)
    assert isinstance(found.role, Prospective)
