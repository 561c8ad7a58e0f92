"""The state of a replica: what restarts and new leaders keep, and which roles are refused."""

from __future__ import annotations

import random

import pytest

from quorum.raft import messages as m
from quorum.raft.bounds import LAST_EPOCH, fault_of_request, fault_of_response
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import ElectionState, LogAppended, Resign, ResponseReceived, Tick
from quorum.raft.log_view import Diverging, KnownBounds, NeedsSnapshot, validate_offset_and_epoch
from quorum.raft.replica import Replica
from quorum.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from quorum.raft.state import RaftInvariantError
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from snapshot import SnapshotId
from tests.quorum.raft.leaders import ElectedLeader
from tests.quorum.raft.test_elections import EPOCH, begin, header, replica_sends
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, FakeLog, ask, replica, vote
from tests.quorum.raft.test_voter_change_rules import KEYS as MORE_KEYS
from tests.quorum.raft.test_voter_change_rules import ScriptedLeader, VotersLog, add, remove
from tidemark.errors import ErrorCode


def lost_tail(state: ElectionState) -> Replica:
    config = ReplicaConfig("c", KEYS[1], VoterSet.static(ENDPOINTS), ENDPOINTS[1])
    found = Replica(config, FakeLog(), state, random.Random(1), bounds=KnownBounds(end_offset=1))
    found.start(0)
    return found


# --- restarts -------------------------------------------------------------------------------------


def test_a_log_of_the_same_epoch_keeps_the_vote_and_the_leader() -> None:
    log = FakeLog([(EPOCH, 0)], 3)
    voted = replica(log, ElectionState(EPOCH, None, KEYS[2]))
    assert isinstance(voted.role, Unattached)
    assert voted.role.voted == KEYS[2]
    assert not ask(voted, vote(3, EPOCH, (EPOCH - 1, 9)))[0].vote_granted
    follower = replica(log, ElectionState(EPOCH, 2, KEYS[2]))
    assert isinstance(follower.role, Follower)


@pytest.mark.parametrize(
    "state",
    [ElectionState(EPOCH, 1, KEYS[1]), ElectionState(EPOCH, None, KEYS[1])],
    ids=["led", "stood for election"],
)
def test_who_lost_the_tail_of_its_log_is_neither_leader_nor_candidate(state) -> None:
    found = lost_tail(state)
    assert isinstance(found.role, Unattached)
    assert found.role.voted == KEYS[1], "its vote of this epoch stays given"


def test_a_leader_that_is_no_voter_is_looked_for() -> None:
    assert isinstance(replica(state=ElectionState(EPOCH, 9)).role, Unattached)


def test_a_vote_stays_given_when_its_leader_is_followed_and_not_beyond_the_epoch() -> None:
    found = replica(state=ElectionState(EPOCH, None, KEYS[2]))
    _, effects = ask(found, begin(2, EPOCH))
    assert effects.election_state == ElectionState(EPOCH, 2, KEYS[2])
    _, effects = ask(found, begin(3, EPOCH + 1))
    assert effects.election_state == ElectionState(EPOCH + 1, 3, None)


def test_requests_of_an_earlier_epoch_expect_no_answer() -> None:
    found = replica(state=ElectionState(EPOCH))
    (sent,) = replica_sends(found)
    ask(found, vote(2, EPOCH + 1))
    told = header(EPOCH + 1, 3)
    found.step(ResponseReceived(sent.correlation_id, m.FetchResponse(told, None, 0)), 2)
    assert isinstance(found.role, Unattached)


def test_a_higher_epoch_does_not_put_an_election_off_and_a_vote_does() -> None:
    found = replica(FakeLog([(1, 0)], 5), ElectionState(EPOCH))
    deadline_ms = found.role.election_deadline_ms  # type: ignore[union-attr]
    for epoch in range(EPOCH + 1, EPOCH + 20):
        ask(found, vote(2, epoch, (0, 0)), 900)
        assert found.role.election_deadline_ms <= deadline_ms  # type: ignore[union-attr]
    ask(found, vote(2, EPOCH + 30, (1, 5)), 950)
    assert found.role.election_deadline_ms >= 1950  # type: ignore[union-attr]


