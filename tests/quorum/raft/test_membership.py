"""Membership requests of a replica to its leader, and refused changes of the voters."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import ElectionState, LogAppended, ResponseReceived, Shutdown, Tick
from quorum.raft.replica import Replica
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from tests.quorum.raft.test_elections import EPOCH, header
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS
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
