"""Log directories of brokers: assignments and failures; unregistered brokers."""

from __future__ import annotations

from uuid import UUID

import pytest

from quorum.image.image import ELR_VERSION
from quorum.image.types import LOST_DIRECTORY
from tests.quorum.controller.scenario import Scenario
from tidemark.errors import BrokerIdNotRegisteredError, ErrorCode, StaleBrokerEpochError
from tidemark.v1 import admin_pb2, controller_pb2

A, B, OTHER = (UUID(int=n, version=4) for n in (1, 2, 3))


@pytest.fixture
def s() -> Scenario:
    """Broker 1 keeps `a` in directory A and `b` in B."""
    scenario = Scenario()
    scenario.register(1, log_dirs=(A, B))
    scenario.heartbeat(1)
    scenario.start_brokers(2, 3)
    for name, directory in (("a", A), ("b", B)):
        scenario.create(name, (1, 2))
        assert assign(scenario, directory, name) == 0
    return scenario


def assign(s: Scenario, directory: UUID, name: str, broker_id: int = 1, index: int = 0) -> int:
    topic = s.image.topics.get(name)
    request = controller_pb2.AssignReplicasToDirsRequest(
        broker_id=broker_id, broker_epoch=s.epochs[broker_id]
    )
    asked = request.directories.add(id=directory.bytes)
    topic_id = topic.topic_id.bytes if topic is not None else b"x" * 16
    asked.partitions.add(topic_id=topic_id, partition_index=index)
    return s.ask(request).partitions[0].error_code


def fail(s: Scenario, *directories: UUID) -> controller_pb2.BrokerHeartbeatResponse:
    request = controller_pb2.BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=s.epochs[1],
        current_metadata_offset=s.offset - 1,
        offline_log_dirs=[d.bytes for d in directories],
    )
    return s.ask(request)


def test_a_replica_is_where_its_broker_says(s: Scenario) -> None:
    p = s.partition("a")
    assert (p.directory_of(1), p.directory_of(2), p.partition_epoch) == (A, None, 1)
    assert assign(s, A, "a") == 0
    assert s.written == []
    assert assign(s, B, "a") == 0
    assert s.partition("a").directory_of(1) == B


