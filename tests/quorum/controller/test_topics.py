"""Creation and deletion of topics."""

from __future__ import annotations

import pytest

from quorum.controller.result import RECORDS_PER_BATCH_MAX
from tests.quorum.controller.scenario import Scenario, controller_config
from tidemark.errors import ErrorCode
from tidemark.v1 import admin_pb2


@pytest.fixture
def s() -> Scenario:
    scenario = Scenario()
    scenario.start_brokers(1, 2, 3, racks="abc")
    return scenario


def test_a_topic_is_placed_over_racks_with_everybody_in_sync(s: Scenario) -> None:
    answer = s.try_create("t", partitions=6, factor=3, min_insync_replicas="2")
    assert (answer.error_code, answer.num_partitions, answer.replication_factor) == (0, 6, 3)
    topic = s.image.topics.get("t")
    assert topic is not None and topic.topic_id.bytes == answer.topic_id
    leaders = [p.leader for p in topic.partitions.values()]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
    for partition in topic.partitions.values():
        assert sorted(partition.replicas) == [1, 2, 3]
        assert partition.isr == partition.replicas
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert dict(s.image.topic_configs("t")) == {"min.insync.replicas": "2"}


def test_unsaid_counts_are_the_clusters_defaults() -> None:
    s = Scenario(config=controller_config(num_partitions="4", default_replication_factor="2"))
    s.start_brokers(1, 2)
    answer = s.try_create("t")
    assert (answer.num_partitions, answer.replication_factor) == (4, 2)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a" * 250, "a b", "ä", "a/b", "__cluster_metadata", "a\n"], ids=repr
)
def test_a_bad_name_is_refused(s: Scenario, name: str) -> None:
    answer = s.try_create(name, partitions=1, factor=1)
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert answer.error_message


def test_names_that_differ_in_dot_and_underscore_collide(s: Scenario) -> None:
    s.create("a.b", (1,))
    answer = s.try_create("a_b", partitions=1, factor=1)
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "a.b" in answer.error_message
    assert s.try_create("a.b", (1,)).error_code == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"partitions": 0, "factor": 1}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": 1, "factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"partitions": 1, "factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"partitions": 10_000, "factor": 1}, ErrorCode.POLICY_VIOLATION),
        ({"partitions": 1, "factor": 1, "retention_mss": "1"}, ErrorCode.INVALID_CONFIG),
        ({"partitions": 1, "factor": 1, "retention_ms": "x"}, ErrorCode.INVALID_CONFIG),
    ],
    ids=str,
)
def test_what_can_not_be_created_says_why(
    s: Scenario, wanted: dict[str, object], error: ErrorCode
) -> None:
    answer = s.try_create("t", **wanted)  # type: ignore[arg-type]
    assert answer.error_code == error
    assert answer.error_message
    assert s.written == []


