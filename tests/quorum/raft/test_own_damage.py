"""A replica whose own log is damaged: it resigns, does not stand for election, and votes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import (
    ElectionState,
    LogAppended,
    LogFlushed,
    LogStartRaised,
    OwnCheckpointChecked,
    OwnLogDamaged,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    SnapshotInstalled,
    Tick,
)
from quorum.raft.log_view import KnownBounds
from quorum.raft.replica import Replica
from quorum.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from quorum.raft.voters import ReplicaKey, VoterSet
from snapshot.names import SnapshotId
from tests.quorum.raft.leaders import EPOCH, ElectedLeader
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, FakeLog, ask, vote
from tidemark.errors import ErrorCode
from tidemark.types import OwnDamage


def damaged_leader(offset=3):
    leader = ElectedLeader()
    leader.fetch(2, 6, now_ms=1)
    effects = leader.replica.step(OwnLogDamaged(offset), 2)
    leader.replica.validate()
    return leader, effects


def test_a_leader_with_a_damaged_batch_resigns_and_names_the_best_successor():
    leader, effects = damaged_leader()
    assert isinstance(leader.replica.role, Resigned)
    ends = [s.request for s in effects.sends if isinstance(s.request, m.EndQuorumEpochRequest)]
    assert len(ends) == 2
    assert {end.preferred_candidates for end in ends} == {(KEYS[2], ReplicaKey(3, None))}
    assert leader.replica.state.metrics.own_log_damages == 1


def test_a_damaged_replica_does_not_stand_for_election_and_looks_for_a_leader():
    leader, _ = damaged_leader()
    asked = []
    for now_ms in range(2, 60_000, 250):
        asked += [s.request for s in leader.tick(now_ms).sends]
        assert isinstance(leader.replica.role, Resigned | Unattached | Follower)
    assert leader.replica.epoch == EPOCH + 1
    assert any(isinstance(request, m.FetchRequest) for request in asked)
    assert not any(isinstance(request, m.VoteRequest) for request in asked)


def test_a_damaged_replica_votes_for_a_log_that_is_as_long_as_its_own():
    leader, _ = damaged_leader()
    end_offset = leader.log.end_offset
    assert not ask(leader.replica, vote(2, 6, (EPOCH, end_offset - 1)), 3)[0].vote_granted
    assert ask(leader.replica, vote(3, 7, (EPOCH, end_offset)), 3)[0].vote_granted


@pytest.mark.parametrize("role", [Prospective, Candidate])
def test_an_election_under_way_is_given_up(role):
    voters = VoterSet.static(ENDPOINTS)
    config = ReplicaConfig("c", KEYS[1], voters, ENDPOINTS[1])
    voted = KEYS[1] if role is Candidate else None
    state, log = ElectionState(5, None, voted), FakeLog([(1, 0)], 5)
    replica = Replica(config, log, state, random.Random(1))
    replica.start(0)
    for now_ms in range(0, 5_000, 100):
        if isinstance(replica.role, role):
            break
        replica.step(Tick(), now_ms)
    assert isinstance(replica.role, role)
    replica.step(OwnLogDamaged(3), 5_000)
    replica.validate()
    assert isinstance(replica.role, Unattached)


def test_it_stands_for_election_again_when_a_checkpoint_has_replaced_the_batch():
    leader, _ = damaged_leader(offset=3)
    leader.log.snapshots, leader.log.start_offset = [SnapshotId(3, 1)], 3
    leader.replica.step(LogStartRaised(), 3)
    assert leader.replica.state.damaged_offset == 3, "the log begins with the damaged batch"
    leader.log.snapshots, leader.log.start_offset = [SnapshotId(5, 1)], 5
    leader.replica.step(LogStartRaised(), 4)
    assert leader.replica.state.damaged_offset is None
    for now_ms in range(4, 30_000, 250):
        leader.tick(now_ms)
        if isinstance(leader.replica.role, Prospective):
            return
    raise AssertionError("it never stands for election")


def test_a_lone_voter_leads_again_when_a_checkpoint_has_replaced_the_batch():
    log = FakeLog([(1, 0)], 5)
    voters = VoterSet.static({1: ENDPOINTS[1]})
    config = ReplicaConfig("c", KEYS[1], voters, ENDPOINTS[1])
    alone = Replica(config, log, ElectionState(1), random.Random(1))
    alone.start(0)
    log.end_offset, log.entries = 6, [(1, 0), (2, 5)]
    alone.step(LogAppended(), 0)
    alone.step(LogFlushed(6), 0)
    assert isinstance(alone.role, Leader)
    alone.step(OwnLogDamaged(2), 1)
    for now_ms in range(1, 30_000, 250):
        alone.step(Tick(), now_ms)
        assert not isinstance(alone.role, Leader)
    log.snapshots, log.start_offset = [SnapshotId(6, 2)], 6
    alone.step(LogStartRaised(), 30_000)
    assert isinstance(alone.role, Leader)


def test_a_truncation_of_the_damaged_batch_heals():
    leader, _ = damaged_leader(offset=5)
    replica, log = leader.replica, leader.log
    header = m.Header(ErrorCode.NONE, 3, EPOCH + 2, ENDPOINTS[3])
    begin = m.BeginQuorumEpochRequest("c", KEYS[1], 3, EPOCH + 2, ENDPOINTS[3])
    replica.state.high_watermark = 4
    [send] = replica.step(RequestReceived(9, begin), 3).sends
    diverging = m.FetchResponse(header, 4, diverging_epoch=(1, 5))
    effects = replica.step(ResponseReceived(send.correlation_id, diverging), 4)
    assert effects.truncate_to == 5
    log.end_offset, log.entries = 5, [(1, 0)]
    replica.step(LogAppended(), 4)
    replica.validate()
    assert replica.state.damaged_offset is None and replica.state.may_elect


# --- the hint that a follower refused what was sent -----------------------------------------------


def reads(effects):
    return [reply.read for reply in effects.replies]


def test_records_are_doubted_only_when_the_same_follower_fetches_them_again():
    leader = ElectedLeader()
    assert [read.doubted for read in reads(leader.fetch(2, 5, now_ms=1))] == [False]
    assert [read.doubted for read in reads(leader.fetch(3, 5, now_ms=1))] == [False]
    assert [read.doubted for read in reads(leader.fetch(2, 5, now_ms=2))] == [True]
    leader.append(2, now_ms=3)
    assert [read.doubted for read in reads(leader.fetch(3, 6, now_ms=4))] == [False]


def test_a_fetch_that_had_no_records_before_is_not_doubted():
    leader = ElectedLeader()
    leader.fetch(2, 6, now_ms=1)  # commits, and is answered
    assert reads(leader.fetch(2, 6, now_ms=1)) == []
    [read] = reads(leader.append(1, now_ms=2))
    assert (read.offset, read.doubted) == (6, False)


def test_a_checkpoint_is_doubted_when_the_same_follower_begins_it_again():
    leader = ElectedLeader()
    checkpoint = SnapshotId(4, 1)
    leader.fetch(2, 6, now_ms=1)  # commits
    leader.log.snapshots = [checkpoint]

    def doubted(node, position):
        request = m.FetchSnapshotRequest("c", KEYS[node], EPOCH, checkpoint, position, 10)
        [read] = reads(leader.receive(request, 1))
        return read.doubted

    assert [doubted(2, 0), doubted(2, 50), doubted(3, 0)] == [False] * 3
    assert [doubted(2, 0), doubted(2, 50)] == [True, False]


# --- told to the leader ---------------------------------------------------------------------------


def following(leader_id=3):
    """A leader that found damage and follows the next one; and what it sends first."""
    leader, _ = damaged_leader()
    begin = m.BeginQuorumEpochRequest("c", KEYS[1], leader_id, EPOCH + 2, ENDPOINTS[leader_id])
    [send] = leader.replica.step(RequestReceived(9, begin), 3).sends
    return leader, send


def test_every_fetch_reports_the_damage_of_the_own_log_until_it_is_healed():
    leader, send = following()
    assert send.request.own_damage is OwnDamage.LOG
    leader.log.snapshots, leader.log.start_offset = [SnapshotId(5, 1)], 5
    leader.replica.state.high_watermark = 5
    leader.replica.step(LogStartRaised(), 4)
    [again] = leader.replica.step(RequestFailed(send.correlation_id), 5).sends
    assert again.request.own_damage is OwnDamage.NONE


def test_a_checkpoint_that_was_fetched_takes_the_place_of_a_damaged_one():
    leader, _ = following()
    leader.replica.step(OwnCheckpointChecked(True), 3)
    leader.log.snapshots, leader.log.start_offset = [SnapshotId(5, 1)], 5
    leader.replica.step(SnapshotInstalled(SnapshotId(5, 1)), 4)
    assert leader.replica.own_damage is OwnDamage.NONE


def test_the_gravest_damage_is_reported():
    leader = ElectedLeader()
    replica, state = leader.replica, leader.replica.state
    assert replica.own_damage is OwnDamage.NONE
    leader.replica.step(OwnCheckpointChecked(True), 1)
    assert replica.own_damage is OwnDamage.CHECKPOINT
    assert isinstance(leader.replica.role, Leader), "its log is whole"
    leader.replica.step(OwnLogDamaged(3), 1)
    assert replica.own_damage is OwnDamage.LOG
    leader.replica.step(OwnCheckpointChecked(False), 1)
    state.damaged_offset = None
    assert replica.own_damage is OwnDamage.NONE
    bounds = KnownBounds(9, 2)
    config = leader.config
    short = Replica(config, FakeLog([(1, 0)], 5), ElectionState(5), random.Random(1), bounds=bounds)
    assert short.own_damage is OwnDamage.LOG_TAIL


def test_the_leader_notes_the_damage_that_a_fetch_reports_even_from_where_logs_diverge():
    leader = ElectedLeader()
    replica = leader.replica
    whole = m.FetchRequest("c", KEYS[2], EPOCH, 6, EPOCH, None, 500, 1000)
    noted = []
    for damage, last_epoch in [
        (OwnDamage.LOG, EPOCH),
        (OwnDamage.LOG_TAIL, 3),
        (OwnDamage.NONE, EPOCH),
    ]:
        leader.receive(replace(whole, own_damage=damage, last_fetched_epoch=last_epoch), 1)
        noted.append(leader.role.voters[2].own_damage)
    assert noted == [OwnDamage.LOG, OwnDamage.LOG_TAIL, OwnDamage.NONE]
    observer = replace(whole, replica=ReplicaKey(9), own_damage=OwnDamage.LOG_TAIL)
    leader.receive(observer, 2)
    assert leader.role.observers[ReplicaKey(9)].own_damage is OwnDamage.LOG_TAIL
    assert replica.own_damage is OwnDamage.NONE
