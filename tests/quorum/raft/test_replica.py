"""The faces of a replica: appends, shutdown, resignation, and news of leaders."""

from __future__ import annotations

import pytest

from quorum.raft import messages as m
from quorum.raft.effects import (
    ElectionState,
    LeaderAndEpoch,
    RequestReceived,
    Resign,
    ResponseReceived,
    Shutdown,
    Tick,
)
from quorum.raft.roles import Leader, Resigned
from quorum.raft.voter_history import VoterHistory
from quorum.raft.voters import VoterSet
from tests.quorum.raft.leaders import EPOCH, ElectedLeader
from tests.quorum.raft.test_elections import begin, header
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, ask, replica, vote
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
