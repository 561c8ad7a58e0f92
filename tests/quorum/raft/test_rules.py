"""The rules of the core, one by one: votes, the commit rule, fetch positions, the transition
table, quorum-state.
"""

from __future__ import annotations

import random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import (
    ElectionState,
    LogAppended,
    LogFlushed,
    RequestReceived,
    ResponseReceived,
    Shutdown,
    Tick,
)
from quorum.raft.high_watermark import next_high_watermark
from quorum.raft.log_view import Diverging, NeedsSnapshot, Valid, validate_offset_and_epoch
from quorum.raft.replica import Replica
from quorum.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from quorum.raft.state import RaftInvariantError
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from quorum.replica.quorum_state import format_state, parse_state
from snapshot import SnapshotId
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint


class FakeLog:
    """A log of (epoch, start offset) entries."""

    def __init__(self, entries=(), end_offset=0, start_offset=0, snapshots=()):
        self.entries, self.end_offset, self.start_offset = list(entries), end_offset, start_offset
        self.snapshots = list(snapshots)
        self.voters, self.voters_offset, self.kraft_version = None, None, 0

    @property
    def last_epoch(self):
        return self.entries[-1][0] if self.entries else 0

    @property
    def earliest_snapshot(self):
        return self.snapshots[0] if self.snapshots else None

    @property
    def latest_snapshot(self):
        return self.snapshots[-1] if self.snapshots else None

    def snapshot_size_bytes(self, snapshot):
        return 100 if snapshot in self.snapshots else None

    def end_offset_for_epoch(self, epoch):
        ends = [start for _, start in self.entries[1:]] + [self.end_offset]
        found = [(e, end) for (e, _), end in zip(self.entries, ends, strict=True) if e <= epoch]
        return found[-1] if found else (epoch, self.start_offset)


KEYS = {n: ReplicaKey(n, UUID(int=n)) for n in (1, 2, 3)}
ENDPOINTS = {n: Endpoint("h", n) for n in (1, 2, 3)}


def replica(log=None, state=None, node=1, voters=(1, 2, 3)):
    config = ReplicaConfig(
        "c", KEYS[node], VoterSet.static({n: ENDPOINTS[n] for n in voters}), ENDPOINTS[node]
    )
    made = Replica(config, log or FakeLog(), state or ElectionState(), random.Random(1))
    made.start(0)
    return made


def vote(candidate=2, epoch=1, log=(0, 0), pre_vote=False, voter=1, cluster="c"):
    return m.VoteRequest(cluster, KEYS[voter], epoch, KEYS[candidate], *log, pre_vote)


def ask(replica_, request, now_ms=1):
    effects = replica_.step(RequestReceived(7, request), now_ms)
    replica_.validate()
    return effects.replies[0].response, effects


def test_one_vote_per_epoch_and_it_is_persisted_with_the_answer():
    voter = replica()
    response, effects = ask(voter, vote(2))
    assert response.vote_granted
    assert effects.election_state == ElectionState(1, None, KEYS[2])
    assert ask(voter, vote(2))[0].vote_granted
    assert not ask(voter, vote(3))[0].vote_granted
    assert ask(voter, vote(3, epoch=2))[0].vote_granted


def test_no_vote_for_a_shorter_log():
    log = FakeLog([(1, 0), (3, 5)], 10)
    for theirs, granted in [((3, 10), True), ((3, 9), False), ((2, 99), False), ((4, 1), True)]:
        voter = replica(log, ElectionState(4))
        assert ask(voter, vote(2, 5, theirs))[0].vote_granted is granted