# --- refused transitions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "voters", "change", "message"),
    [
        (ElectionState(EPOCH, 1, KEYS[1]), (1, 2, 3), lambda s: s.become_candidate(5), "illegal"),
        (ElectionState(EPOCH, 2), (1, 2, 3), lambda s: s.become_resigned(5), "illegal"),
        (ElectionState(EPOCH), (2, 3), lambda s: s.become_prospective(5), "an observer can not"),
        (
            ElectionState(EPOCH),
            (1, 2, 3),
            lambda s: s.become_follower(EPOCH - 1, 2, ENDPOINTS[2], 5),
            "would go back",
        ),
        (
            ElectionState(EPOCH),
            (1, 2, 3),
            lambda s: s.become_follower(EPOCH, 1, ENDPOINTS[1], 5),
            "can not follow itself",
        ),
        (
            ElectionState(EPOCH, None, KEYS[2]),
            (1, 2, 3),
            lambda s: s.become_unattached(EPOCH, 5),
            "the vote of epoch 4 would change",
        ),
        (
            ElectionState(EPOCH, None, KEYS[2]),
            (1, 2, 3),
            lambda s: s.become_unattached(EPOCH, 5, KEYS[3]),
            "the vote of epoch 4 would change",
        ),
        (
            ElectionState(EPOCH),
            (1, 2, 3),
            lambda s: s.send_to_voter(9, vote(), 5),
            "9 is no voter",
        ),
        (
            ElectionState(EPOCH),
            (1, 2, 3),
            lambda s: s.raise_high_watermark(1),
            "beyond the log end",
        ),
    ],
)
def test_what_must_never_happen_raises(state, voters, change, message) -> None:
    found = replica(state=state, voters=voters)
    with pytest.raises(RaftInvariantError, match=message):
        change(found.state)


def test_the_high_watermark_only_rises() -> None:
    leader = ElectedLeader()
    leader.fetch(2, 6, 1)
    state = leader.replica.state
    assert [state.raise_high_watermark(offset) for offset in (None, 5, 6)] == [False] * 3
    assert state.high_watermark == 6


# --- a new leader ---------------------------------------------------------------------------------


def test_a_leader_tells_no_high_watermark_before_a_record_of_its_own_is_committed() -> None:
    leader = ElectedLeader()
    leader.replica.state.high_watermark = 5  # all records of earlier epochs
    observer = ReplicaKey(9, None)
    request = m.FetchRequest("c", observer, EPOCH, 6, EPOCH, None, 0, 1000)
    (reply,) = leader.receive(request, 1).replies
    assert reply.response.high_watermark is None
    leader.fetch(2, 6, 2)
    (reply,) = leader.receive(request, 3).replies
    assert reply.response.high_watermark == 6


@pytest.mark.parametrize(
    ("version", "offset", "first"), [(1, -1, True), (1, 0, False), (0, -1, False)]
)
def test_the_first_leader_writes_the_voters_of_the_bootstrap_checkpoint(
    version, offset, first
) -> None:
    log = FakeLog([(4, 0)], 2)
    voters = VoterSet([Voter(KEYS[1], ENDPOINTS[1])])
    log.voters, log.voters_offset, log.kraft_version = voters, offset, version
    config = ReplicaConfig("c", KEYS[1], voters, ENDPOINTS[1])
    found = Replica(config, log, ElectionState(4, 1, KEYS[1]), random.Random(1))
    effects = found.start(0)
    assert effects.append_leader_change is not None
    assert effects.append_leader_change.first_voters == (voters if first else None)
    log.entries, log.end_offset = [(4, 0), (found.epoch, 2)], 5 if first else 3
    assert not found.step(LogAppended(), 0).flush, "one fsync has been requested for all of it"
    log.end_offset += 1
    assert found.step(LogAppended(), 0).flush
    assert not found.step(Tick(), 0).flush


