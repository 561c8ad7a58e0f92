"""The faces of a replica: appends, shutdown, resignation, and news of leaders."""

from __future__ import annotations

import random

import pytest

from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import (
    ElectionState,
    LeaderAndEpoch,
    OwnLogDamaged,
    RequestFailed,
    RequestReceived,
    Resign,
    ResponseReceived,
    Shutdown,
    Tick,
)
from quorum.raft.replica import Replica
from quorum.raft.roles import Leader, Resigned
from quorum.raft.voter_history import VoterHistory
from quorum.raft.voters import VoterSet
from tests.quorum.raft.leaders import EPOCH, ElectedLeader
from tests.quorum.raft.test_elections import begin, header
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, FakeLog, ask, replica, vote
from tidemark.errors import ErrorCode


def test_only_the_leader_of_the_epoch_may_append_and_not_while_the_log_changes() -> None:
    leader = ElectedLeader()
    assert [leader.replica.can_append(e) for e in (EPOCH - 1, EPOCH, EPOCH + 1)] == [0, 1, 0]
    leader.replica.state.awaiting_log = True
    assert not leader.replica.can_append(EPOCH)
    assert not replica(state=ElectionState(EPOCH, 3)).can_append(EPOCH)


def test_a_shutdown_is_complete_when_each_voter_has_acknowledged_the_resignation() -> None:
    follower = replica(state=ElectionState(EPOCH, 3))
    assert not follower.shutdown_complete
    follower.step(Shutdown(), 1)
    assert follower.shutdown_complete
    leader = ElectedLeader().replica
    effects = leader.step(Shutdown(), 1)
    for send in effects.sends:
        assert not leader.shutdown_complete
        leader.step(ResponseReceived(send.correlation_id, m.EndQuorumEpochResponse(header())), 2)
    assert leader.shutdown_complete
    (reply,) = leader.step(RequestReceived(9, vote(2, EPOCH + 1)), 3).replies
    assert reply.response.header.error == ErrorCode.BROKER_NOT_AVAILABLE


@pytest.mark.parametrize(("epoch", "role"), [(EPOCH - 1, Leader), (EPOCH, Resigned)])
def test_only_the_present_leadership_is_resigned(epoch, role) -> None:
    leader = ElectedLeader().replica
    leader.step(Resign(epoch), 1)
    assert isinstance(leader.role, role)
    follower = replica(state=ElectionState(EPOCH, 3))
    follower.step(Resign(EPOCH), 1)
    assert follower.role.leader_id == 3  # type: ignore[union-attr]


def test_a_new_leader_is_told_once() -> None:
    found = replica(state=ElectionState(EPOCH))
    _, effects = ask(found, begin(2, EPOCH))
    assert effects.leader == LeaderAndEpoch(2, EPOCH)
    assert found.step(Tick(), 2).leader is None


def test_a_removed_voter_is_one_since_the_set_in_force_at_an_offset() -> None:
    history = VoterHistory()
    assert history.at(9) == (0, None)
    assert not history.was_voter_since(KEYS[1], 0)
    for offset, nodes in ((0, (1, 2, 3)), (5, (2, 3))):
        history.add_voters(offset, VoterSet.static({n: ENDPOINTS[n] for n in nodes}))
    assert [history.was_voter_since(KEYS[1], end) for end in (0, 4, 5, 6, 9)] == [1, 1, 1, 0, 0]
    assert history.was_voter_since(KEYS[2], 9)
    for offset in (4, 5):
        with pytest.raises(ValueError, match="not behind"):
            history.add_voters(offset, VoterSet(()))
    history.truncate_to(0)
    assert history.voters is None


@pytest.mark.parametrize(
    ("cluster", "error"),
    [("c", ErrorCode.NONE), ("", ErrorCode.NONE), ("other", ErrorCode.INCONSISTENT_CLUSTER_ID)],
)
def test_a_request_names_this_cluster_or_none(cluster, error) -> None:
    response, _ = ask(replica(), vote(2, 1, cluster=cluster))
    assert response.header.error == error


@pytest.mark.parametrize(
    "response",
    [
        m.VoteResponse(header(EPOCH), vote_granted=True),
        m.FetchSnapshotResponse(header(EPOCH, 3)),
        m.FetchResponse(m.Header(ErrorCode.UNSUPPORTED_VERSION, 3, EPOCH, ENDPOINTS[3])),
    ],
    ids=["a vote", "a piece", "unsupported"],
)
def test_an_answer_of_another_kind_or_version_only_pauses_its_sender(response) -> None:
    found = Replica(
        ReplicaConfig("c", KEYS[1], VoterSet.static(ENDPOINTS), ENDPOINTS[1]),
        FakeLog([(1, 0), (4, 20)], 30),
        ElectionState(EPOCH, 3),
        random.Random(1),
    )
    (send,) = found.start(0).sends
    found.step(ResponseReceived(send.correlation_id, response), 1)
    assert found.role.leader_id == 3  # type: ignore[union-attr]
    if isinstance(response, m.FetchResponse):
        assert found.state.metrics.pre_votes_unsupported == 0
    else:
        assert found.state.requests.is_backing_off(3, 1)
        assert not found.role.has_fetched  # type: ignore[union-attr]


def test_a_wrong_answer_of_another_server_is_no_fault_of_the_leader() -> None:
    found = replica(FakeLog([(1, 0)], 5), ElectionState(EPOCH, 3))
    (to_leader,) = found.state.requests._pending.values()
    sends = found.step(RequestFailed(to_leader.correlation_id), 1).sends
    (asked,) = sends
    assert asked.node_id != 3
    wrong = m.FetchResponse(m.Header(ErrorCode.NONE, 3, EPOCH, ENDPOINTS[3]), 3, -1)
    effects = found.step(ResponseReceived(asked.correlation_id, wrong), 2)
    assert effects.remote_fault
    assert found.role.faults == 0  # type: ignore[union-attr]
    assert found.state.requests.is_backing_off(asked.node_id, 2)


def test_the_later_of_two_damages_counts() -> None:
    found = replica(FakeLog([(1, 0)], 30), ElectionState(EPOCH, 3))
    for offset, known in ((20, 20), (10, 20), (25, 25)):
        found.step(OwnLogDamaged(offset), 1)
        assert found.state.damaged_offset == known


def test_a_fetch_that_is_not_supported_still_names_the_leader() -> None:
    found = replica(FakeLog([(1, 0)], 5), ElectionState(EPOCH, 3))
    (to_leader,) = found.state.requests._pending.values()
    known = m.Header(ErrorCode.UNSUPPORTED_VERSION, 2, EPOCH + 1, ENDPOINTS[2])
    found.step(ResponseReceived(to_leader.correlation_id, m.FetchResponse(known)), 1)
    assert (found.epoch, found.role.leader_id) == (EPOCH + 1, 2)  # type: ignore[union-attr]


def test_the_request_of_a_correlation_id_is_known_while_it_is_under_way() -> None:
    requests = replica(FakeLog([(1, 0)], 5), ElectionState(EPOCH, 3)).state.requests
    (pending,) = requests._pending.values()
    assert requests.pending_request(pending.correlation_id) is pending.request
    assert requests.pending_request(pending.correlation_id + 1) is None
