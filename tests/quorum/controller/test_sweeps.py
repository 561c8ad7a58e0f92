"""Changes of very many partitions proceed in steps, with other requests in between."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from quorum.controller.elections import ElectionRules, Task
from quorum.controller.result import ControllerResult
from quorum.controller.sweeps import RETRY_MS, Sweep
from tests.quorum.controller.scenario import Scenario, controller_config
from tidemark.errors import (
    DuplicateBrokerRegistrationError,
    ErrorCode,
    ThrottlingQuotaExceededError,
)
from tidemark.v1 import admin_pb2, controller_pb2
from tidemark.v1 import metadata_pb2 as pb

SESSION_MS = 9_000


@pytest.fixture(autouse=True)
def three_changes_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorum.controller.sweeps.CHANGES_PER_STEP", 3)


def cluster(topics: int = 5, partitions: int = 2) -> Scenario:
    """Brokers 1, 2, 3; topics a, b, ... whose partitions are all led by 1."""
    s = Scenario()
    s.start_brokers(1, 2, 3)
    for name in "abcdefghij"[:topics]:
        s.create(name, *[(1, 2, 3)] * partitions)
    return s


def tick(s: Scenario) -> list[pb.MetadataRecord]:
    """Runs one piece of timed work, when it is due."""
    due_ms = s.core.next_deadline_ms()
    assert due_ms is not None
    s.now_ms = max(s.now_ms, due_ms)
    s.apply(s.core.tick(s.now_ms))
    return s.written


def begin_fencing_of_1(s: Scenario) -> None:
    """Advances until the first step of the sweep is written."""
    s.keep_alive(SESSION_MS - 500, 2, 3)
    for _ in range(100):
        if any(record.HasField("partition_change") for record in tick(s)):
            return
        s.heartbeat(2)
        s.heartbeat(3)
    raise AssertionError("broker 1 is never fenced")


def led_by(s: Scenario, broker_id: int) -> int:
    return sum(p.leader == broker_id for t in s.image.topics for p in t.partitions.values())


def in_isr(s: Scenario, broker_id: int) -> int:
    return sum(broker_id in p.isr for t in s.image.topics for p in t.partitions.values())


def finish(s: Scenario) -> list[int]:
    """Ticks until nothing more is due at once; returns the number of records of each step."""
    sizes = []
    while (due_ms := s.core.next_deadline_ms()) is not None and due_ms <= s.now_ms:
        sizes.append(len(tick(s)))
    return sizes


def test_a_broker_is_fenced_step_by_step_and_marked_last() -> None:
    s = cluster()
    begin_fencing_of_1(s)
    assert (len(s.written), led_by(s, 1)) == (3, 7)
    assert not s.image.brokers[1].fenced
    assert not s.heartbeat(2).is_fenced, "others are heard in between"
    assert s.create("new", (2, 3)), "and served"
    assert finish(s) == [3, 3, 2]
    assert (led_by(s, 1), in_isr(s, 1), s.image.brokers[1].fenced) == (0, 0, True)
    assert s.written[-1].HasField("broker_registration_change")


def test_partitions_of_one_large_topic_are_divided_too() -> None:
    s = cluster(topics=1, partitions=8)
    begin_fencing_of_1(s)
    assert (len(s.written), led_by(s, 1)) == (3, 5)
    assert finish(s) == [3, 3]
    assert s.image.brokers[1].fenced


def test_a_topic_that_takes_the_broker_in_behind_the_sweep_is_visited_again() -> None:
    s = cluster()
    begin_fencing_of_1(s)
    assert s.partition("a").isr == (2, 3)
    # The broker is not fenced yet: replicas may still be placed on it.
    s.create("0-comes-before-all", (1, 2), (1, 3))
    finish(s)
    assert (led_by(s, 1), in_isr(s, 1), s.image.brokers[1].fenced) == (0, 0, True)


def test_a_broker_that_goes_is_not_taken_in_again_while_its_sweep_lasts() -> None:
    # It keeps fetching until it is allowed to stop. Leaders would add it to ISRs as fast as it is
    # removed, and a sweep of a large cluster would never end.
    s = cluster()
    s.heartbeat(3, want_shut_down=True)
    assert (s.partition("a").isr, s.image.brokers[3].is_active) == ((1, 2), True)
    assert s.alter("a", (1, 2, 3)).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert s.partition("e").isr == (1, 2, 3)
    assert s.alter("e", (1, 3)).error_code == 0, "where it still is, others may go"
    finish(s)
    assert (in_isr(s, 3), s.image.brokers[3].is_active) == (0, False)


def test_a_broker_that_is_back_in_the_middle_is_fenced_to_the_end_and_then_taken_in() -> None:
    s = cluster()
    begin_fencing_of_1(s)
    assert not s.heartbeat(1).is_fenced
    assert s.written == []
    finish(s)
    assert s.image.brokers[1].fenced
    assert not s.heartbeat(1).is_fenced
    assert not s.image.brokers[1].fenced


def test_a_step_that_could_not_be_appended_is_tried_again_a_little_later() -> None:
    s = cluster()
    begin_fencing_of_1(s)
    refused = s.core.tick(s.now_ms)
    due_ms = s.core.next_deadline_ms()
    assert due_ms is not None and s.now_ms < due_ms <= s.now_ms + RETRY_MS
    assert s.core.tick(s.now_ms).records == [], "not again at once"
    s.now_ms += RETRY_MS
    again: ControllerResult[None] = ControllerResult(None)
    while not again.records:
        again = s.core.tick(s.now_ms)
    assert again.records == refused.records
    s.apply(again)
    finish(s)
    assert (led_by(s, 1), s.image.brokers[1].fenced) == (0, True)


def test_the_next_controller_does_the_rest() -> None:
    s = cluster()
    begin_fencing_of_1(s)
    image = s.image
    s.core.deactivate()
    s.apply(s.core.activate(image, 2, s.now_ms))
    finish(s)
    assert led_by(s, 1) == 7, "the broker has a fresh session"
    begin_fencing_of_1(s)
    finish(s)
    assert (led_by(s, 1), s.image.brokers[1].fenced) == (0, True)


def test_a_broker_hears_that_it_may_go_when_its_last_leadership_has_moved() -> None:
    s = cluster()
    answers = [s.heartbeat(1, want_shut_down=True).should_shut_down]
    assert (led_by(s, 1), s.image.brokers[1].in_controlled_shutdown) == (7, False)
    answers.append(s.heartbeat(1, want_shut_down=True).should_shut_down)
    finish(s)
    assert (led_by(s, 1), s.image.brokers[1].in_controlled_shutdown) == (0, True)
    moved = s.offset - 1
    s.heartbeat(2, offset=moved)
    s.heartbeat(3, offset=moved - 1)
    answers.append(s.heartbeat(1, want_shut_down=True).should_shut_down)
    assert not any(answers), "broker 3 has not seen the last step yet"
    s.heartbeat(3, offset=moved)
    assert s.heartbeat(1, want_shut_down=True).should_shut_down


def test_a_broker_hears_of_its_new_state_with_the_last_step() -> None:
    s = cluster()
    assert not s.heartbeat(3, want_shut_down=True).should_shut_down, "it leads nothing, but follows"
    assert not s.heartbeat(2, want_fence=True).is_fenced
    finish(s)
    assert (in_isr(s, 3), s.heartbeat(3, want_shut_down=True).should_shut_down) == (0, True)
    assert (in_isr(s, 2), s.heartbeat(2, want_fence=True).is_fenced) == (0, True)


def test_a_new_process_of_a_broker_registers_when_the_old_one_is_taken_out() -> None:
    s = cluster()
    s.keep_alive(SESSION_MS - 500, 2, 3)
    s.now_ms += 1_000  # no fencing pass happened meanwhile
    with pytest.raises(DuplicateBrokerRegistrationError):
        s.register(1, incarnation=2)
    finish(s)
    assert (led_by(s, 1), in_isr(s, 1)) == (0, 0)
    s.register(1, incarnation=2)
    assert not s.heartbeat(1).is_fenced


def test_a_broker_that_comes_back_leads_what_had_nobody_unless_it_goes_again() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    for name in "abcd":
        s.create(name, (1,), (1,))
    begin = [s.partition(name).leader for name in "abcd"]
    assert begin == [1] * 4
    s.keep_alive(SESSION_MS + 2_000, 2)
    assert (led_by(s, 1), s.image.brokers[1].fenced) == (0, True)
    assert not s.heartbeat(1).is_fenced
    assert (len(s.written), led_by(s, 1)) == (4, 3), "the mark comes first"
    assert s.heartbeat(1, want_fence=True)
    finish(s)
    assert (led_by(s, 1), s.image.brokers[1].fenced) == (0, True)
    s.heartbeat(1)
    finish(s)
    assert led_by(s, 1) == 8


def test_the_next_controller_elects_what_a_returned_broker_did_not_lead_yet() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    for name in "abcd":
        s.create(name, (1,), (1,))
    s.keep_alive(SESSION_MS + 2_000, 2)
    s.heartbeat(1)
    assert (led_by(s, 1), s.image.brokers[1].fenced) == (3, False)
    image = s.image
    s.core.deactivate()
    s.apply(s.core.activate(image, 2, s.now_ms))
    finish(s)
    assert led_by(s, 1) == 8, "at once, not with the next timed pass"


def test_a_broker_is_forgotten_after_it_was_taken_out_step_by_step() -> None:
    s = cluster()
    asked = admin_pb2.UnregisterBrokerRequest(broker_id=1)
    with pytest.raises(ThrottlingQuotaExceededError, match="ask again"):
        s.ask(asked)
    assert len(tick(s)) == 3, "no event changes more"
    with pytest.raises(ThrottlingQuotaExceededError):
        s.ask(asked)
    assert max(finish(s)) <= 4
    assert (led_by(s, 1), in_isr(s, 1)) == (0, 0)
    s.ask(asked)
    assert 1 not in s.image.brokers
    assert sum(finish(s)) == 0


def test_a_broker_that_is_being_fenced_is_forgotten_afterwards() -> None:
    s = cluster()
    begin_fencing_of_1(s)
    asked = admin_pb2.UnregisterBrokerRequest(broker_id=1)
    with pytest.raises(ThrottlingQuotaExceededError):
        s.ask(asked)
    finish(s)
    s.ask(asked)
    assert (led_by(s, 1), in_isr(s, 1)) == (0, 0)
    assert 1 not in s.image.brokers


GOOD, BAD = UUID(int=1, version=4), UUID(int=2, version=4)


def cluster_of_two_directories(topics: str) -> Scenario:
    """Broker 1 has two directories, and all of its replicas are in the bad one."""
    s = Scenario()
    s.register(1, log_dirs=(GOOD, BAD))
    s.register(2)
    s.heartbeat(1)
    s.heartbeat(2)
    for name in topics:
        s.create(name, (1, 2))
    records = [
        pb.MetadataRecord(
            partition_change=pb.PartitionChangeRecord(
                topic_id=topic.topic_id.bytes, partition_id=0, directories=[BAD.bytes, bytes(16)]
            )
        )
        for topic in s.image.topics.ordered()
    ]
    s.apply(ControllerResult.each(records, None))
    return s


def test_a_broker_that_registers_without_some_directories_leaves_them_step_by_step() -> None:
    s = cluster_of_two_directories("abcdefgh")
    epoch = s.epochs[1]
    with pytest.raises(DuplicateBrokerRegistrationError, match="directories it has no more"):
        s.register(1, log_dirs=(GOOD,))
    assert max(finish(s)) <= 4
    assert (led_by(s, 1), s.image.brokers[1].log_dirs) == (0, (GOOD,))
    assert s.register(1, log_dirs=(GOOD,)) == epoch
    assert s.image.brokers[1].is_active


def test_directories_that_fail_are_left_step_by_step() -> None:
    s = cluster_of_two_directories("abcdef")
    s.heartbeat(1, offline_log_dirs=[BAD.bytes])  # type: ignore[arg-type]
    assert (led_by(s, 1), s.image.brokers[1].log_dirs) == (3, (GOOD, BAD))
    s.heartbeat(1, offline_log_dirs=[BAD.bytes])  # type: ignore[arg-type]
    assert s.written == [], "that is under way"
    finish(s)
    assert (led_by(s, 1), in_isr(s, 1), s.image.brokers[1].log_dirs) == (0, 0, (GOOD,))


def test_brokers_are_fenced_one_after_the_other() -> None:
    s = cluster()
    for name in "abcde":
        s.create(f"of-2-{name}", (2, 3))
    s.keep_alive(SESSION_MS + 4_000, 3)
    assert s.image.brokers[1].fenced and s.image.brokers[2].fenced
    marks = [
        (number, r.broker_registration_change.broker_id)
        for number, r in enumerate(s.log)
        if r.broker_registration_change.fenced
    ]
    (first, one), (second, two) = marks
    assert {one, two} == {1, 2}
    between = [r.partition_change for r in s.log[first + 1 : second]]
    assert all(two not in change.isr.ids for change in between if change.HasField("isr"))


def test_timed_passes_look_at_a_part_of_the_cluster_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorum.controller.sweeps.LOOKED_AT_PER_STEP", 4)
    s = Scenario(config=controller_config(leader_imbalance_check_interval_seconds="60"))
    s.start_brokers(1, 2, 3)
    for name in "abcde":
        s.create(name, *[(1, 2, 3)] * 2)
    s.keep_alive(SESSION_MS + 4_000, 2, 3)
    s.heartbeat(1)
    for name in "abcde":
        s.alter(name, (1, 2, 3))
    assert [s.partition(name).leader for name in "abcde"] == [2] * 5
    s.keep_alive(62_000, 1, 2, 3)
    assert [s.partition(name).leader for name in "abcde"] == [1] * 5


def test_a_broker_that_fences_itself_to_shut_down_is_told_after_the_last_step() -> None:
    s = cluster()
    wants = {"want_shut_down": True, "want_fence": True}
    for _ in range(2):
        assert not s.heartbeat(1, **wants).should_shut_down
        assert not s.image.brokers[1].fenced
    assert s.written == [], "the sweep goes on by itself"
    finish(s)
    assert s.image.brokers[1].fenced
    assert s.heartbeat(1, **wants).should_shut_down


@pytest.mark.parametrize("again", [False, True], ids=["unregistered", "another process"])
def test_directories_of_a_registration_that_ended_meanwhile_are_not_written(again: bool) -> None:
    directories = tuple(UUID(int=n, version=4) for n in (1, 2))
    s = Scenario()
    s.register(1, log_dirs=directories)
    s.heartbeat(1)
    s.start_brokers(2, 3)
    for name in "abcdefgh":
        s.create(name, (1, 2, 3))
        topic = s.image.topics.get(name)
        assert topic is not None
        told = controller_pb2.AssignReplicasToDirsRequest(broker_id=1, broker_epoch=s.epochs[1])
        told.directories.add(id=directories[0].bytes).partitions.add(topic_id=topic.topic_id.bytes)
        s.ask(told)
    s.ask(
        controller_pb2.BrokerHeartbeatRequest(
            broker_id=1,
            broker_epoch=s.epochs[1],
            current_metadata_offset=s.offset - 1,
            offline_log_dirs=[directories[0].bytes],
        )
    )
    assert in_isr(s, 1) == 5, "the sweep has begun"
    left = s.core._cluster.sweeps._sweeps["directories gone", 1]
    assert left.closing(s.image)
    found = s.image.brokers[1]
    brokers = s.image.brokers.delete(1)
    if again:
        brokers = brokers.set(1, replace(found, epoch=found.epoch + 1))
    assert left.closing(replace(s.image, brokers=brokers)) == []


def test_a_sweep_that_began_with_nobody_to_notify_ends_so() -> None:
    """A pass that looks for leaders writes records, and has no caller."""
    s = cluster(topics=2)
    s.keep_alive(2 * SESSION_MS, 3)
    s.keep_alive(2 * SESSION_MS)
    assert led_by(s, 3) == 0
    s.heartbeat(3)
    finish(s)
    assert led_by(s, 3) == 4


def test_a_topic_that_is_deleted_behind_a_sweep_is_passed_over() -> None:
    s = cluster()
    begin_fencing_of_1(s)
    s.ask(admin_pb2.DeleteTopicsRequest(topic_names=["c", "d"]))
    finish(s)
    assert (in_isr(s, 1), s.image.brokers[1].fenced) == (0, True)


def test_a_step_changes_as_many_partitions_as_there_is_room_for() -> None:
    s = cluster(topics=2, partitions=3)
    begin_fencing_of_1(s)
    assert len(s.written) == 3
    assert finish(s) == [4], "the last three, and the mark of the broker"


def test_a_step_looks_at_no_more_than_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    s = cluster(topics=6, partitions=1)
    monkeypatch.setattr("quorum.controller.sweeps.LOOKED_AT_PER_STEP", 4)
    sweep = Sweep(("test", 0), Task(None, lambda _, __: False, ElectionRules.builder))
    records, left = sweep.step(ElectionRules(s.image, s.config))
    assert (records, len(left)) == ([], 4), "a topic of one partition costs 2"
    records, left = sweep.step(ElectionRules(s.image, s.config), looked_at_max=12)
    assert (records, len(left)) == ([], 0)