@pytest.mark.parametrize(
    ("assignment", "error"),
    [
        (((1, 1),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (((9,),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (((1, 2), (1,)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (((),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (((4,),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=str,
)
def test_a_bad_manual_assignment_is_refused(
    s: Scenario, assignment: tuple[tuple[int, ...], ...], error: ErrorCode
) -> None:
    s.register(4)
    assert s.try_create("t", *assignment).error_code == error


def test_a_manual_assignment_counts_partitions_from_0_and_says_no_counts(s: Scenario) -> None:
    topic = admin_pb2.CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=-1, replication_factor=-1
    )
    topic.assignments.add(partition_index=1, broker_ids=[1])
    request = admin_pb2.CreateTopicsRequest(topics=[topic])
    [answer] = s.ask(request).topics
    assert answer.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert s.try_create("t", (1,), partitions=1).error_code == ErrorCode.INVALID_REQUEST


def test_fenced_replicas_are_not_in_the_first_isr(s: Scenario) -> None:
    s.register(4)
    s.create("t", (4, 2, 1))
    assert (s.partition("t").isr, s.partition("t").leader) == ((2, 1), 2)


def test_without_a_broker_in_service_nothing_can_be_placed() -> None:
    s = Scenario()
    s.register(1)
    answer = s.try_create("t", partitions=1, factor=1)
    assert answer.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_validate_only_answers_alike_and_writes_nothing(s: Scenario) -> None:
    answer = s.try_create("t", partitions=3, factor=2, validate_only=True)
    assert (answer.error_code, answer.num_partitions) == (0, 3)
    assert s.written == []
    assert "t" not in s.image.topics


def test_topics_of_one_request_stand_each_for_itself(s: Scenario) -> None:
    request = admin_pb2.CreateTopicsRequest()
    for name in ("good", "twice", "twice", "bad name", "a.b", "a_b"):
        request.topics.add(name=name, num_partitions=1, replication_factor=1)
    answer = s.ask(request)
    assert [(t.name, t.error_code) for t in answer.topics] == [
        ("good", 0),
        ("twice", ErrorCode.INVALID_REQUEST),
        ("twice", ErrorCode.INVALID_REQUEST),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a.b", 0),
        ("a_b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert s.image.topics.names() == ["a.b", "good"]


def test_a_large_request_is_split_between_topics_never_within_one(s: Scenario) -> None:
    request = admin_pb2.CreateTopicsRequest()
    for name in ("a", "b", "c"):
        request.topics.add(name=name, num_partitions=3_333, replication_factor=1)
    result = s.generate(request)
    sizes = [len(batch) for batch in result.batches()]
    assert sizes == [6_668, 3_334]
    assert max(sizes) <= RECORDS_PER_BATCH_MAX
    s.apply(result)
    assert s.image.partition_count() == 9_999


def test_deletion_takes_partitions_and_settings_and_frees_the_name(s: Scenario) -> None:
    topic_id = s.create("t", (1, 2), retention_ms="1")
    request = admin_pb2.DeleteTopicsRequest(topic_names=["t", "none", "x", "x"])
    answer = s.ask(request)
    assert [t.error_code for t in answer.topics] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert answer.topics[0].topic_id == topic_id.bytes
    assert len(s.image.topics) == 0 and not s.image.configs
    assert s.create("t", (1, 2)) != topic_id


def test_one_request_makes_only_so_many_partitions_however_they_are_divided(s: Scenario) -> None:
    request = admin_pb2.CreateTopicsRequest()
    for name in "abcde":
        request.topics.add(name=name, num_partitions=4_000, replication_factor=1)
    by_hand = request.topics.add(name="f", num_partitions=-1, replication_factor=-1)
    for index in range(2_001):
        by_hand.assignments.add(partition_index=index, broker_ids=[1])
    request.topics.add(name="g", num_partitions=2_000, replication_factor=1)
    answers = {topic.name: int(topic.error_code) for topic in s.ask(request).topics}
    refused = [name for name, code in answers.items() if code == ErrorCode.POLICY_VIOLATION]
    assert refused == ["c", "d", "e", "f"]
    assert s.image.topics.names() == ["a", "b", "g"]
    assert s.image.partition_count() == 10_000


def test_a_name_may_have_249_characters(s: Scenario) -> None:
    assert s.try_create("a" * 249, (1,)).error_code == 0


@pytest.mark.parametrize("factor", [0, -2, 32_768])
def test_a_factor_beyond_its_range_is_refused_by_the_range(s: Scenario, factor: int) -> None:
    answer = s.try_create("t", partitions=1, factor=factor)
    assert answer.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert f"the replication factor {factor} is not within 1 and 32767" in answer.error_message


def test_a_factor_within_its_range_is_refused_by_the_number_of_brokers(s: Scenario) -> None:
    answer = s.try_create("t", partitions=1, factor=32_767)
    assert answer.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "not within" not in answer.error_message


def test_a_topic_may_fill_one_atomic_change(s: Scenario) -> None:
    most = RECORDS_PER_BATCH_MAX - 2
    assert s.try_create("t", partitions=most, factor=1, retention_ms="1").error_code == 0
    answer = s.try_create("u", partitions=most + 1, factor=1, retention_ms="1")
    assert answer.error_code == ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize(
    ("assignment", "why"),
    [
        (((),), "are none or not distinct"),
        (((1, 9),), "no broker 9 is registered"),
        (((4,),), "are fenced"),
    ],
    ids=str,
)
def test_a_refused_assignment_says_what_is_wrong(
    s: Scenario, assignment: tuple[tuple[int, ...], ...], why: str
) -> None:
    s.register(4)
    answer = s.try_create("t", *assignment)
    assert answer.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert why in answer.error_message


def test_a_partition_assigned_twice_or_beside_a_factor_is_refused(s: Scenario) -> None:
    topic = admin_pb2.CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=-1, replication_factor=-1
    )
    for _ in range(2):
        topic.assignments.add(partition_index=0, broker_ids=[1])
    [answer] = s.ask(admin_pb2.CreateTopicsRequest(topics=[topic])).topics
    assert answer.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert s.try_create("t", (1,), factor=1).error_code == ErrorCode.INVALID_REQUEST
