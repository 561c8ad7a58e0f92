"""Messages beyond the bounds are refused by name, and change neither epoch, vote nor role."""

from __future__ import annotations

import dataclasses
from uuid import UUID

import pytest

from quorum.raft import messages as m
from quorum.raft.bounds import EPOCHS_AHEAD_MAX, LAST_EPOCH, is_plausible_epoch
from quorum.raft.effects import ElectionState, RequestReceived, ResponseReceived
from quorum.raft.roles import Follower, Resigned, Unattached
from quorum.raft.voters import ReplicaKey
from quorum.replica import codec
from snapshot.names import SnapshotId
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, FakeLog, ask, replica, vote
from tidemark.errors import ErrorCode, InvalidRequestError
from tidemark.types import Endpoint
from tidemark.v1 import common_pb2, raft_pb2

NOBODY = ReplicaKey(-1)


def begin(leader=2, epoch=5, voter=1):
    return m.BeginQuorumEpochRequest("c", KEYS[voter], leader, epoch, None)


def end(leader=2, epoch=5, candidates=()):
    return m.EndQuorumEpochRequest("c", leader, epoch, candidates, None)


def fetch(replica_id=2, epoch=5, offset=0, last_epoch=0, wait_ms=0, max_bytes=1):
    key = ReplicaKey(replica_id)
    return m.FetchRequest("c", key, epoch, offset, last_epoch, None, wait_ms, max_bytes)


def piece(snapshot_id, replica_id=2, epoch=5):
    return m.FetchSnapshotRequest("c", ReplicaKey(replica_id), epoch, snapshot_id, 0, 100)


MALFORMED = [
    dataclasses.replace(vote(epoch=6), candidate=NOBODY),
    dataclasses.replace(vote(epoch=6, pre_vote=True), candidate=NOBODY),
    vote(candidate=1, epoch=6),
    vote(epoch=-1),
    vote(epoch=LAST_EPOCH + 1),
    vote(epoch=LAST_EPOCH + 1, pre_vote=True),
    vote(epoch=6 + EPOCHS_AHEAD_MAX, pre_vote=True),
    begin(leader=-1),
    begin(leader=1, epoch=6),
    begin(epoch=-3),
    begin(epoch=LAST_EPOCH + 1),
    end(leader=-1),
    end(epoch=6 + EPOCHS_AHEAD_MAX),
    end(epoch=6, candidates=(KEYS[3], NOBODY)),
    fetch(replica_id=-2),
    fetch(epoch=-1),
    fetch(offset=-1),
    fetch(last_epoch=-1),
    fetch(last_epoch=6),
    fetch(wait_ms=-1),
    fetch(max_bytes=-1),
    piece(SnapshotId(-1, 0)),
    piece(SnapshotId(4, -1)),
    piece(SnapshotId(4, 1), replica_id=-2),
    piece(SnapshotId(4, 1), epoch=-1),
]


@pytest.mark.parametrize("request_", MALFORMED, ids=lambda r: type(r).__name__)
def test_a_malformed_request_is_refused_counted_told_and_changes_nothing(request_):
    voter = replica(state=ElectionState(5, None, KEYS[3]))
    role = voter.role
    response, effects = ask(voter, request_)
    assert response.header.error == ErrorCode.INVALID_REQUEST
    assert (effects.election_state, voter.role) == (None, role)
    assert type(request_).__name__ in effects.remote_fault
    assert voter.state.metrics.requests_refused == 1


def test_no_vote_is_recorded_for_a_candidate_that_no_node_can_be():
    # quorum-state has -1 for "no vote": it would be given a second time after a restart
    voter = replica(state=ElectionState(5))
    ask(voter, dataclasses.replace(vote(epoch=6), candidate=NOBODY))
    assert (voter.epoch, voter.role.voted) == (5, None)


@pytest.mark.parametrize("pre_vote", [True, False])
def test_one_message_does_not_carry_a_quorum_to_the_end_of_all_epochs(pre_vote):
    for own_epoch in (0, 5, LAST_EPOCH - 3):
        for far in (LAST_EPOCH + 1, LAST_EPOCH):
            voter = replica(state=ElectionState(own_epoch))
            response, _ = ask(voter, vote(epoch=far, pre_vote=pre_vote))
            refused = response.header.error == ErrorCode.INVALID_REQUEST
            assert refused == (voter.epoch == own_epoch)
            assert refused or own_epoch == LAST_EPOCH - 3, "so far only elections lead"


