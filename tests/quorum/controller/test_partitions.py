"""AlterPartition in the order of its checks, and preferred elections."""

from __future__ import annotations

import pytest

from tests.quorum.controller.scenario import Scenario, controller_config
from tidemark.errors import ErrorCode, StaleBrokerEpochError
from tidemark.v1 import controller_pb2


@pytest.fixture
def s() -> Scenario:
    scenario = Scenario()
    scenario.start_brokers(1, 2, 3, 4)
    scenario.create("t", (1, 2, 3))
    return scenario


def test_the_leader_shrinks_and_expands_its_isr(s: Scenario) -> None:
    shrunk = s.alter("t", (1, 2))
    assert (shrunk.error_code, list(shrunk.isr), shrunk.partition_epoch) == (0, [1, 2], 1)
    assert (s.partition("t").isr, s.partition("t").leader_epoch) == ((1, 2), 0)
    grown = s.alter("t", (1, 2, 3))
    assert (list(grown.isr), grown.partition_epoch, grown.leader_id) == ([1, 2, 3], 2, 1)


def test_an_unchanged_isr_is_answered_without_a_record(s: Scenario) -> None:
    answer = s.alter("t", (1, 2, 3))
    assert (answer.error_code, answer.partition_epoch, s.written) == (0, 0, [])


