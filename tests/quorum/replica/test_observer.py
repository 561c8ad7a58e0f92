"""Search for a leader: other servers are asked while the known leader cannot answer, and retries
are never busy.
"""

from __future__ import annotations

import random
from dataclasses import replace
from uuid import UUID

from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import ElectionState, RequestFailed, ResponseReceived, Send
from quorum.raft.replica import Replica
from quorum.raft.roles import Follower
from quorum.raft.voters import ReplicaKey, VoterSet
from tests.quorum.raft.test_rules import ENDPOINTS, FakeLog
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint


def looking(**changes: object) -> tuple[Replica, list[Send]]:
    """Returns a broker that has just started, and its first requests."""
    config = ReplicaConfig(
        "c",
        ReplicaKey(11, UUID(int=11)),
        VoterSet.static(ENDPOINTS),
        bootstrap=(ENDPOINTS[1], ENDPOINTS[2]),
    )
    log = FakeLog()
    made = Replica(replace(config, **changes), log, ElectionState(), random.Random(1))
    return made, made.start(0).sends


def test_a_leader_that_can_not_answer_is_left_for_the_others() -> None:
    broker, [send] = looking()
    found = m.Header(ErrorCode.NOT_LEADER_OR_FOLLOWER, 1, 5, ENDPOINTS[1])
    [fetch] = broker.step(ResponseReceived(send.correlation_id, m.FetchResponse(found)), 10).sends
    assert isinstance(broker.role, Follower)
    assert fetch.endpoint == ENDPOINTS[1]
    stopping = m.FetchResponse(m.Header(ErrorCode.BROKER_NOT_AVAILABLE, None, -1))
    sends = broker.step(ResponseReceived(fetch.correlation_id, stopping), 20).sends
    assert [s.endpoint for s in sends] != [ENDPOINTS[1]], "it would be asked for ever, at once"
    moved = m.Header(ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, 6, ENDPOINTS[2])
    broker.step(ResponseReceived(sends[0].correlation_id, m.FetchResponse(moved)), 30)
    assert broker.leader_and_epoch.leader_id == 2


def test_no_deadline_has_passed_while_all_others_are_left_alone() -> None:
    """The bootstrap servers name every controller, including this one. It never asks itself, and
    must not get a deadline of "now" because of its own address."""
    own = Endpoint("h", 9)
    servers = (own, ENDPOINTS[1], ENDPOINTS[2])
    controller, sends = looking(endpoint=own, bootstrap=servers, voters=VoterSet(()))
    for now_ms in range(1, 10):
        while sends:
            [send] = sends
            assert send.endpoint != own
            sends = controller.step(RequestFailed(send.correlation_id), now_ms).sends
        deadline_ms = controller.next_deadline_ms()
        assert deadline_ms is not None
        assert deadline_ms > now_ms


def test_a_leader_that_answers_at_another_address_is_asked_there_from_then_on() -> None:
    """Otherwise records could come through the bootstrap servers, but never a checkpoint, which is
    fetched from the leader only (found by the simulator, seed 5028)."""
    old, new = ENDPOINTS[1], Endpoint("moved", 1)
    broker, [send] = looking(bootstrap=(ENDPOINTS[2], new))
    stale = m.Header(ErrorCode.NOT_LEADER_OR_FOLLOWER, 1, 5, old)
    [fetch] = broker.step(ResponseReceived(send.correlation_id, m.FetchResponse(stale)), 10).sends
    assert fetch.endpoint == old
    [again] = broker.step(RequestFailed(fetch.correlation_id), 20).sends
    assert again.endpoint != old
    own = m.FetchResponse(m.Header(ErrorCode.NONE, 1, 5, new), 0, 0)
    broker.step(ResponseReceived(again.correlation_id, own), 30)
    assert isinstance(broker.role, Follower)
    assert broker.role.leader_endpoint == new