def test_a_follower_of_a_live_leader_refuses_pre_votes():
    follower = replica(state=ElectionState(1, 3))
    assert isinstance(follower.role, Follower)
    assert ask(follower, vote(2, 1, pre_vote=True))[0].vote_granted
    follower.role.has_fetched = True
    assert not ask(follower, vote(2, 1, pre_vote=True))[0].vote_granted
    assert not ask(follower, vote(2, 1))[0].vote_granted


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (vote(voter=2), ErrorCode.INVALID_VOTER_KEY),
        (vote(epoch=3), ErrorCode.FENCED_LEADER_EPOCH),
        (vote(epoch=6, log=(6, 1)), ErrorCode.INVALID_REQUEST),
        (vote(epoch=5, log=(6, 1), pre_vote=True), ErrorCode.INVALID_REQUEST),
        (vote(epoch=6, log=(1, -1)), ErrorCode.INVALID_REQUEST),
        (vote(cluster="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
    ],
)
def test_bad_votes_are_refused_by_name_and_change_nothing(request_, error):
    voter = replica(state=ElectionState(5))
    response, effects = ask(voter, request_)
    assert response.header.error == error
    assert effects.election_state is None
    assert voter.epoch == 5


def test_after_a_restart_the_role_follows_from_quorum_state_and_log():
    assert isinstance(replica(state=ElectionState(4, 1, KEYS[1])).role, Resigned)
    assert isinstance(replica(state=ElectionState(4, None, KEYS[1])).role, Candidate)
    assert isinstance(replica(state=ElectionState(4, 2)).role, Follower)
    ahead = replica(FakeLog([(6, 0)], 3), ElectionState(4, None, KEYS[2]))
    assert isinstance(ahead.role, Unattached)
    assert (ahead.epoch, ahead.role.voted) == (6, None)


def test_an_illegal_transition_raises():
    follower = replica(state=ElectionState(1, 3))
    with pytest.raises(RaftInvariantError, match="illegal transition"):
        follower.state.become_leader(5)
    with pytest.raises(RaftInvariantError, match="two leaders"):
        follower.state.become_follower(1, 2, ENDPOINTS[2], 5)


def test_a_sole_voter_leads_at_once_in_a_new_epoch():
    alone = replica(FakeLog([(4, 0)], 2), ElectionState(4, 1, KEYS[1]), voters=(1,))
    assert isinstance(alone.role, Leader)
    assert alone.epoch > 4


def test_an_observer_never_votes_itself_up():
    observer = replica(node=3, voters=(1, 2))
    for now_ms in (10_000, 20_000, 90_000):
        observer.step(Tick(), now_ms)
        assert isinstance(observer.role, Unattached)
        assert observer.epoch == 0


@given(
    st.lists(st.integers(-1, 50), min_size=1, max_size=7), st.integers(0, 50), st.integers(0, 50)
)
def test_the_high_watermark_is_held_by_a_majority_and_of_this_epoch(ends, epoch_start, current):
    result = next_high_watermark(current, ends, epoch_start)
    assert result is not None
    assert result >= current
    if result > current:
        assert result > epoch_start
        assert 2 * sum(end >= result for end in ends) > len(ends)


def test_fetch_positions_are_judged_as_kafka_does():
    log = FakeLog([(1, 0), (2, 10), (5, 20)], 30)
    judge = validate_offset_and_epoch
    assert judge(log, 0, 0) == Valid()
    assert judge(log, 30, 5) == Valid()
    assert judge(log, 10, 1) == Valid()
    assert judge(log, 11, 1) == Diverging(1, 10)
    assert judge(log, 25, 4) == Diverging(2, 20)
    assert judge(log, 31, 5) == Diverging(5, 30)
    cleaned = FakeLog([(2, 15), (5, 20)], 30, 15, [SnapshotId(15, 2), SnapshotId(25, 5)])
    assert judge(cleaned, 0, 0) == NeedsSnapshot(SnapshotId(25, 5))
    assert judge(cleaned, 14, 2) == NeedsSnapshot(SnapshotId(25, 5))
    assert judge(cleaned, 15, 1) == NeedsSnapshot(SnapshotId(25, 5))
    assert judge(cleaned, 15, 2) == Valid()
    assert judge(cleaned, 22, 5) == Valid()


