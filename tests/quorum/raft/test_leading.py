"""Leading, one rule at a time: check-quorum, BeginQuorumEpoch, parked fetches, the resignation, and
the fetch offsets of voters.
"""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import (
    Effects,
    ElectionState,
    RequestFailed,
    RequestReceived,
    Resign,
    ResponseReceived,
    Shutdown,
    Tick,
)
from quorum.raft.replica import Parts, Replica
from quorum.raft.roles import Leader, Prospective, Resigned, Unattached
from quorum.raft.state import RaftInvariantError, RaftState
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from snapshot import SnapshotId
from tests.quorum.raft.leaders import EPOCH, ElectedLeader
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, FakeLog, ask, replica
from tidemark.errors import ErrorCode


def sent_to(effects: Effects, node: int, kind: type) -> list[m.Request]:
    return [s.request for s in effects.sends if s.node_id == node and isinstance(s.request, kind)]


# --- check-quorum ---------------------------------------------------------------------------------


def test_a_voter_that_fetches_a_checkpoint_counts_for_check_quorum() -> None:
    """A large checkpoint takes longer than the timeout, and the voter sends no other fetch."""
    leader = ElectedLeader(FakeLog([(1, 2)], 5, 2, [SnapshotId(2, 1)]))
    timeout_ms = leader.config.check_quorum_timeout_ms
    for now_ms in range(0, 3 * timeout_ms, timeout_ms // 2):
        piece = m.FetchSnapshotRequest("c", KEYS[2], EPOCH, SnapshotId(2, 1), 10, 1000)
        (reply,) = leader.receive(piece, now_ms).replies
        assert reply.response.header.error == ErrorCode.NONE
    last_ms = now_ms
    leader.tick(last_ms + timeout_ms - 1)
    assert isinstance(leader.replica.role, Leader)
    leader.tick(last_ms + timeout_ms)
    assert isinstance(leader.replica.role, Resigned)


# --- BeginQuorumEpoch -----------------------------------------------------------------------------


def test_a_silent_voter_is_told_of_its_leader_again_and_again() -> None:
    leader = ElectedLeader()
    begin = m.BeginQuorumEpochRequest
    assert sent_to(leader.announced, 3, begin)
    answer = m.BeginQuorumEpochResponse(m.Header(ErrorCode.NONE, 1, EPOCH))
    (id_,) = [s.correlation_id for s in leader.announced.sends if s.node_id == 3]
    leader.replica.step(ResponseReceived(id_, answer), 5)
    interval_ms = leader.config.begin_quorum_epoch_interval_ms
    for round_ in range(1, 4):
        due_ms = round_ * interval_ms
        leader.fetch(2, leader.log.end_offset, due_ms - 1)  # keeps check-quorum
        assert not sent_to(leader.tick(due_ms - 1), 3, begin)
        effects = leader.tick(due_ms)
        assert sent_to(effects, 3, begin)
        assert not sent_to(effects, 2, begin), "it fetches, so it knows its leader"
        (id_,) = [s.correlation_id for s in effects.sends if s.node_id == 3]
        leader.replica.step(ResponseReceived(id_, answer), due_ms)


def test_a_voter_that_did_not_acknowledge_its_leader_is_told_after_the_backoff() -> None:
    leader = ElectedLeader()
    begin = m.BeginQuorumEpochRequest
    (id_,) = [s.correlation_id for s in leader.announced.sends if s.node_id == 3]
    leader.replica.step(RequestFailed(id_), 5)
    backoff_ms = leader.config.retry_backoff_ms
    assert leader.replica.next_deadline_ms() == 5 + backoff_ms
    assert not sent_to(leader.tick(4 + backoff_ms), 3, begin)
    assert sent_to(leader.tick(5 + backoff_ms), 3, begin)


# --- the end of a leadership ----------------------------------------------------------------------


def higher_epoch(leader: ElectedLeader) -> Effects:
    vote = m.VoteRequest("c", KEYS[1], EPOCH + 1, KEYS[3], EPOCH, 99, False)
    return leader.receive(vote, 20)


@pytest.mark.parametrize(
    "end",
    [
        lambda leader: leader.replica.step(Resign(EPOCH), 20),
        lambda leader: leader.replica.step(Shutdown(), 20),
        lambda leader: leader.tick(leader.config.check_quorum_timeout_ms + 10),
        higher_epoch,
    ],
    ids=["resigns", "shuts down", "check-quorum", "a higher epoch"],
)
def test_parked_fetches_are_answered_when_the_leadership_ends(end) -> None:
    leader = ElectedLeader()
    leader.fetch(2, leader.log.end_offset, 9, token=70)
    assert not leader.fetch(2, leader.log.end_offset, 9, token=70).replies
    assert not leader.fetch(3, leader.log.end_offset, 9, token=71).replies
    leader.role.parked[70].deadline_ms = leader.role.parked[71].deadline_ms = 1 << 40
    answers = {reply.token: reply.response.header.error for reply in end(leader).replies}
    assert answers.pop(7, None) in (None, ErrorCode.NONE)  # the vote
    assert answers == {
        70: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        71: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }


@pytest.mark.parametrize(("ahead", "behind"), [(2, 3), (3, 2)])
def test_a_leader_that_resigns_names_the_voter_furthest_ahead_first(ahead, behind) -> None:
    leader = ElectedLeader()
    leader.append(4, 1)
    leader.fetch(ahead, 9, 2)
    leader.fetch(behind, 7, 3)
    effects = leader.replica.step(Resign(EPOCH), 20)
    for node in (2, 3):
        (request,) = sent_to(effects, node, m.EndQuorumEpochRequest)
        assert isinstance(request, m.EndQuorumEpochRequest)
        assert request.preferred_candidates == (KEYS[ahead], KEYS[behind])


def test_a_voter_that_never_fetched_is_named_last() -> None:
    leader = ElectedLeader()
    leader.fetch(3, 1, 2)
    effects = leader.replica.step(Resign(EPOCH), 20)
    (request,) = sent_to(effects, 2, m.EndQuorumEpochRequest)
    assert isinstance(request, m.EndQuorumEpochRequest)
    assert [key.replica_id for key in request.preferred_candidates] == [3, 2]


@pytest.mark.parametrize(
    ("candidates", "waits_ms"),
    [((1, 2), 0), ((2, 1), 500), ((2,), 1000), ((2, 3, 1), 500), ((3, 2, 2, 1), 500)],
    ids=["first", "second of two", "not named", "third of three", "fourth of four"],
)
def test_the_best_successor_begins_at_once_and_the_others_later(candidates, waits_ms) -> None:
    follower = replica(state=ElectionState(EPOCH, 3))
    named = tuple(KEYS[n] for n in candidates)
    end = m.EndQuorumEpochRequest("c", 3, EPOCH, named, ENDPOINTS[3])
    ask(follower, end, now_ms=10)
    if waits_ms == 0:
        assert isinstance(follower.role, Prospective)
    else:
        assert follower.role.fetch_deadline_ms == 10 + waits_ms


# --- invariants ----------------------------------------------------------------------------------


class _ForgetsWhomItFollows(RaftState):
    def _persist(self, leader_id, voted) -> None:
        super()._persist(None, voted)


def test_a_step_that_breaks_an_invariant_ends_before_anything_of_it_is_sent() -> None:
    config = ReplicaConfig("c", KEYS[1], VoterSet.static(ENDPOINTS), ENDPOINTS[1])
    state = ElectionState(EPOCH)
    broken = Replica(config, FakeLog(), state, random.Random(1), Parts(state=_ForgetsWhomItFollows))
    broken.start(0)
    begin = m.BeginQuorumEpochRequest("c", KEYS[1], 2, EPOCH, ENDPOINTS[2])
    with pytest.raises(RaftInvariantError, match="an invariant is broken"):
        broken.step(RequestReceived(7, begin), 1)


# --- progress of voters ---------------------------------------------------------------------------


def test_a_voter_whose_fetch_offset_goes_back_counts_only_up_to_there() -> None:
    """It lost its disk or came back with an older one (static voters keep their id)."""
    leader = ElectedLeader()
    leader.append(6, 1)  # 6 to 11, not durable at the leader yet
    leader.fetch(2, 12, 2)
    assert leader.role.voters[2].end_offset == 12
    assert leader.replica.high_watermark == 6
    leader.fetch(2, 8, 3)
    assert leader.role.voters[2].end_offset == 8
    leader.flush(4)
    assert leader.replica.high_watermark == 8, "records from 8 on have one copy"


def test_a_static_voter_with_a_new_disk_is_the_same_voter_with_an_empty_log() -> None:
    leader = ElectedLeader()
    leader.fetch(2, 6, 1)
    leader.fetch(3, 6, 1)
    leader.append(6, 2)  # 6 to 11, not durable at the leader yet
    leader.fetch(2, 12, 3)
    first = leader.role.voters[2]
    assert (first.key, first.end_offset) == (KEYS[2], 12)
    replaced = ReplicaKey(2, UUID(int=99))
    request = m.FetchRequest("c", replaced, EPOCH, 0, 0, None, 500, 1 << 20)
    leader.receive(request, 4)
    found = leader.role.voters[2]
    assert (found.key, found.end_offset, found.last_fetch_ms) == (replaced, 0, 4)
    assert leader.role.observers == {}, "it is listed once"
    leader.flush(5)
    assert leader.replica.high_watermark == 6, "records from 6 on have one copy"


def test_a_voter_of_the_log_with_a_new_disk_is_an_observer() -> None:
    log = FakeLog([(1, 0)], 5)
    log.voters = VoterSet([Voter(KEYS[n], ENDPOINTS[n]) for n in (1, 2, 3)])
    log.voters_offset, log.kraft_version = 0, 1
    leader = ElectedLeader(log)
    leader.fetch(2, 6, 1)
    replaced = ReplicaKey(2, UUID(int=99))
    leader.receive(m.FetchRequest("c", replaced, EPOCH, 0, 0, None, 500, 1 << 20), 2)
    assert (leader.role.voters[2].key, leader.role.voters[2].end_offset) == (KEYS[2], 6)
    assert list(leader.role.observers) == [replaced]


# --- time -----------------------------------------------------------------------------------------


def waits_ms(seed: int, state: ElectionState) -> int:
    config = ReplicaConfig("c", KEYS[1], VoterSet.static(ENDPOINTS), ENDPOINTS[1])
    made = Replica(config, FakeLog(), state, random.Random(seed))
    made.start(0)
    return made.role.election_deadline_ms  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "state",
    [ElectionState(), ElectionState(3, None, KEYS[1]), ElectionState(3, 1, KEYS[1])],
    ids=["unattached", "candidate", "resigned"],
)
def test_election_timeouts_are_spread_over_one_to_two_times_the_setting(state) -> None:
    found = sorted(waits_ms(seed, state) for seed in range(200))
    assert 1000 <= found[0] < 1050
    assert 1950 < found[-1] < 2000
    assert len(set(found)) > 150


def test_each_attempt_of_an_election_draws_its_own_timeout() -> None:
    found = replica()
    drawn = []
    for _ in range(12):
        begun_ms = found.next_deadline_ms()
        while not isinstance(found.role, Prospective):
            begun_ms = found.next_deadline_ms()
            found.step(Tick(), begun_ms)
        drawn.append(found.role.election_deadline_ms - begun_ms)
        found.step(Tick(), found.role.election_deadline_ms)
        assert isinstance(found.role, Unattached)
    assert all(1000 <= wait < 2000 for wait in drawn)
    assert len(set(drawn)) > 8