# --- changes of the voters ------------------------------------------------------------------------


def test_progress_is_kept_by_who_becomes_a_voter_or_an_observer() -> None:
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    leader.fetch(4)
    role = leader.replica.role
    joining, leaving = role.observers[MORE_KEYS[4]], role.voters[3]
    leader.change(add(4))
    leader.answer_probe(4)
    assert role.voters[4] is joining
    assert role.observers == {}
    leader.commit(2, 3, 4)
    leader.change(remove(3))
    assert set(role.voters) == {1, 2, 4}
    assert role.observers == {MORE_KEYS[3]: leaving}
    leader.commit(2, 4)
    leader.change(remove(1))
    assert set(role.observers) == {MORE_KEYS[3]}, "the leader is no observer of itself"


def test_a_change_that_waits_is_answered_when_the_leadership_ends() -> None:
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    leader.fetch(4)
    assert leader.change(add(4)) is None
    leader.step(Resign(leader.replica.epoch))
    assert isinstance(leader.replica.role, Resigned)
    assert leader.outcome() == (ErrorCode.NOT_LEADER_OR_FOLLOWER, "")


class _RemovedLog(VotersLog):
    """Its newest set, from offset 2 on, lacks replica 1."""

    def remove_1(self) -> None:
        self.sets.append((2, VoterSet(Voter(KEYS[n], ENDPOINTS[n]) for n in (2, 3))))

    def was_voter_since(self, key, end_offset):
        return key == KEYS[1] and end_offset <= 2


def with_log(state: ElectionState, endpoint=ENDPOINTS[1]) -> tuple[Replica, _RemovedLog]:
    log = _RemovedLog(1, 2, 3)
    config = ReplicaConfig("c", KEYS[1], VoterSet(()), endpoint)
    found = Replica(config, log, state, random.Random(1))
    found.start(0)
    return found, log


@pytest.mark.parametrize(("known", "may"), [(None, True), (2, True), (3, False)])
def test_a_removed_voter_may_be_elected_until_its_removal_is_committed(known, may) -> None:
    found, log = with_log(ElectionState(EPOCH, 3))
    log.remove_1()
    log.end_offset = 3
    found.state.high_watermark = known
    found.step(LogAppended(), 1)
    assert not found.state.is_voter
    assert found.state.may_elect is may
    broker, log = with_log(ElectionState(EPOCH, 3), endpoint=None)
    log.remove_1()
    broker.step(LogAppended(), 1)
    assert not broker.state.may_elect, "it has no address as a voter"


def test_elections_of_a_voter_that_is_removed_end() -> None:
    found, log = with_log(ElectionState(EPOCH, None, KEYS[1]))
    assert isinstance(found.role, Candidate)
    found.state.high_watermark, log.end_offset = 3, 3
    found.step(LogAppended(), 1)
    assert isinstance(found.role, Candidate), "nothing changed"
    log.remove_1()
    found.step(LogAppended(), 1)
    assert isinstance(found.role, Unattached)
    assert found.role.voted == KEYS[1]

    found, log = with_log(ElectionState(EPOCH, 3))
    found.step(Tick(), 2000)
    assert isinstance(found.role, Prospective)
    found.state.high_watermark, log.end_offset = 3, 3
    log.sets.append((1, VoterSet(Voter(KEYS[n], ENDPOINTS[n]) for n in (1, 2))))
    found.step(LogAppended(), 2001)
    assert isinstance(found.role, Prospective), "it is still a voter"
    log.remove_1()
    found.step(LogAppended(), 2001)
    assert isinstance(found.role, Follower)