def test_an_epoch_that_elections_explain_is_accepted():
    assert is_plausible_epoch(5 + EPOCHS_AHEAD_MAX, 5)
    assert not is_plausible_epoch(6 + EPOCHS_AHEAD_MAX, 5)
    assert is_plausible_epoch(3, 5), "an older one is answered by name"
    assert is_plausible_epoch(LAST_EPOCH // 2, 0), "a new replica joins a quorum of any age"
    assert not is_plausible_epoch(LAST_EPOCH, 0)
    assert is_plausible_epoch(LAST_EPOCH, LAST_EPOCH - 1)
    assert not is_plausible_epoch(LAST_EPOCH + 1, LAST_EPOCH)
    assert not is_plausible_epoch(-1, 0)


def follower():
    """Returns a follower of 3 in epoch 5, and the fetch it has sent."""
    found = replica(FakeLog([(1, 0)], 4), ElectionState(5, 3))
    sent = found.state.requests._pending[3]
    assert isinstance(sent.request, m.FetchRequest)
    return found, sent


def header(leader_id=3, epoch=5, error=ErrorCode.NONE):
    return m.Header(error, leader_id, epoch, ENDPOINTS.get(leader_id))


@pytest.mark.parametrize(
    "answer",
    [
        m.FetchResponse(header(epoch=LAST_EPOCH + 1)),
        m.FetchResponse(header(None, 6 + EPOCHS_AHEAD_MAX, ErrorCode.FENCED_LEADER_EPOCH)),
        m.FetchResponse(header(epoch=-1)),
        m.FetchResponse(header(leader_id=2)),
        m.FetchResponse(header(leader_id=2, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)),
        m.FetchResponse(header(), log_start_offset=-1),
        m.FetchResponse(header(), diverging_epoch=(-1, 3)),
        m.FetchResponse(header(), diverging_epoch=(1, -1)),
        m.FetchResponse(header(), snapshot_id=SnapshotId(-1, 1)),
        m.FetchResponse(header(), snapshot_id=SnapshotId(9, -1)),
    ],
    ids=range(10),
)
def test_a_wrong_answer_is_counted_told_and_its_sender_left_alone_for_a_while(answer):
    found, send = follower()
    role = found.role
    effects = found.step(ResponseReceived(send.correlation_id, answer), 2)
    found.validate()
    assert found.role is role
    assert (effects.election_state, effects.truncate_to, role.download) == (None, None, None)
    assert effects.remote_fault
    assert found.remote_faults == 1
    assert not role.has_fetched
    assert not [s for s in effects.sends if s.node_id == 3], "not asked again at once"


@pytest.mark.parametrize("request_", [begin(leader=2), end(leader=2)], ids=["begin", "end"])
def test_another_leader_of_the_same_epoch_is_refused_and_ends_nothing(request_):
    found, _ = follower()
    response, effects = ask(found, request_)
    assert response.header.error == ErrorCode.INVALID_REQUEST
    assert response.header.leader_id == 3
    assert "but 3 does" in effects.remote_fault
    assert isinstance(found.role, Follower) and found.role.leader_id == 3
    resigned = replica(state=ElectionState(5, 1, KEYS[1]))
    assert isinstance(resigned.role, Resigned)
    assert ask(resigned, request_)[0].header.error == ErrorCode.INVALID_REQUEST
    assert isinstance(resigned.role, Resigned)


def test_a_leader_without_an_address_that_anybody_can_reach_is_not_followed():
    voter = replica(state=ElectionState(5))
    request = raft_pb2.BeginQuorumEpochRequest(
        cluster_id="c",
        voter_id=1,
        leader_id=9,
        leader_epoch=6,
        leader_endpoint=common_pb2.Endpoint(host="h", port=70_000),
    )
    voter.step(RequestReceived(1, codec.begin_request_from_proto(request)), 1)
    assert isinstance(voter.role, Unattached)
    assert voter.epoch == 6


def test_directory_ids_are_16_bytes_or_unknown():
    assert codec.key_from_proto(1, UUID(int=7).bytes) == ReplicaKey(1, UUID(int=7))
    assert codec.key_from_proto(1, b"") == codec.key_from_proto(1, bytes(16)) == ReplicaKey(1)
    with pytest.raises(InvalidRequestError):
        codec.key_from_proto(1, b"short")
    assert codec.endpoint_from_proto(common_pb2.Endpoint(host="h", port=9)) == Endpoint("h", 9)
