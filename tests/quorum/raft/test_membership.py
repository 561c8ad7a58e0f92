"""Membership requests of a replica to its leader, and refused changes of the voters."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import (
    ElectionState,
    LogAppended,
    RequestReceived,
    Resign,
    ResponseReceived,
    Shutdown,
    Tick,
)
from quorum.raft.replica import Replica
from quorum.raft.roles import Candidate, Resigned, Unattached
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from tests.quorum.raft.test_elections import EPOCH, header
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, ask, replica
from tests.quorum.raft.test_voter_change_rules import ScriptedLeader, VotersLog
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint

MOVED = Endpoint("h", 99)
NEW_DISK = ReplicaKey(1, UUID(int=77))


class Asking:
    """A follower of 3 and the requests it sends beside its fetches."""

    def __init__(self, *voters: int, version: int = 1, **config: Any) -> None:
        log = VotersLog(*voters)
        log.kraft_version = version
        values = {"key": KEYS[1], "endpoint": ENDPOINTS[1], **config}
        settings = ReplicaConfig("c", voters=VoterSet(()), **values)
        self.replica = Replica(settings, log, ElectionState(EPOCH, 3), random.Random(1))
        self.asked: list[Any] = []
        self.sends = self._kept(self.replica.start(0))

    def _kept(self, effects: Any) -> list[Any]:
        fetches = [s for s in effects.sends if isinstance(s.request, m.FetchRequest)]
        self.asked += [s for s in effects.sends if s not in fetches]
        return fetches

    def fetched(self, now_ms: int) -> None:
        response = m.FetchResponse(header(EPOCH, 3), 2)
        event = ResponseReceived(self.sends[0].correlation_id, response)
        self.sends = self._kept(self.replica.step(event, now_ms))

    @property
    def kinds(self) -> list[type]:
        return [type(send.request) for send in self.asked]


@pytest.mark.parametrize(
    ("voters", "config", "kind"),
    [
        ((1, 2, 3), {}, None),
        ((1, 2, 3), {"endpoint": MOVED}, m.UpdateVoterRequest),
        ((1, 2, 3), {"endpoint": MOVED, "version": 0}, None),
        ((2, 3), {}, None),
        ((2, 3), {"auto_join": True}, m.AddVoterRequest),
        ((2, 3), {"auto_join": True, "endpoint": None}, None),
        ((2, 3), {"auto_join": True, "version": 0}, None),
        ((1, 2, 3), {"auto_join": True, "key": NEW_DISK}, m.RemoveVoterRequest),
        ((1, 2, 3), {"key": NEW_DISK}, None),
    ],
    ids=[
        "a voter",
        "it moved",
        "it moved, static",
        "an observer",
        "joins",
        "joins without address",
        "joins, static",
        "joins with a new disk",
        "a new disk",
    ],
)
def test_what_a_replica_asks_its_leader_once_it_has_fetched(voters, config, kind) -> None:
    found = Asking(*voters, **config)
    found.replica.step(Tick(), 5)
    assert found.kinds == [], "the leader is not known to be alive"
    found.fetched(10)
    assert found.kinds == ([] if kind is None else [kind])
    if kind is m.RemoveVoterRequest:
        assert found.asked[0].request.voter == KEYS[1]
    elif kind is not None:
        assert found.asked[0].request.voter == found.replica.key


def test_the_request_is_repeated_after_its_period_and_not_by_who_shuts_down() -> None:
    found = Asking(2, 3, auto_join=True)
    found.fetched(10)
    refused = m.VoterChangeResponse(header(EPOCH, 3), "later")
    found.replica.step(ResponseReceived(found.asked[0].correlation_id, refused), 11)
    due_ms = 10 + found.replica.state.config.update_voter_period_ms
    found.replica.state.requests.reset()
    found._kept(found.replica.step(Tick(), due_ms - 1))
    assert len(found.asked) == 1
    assert found.replica.next_deadline_ms() == due_ms
    found._kept(found.replica.step(Tick(), due_ms))
    assert len(found.asked) == 2

    found = Asking(2, 3, auto_join=True)
    found.replica.step(Shutdown(), 5)
    found.fetched(10)
    assert found.asked == []


def test_the_progress_of_a_replaced_disk_does_not_count_for_the_new_one() -> None:
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    before = leader.replica.role.voters[2]
    assert before.end_offset == leader.log.end_offset
    replaced = ReplicaKey(2, UUID(int=99))
    voters = [Voter(k, ENDPOINTS[k.replica_id]) for k in (KEYS[1], replaced, KEYS[3])]
    leader.log.sets.append((leader.log.end_offset, VoterSet(voters)))
    leader.log.end_offset += 1
    leader.step(LogAppended())
    role = leader.replica.role
    assert (role.voters[2].key, role.voters[2].end_offset) == (replaced, None)
    assert role.observers == {before.key: before}


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (m.AddVoterRequest("c", ReplicaKey(4, None), MOVED, 500), ErrorCode.INVALID_REQUEST),
        (m.AddVoterRequest("c", ReplicaKey(-1, KEYS[1].directory_id), MOVED, 500),
         ErrorCode.INVALID_REQUEST),
        (m.AddVoterRequest("c", ReplicaKey(2, UUID(int=9)), MOVED, 500),
         ErrorCode.DUPLICATE_VOTER),
        (m.RemoveVoterRequest("c", ReplicaKey(4, UUID(int=4))), ErrorCode.VOTER_NOT_FOUND),
        (m.RemoveVoterRequest("c", ReplicaKey(2, UUID(int=9))), ErrorCode.VOTER_NOT_FOUND),
        (m.UpdateVoterRequest("c", 4, KEYS[2], MOVED), ErrorCode.FENCED_LEADER_EPOCH),
        (m.UpdateVoterRequest("c", 9, KEYS[2], MOVED), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (m.UpdateVoterRequest("c", 5, KEYS[2], ENDPOINTS[2]), ErrorCode.NONE),
    ],
)  # fmt: skip
def test_changes_of_no_voter_or_of_another_epoch_are_refused(request_, error) -> None:
    leader = ScriptedLeader(1, 2, 3)
    assert leader.replica.epoch == 5
    leader.commit(2, 3)
    outcome = leader.change(request_)
    assert outcome is not None
    assert outcome[0] == error
    assert len(leader.log.sets) == 1


def test_the_only_voter_stays_and_static_voters_are_not_changed() -> None:
    leader = ScriptedLeader(1)
    outcome = leader.change(m.RemoveVoterRequest("c", KEYS[1]))
    assert outcome is not None
    assert outcome[0] == ErrorCode.INVALID_REQUEST
    leader.log.kraft_version = 0
    outcome = leader.change(m.RemoveVoterRequest("c", KEYS[1]))
    assert outcome is not None
    assert outcome[0] == ErrorCode.UNSUPPORTED_VERSION


def add(node: int, **more: Any) -> m.AddVoterRequest:
    return m.AddVoterRequest("c", TESTED[node], Endpoint("h", node), 60_000, **more)


TESTED = {node: ReplicaKey(node, UUID(int=node + 50 * (node == 0))) for node in range(6)}


@pytest.mark.parametrize(
    "request_",
    [
        add(4),
        m.RemoveVoterRequest("c", KEYS[2]),
        m.UpdateVoterRequest("c", EPOCH, KEYS[2], MOVED),
        m.UpgradeVersionRequest("c", 1),
    ],
    ids=["add", "remove", "update", "upgrade"],
)
def test_a_follower_changes_no_voters(request_) -> None:
    response, effects = ask(replica(state=ElectionState(EPOCH, 3)), request_)
    assert response.header.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert response.header.leader_id == 3
    assert effects.append_voters is None


def test_a_change_that_waits_for_its_new_voter_is_not_replaced_by_another() -> None:
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    assert leader.change(add(4)) is None
    waiting = leader.replica.role.change
    outcome = leader.change(m.RemoveVoterRequest("c", KEYS[3]))
    assert outcome is not None
    assert outcome[0] == ErrorCode.REQUEST_TIMED_OUT
    assert "another change" in outcome[1]
    assert leader.replica.role.change is waiting
    assert leader.voters == (1, 2, 3)


def test_a_change_waits_while_the_log_changes() -> None:
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    leader.replica.state.awaiting_log = True
    assert leader.change(m.RemoveVoterRequest("c", KEYS[3])) is None
    assert leader.voters == (1, 2, 3)
    leader.step(LogAppended())
    assert leader.voters == (1, 2)


@pytest.mark.parametrize(
    ("probed", "why"), [(False, "does not answer at its endpoint"), (True, "does not fetch")]
)
def test_a_new_voter_that_is_not_added_in_time_is_refused_with_the_reason(probed, why) -> None:
    leader = ScriptedLeader(1, 2)
    leader.commit(2)
    leader.change(m.AddVoterRequest("c", TESTED[3], Endpoint("h", 3), 100))
    if probed:
        leader.answer_probe(3)
    leader.pass_ms(100)
    outcome = leader.outcome()
    assert outcome is not None
    assert outcome[0] == ErrorCode.REQUEST_TIMED_OUT
    assert why in outcome[1]


@pytest.mark.parametrize("ack_when_committed", [True, False])
def test_an_addition_is_answered_when_it_is_committed_or_if_so_asked_appended(
    ack_when_committed,
) -> None:
    leader = ScriptedLeader(1, 2)
    leader.commit(2)
    leader.fetch(3)
    leader.change(add(3, ack_when_committed=ack_when_committed))
    leader.answer_probe(3)
    assert leader.voters == (1, 2, 3)
    appended = None if ack_when_committed else (ErrorCode.NONE, "")
    assert leader.outcome() == appended
    leader.commit(2, 3)
    assert leader.outcome() == (ErrorCode.NONE, "")


def test_node_0_can_be_a_voter() -> None:
    leader = ScriptedLeader(1, 2)
    leader.commit(2)
    assert leader.change(add(0)) is None


def test_the_leader_of_static_voters_does_not_record_its_new_endpoint() -> None:
    leader = ScriptedLeader(1, 2, 3, endpoint=MOVED)
    leader.log.kraft_version = 0
    leader.commit(2, 3)
    assert leader.replica.role.change is None
    assert len(leader.log.sets) == 1


def test_a_request_that_is_under_way_is_not_sent_again() -> None:
    found = Asking(2, 3, auto_join=True, request_timeout_ms=60_000)
    found.fetched(10)
    assert len(found.asked) == 1
    due_ms = 10 + found.replica.state.config.update_voter_period_ms
    found._kept(found.replica.step(Tick(), due_ms))
    assert len(found.asked) == 1


@pytest.mark.parametrize("token", [0, 7])
def test_the_change_of_a_leader_that_resigns_is_answered_once(token) -> None:
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    request = m.AddVoterRequest("c", TESTED[4], Endpoint("h", 4), 3000)
    leader.step(RequestReceived(token, request))
    leader.now_ms += 3000
    replies = leader.replica.step(Tick(), leader.now_ms).replies
    assert [r.response.header.error for r in replies] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert replies[0].token == token
    assert isinstance(leader.replica.role, Resigned)


def test_the_leaders_own_change_has_nobody_to_answer() -> None:
    leader = ScriptedLeader(1, 2, 3, endpoint=MOVED)
    leader.fetch(2, 3)
    assert leader.replica.role.change is not None
    assert leader.replica.step(Resign(leader.replica.epoch), leader.now_ms).replies == []


def test_a_candidate_that_stays_a_voter_goes_on_when_the_voters_change() -> None:
    leader = ScriptedLeader(1, 2, 3)
    config, log = leader.replica.state.config, VotersLog(1, 2, 3)
    found = Replica(config, log, ElectionState(EPOCH, None, KEYS[1]), random.Random(1))
    found.start(0)
    for voters, role in (((1, 2), Candidate), ((2, 3), Unattached)):
        assert isinstance(found.role, Candidate)
        log.sets = [(1, VoterSet(Voter(KEYS[n], ENDPOINTS[n]) for n in voters))]
        found.step(LogAppended(), 1)
        assert isinstance(found.role, role)
