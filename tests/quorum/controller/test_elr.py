"""Eligible leader replicas: leaders while the ISR is small or empty (KIP-966)."""

from __future__ import annotations

from uuid import UUID

import pytest

from quorum.controller.core import ControllerCore
from quorum.controller.result import ControllerResult
from quorum.image import EMPTY_IMAGE, ConfigResource
from quorum.image.image import ELR_VERSION, METADATA_VERSION
from quorum.image.records import config_record
from tests.quorum.controller.scenario import CLUSTER_ID, Scenario, controller_config
from tidemark.errors import ErrorCode
from tidemark.v1 import admin_pb2, controller_pb2

SAFE = admin_pb2.UpdateFeaturesRequest.SAFE_DOWNGRADE
TOPIC, BROKER = 2, 4
MIN_ISR = "min.insync.replicas"


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


def set_min_isr(s: Scenario, value: int | None, name: str = "t", kind: int = TOPIC) -> int:
    """Sets or deletes the setting; returns the error code, and `message` has the text."""
    request = admin_pb2.IncrementalAlterConfigsRequest()
    asked = request.resources.add()
    asked.resource.resource_type, asked.resource.resource_name = kind, name  # type: ignore[assignment]
    if value is None:
        asked.ops.add(name=MIN_ISR, type=admin_pb2.IncrementalAlterConfigsRequest.DELETE)
    else:
        asked.ops.add(name=MIN_ISR, value=str(value))
    answer = s.ask(request).responses[0]
    s.message = answer.error_message
    return answer.error_code


def change_controller(s: Scenario, **config: str) -> None:
    """Another controller takes over, with these settings in its server.properties."""
    image = s.image
    s.core = ControllerCore(controller_config(**config), CLUSTER_ID, s.core._rng)
    s.apply(s.core.activate(image, image.epoch + 1, s.now_ms))


def switch(s: Scenario, level: int) -> None:
    assert s.set_feature(ELR_VERSION, level, 0 if level else SAFE) == 0


def off_and_on(s: Scenario) -> None:
    switch(s, 0)
    switch(s, 1)


LOWERED = {
    "topic": lambda s: set_min_isr(s, 1),
    "topic, deleted": lambda s: set_min_isr(s, None),
    "switched off and on": off_and_on,
}


@pytest.mark.parametrize("lower", LOWERED.values(), ids=LOWERED)
def test_who_lacks_what_a_smaller_minimum_let_commit_is_not_elected(s: Scenario, lower) -> None:  # type: ignore[no-untyped-def]
    s.alter("t", (2, 1))
    s.keep_alive(18_000, 2, 3)
    assert lists(s) == ((2,), (1,), 2)
    s.heartbeat(1)
    lower(s)
    assert lists(s) == ((2,), (), 2), "2 commits alone from here on"
    s.keep_alive(18_000, 1, 3)
    assert lists(s) == ((), (2,), None), "1 and 3 lack what 2 committed"


def test_so_it_is_where_the_minimum_is_that_for_all_brokers(s: Scenario) -> None:
    assert set_min_isr(s, 2, "", BROKER) == 0
    s.create("u", (1, 2, 3))
    s.create("own", (1, 2, 3), min_insync_replicas="2")
    for name in ("u", "own"):
        s.alter(name, (1, 2))
        s.alter(name, (1,))
    assert set_min_isr(s, 1, "", BROKER) == 0
    assert s.partition("u").elr == ()
    assert s.partition("own").elr == (2,), "it has a minimum of its own"


def test_the_batch_that_changes_the_minimum_clears_the_eligible_ones(s: Scenario) -> None:
    s.create("u", (1, 2, 3), min_insync_replicas="2")
    for name in ("t", "u"):
        s.alter(name, (1,))
    before = s.partition("u")
    written = len(s.log)
    assert set_min_isr(s, 1) == 0
    kinds = [record.WhichOneof("record") for record in s.log[written:]]
    assert kinds == ["config", "partition_change"]
    assert s.partition("u") is before, "another topic's setting"
    request = admin_pb2.UpdateFeaturesRequest()
    request.updates.add(feature=ELR_VERSION, level=0, type=SAFE)
    result = s.generate(request)
    assert [len(group) for group in result.groups] == [2], "one atomic group"


def test_an_isr_that_is_still_too_small_keeps_its_eligible_replicas(s: Scenario) -> None:
    assert set_min_isr(s, 3) == 0
    s.alter("t", (1,))
    assert lists(s) == ((1,), (2, 3), 1)
    assert set_min_isr(s, 2) == 0
    assert lists(s) == ((1,), (2, 3), 1), "nothing can be committed without them, as before"
    assert set_min_isr(s, 3) == 0
    assert lists(s) == ((1,), (2, 3), 1)


def test_a_larger_minimum_makes_nobody_eligible_who_left_before(s: Scenario) -> None:
    assert set_min_isr(s, 1) == 0
    s.alter("t", (1,))
    assert set_min_isr(s, 2) == 0
    assert lists(s) == ((1,), (), 1)
    s.keep_alive(18_000, 2, 3)
    assert lists(s) == ((), (1,), None)