@given(
    st.integers(0, 2**31 - 1),
    st.none() | st.integers(0, 2**31 - 1),
    st.none() | st.builds(ReplicaKey, st.integers(0, 2**31 - 1), st.none() | st.uuids(version=4)),
)
def test_quorum_state_reads_back(epoch, leader_id, voted):
    state = ElectionState(epoch, leader_id, voted)
    assert parse_state(format_state(state)) == state


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"data_version":7}', b"\x00" * 40])
def test_a_broken_quorum_state_is_refused(data):
    with pytest.raises(ValueError):
        parse_state(data)


def prospective(node, log):
    """Returns a replica that lost its leader, and its requests by peer."""
    found = replica(log=log, state=ElectionState(1, 3), node=node)
    effects = found.step(Tick(), 2000)
    assert isinstance(found.role, Prospective)
    return found, {send.node_id: send for send in effects.sends}


@pytest.mark.parametrize(
    ("ends", "first"), [((5, 5), 1), ((6, 5), 1), ((5, 6), 2)], ids=["equal", "longer", "shorter"]
)
def test_of_two_that_lose_their_leader_at_the_same_moment_one_begins(ends, first):
    (one, asks_one), (two, asks_two) = (
        prospective(node, FakeLog([(1, 0)], end_offset=end))
        for node, end in zip((1, 2), ends, strict=True)
    )
    answers = {
        1: ask(one, asks_two[1].request, 2001)[0],
        2: ask(two, asks_one[2].request, 2001)[0],
    }
    one.step(ResponseReceived(asks_one[2].correlation_id, answers[2]), 2002)
    two.step(ResponseReceived(asks_two[1].correlation_id, answers[1]), 2002)
    candidates = [node for node, r in ((1, one), (2, two)) if isinstance(r.role, Candidate)]
    assert candidates == [first]


def test_who_lets_another_go_first_does_not_wait_for_long():
    one, asks = prospective(2, FakeLog([(1, 0)], end_offset=5))
    ask(one, m.VoteRequest("c", KEYS[2], 1, KEYS[1], 1, 5, True), 2001)
    granted = m.VoteResponse(m.Header(ErrorCode.NONE, None, 1), vote_granted=True)
    one.step(ResponseReceived(asks[1].correlation_id, granted), 2002)
    assert isinstance(one.role, Prospective)
    due_ms = one.next_deadline_ms()
    assert 2001 < due_ms <= 2001 + one.state.config.election_timeout_ms // 10
    one.step(Tick(), due_ms)
    assert isinstance(one.role, Candidate)
    one.validate()


def test_a_node_that_shuts_down_is_not_woken_for_an_election():
    resigned = replica(state=ElectionState(4, 1, KEYS[1]))
    assert resigned.next_deadline_ms() < 2_000
    resigned.step(Shutdown(), 0)
    assert resigned.next_deadline_ms() == 2_000, "only for the requests in progress"

    follower = replica(state=ElectionState(1, 3))
    ask(follower, m.EndQuorumEpochRequest("c", 3, 1, (KEYS[2], KEYS[1]), ENDPOINTS[3]))
    assert follower.next_deadline_ms() == 501
    follower.step(Shutdown(), 2)
    assert follower.next_deadline_ms() == 2_000


def test_a_change_of_voters_wakes_the_leader_when_its_time_is_up():
    log = FakeLog([(4, 0)], 2)
    log.voters, log.voters_offset, log.kraft_version = (
        VoterSet([Voter(KEYS[1], ENDPOINTS[1])]),
        0,
        1,
    )
    leader = replica(log, ElectionState(4, 1, KEYS[1]), voters=(1,))
    log.entries, log.end_offset = [(4, 0), (leader.epoch, 2)], 5
    leader.step(LogAppended(), 0)
    leader.step(LogFlushed(5), 0)
    addition = m.AddVoterRequest("c", KEYS[2], ENDPOINTS[2], 500)
    assert not leader.step(RequestReceived(9, addition), 10).replies
    assert leader.next_deadline_ms() == 510
    (reply,) = leader.step(Tick(), 510).replies
    assert reply.response.header.error == ErrorCode.REQUEST_TIMED_OUT
