"""Eligible leader replicas: leaders while the ISR is small or empty (KIP-966)."""

from __future__ import annotations

from uuid import UUID

import pytest

from quorum.image.image import ELR_VERSION
from tests.quorum.controller.scenario import Scenario
from tidemark.v1 import admin_pb2, controller_pb2

SAFE = admin_pb2.UpdateFeaturesRequest.SAFE_DOWNGRADE


@pytest.fixture
def s() -> Scenario:
    scenario = Scenario()
    assert scenario.set_feature(ELR_VERSION, 1) == 0
    scenario.start_brokers(1, 2, 3)
    scenario.create("t", (1, 2, 3), min_insync_replicas="2")
    return scenario


def lists(s: Scenario) -> tuple[tuple[int, ...], tuple[int, ...], int | None]:
    p = s.partition("t")
    return p.isr, p.elr, p.leader


def test_who_leaves_an_isr_below_the_minimum_stays_eligible(s: Scenario) -> None:
    assert list(s.alter("t", (1, 2)).eligible_leader_replicas) == []
    answer = s.alter("t", (1,))
    assert (list(answer.isr), list(answer.eligible_leader_replicas)) == ([1], [2])
    assert lists(s) == ((1,), (2,), 1)


def test_an_isr_of_the_minimum_needs_no_others(s: Scenario) -> None:
    s.alter("t", (1,))
    assert lists(s) == ((1,), (2, 3), 1)
    s.alter("t", (1, 3))
    assert lists(s) == ((1, 3), (), 1)


def test_an_eligible_replica_leads_when_the_isr_is_gone(s: Scenario) -> None:
    s.alter("t", (1,))
    s.keep_alive(18_000, 2, 3)
    p = s.partition("t")
    assert (p.isr, p.leader, p.leader_recovery_state) == ((2,), 2, 0)
    assert set(p.elr) == {1, 3}
    assert p.last_known_elr == ()


def test_the_isr_empties_and_the_last_one_leads_again_when_it_is_back(s: Scenario) -> None:
    epoch = s.epochs[1]
    s.alter("t", (1, 2))
    s.alter("t", (1,))
    s.keep_alive(18_000, 1, 3)
    s.keep_alive(18_000, 3)
    p = s.partition("t")
    assert (p.isr, set(p.elr), p.leader, p.last_known_elr) == ((), {1, 2}, None, (1,))
    s.register(1, incarnation=2, previous_epoch=epoch)
    s.heartbeat(1)
    p = s.partition("t")
    assert (p.isr, p.elr, p.leader, p.leader_recovery_state) == ((1,), (2,), 1, 0)


def test_a_replica_whose_directory_failed_is_not_eligible() -> None:
    directory, other = UUID(int=5, version=4), UUID(int=6, version=4)
    s = Scenario()
    assert s.set_feature(ELR_VERSION, 1) == 0
    s.start_brokers(1, 3)
    s.register(2, log_dirs=(directory, other))
    s.heartbeat(2)
    s.create("t", (1, 2, 3), min_insync_replicas="3")
    topic = s.image.topics.get("t")
    assert topic is not None
    told = controller_pb2.AssignReplicasToDirsRequest(broker_id=2, broker_epoch=s.epochs[2])
    told.directories.add(id=directory.bytes).partitions.add(topic_id=topic.topic_id.bytes)
    assert s.ask(told).partitions[0].error_code == 0
    s.ask(
        controller_pb2.BrokerHeartbeatRequest(
            broker_id=2,
            broker_epoch=s.epochs[2],
            current_metadata_offset=s.offset - 1,
            offline_log_dirs=[directory.bytes],
        )
    )
    assert lists(s) == ((1, 3), (), 1), "its records are gone"


def test_after_an_unclean_shutdown_a_broker_is_not_eligible(s: Scenario) -> None:
    s.alter("t", (1, 2))
    s.alter("t", (1,))
    s.keep_alive(18_000, 1, 3)
    s.register(2, incarnation=2, previous_epoch=-1)
    assert lists(s) == ((1,), (), 1)
    s.keep_alive(18_000, 3)
    assert lists(s) == ((), (1,), None)
    s.heartbeat(2)
    assert s.partition("t").leader is None, "2 may have lost what 1 has"


def test_the_last_known_leader_leads_when_nobody_is_eligible(s: Scenario) -> None:
    s.alter("t", (1,))
    s.alter("t", (1, 2))
    s.alter("t", (1,))
    s.keep_alive(18_000, 1)
    s.register(2, incarnation=2)
    s.keep_alive(18_000)
    s.register(1, incarnation=2)
    assert (lists(s), s.partition("t").last_known_elr) == (((), (), None), (1,))
    s.heartbeat(3)
    s.heartbeat(2)
    assert s.partition("t").leader is None
    s.heartbeat(1)
    p = s.partition("t")
    assert (p.leader, p.isr, p.leader_recovery_state, p.last_known_elr) == (1, (1,), 1, ())


def test_without_the_feature_the_lists_go_with_the_next_change(s: Scenario) -> None:
    s.alter("t", (1,))
    assert s.set_feature(ELR_VERSION, 0, SAFE) == 0
    s.alter("t", (1, 2))
    s.alter("t", (1,))
    assert lists(s) == ((1,), (), 1)


def test_the_minimum_for_all_brokers_counts_where_the_topic_has_none(s: Scenario) -> None:
    s.create("u", (1, 2, 3))
    s.alter("u", (1,))
    assert s.partition("u").elr == ()
    request = admin_pb2.IncrementalAlterConfigsRequest()
    asked = request.resources.add()
    asked.resource.resource_type = 4
    asked.ops.add(name="min.insync.replicas", value="2")
    assert s.ask(request).responses[0].error_code == 0
    s.alter("u", (1, 2))
    s.alter("u", (1,))
    assert s.partition("u").elr == (2,)
