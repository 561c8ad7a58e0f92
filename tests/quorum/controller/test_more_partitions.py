"""CreatePartitions: placement that stays even, and manual placement."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum.controller.result import RECORDS_PER_BATCH_MAX
from tests.quorum.controller.scenario import Scenario
from tidemark.errors import ErrorCode
from tidemark.v1 import admin_pb2


def grow(
    s: Scenario, name: str, count: int, *by_hand: tuple[int, ...], validate_only: bool = False
) -> admin_pb2.CreatePartitionsResponse.Topic:
    request = admin_pb2.CreatePartitionsRequest(validate_only=validate_only)
    topic = request.topics.add(name=name, count=count)
    for ids in by_hand:
        topic.assignments.add(broker_ids=ids)
    return s.ask(request).results[0]


@pytest.fixture
def s() -> Scenario:
    scenario = Scenario()
    scenario.start_brokers(1, 2, 3)
    scenario.create("t", (1, 2), (2, 3))
    return scenario


def test_a_topic_grows_and_keeps_what_it_has(s: Scenario) -> None:
    before = [s.partition("t", i) for i in (0, 1)]
    assert grow(s, "t", 6).error_code == 0
    assert [s.partition("t", i) for i in (0, 1)] == before
    for index in range(2, 6):
        p = s.partition("t", index)
        assert len(p.replicas) == len(p.isr) == 2
        assert (p.leader, p.leader_epoch) == (p.replicas[0], 0)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 1_000),
)
def test_all_partitions_together_are_even(
    per_rack: int, factor: int, first: int, added: int, seed: int
) -> None:
    s = Scenario(seed)
    brokers = range(3 * per_rack)
    s.start_brokers(*brokers, racks="abc" * per_rack)
    s.try_create("t", partitions=first, factor=factor)
    assert grow(s, "t", first + added).error_code == 0
    placed = [s.partition("t", i).replicas for i in range(first + added)]
    replicas = Counter(r for ids in placed for r in ids)
    spread = [replicas[b] for b in brokers]
    assert max(spread) - min(spread) <= 2
    assert all(len({b % 3 for b in ids}) == factor for ids in placed)


def test_a_lopsided_topic_is_made_up_for() -> None:
    s = Scenario()
    s.start_brokers(1, 2, 3, 4)
    s.create("t", *[(1, 2)] * 4)
    grow(s, "t", 8)
    placed = [s.partition("t", i).replicas for i in range(8)]
    assert set(Counter(r for ids in placed for r in ids).values()) == {4}


def test_new_partitions_are_placed_by_hand(s: Scenario) -> None:
    assert grow(s, "t", 4, (3, 1), (1, 3)).error_code == 0
    assert [s.partition("t", i).replicas for i in (2, 3)] == [(3, 1), (1, 3)]


@pytest.mark.parametrize(
    ("count", "by_hand", "error"),
    [
        (2, (), ErrorCode.INVALID_PARTITIONS),
        (1, (), ErrorCode.INVALID_PARTITIONS),
        (20_000, (), ErrorCode.POLICY_VIOLATION),
        (4, ((1, 2),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((1, 1),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((1, 9),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((1, 2, 3),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=str,
)
def test_what_can_not_be_is_refused(
    s: Scenario, count: int, by_hand: tuple[tuple[int, ...], ...], error: ErrorCode
) -> None:
    answer = grow(s, "t", count, *by_hand)
    assert answer.error_code == error and answer.error_message
    assert s.written == []


def test_unknown_topics_repeated_ones_and_trials_write_nothing(s: Scenario) -> None:
    assert grow(s, "u", 4).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert grow(s, "t", 4, validate_only=True).error_code == 0
    assert s.written == []
    request = admin_pb2.CreatePartitionsRequest()
    for _ in range(2):
        request.topics.add(name="t", count=4)
    answers = s.ask(request).results
    assert {a.error_code for a in answers} == {ErrorCode.INVALID_REQUEST}


def test_one_request_adds_only_so_many_partitions(s: Scenario) -> None:
    for name in "abc":
        s.create(name, (1,))
    request = admin_pb2.CreatePartitionsRequest()
    for name in "abc":
        request.topics.add(name=name, count=6_001)
    codes = [int(result.error_code) for result in s.ask(request).results]
    assert codes == [0, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION]
    assert s.image.partition_count() == 2 + 6_001 + 2


def test_a_topic_grows_by_as_many_partitions_as_an_atomic_change_holds(s: Scenario) -> None:
    answer = grow(s, "t", 2 + RECORDS_PER_BATCH_MAX + 1)
    assert answer.error_code == ErrorCode.POLICY_VIOLATION
    assert "grow the topic in steps" in answer.error_message
    assert grow(s, "t", 2 + RECORDS_PER_BATCH_MAX).error_code == 0


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_coordinators_keep_their_partitions(s: Scenario, name: str) -> None:
    """Their number decides which broker coordinates a group or a transactional id."""
    s.create(name, (1, 2), (2, 3))
    found = grow(s, name, 3)
    assert found.error_code == ErrorCode.INVALID_PARTITIONS
    assert "would be forgotten" in found.error_message