def test_an_offline_partition_keeps_its_eligible_replicas_whatever_the_minimum(
    s: Scenario,
) -> None:
    s.alter("t", (1, 2))
    s.alter("t", (1,))
    s.keep_alive(18_000, 1, 3)
    s.keep_alive(18_000, 3)
    assert lists(s) == ((), (2, 1), None)
    assert set_min_isr(s, 1) == 0
    assert lists(s) == ((), (2, 1), None), "nobody leads, so nobody commits"
    s.heartbeat(2)
    assert lists(s) == ((2,), (), 2), "an ISR of one is enough from here on"


@pytest.mark.parametrize("level", [0, 1], ids=["off", "off and on again"])
def test_the_feature_switched_around_an_offline_partition_leaves_those_who_can_lead(
    s: Scenario, level: int
) -> None:
    s.alter("t", (1, 2))
    s.alter("t", (1,))
    s.keep_alive(18_000, 1, 3)
    s.keep_alive(18_000, 3)
    switch(s, 0)
    if level:
        switch(s, 1)
    assert lists(s) == ((), (2, 1), None)
    s.heartbeat(2)
    p = s.partition("t")
    assert (p.isr, p.leader, p.leader_recovery_state) == ((2,), 2, 0)
    assert p.elr == ((1,) if level else ())


def test_without_the_feature_an_unclean_shutdown_still_ends_eligibility(s: Scenario) -> None:
    s.alter("t", (1, 2))
    s.alter("t", (1,))
    s.keep_alive(18_000, 1, 3)
    s.keep_alive(18_000, 3)
    switch(s, 0)
    s.register(2, incarnation=2)
    assert lists(s) == ((), (1,), None)
    s.register(1, incarnation=2)
    assert (lists(s), s.partition("t").last_known_elr) == (((), (), None), (1,))
    s.heartbeat(2)
    assert s.partition("t").leader is None
    s.heartbeat(1)
    p = s.partition("t")
    assert (p.leader, p.leader_recovery_state) == (1, 1)


def test_switched_on_while_nobody_leads_the_last_isr_is_the_last_known_leader(
    s: Scenario,
) -> None:
    switch(s, 0)
    s.alter("t", (1,))
    s.keep_alive(18_000, 2, 3)
    assert lists(s) == ((1,), (), None)
    switch(s, 1)
    s.register(1, incarnation=2)
    p = s.partition("t")
    assert (p.isr, p.elr, p.last_known_elr) == ((), (), (1,))
    s.heartbeat(1)
    p = s.partition("t")
    assert (p.leader, p.leader_recovery_state) == (1, 1)


def test_eligible_replicas_that_an_earlier_version_left_do_not_come_back_with_the_feature(
    s: Scenario,
) -> None:
    s.alter("t", (1,))
    stale = s.partition("t")
    switch(s, 0)
    left = s.log[-1]
    left.partition_change.eligible_leader_replicas.ids[:] = stale.elr
    s.apply(ControllerResult.atomic([left], None))
    assert s.partition("t").elr == (2, 3)
    switch(s, 1)
    assert lists(s) == ((1,), (), 1)


