"""Partitions move while they serve: begin, complete, cancel, replace."""

from __future__ import annotations

import pytest

from quorum.image.image import ELR_VERSION
from quorum.services import admin_answers
from tests.quorum.controller.scenario import Scenario
from tidemark.errors import ErrorCode
from tidemark.v1 import admin_pb2

Request = admin_pb2.AlterPartitionReassignmentsRequest


@pytest.fixture
def s() -> Scenario:
    scenario = Scenario()
    scenario.start_brokers(1, 2, 3, 4, 5)
    scenario.create("t", (1, 2, 3))
    return scenario


def move(s: Scenario, *replicas: int, name: str = "t", index: int = 0) -> int:
    """Begins a move, or cancels it if there are no replicas; returns the error code."""
    request = Request()
    asked = request.partitions.add(topic=name, partition_index=index)
    if replicas:
        asked.replicas.broker_ids.extend(r for r in replicas if r)
        asked.replicas.SetInParent()
    return s.ask(request).responses[0].error_code


def listed(s: Scenario, *topics: str) -> list[tuple[str, list[int], list[int], list[int]]]:
    request = admin_pb2.ListPartitionReassignmentsRequest()
    for name in topics:
        request.topics.add(topic=name)
    answer = admin_answers.list_reassignments(s.image, request)
    return [
        (p.topic, list(p.replicas), list(p.adding_replicas), list(p.removing_replicas))
        for p in answer.partitions
    ]


def test_added_replicas_come_first_and_the_old_go_when_they_caught_up(s: Scenario) -> None:
    assert move(s, 4, 5, 1) == 0
    p = s.partition("t")
    assert (p.replicas, p.adding, p.removing) == ((4, 5, 1, 2, 3), (4, 5), (2, 3))
    assert (p.isr, p.leader, p.leader_epoch) == ((1, 2, 3), 1, 0)
    assert listed(s) == [("t", [4, 5, 1, 2, 3], [4, 5], [2, 3])]
    assert listed(s, "u", "t") == listed(s)
    assert s.alter("t", (1, 2, 3, 4)).error_code == 0
    assert s.partition("t").is_reassigning
    answer = s.alter("t", (1, 2, 3, 4, 5))
    assert (answer.error_code, list(answer.isr)) == (0, [1, 4, 5])
    p = s.partition("t")
    assert (p.replicas, p.isr, p.adding, p.removing) == ((4, 5, 1), (1, 4, 5), (), ())
    assert p.leader_epoch == 1, "those that are gone must not go on fetching"
    assert listed(s) == []


def test_the_leadership_moves_when_the_leader_is_removed(s: Scenario) -> None:
    move(s, 4, 5)
    answer = s.alter("t", (1, 2, 3, 4, 5))
    assert answer.error_code == ErrorCode.NEW_LEADER_ELECTED
    p = s.partition("t")
    assert (p.replicas, p.isr, p.leader, p.leader_epoch) == ((4, 5), (4, 5), 4, 1)


def test_fewer_replicas_or_another_order_are_done_at_once(s: Scenario) -> None:
    move(s, 3, 1)
    p = s.partition("t")
    assert (p.replicas, p.isr, p.is_reassigning, p.leader) == ((3, 1), (1, 3), False, 1)
    move(s, 1, 3)
    assert (s.partition("t").replicas, s.partition("t").leader_epoch) == ((1, 3), 1)


def test_a_cancel_takes_the_added_replicas_out_again(s: Scenario) -> None:
    before = s.partition("t")
    move(s, 4, 5, 1)
    s.alter("t", (1, 2, 3, 4))
    assert move(s) == 0
    p = s.partition("t")
    assert (set(p.replicas), p.isr, p.is_reassigning) == (set(before.replicas), before.isr, False)
    assert p.leader_epoch == 1
    assert move(s) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_new_target_still_waits_for_what_was_being_added(s: Scenario) -> None:
    move(s, 4, 5, 1)
    assert move(s, 4, 1) == 0
    p = s.partition("t")
    assert p.adding == (4,), "4 has nothing yet"
    assert set(p.removing) == {2, 3, 5}
    s.alter("t", (1, 2, 3, 4))
    assert s.partition("t").replicas == (4, 1)


def test_going_back_is_refused_when_only_added_replicas_are_in_sync(s: Scenario) -> None:
    move(s, 4, 5)
    s.alter("t", (1, 4))
    s.keep_alive(18_000, 2, 3, 4, 5)
    assert s.partition("t").isr == (4,)
    assert move(s) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    s.create("bold", (1, 2), unclean_leader_election_enable="true")
    move(s, 4, 5, name="bold")
    s.alter("bold", (2, 4))
    s.keep_alive(18_000, 3, 4, 5)
    assert s.partition("bold").isr == (4,)
    s.heartbeat(2)
    assert move(s, name="bold") == 0
    p = s.partition("bold")
    assert (set(p.replicas), p.isr, p.leader, p.leader_recovery_state) == ({1, 2}, (2,), 2, 1)


@pytest.mark.parametrize(
    ("replicas", "error"),
    [
        ((0,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=str,
)
def test_what_can_be_no_replicas_is_refused(
    s: Scenario, replicas: tuple[int, ...], error: ErrorCode
) -> None:
    assert move(s, *replicas) == error
    assert s.written == []


def test_what_there_is_not_is_told(s: Scenario) -> None:
    assert move(s, 1, name="u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert move(s, 1, index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = Request()
    for _ in range(2):
        request.partitions.add(topic="t", partition_index=0)
    answers = s.ask(request).responses
    assert answers[1].error_code == ErrorCode.INVALID_REQUEST


def test_a_fenced_old_replica_does_not_hold_up_the_move(s: Scenario) -> None:
    move(s, 4, 5)
    s.alter("t", (1, 2, 3, 4))
    s.keep_alive(18_000, 2, 3, 4, 5)
    assert s.partition("t").leader == 4
    s.alter("t", (2, 3, 4, 5))
    assert s.partition("t").replicas == (4, 5)


def test_going_back_is_refused_when_only_an_added_replica_is_eligible() -> None:
    s = Scenario()
    assert s.set_feature(ELR_VERSION, 1) == 0
    s.start_brokers(1, 2, 3, 4)
    s.create("t", (1, 2))
    move(s, 3, 4)
    s.alter("t", (1, 3))
    s.keep_alive(18_000, 2, 3, 4)
    s.keep_alive(18_000, 2, 4)
    before = s.partition("t")
    assert (before.isr, before.elr, before.leader) == ((), (3,), None)
    assert move(s) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert s.partition("t") == before, "3 has the records, and may come back"
    s.heartbeat(3)
    assert s.partition("t").leader == 3