def test_an_unknown_topic_or_partition_is_told(s: Scenario) -> None:
    assert s.alter("t", (1,), topic_id=b"x" * 16).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert s.alter("t", (1,), topic_id=b"x").error_code == ErrorCode.UNKNOWN_TOPIC_ID
    missing = s.alter("t", (1,), partition_index=7)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("isr", "changes", "error"),
    [
        ((1,), {"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((1,), {"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((1,), {"leader_epoch": 0, "partition_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ((3,), {"broker_id": 3}, ErrorCode.INVALID_REQUEST),
        ((2,), {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ((), {}, ErrorCode.INVALID_REQUEST),
        ((2, 2), {}, ErrorCode.INVALID_REQUEST),
        ((2, 4), {}, ErrorCode.INVALID_REQUEST),
        ((3,), {}, ErrorCode.INVALID_REQUEST),
        ((2, 3), {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ((2,), {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ((2,), {"leader_recovery_state": 5}, ErrorCode.INVALID_REQUEST),
        ((2, 1), {}, ErrorCode.INELIGIBLE_REPLICA),
        ((2, 3), {"member_epochs": {3: 1_000}}, ErrorCode.INELIGIBLE_REPLICA),
    ],
    ids=str,
)
def test_what_a_leader_may_not_ask_is_refused_with_kafkas_error(
    s: Scenario, isr: tuple[int, ...], changes: dict[str, object], error: ErrorCode
) -> None:
    s.keep_alive(18_000, 2, 3, 4)
    assert (s.partition("t").leader, s.partition("t").leader_epoch) == (2, 1)
    before = s.partition("t")
    assert s.alter("t", isr, **changes).error_code == error  # type: ignore[arg-type]
    assert s.partition("t") == before


def test_the_epochs_count_before_the_isr(s: Scenario) -> None:
    assert s.alter("t", (4,), leader_epoch=9).error_code == ErrorCode.NOT_CONTROLLER


def test_a_restarted_broker_does_not_slip_back_into_the_isr(s: Scenario) -> None:
    old_epoch = s.epochs[3]
    s.keep_alive(18_000, 1, 2)
    assert s.partition("t").isr == (1, 2)
    s.register(3, incarnation=2)
    s.heartbeat(3)
    refused = s.alter("t", (1, 2, 3), member_epochs={3: old_epoch})
    assert refused.error_code == ErrorCode.INELIGIBLE_REPLICA
    assert s.alter("t", (1, 2, 3)).error_code == 0


def test_a_leader_of_an_old_registration_is_stale(s: Scenario) -> None:
    request = controller_pb2.AlterPartitionRequest(broker_id=1, broker_epoch=0)
    with pytest.raises(StaleBrokerEpochError):
        s.generate(request)


def test_a_partition_named_twice_is_refused(s: Scenario) -> None:
    topic = s.image.topics.get("t")
    assert topic is not None
    data = controller_pb2.AlterPartitionRequest.PartitionData(topic_id=topic.topic_id.bytes)
    data.new_isr.add(broker_id=1, broker_epoch=-1)
    request = controller_pb2.AlterPartitionRequest(
        broker_id=1, broker_epoch=s.epochs[1], partitions=[data, data]
    )
    answer = s.ask(request)
    assert [p.error_code for p in answer.partitions] == [0, ErrorCode.INVALID_REQUEST]
    assert s.partition("t").isr == (1,)


def test_an_unclean_leader_recovers_when_it_says_so() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    s.create("t", (1, 2), unclean_leader_election_enable="true")
    s.keep_alive(18_000, 1)
    s.keep_alive(18_000)
    s.heartbeat(2)
    assert s.partition("t").leader_recovery_state == 1
    s.alter("t", (2,), leader_recovery_state=0)
    assert s.partition("t").leader_recovery_state == 0


def test_leadership_returns_to_preferred_replicas_that_caught_up() -> None:
    s = Scenario(config=controller_config(leader_imbalance_check_interval_seconds="60"))
    s.start_brokers(1, 2, 3)
    s.create("t", (1, 2, 3))
    s.create("u", (1, 2, 3))
    s.keep_alive(18_000, 2, 3)
    assert s.partition("t").leader == 2
    s.keep_alive(1_000, 1, 2, 3)
    assert s.alter("t", (1, 2, 3)).error_code == 0
    s.keep_alive(60_000, 1, 2, 3)
    assert (s.partition("t").leader, s.partition("t").leader_epoch) == (1, 2)
    assert s.partition("u").leader == 2, "1 is not in the ISR of u"


def test_preferred_elections_are_off_where_the_setting_says_so() -> None:
    s = Scenario(config=controller_config(auto_leader_rebalance_enable="false"))
    s.start_brokers(1, 2)
    s.create("t", (1, 2))
    s.keep_alive(18_000, 2)
    s.keep_alive(1_000, 1, 2)
    s.alter("t", (1, 2))
    s.keep_alive(700_000, 1, 2)
    assert s.partition("t").leader == 2


def test_a_pass_of_preferred_elections_has_a_limit_and_goes_on_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorum.controller.sweeps.CHANGES_PER_STEP", 2)
    s = Scenario(config=controller_config(leader_imbalance_check_interval_seconds="60"))
    s.start_brokers(1, 2)
    for name in "abcde":
        s.create(name, (1, 2))
    s.keep_alive(18_000, 2)
    s.keep_alive(1_000, 1, 2)
    for name in "abcde":
        s.alter(name, (1, 2))
    passes = []
    for _ in range(1_000):
        due_ms = s.core.next_deadline_ms()
        assert due_ms is not None
        s.now_ms = max(s.now_ms, due_ms)
        s.apply(s.core.tick(s.now_ms))
        changes = [r for r in s.written if r.HasField("partition_change")]
        if changes:
            passes.append(len(changes))
        for broker_id in (1, 2):
            s.heartbeat(broker_id)
        if sum(passes) == 5:
            break
    assert passes == [2, 2, 1]


def test_a_leader_that_recovers_is_alone_in_its_isr() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    s.create("t", (1, 2), unclean_leader_election_enable="true")
    s.alter("t", (1,))
    s.keep_alive(18_000, 2)
    s.heartbeat(1)
    p = s.partition("t")
    assert (p.leader, p.isr, p.leader_recovery_state) == (2, (2,), 1)
    both = s.alter("t", (2, 1), leader_recovery_state=1)
    assert both.error_code == ErrorCode.INVALID_REQUEST
    assert s.partition("t") == p
    alone = s.alter("t", (2,), leader_recovery_state=1)
    assert (alone.error_code, alone.leader_recovery_state, s.written) == (0, 1, [])
    assert s.alter("t", (2, 1)).error_code == 0, "once it has recovered"


def test_a_broker_that_is_not_registered_joins_no_isr(s: Scenario) -> None:
    s.alter("t", (1, 2))
    s.unregister(3)
    assert s.alter("t", (1, 2, 3)).error_code == ErrorCode.INELIGIBLE_REPLICA