def test_what_can_not_be_assigned_is_refused(s: Scenario) -> None:
    assert assign(s, OTHER, "a") == ErrorCode.LOG_DIR_NOT_FOUND
    assert assign(s, A, "none") == ErrorCode.UNKNOWN_TOPIC_ID
    assert assign(s, A, "a", index=5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    s.create("c", (2, 3))
    assert assign(s, A, "c") == ErrorCode.NOT_LEADER_OR_FOLLOWER
    s.epochs[1] += 1
    with pytest.raises(StaleBrokerEpochError):
        assign(s, A, "a")


def test_partitions_of_a_failed_directory_go_on_elsewhere(s: Scenario) -> None:
    assert not fail(s, A).is_fenced
    assert (s.partition("a").leader, s.partition("a").isr) == (2, (2,))
    assert (s.partition("b").leader, s.partition("b").isr) == (1, (1, 2))
    assert s.image.brokers[1].log_dirs == (B,)
    fail(s, A)
    assert s.written == [], "that is known already"


def test_a_replica_on_a_failed_directory_does_not_lead(s: Scenario) -> None:
    fail(s, A)
    s.keep_alive(18_000, 1, 3)
    assert s.partition("a").leader is None
    assert s.partition("b").leader == 1


def test_a_broker_without_any_directory_is_fenced(s: Scenario) -> None:
    assert fail(s, A, B).is_fenced
    assert s.partition("b").leader == 2


def test_a_lost_replica_leaves_the_isr_and_comes_back_with_its_directory(s: Scenario) -> None:
    assert assign(s, LOST_DIRECTORY, "a") == 0
    p = s.partition("a")
    assert (p.leader, p.isr, p.directory_of(1)) == (2, (2,), LOST_DIRECTORY)
    assert s.image.brokers[1].log_dirs == (A, B)
    assert assign(s, LOST_DIRECTORY, "a") == 0
    assert s.written == []
    s.keep_alive(18_000, 1, 3)  # broker 2 stops
    assert s.partition("a").leader is None
    s.create("c", (1,))
    assert assign(s, LOST_DIRECTORY, "c") == 0
    assert (s.partition("c").leader, s.partition("c").isr) == (None, (1,))
    assert assign(s, A, "c") == 0
    assert s.partition("c").leader == 1, "its log is there after all"


def test_fetches_of_a_lost_replica_from_before_count_no_more(s: Scenario) -> None:
    """Its broker copies it anew. A fetch sent before, which arrives late, names an older epoch."""
    before = s.partition("a")
    assert assign(s, LOST_DIRECTORY, "a", broker_id=2) == 0
    after = s.partition("a")
    assert (after.leader, after.isr) == (1, (1,))
    assert after.leader_epoch == before.leader_epoch + 1


def test_a_fenced_broker_loses_its_directory_before_it_comes_back(s: Scenario) -> None:
    """If it were unfenced in the same heartbeat, it would lead partitions it lost."""
    s.create("c", (1,))
    assert assign(s, A, "c") == 0
    s.keep_alive(18_000, 2, 3)
    assert s.image.brokers[1].fenced
    assert fail(s, A).is_fenced
    assert s.image.brokers[1].log_dirs == (B,)
    assert not fail(s, A).is_fenced
    assert (s.partition("c").leader, s.partition("c").isr) == (None, (1,))


def test_the_same_process_registers_again_without_the_directory_that_failed(s: Scenario) -> None:
    s.register(1, log_dirs=(B,))
    assert (s.partition("a").leader, s.partition("a").isr) == (2, (2,))
    assert (s.partition("b").leader, s.partition("b").isr) == (1, (1, 2))


def test_the_directories_follow_the_replicas_of_a_move(s: Scenario) -> None:
    request = admin_pb2.AlterPartitionReassignmentsRequest()
    request.partitions.add(topic="a").replicas.broker_ids.extend([3, 1])
    s.ask(request)
    p = s.partition("a")
    assert (p.replicas, p.directory_of(1), p.directory_of(3)) == ((3, 1, 2), A, None)
    s.alter("a", (1, 2, 3))
    assert (s.partition("a").replicas, s.partition("a").directory_of(1)) == ((3, 1), A)


def test_a_lost_replica_whose_removal_completes_a_move_takes_its_directory_along() -> None:
    s = Scenario()
    assert s.set_feature(ELR_VERSION, 1) == 0
    s.register(1, log_dirs=(A, OTHER))
    s.register(2, log_dirs=(B, UUID(int=104, version=4)))
    for broker_id in (1, 2):
        s.heartbeat(broker_id)
    s.create("c", (1, 2), min_insync_replicas="2")
    assert assign(s, B, "c", broker_id=2) == 0
    s.alter("c", (1,))
    request = admin_pb2.AlterPartitionReassignmentsRequest()
    request.partitions.add(topic="c").replicas.broker_ids.append(2)
    s.ask(request)
    s.keep_alive(18_000, 2)  # broker 1 stops; 2 was eligible and leads
    assert (s.partition("c").removing, s.partition("c").isr) == ((1,), (2,))
    assert assign(s, LOST_DIRECTORY, "c", broker_id=1) == 0
    assert (s.partition("c").replicas, s.partition("c").directories) == ((2,), (B,))
    s.keep_alive(18_000)
    assert s.partition("c").leader is None, "the partition can still change"


def test_a_forgotten_broker_leads_nothing_and_is_in_no_isr(s: Scenario) -> None:
    request = admin_pb2.UnregisterBrokerRequest(broker_id=1)
    s.ask(request)
    assert 1 not in s.image.brokers
    for name in "ab":
        p = s.partition(name)
        assert (p.leader, p.isr, p.replicas) == (2, (2,), (1, 2))
    with pytest.raises(BrokerIdNotRegisteredError):
        s.generate(request)
    s.register(1, incarnation=2, log_dirs=(A, B))
    s.heartbeat(1)
    s.alter("a", (1, 2))
    assert s.partition("a").isr == (1, 2)


def test_a_partition_named_twice_or_an_id_of_another_length_is_refused(s: Scenario) -> None:
    topic = s.image.topics.get("a")
    assert topic is not None
    request = controller_pb2.AssignReplicasToDirsRequest(broker_id=1, broker_epoch=s.epochs[1])
    for directory in (B.bytes, A.bytes):
        request.directories.add(id=directory).partitions.add(topic_id=topic.topic_id.bytes)
    answers = s.ask(request).partitions
    assert [a.error_code for a in answers] == [0, ErrorCode.INVALID_REQUEST]
    assert s.partition("a").directory_of(1) == B
    request = controller_pb2.AssignReplicasToDirsRequest(broker_id=1, broker_epoch=s.epochs[1])
    request.directories.add(id=b"short").partitions.add(topic_id=topic.topic_id.bytes)
    assert s.ask(request).partitions[0].error_code == ErrorCode.INVALID_REQUEST


def test_a_follower_of_a_leaderless_partition_is_where_its_broker_says() -> None:
    s = Scenario()
    s.start_brokers(1)
    s.register(2, log_dirs=(A, B))
    s.heartbeat(2)
    s.create("c", (1, 2))
    s.alter("c", (1,))
    s.keep_alive(18_000, 2)
    assert s.partition("c").leader is None
    for directory in (A, LOST_DIRECTORY):
        assert assign(s, directory, "c", broker_id=2) == 0
        p = s.partition("c")
        assert (p.leader, p.isr, p.directory_of(2)) == (None, (1,), directory)


def test_a_replica_that_is_found_again_leads_though_eligible_ones_are_kept_by_now(
    s: Scenario,
) -> None:
    s.create("c", (1,))
    assert assign(s, LOST_DIRECTORY, "c") == 0
    assert s.set_feature(ELR_VERSION, 1) == 0
    p = s.partition("c")
    assert (p.leader, p.isr) == (None, (1,))
    assert assign(s, A, "c") == 0
    p = s.partition("c")
    assert (p.leader, p.isr, p.leader_recovery_state) == (1, (1,), 0)