def test_more_changes_than_a_batch_holds_are_finished_by_a_sweep(
    s: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set_min_isr(s, 2, "", BROKER) == 0
    s.create("many", *[(1, 2, 3)] * 20)
    s.keep_alive(18_000, 1)
    topic = s.image.topics.get("many")
    assert topic is not None
    assert all(p.elr for p in topic.partitions.values())
    monkeypatch.setattr("quorum.controller.eligible.RECORDS_PER_BATCH_MAX", 8)
    assert set_min_isr(s, 1, "", BROKER) == 0
    assert len(s.written) == 8
    assert left_with_elr(s) == 13
    image = s.image
    s.advance(0)
    assert left_with_elr(s) == 0
    # A controller that takes over in between does the rest as well.
    s.core.deactivate()
    s.apply(s.core.activate(image, 2, s.now_ms))
    assert left_with_elr(s) == 13
    s.advance(0)
    assert left_with_elr(s) == 0


def left_with_elr(s: Scenario) -> int:
    topic = s.image.topics.get("many")
    assert topic is not None
    return sum(1 for p in topic.partitions.values() if p.elr)


def test_the_minimum_of_the_cluster_is_set_with_the_feature_and_stays() -> None:
    s = Scenario(config=controller_config(min_insync_replicas="2"))
    assert dict(s.image.broker_configs(None)) == {}
    s.start_brokers(1)
    s.apply(ControllerResult.atomic([config_record(BROKER, "1", MIN_ISR, "3")], None))
    switch(s, 1)
    assert dict(s.image.broker_configs(None)) == {MIN_ISR: "2"}
    assert dict(s.image.broker_configs(1)) == {}, "one value holds for all brokers"
    assert set_min_isr(s, None, "", BROKER) == ErrorCode.INVALID_CONFIG
    assert "cannot be removed while ELR is enabled" in s.message
    assert set_min_isr(s, 2, "1", BROKER) == ErrorCode.INVALID_CONFIG
    assert set_min_isr(s, 1, "", BROKER) == 0
    off_and_on(s)
    assert dict(s.image.broker_configs(None)) == {MIN_ISR: "1"}
    switch(s, 0)
    assert set_min_isr(s, None, "", BROKER) == 0
    assert ConfigResource.broker(None) not in s.image.configs


def test_a_controller_with_another_minimum_in_its_properties_changes_nothing(s: Scenario) -> None:
    assert dict(s.image.broker_configs(None)) == {MIN_ISR: "1"}
    assert set_min_isr(s, None) == 0
    s.alter("t", (1,))
    change_controller(s, min_insync_replicas="2")
    assert lists(s) == ((1,), (), 1)
    s.alter("t", (1, 2))
    s.alter("t", (1,))
    assert lists(s) == ((1,), (), 1), "the cluster's minimum is still 1"


def test_a_new_cluster_and_one_that_lacks_it_get_the_minimum_from_the_controller() -> None:
    config = controller_config(min_insync_replicas="2")
    levels = {METADATA_VERSION: 2, ELR_VERSION: 1}
    core = ControllerCore(config, CLUSTER_ID, Scenario().core._rng, first_levels=levels)
    first = core.activate(EMPTY_IMAGE, 1, 0).records
    assert [r.WhichOneof("record") for r in first] == ["feature_level", "feature_level", "config"]
    assert (first[2].config.name, first[2].config.value) == (MIN_ISR, "2")
    s = Scenario(config=config)
    switch(s, 1)
    s.apply(ControllerResult.atomic([config_record(BROKER, "", MIN_ISR, None)], None))
    change_controller(s, min_insync_replicas="3")
    assert dict(s.image.broker_configs(None)) == {MIN_ISR: "3"}
    image = s.image
    change_controller(s, min_insync_replicas="2")
    assert list(s.image.values()) == list(image.values()), "nothing is written the second time"


def test_a_replica_that_is_eligible_is_so_no_longer_when_its_directory_fails(s: Scenario) -> None:
    one, two = UUID(int=100), UUID(int=101)
    s.alter("t", (1,))
    epoch = s.epochs[2]
    s.keep_alive(18_000, 1, 3)
    s.register(2, incarnation=2, previous_epoch=epoch, log_dirs=(one, two))
    s.heartbeat(2)
    topic = s.image.topics.get("t")
    assert topic is not None
    request = controller_pb2.AssignReplicasToDirsRequest(broker_id=2, broker_epoch=s.epochs[2])
    directory = request.directories.add(id=one.bytes)
    directory.partitions.add(topic_id=topic.topic_id.bytes, partition_index=0)
    s.ask(request)
    assert set(s.partition("t").elr) == {2, 3}
    beat = controller_pb2.BrokerHeartbeatRequest(
        broker_id=2,
        broker_epoch=s.epochs[2],
        current_metadata_offset=s.offset - 1,
        offline_log_dirs=[one.bytes],
    )
    s.ask(beat)
    assert s.partition("t").elr == (3,)


def test_the_last_known_leader_waits_while_another_one_is_eligible(s: Scenario) -> None:
    s.alter("t", (1, 2))
    s.alter("t", (1,))
    s.keep_alive(18_000, 1, 3)
    s.keep_alive(18_000, 3)
    s.register(1, incarnation=2)
    assert (lists(s), s.partition("t").last_known_elr) == (((), (2,), None), (1,))
    s.heartbeat(1)
    assert s.partition("t").leader is None, "2 has all that was committed, 1 may have lost some"
    s.heartbeat(2)
    assert lists(s) == ((2,), (), 2)


def test_only_minimums_of_single_brokers_are_removed_when_the_feature_is_switched_on() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    s.create("1", (1, 2), min_insync_replicas="2")
    others = [
        config_record(BROKER, "1", "log.retention.ms", "5"),
        config_record(BROKER, "2", MIN_ISR, "3"),
    ]
    s.apply(ControllerResult.atomic(others, None))
    switch(s, 1)
    written = [(r.config.resource_type, r.config.resource_name) for r in s.written[1:]]
    assert written == [(BROKER, ""), (BROKER, "2")]
    assert dict(s.image.topic_configs("1")) == {MIN_ISR: "2"}


def test_without_the_feature_a_changed_minimum_changes_no_partition(s: Scenario) -> None:
    s.alter("t", (1,))
    stale = s.partition("t")
    switch(s, 0)
    left = s.log[-1]
    left.partition_change.eligible_leader_replicas.ids[:] = stale.elr
    s.apply(ControllerResult.atomic([left], None))
    assert set_min_isr(s, 1) == 0
    assert [r.WhichOneof("record") for r in s.written] == ["config"]