def test_a_follower_that_becomes_a_voter_has_a_whole_timeout_and_others_keep_theirs() -> None:
    found, log = with_log(ElectionState(EPOCH, 3))
    found.state.high_watermark, log.end_offset = 3, 3
    log.sets.append((1, VoterSet(Voter(KEYS[n], ENDPOINTS[n]) for n in (1, 3))))
    found.step(LogAppended(), 500)
    assert found.role.fetch_deadline_ms == 2000  # type: ignore[union-attr]
    log.remove_1()
    found.step(LogAppended(), 600)
    log.sets.append((3, VoterSet(Voter(KEYS[n], ENDPOINTS[n]) for n in (1, 2, 3))))
    found.step(LogAppended(), 700)
    assert found.role.fetch_deadline_ms == 2700  # type: ignore[union-attr]
    assert not isinstance(found.role, Leader)


# --- positions and bounds -------------------------------------------------------------------------


def test_positions_at_the_start_of_a_cleaned_log_and_between_epochs() -> None:
    log = FakeLog([(1, 0), (2, 10), (5, 20)], 30)
    assert validate_offset_and_epoch(log, 5, 3) == Diverging(2, 20)
    newest = NeedsSnapshot(SnapshotId(25, 5))
    cleaned = FakeLog([(2, 15), (5, 20)], 30, 15, [SnapshotId(15, 2), SnapshotId(25, 5)])
    assert validate_offset_and_epoch(cleaned, 15, 5) == newest
    assert validate_offset_and_epoch(cleaned, 20, 1) == newest
    whole = FakeLog([(2, 0), (5, 20)], 30, 0, [SnapshotId(25, 5)])
    assert validate_offset_and_epoch(whole, 0, 0) == newest
    assert isinstance(validate_offset_and_epoch(whole, 10, 1), Diverging)


@pytest.mark.parametrize(
    "request_",
    [
        m.VoteRequest("c", KEYS[1], 0, ReplicaKey(0, None), 0, 0, True),
        m.EndQuorumEpochRequest("c", 0, 1, (ReplicaKey(0, None),), None),
        m.BeginQuorumEpochRequest("c", KEYS[1], 0, 1, None),
        m.FetchRequest("c", ReplicaKey(0, None), 0, 0, 0, None, 0, 0),
        m.FetchSnapshotRequest("c", ReplicaKey(-1, None), 0, SnapshotId(0, 0), 0, 0),
    ],
)
def test_zero_is_a_node_an_epoch_an_offset_and_no_wait(request_) -> None:
    assert fault_of_request(request_, own_id=7, own_epoch=0) == ""


def test_epoch_0_has_no_leader_and_the_last_epoch_has() -> None:
    def fault(leader: int, epoch: int, own_epoch: int) -> str:
        request = m.BeginQuorumEpochRequest("c", KEYS[1], leader, epoch, None)
        return fault_of_request(request, 7, own_epoch)

    assert fault(2, 0, 0) == "epoch 0 has no leader"
    assert fault(-1, 0, 0) == "leader -1 is no node"
    assert fault(2, LAST_EPOCH, LAST_EPOCH - 1) == ""
    assert "does not follow" in fault(2, LAST_EPOCH + 1, LAST_EPOCH)


@pytest.mark.parametrize(
    ("response", "valid"),
    [
        (m.FetchResponse(m.Header(ErrorCode.BROKER_NOT_AVAILABLE, None, -1)), True),
        (m.FetchResponse(m.Header(ErrorCode.NONE, None, -1)), False),
        (m.FetchResponse(m.Header(ErrorCode.BROKER_NOT_AVAILABLE, None, LAST_EPOCH + 1)), False),
        (m.FetchResponse(m.Header(ErrorCode.UNKNOWN_SERVER_ERROR, None, 0), None, -1), True),
        (m.FetchResponse(m.Header(ErrorCode.NONE, None, 0), None, -1), False),
        (m.FetchResponse(m.Header(ErrorCode.NONE, 2, 1), None, 0, (0, 0)), True),
        (m.FetchResponse(m.Header(ErrorCode.NONE, 2, 1), None, 0, None, SnapshotId(0, 0)), True),
    ],
)
def test_answers_at_their_bounds(response, valid) -> None:
    assert (fault_of_response(response, own_epoch=0) == "") is valid
