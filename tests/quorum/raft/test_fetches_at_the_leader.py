"""Fetches at the leader, one rule at a time: who may fetch, what is answered when, whose progress
is tracked, and who was caught up.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from quorum.raft import leading
from quorum.raft import messages as m
from quorum.raft.effects import ElectionState, ReadRecords, ReadSnapshot, ResponseReceived
from quorum.raft.roles import Leader
from quorum.raft.voters import ReplicaKey
from snapshot import SnapshotId
from tests.quorum.raft.leaders import EPOCH, ElectedLeader
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, FakeLog, ask, replica
from tidemark.errors import ErrorCode

CHECKPOINT = SnapshotId(2, 1)
OBSERVERS = [ReplicaKey(0, UUID(int=10)), *(ReplicaKey(n, UUID(int=n)) for n in (11, 12))]


def fetch(key=KEYS[2], epoch=EPOCH, offset=6, last_epoch=EPOCH, known=None, wait_ms=500):
    return m.FetchRequest("c", key, epoch, offset, last_epoch, known, wait_ms, 1000)


def piece(position=0, epoch=EPOCH, snapshot=CHECKPOINT, key=KEYS[2]):
    return m.FetchSnapshotRequest("c", key, epoch, snapshot, position, 1000)


def with_checkpoint() -> ElectedLeader:
    return ElectedLeader(FakeLog([(1, 2)], 5, 2, [CHECKPOINT]))


def committed() -> ElectedLeader:
    """A leader whose high watermark is the end of its log, 6."""
    leader = ElectedLeader()
    leader.fetch(2, 6, 1)
    leader.fetch(3, 6, 1, token=8)
    assert leader.replica.high_watermark == 6
    leader.role.parked.clear()
    return leader


# --- who may fetch --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [fetch, piece])
@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_a_fetch_of_another_epoch_is_refused_and_not_noted(kind, epoch, error) -> None:
    leader = with_checkpoint()
    request = fetch(epoch=epoch, last_epoch=1) if kind is fetch else piece(epoch=epoch)
    (reply,) = leader.receive(request, 5).replies
    assert (reply.response.header.error, reply.read) == (error, None)
    assert leader.role.voters[2].last_fetch_ms is None
    assert leader.replica.epoch == EPOCH


@pytest.mark.parametrize("request_", [fetch(offset=0, last_epoch=0), piece()])
def test_who_does_not_lead_answers_no_fetch(request_) -> None:
    follower = replica(state=ElectionState(EPOCH, 3))
    response, _ = ask(follower, request_)
    assert response.header.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (response.header.leader_id, response.header.leader_endpoint) == (3, ENDPOINTS[3])


# --- what is answered -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "last_epoch", "diverging"),
    [(9, EPOCH, (EPOCH, 6)), (6, 3, (1, 5)), (6, 1, (1, 5))],
)
def test_a_log_that_diverges_is_told_where_and_acknowledges_nothing(
    offset, last_epoch, diverging
) -> None:
    leader = ElectedLeader()
    (reply,) = leader.receive(fetch(offset=offset, last_epoch=last_epoch), 5).replies
    assert reply.response == m.FetchResponse(leader.replica.state.header(), None, 0, diverging)
    progress = leader.role.voters[2]
    assert (progress.end_offset, progress.last_fetch_ms, progress.acknowledged) == (None, 5, True)
    assert leader.replica.high_watermark is None


def test_a_log_that_ends_before_the_leaders_start_is_sent_the_checkpoint() -> None:
    leader = with_checkpoint()
    (reply,) = leader.receive(fetch(offset=0, last_epoch=0), 5).replies
    header = leader.replica.state.header()
    assert reply.response == m.FetchResponse(header, None, 2, None, CHECKPOINT)
    assert leader.role.voters[2].end_offset is None


def test_a_static_voter_whose_new_disk_diverges_has_nothing_of_its_old_one() -> None:
    leader = ElectedLeader()
    leader.fetch(2, 6, 1)
    replaced = ReplicaKey(2, UUID(int=99))
    leader.receive(fetch(replaced, offset=6, last_epoch=3), 2)
    assert (leader.role.voters[2].key, leader.role.voters[2].end_offset) == (replaced, None)


@pytest.mark.parametrize(
    ("offset", "last_epoch", "read"),
    [(5, 1, ReadRecords(5, 1000)), (6, EPOCH, None)],
    ids=["behind", "at the end"],
)
def test_only_a_fetch_behind_the_end_reads_records(offset, last_epoch, read) -> None:
    leader = committed()
    (reply,) = leader.receive(fetch(offset=offset, last_epoch=last_epoch, wait_ms=0), 5).replies
    assert reply.read == read


@pytest.mark.parametrize(
    ("request_", "due_ms"),
    [
        (fetch(offset=5, last_epoch=1, known=6), None),
        (fetch(known=None), None),
        (fetch(known=5), 12),
        (fetch(known=6), 510),
        (fetch(known=7), 510),
        (fetch(known=6, wait_ms=9000), 510),
        (fetch(known=6, wait_ms=9), 19),
        (fetch(known=6, wait_ms=0), None),
    ],
    ids=["records", "first mark", "a step", "no news", "ahead", "long", "short", "no wait"],
)
def test_a_fetch_is_answered_at_once_or_waits_for_news(request_, due_ms) -> None:
    leader = committed()
    replies = leader.receive(request_, 10, token=70).replies
    assert (not replies) == (due_ms is not None)
    if due_ms is not None:
        assert leader.role.parked[70].deadline_ms == due_ms
        assert not leader.tick(due_ms - 1).replies
        assert [reply.token for reply in leader.tick(due_ms).replies] == [70]


def test_before_the_first_commit_a_fetch_at_the_end_waits() -> None:
    leader = ElectedLeader()
    assert not leader.receive(fetch(OBSERVERS[0], known=3), 10).replies
    assert leader.role.parked[7].deadline_ms == 510


@pytest.mark.parametrize("key", [KEYS[2], OBSERVERS[0]], ids=["voter 2", "observer 0"])
def test_the_next_fetch_of_a_replica_ends_the_one_that_it_abandoned(key) -> None:
    leader = committed()
    assert not leader.receive(fetch(key, known=6), 10, token=70).replies
    effects = leader.receive(fetch(key, known=6), 11, token=71)
    assert [reply.token for reply in effects.replies] == [70]
    assert list(leader.role.parked) == [71]


def test_fetches_beyond_the_limit_are_answered_empty_at_once(monkeypatch) -> None:
    monkeypatch.setattr(leading, "MAX_PARKED_FETCHES", 2)
    leader = committed()
    for token, key in enumerate(OBSERVERS[:2]):
        assert not leader.receive(fetch(key, known=6), 10, token).replies
    (reply,) = leader.receive(fetch(OBSERVERS[2], known=6), 10, 9).replies
    assert (reply.token, reply.read) == (9, None)
    assert len(leader.role.parked) == 2


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (piece(snapshot=SnapshotId(3, 1)), ErrorCode.SNAPSHOT_NOT_FOUND),
        (piece(-1), ErrorCode.POSITION_OUT_OF_RANGE),
        (piece(100), ErrorCode.POSITION_OUT_OF_RANGE),
        (piece(0), ErrorCode.NONE),
        (piece(99), ErrorCode.NONE),
    ],
)
def test_pieces_of_a_checkpoint_are_within_the_file(request_, error) -> None:
    leader = with_checkpoint()
    (reply,) = leader.receive(request_, 5).replies
    assert reply.response.header.error == error
    read = ReadSnapshot(CHECKPOINT, request_.position, 1000) if error == ErrorCode.NONE else None
    assert reply.read == read
    assert leader.role.voters[2].last_fetch_ms == (5 if read else None)


# --- whose progress is tracked --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "tracked"),
    [
        (ReplicaKey(-1, None), False),
        (KEYS[1], False),
        (ReplicaKey(1, UUID(int=9)), False),
        (OBSERVERS[0], True),
    ],
    ids=["a reader", "itself", "another with its id", "observer 0"],
)
def test_only_replicas_are_tracked_as_observers(key, tracked) -> None:
    leader = committed()
    before = leader.role.voters[1].last_fetch_ms
    leader.receive(fetch(key), 5)
    assert list(leader.role.observers) == [key] * tracked
    assert leader.role.voters[1].last_fetch_ms == before


def test_of_too_many_observers_the_one_that_fetched_longest_ago_is_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(leading, "MAX_OBSERVERS", 2)
    leader = committed()
    first, second, third = OBSERVERS
    for now_ms, key in enumerate([first, second, first]):
        leader.receive(fetch(key), now_ms)
    assert list(leader.role.observers) == [second, first]
    kept = leader.role.observers[first]
    leader.receive(fetch(third), 9)
    assert list(leader.role.observers) == [first, third]
    leader.receive(fetch(first), 10)
    assert leader.role.observers[first] is kept, "its progress goes on"


def test_a_replica_that_has_the_end_of_its_previous_fetch_was_caught_up_then() -> None:
    leader = ElectedLeader()
    found = []
    for now_ms, offset, more in [(1, 6, 4), (5, 6, 0), (9, 8, 0), (12, 10, 2), (15, 11, 0)]:
        leader.receive(fetch(offset=offset), now_ms)
        found.append(leader.role.voters[2].last_caught_up_ms)
        if more:
            leader.append(more, now_ms)
    assert found == [1, 1, 1, 12, 12]


def test_a_replica_that_just_falls_short_was_caught_up_at_its_previous_fetch() -> None:
    leader = ElectedLeader()
    leader.append(4, 1)
    leader.receive(fetch(offset=6), 5)
    assert leader.role.voters[2].last_caught_up_ms is None
    leader.append(4, 6)
    leader.receive(fetch(offset=10), 9)
    assert leader.role.voters[2].last_caught_up_ms == 5


# --- BeginQuorumEpoch -----------------------------------------------------------------------------


def test_a_voter_that_fetches_is_not_told_of_its_leader_again() -> None:
    leader = ElectedLeader()
    answer = m.BeginQuorumEpochResponse(m.Header(ErrorCode.NONE, 1, EPOCH))
    for send in leader.announced.sends:
        leader.replica.step(ResponseReceived(send.correlation_id, answer), 5)
    interval_ms = leader.config.begin_quorum_epoch_interval_ms
    leader.fetch(2, 6, interval_ms - 1)
    assert {send.node_id for send in leader.tick(interval_ms).sends} == {3}
    assert isinstance(leader.replica.role, Leader)
