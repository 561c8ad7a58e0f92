"""Elections requested by an administrator."""

from __future__ import annotations

import pytest

from tests.quorum.controller.scenario import Scenario
from tidemark.errors import ErrorCode, InvalidRequestError, PolicyViolationError
from tidemark.v1 import admin_pb2

Request = admin_pb2.ElectLeadersRequest


def elect(s: Scenario, kind: int, *topics: str, everything: bool = False) -> dict[str, int]:
    """Error codes by topic, for partition 0 of each."""
    request = Request(election_type=kind, all_partitions=everything)  # type: ignore[arg-type]
    for name in topics:
        request.partitions.add(topic=name)
    return {r.topic: r.error_code for r in s.ask(request).results}


@pytest.fixture
def s() -> Scenario:
    """Broker 1 was away: it is back in the ISR of `back`, not of `behind`; 3 leads `fine`."""
    scenario = Scenario()
    scenario.start_brokers(1, 2, 3)
    scenario.create("back", (1, 2))
    scenario.create("behind", (1, 2))
    scenario.create("fine", (3, 2))
    scenario.keep_alive(18_000, 2, 3)
    scenario.heartbeat(1)
    scenario.alter("back", (1, 2))
    return scenario


def test_preferred_leaders_come_back_where_they_are_in_sync(s: Scenario) -> None:
    assert elect(s, Request.PREFERRED, "back", "behind", "fine", "none") == {
        "back": 0,
        "behind": ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        "fine": ErrorCode.ELECTION_NOT_NEEDED,
        "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert (s.partition("back").leader, s.partition("back").leader_epoch) == (1, 2)
    assert s.partition("behind").leader == 2


def test_of_all_partitions_only_those_that_need_it_are_told(s: Scenario) -> None:
    assert elect(s, Request.PREFERRED, everything=True) == {
        "back": 0,
        "behind": ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }


def test_an_unclean_election_is_for_partitions_nobody_leads(s: Scenario) -> None:
    s.create("gone", (2, 1))
    s.alter("gone", (2,))
    s.keep_alive(18_000, 1, 3)
    assert s.partition("gone").leader is None
    assert elect(s, Request.UNCLEAN, "gone", "fine") == {
        "gone": 0,
        "fine": ErrorCode.ELECTION_NOT_NEEDED,
    }
    p = s.partition("gone")
    assert (p.leader, p.isr, p.leader_recovery_state) == (1, (1,), 1)


def test_nobody_can_lead_where_nobody_is_in_service(s: Scenario) -> None:
    s.create("gone", (2, 1))
    s.keep_alive(18_000, 3)
    s.keep_alive(18_000, 3)
    answer = elect(s, Request.UNCLEAN, "gone")
    assert answer == {"gone": ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


def test_there_are_no_other_elections(s: Scenario) -> None:
    with pytest.raises(InvalidRequestError):
        elect(s, 7, "fine")


def test_one_request_elects_or_moves_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorum.controller.result.RECORDS_PER_BATCH_MAX", 3)
    s = Scenario()
    s.start_brokers(1, 2)
    s.create("t", *[(1, 2)] * 4)
    everything = Request(election_type=Request.PREFERRED)
    moves = admin_pb2.AlterPartitionReassignmentsRequest()
    for index in range(4):
        everything.partitions.add(topic="t", partition_index=index)
        moves.partitions.add(topic="t", partition_index=index).replicas.broker_ids.append(2)
    for request in (everything, moves):
        with pytest.raises(PolicyViolationError, match="divide it"):
            s.ask(request)
        del request.partitions[3:]
        s.ask(request)


def test_a_partition_named_twice_is_elected_and_answered_once(s: Scenario) -> None:
    request = Request(election_type=Request.PREFERRED)
    for _ in range(2):
        request.partitions.add(topic="back")
    assert [r.error_code for r in s.ask(request).results] == [0]
    assert len(s.written) == 1


def test_each_answer_says_why(s: Scenario) -> None:
    for kind, what in ((Request.PREFERRED, "its preferred leader"), (Request.UNCLEAN, "a leader")):
        request = Request(election_type=kind)
        request.partitions.add(topic="fine")
        (answer,) = s.ask(request).results
        assert answer.error_message == f"fine-0 has {what}"
    request = Request(election_type=Request.PREFERRED)
    request.partitions.add(topic="back")
    assert s.ask(request).results[0].error_message == ""


def test_a_change_that_elects_nobody_is_not_written(s: Scenario) -> None:
    """The ISR of a leaderless partition may hold a reassignment that could be completed."""
    s.create("gone", (2, 1, 3))
    s.alter("gone", (2,))
    request = admin_pb2.AlterPartitionReassignmentsRequest()
    request.partitions.add(topic="gone").replicas.broker_ids.extend([2, 1])
    s.ask(request)
    s.keep_alive(18_000, 3)
    s.keep_alive(18_000)
    before = s.partition("gone")
    assert before.leader is None
    assert elect(s, Request.UNCLEAN, "gone") == {"gone": ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    assert s.partition("gone") == before
