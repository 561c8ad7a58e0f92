"""Registration, heartbeats, fencing and controlled shutdown, as scenarios of the pure core."""

from __future__ import annotations

from uuid import UUID

import pytest

from quorum.controller.result import RECORDS_PER_BATCH_MAX, ControllerResult
from quorum.controller.sessions import BrokerSessions
from quorum.image import EMPTY_IMAGE
from tests.quorum.controller.scenario import CLUSTER_ID, Scenario, controller_config
from tidemark.errors import (
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidRegistrationError,
    NotControllerError,
    StaleBrokerEpochError,
)
from tidemark.v1 import controller_pb2
from tidemark.v1 import metadata_pb2 as pb

SESSION_MS = 9_000


def test_the_first_controller_of_an_empty_log_writes_the_metadata_version() -> None:
    s = Scenario()
    assert dict(s.image.features) == {"metadata.version": 4}
    again = s.core.activate(s.image, 2, s.now_ms)
    assert again.records == []


def test_a_broker_registers_fenced_with_the_offset_of_its_record_as_epoch() -> None:
    s = Scenario()
    epoch = s.register(1, "a")
    assert epoch == s.offset - 1
    broker = s.image.brokers[1]
    assert (broker.epoch, broker.fenced, broker.rack) == (epoch, True, "a")


def test_a_broker_is_unfenced_only_when_it_has_applied_its_own_registration() -> None:
    s = Scenario()
    epoch = s.register(1)
    behind = s.heartbeat(1, offset=epoch - 1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    caught_up = s.heartbeat(1, offset=epoch)
    assert (caught_up.is_caught_up, caught_up.is_fenced) == (True, False)


def test_a_broker_that_wants_a_fence_stays_fenced() -> None:
    s = Scenario()
    s.register(1)
    assert s.heartbeat(1, want_fence=True).is_fenced
    assert not s.heartbeat(1).is_fenced
    assert s.heartbeat(1, want_fence=True).is_fenced


def test_the_same_incarnation_keeps_its_epoch_and_stays_in_service() -> None:
    s = Scenario()
    s.start_brokers(1)
    epoch = s.epochs[1]
    assert s.register(1) == epoch
    assert not s.image.brokers[1].fenced


def test_another_incarnation_waits_for_the_end_of_the_session() -> None:
    s = Scenario()
    s.start_brokers(1)
    with pytest.raises(DuplicateBrokerRegistrationError):
        s.register(1, incarnation=2)
    s.now_ms += SESSION_MS
    epoch = s.epochs[1]
    assert s.register(1, incarnation=2) > epoch
    assert s.image.brokers[1].fenced


def test_a_new_process_that_holds_the_directories_of_the_earlier_one_does_not_wait() -> None:
    """It was refused for the rest of the session, nine seconds by default, after each crash."""
    s = Scenario()
    first, second, third = (UUID(int=1_000 + number) for number in range(3))
    s.start_brokers(2)
    s.register(1, log_dirs=(first, second))
    s.heartbeat(1)
    s.create("t", (1, 2))
    epoch = s.epochs[1]
    for wrong in (
        {"locked": False, "log_dirs": (first, second)},  # it lost its registration to another
        {"log_dirs": (first, third)},  # the other directory may be in use
        {"log_dirs": (first, second), "port": 9_500},  # a copy of the disk, at another place
        {"log_dirs": ()},
    ):
        with pytest.raises(DuplicateBrokerRegistrationError):
            s.register(1, incarnation=2, **{"locked": True, **wrong})  # type: ignore[arg-type]
    assert s.register(1, incarnation=2, log_dirs=(first, second), locked=True) > epoch
    assert (s.partition("t").isr, s.partition("t").leader) == ((2,), 2)
    with pytest.raises(StaleBrokerEpochError):
        s.heartbeat(1, epoch=epoch)
    s.heartbeat(1)
    assert s.register(1, incarnation=3, log_dirs=(first,), locked=True) > epoch


def test_a_new_incarnation_loses_the_places_the_old_one_held() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    s.create("t", (1, 2))
    s.now_ms += SESSION_MS
    epoch = s.register(1, incarnation=2)
    assert s.image.brokers[1].epoch == epoch == s.offset - 1
    assert s.partition("t").isr == (2,)
    assert s.partition("t").leader == 2


def test_a_broker_of_another_cluster_is_refused() -> None:
    with pytest.raises(InconsistentClusterIdError, match="other"):
        Scenario().register(1, cluster_id="other")


@pytest.mark.parametrize(
    "change",
    [
        {"incarnation_id": b"short"},
        {"listeners": []},
        {"log_dirs": [b"x" * 16, b"x" * 16]},
        {"log_dirs": [b"x"]},
        {"broker_id": -1},
    ],
    ids=str,
)
def test_a_registration_that_says_nonsense_is_refused(change: dict[str, object]) -> None:
    s = Scenario()
    fields: dict[str, object] = {
        "broker_id": 1,
        "cluster_id": CLUSTER_ID,
        "incarnation_id": b"i" * 16,
        "listeners": [{"name": "PLAINTEXT", "host": "h", "port": 1}],
    }
    request = controller_pb2.RegisterBrokerRequest(**(fields | change))  # type: ignore[arg-type]
    with pytest.raises(InvalidRegistrationError):
        s.generate(request)


def test_a_heartbeat_of_an_old_epoch_is_stale() -> None:
    s = Scenario()
    s.register(1)
    with pytest.raises(StaleBrokerEpochError):
        s.heartbeat(1, epoch=s.epochs[1] - 1)


def test_silent_brokers_are_fenced_one_per_pass_the_longest_silent_first() -> None:
    s = Scenario()
    s.start_brokers(1, 2, 3)
    s.keep_alive(1_000, 2)
    s.keep_alive(1_000, 3)
    s.now_ms += SESSION_MS
    fenced = []
    for _ in range(200):
        due_ms = s.core.next_deadline_ms()
        assert due_ms is not None
        s.now_ms = max(s.now_ms, due_ms)
        s.apply(s.core.tick(s.now_ms))
        now_fenced = {i for i, b in s.image.brokers.items() if b.fenced}
        assert len(now_fenced) <= len(fenced) + 1
        fenced += sorted(now_fenced - set(fenced))
        if len(fenced) == 3:
            break
    assert fenced == [1, 2, 3]


def test_a_broker_that_beats_is_never_fenced() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    s.keep_alive(5 * SESSION_MS, 1)
    assert not s.image.brokers[1].fenced
    assert s.image.brokers[2].fenced


def test_fencing_moves_leadership_and_shrinks_the_isr() -> None:
    s = Scenario()
    s.start_brokers(1, 2, 3)
    s.create("t", (1, 2, 3), (2, 3, 1))
    s.keep_alive(2 * SESSION_MS, 2, 3)
    first, second = s.partition("t", 0), s.partition("t", 1)
    assert (first.leader, first.isr, first.leader_epoch) == (2, (2, 3), 1)
    assert (second.leader, second.isr, second.leader_epoch) == (2, (2, 3), 0)
    assert (first.partition_epoch, second.partition_epoch) == (1, 1)


def test_the_last_member_stays_in_the_isr_and_leads_again_when_it_is_back() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    s.create("t", (1, 2))
    s.keep_alive(2 * SESSION_MS, 1)
    assert s.partition("t").isr == (1,)
    s.keep_alive(2 * SESSION_MS)
    assert s.partition("t").leader is None
    assert s.partition("t").isr == (1,)
    s.heartbeat(2)
    assert s.partition("t").leader is None, "2 may lack records that 1 acknowledged"
    s.heartbeat(1)
    assert s.partition("t").leader == 1


def test_an_unclean_election_needs_the_topics_consent() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    s.create("t", (1, 2), unclean_leader_election_enable="true")
    s.keep_alive(2 * SESSION_MS, 1)
    s.keep_alive(2 * SESSION_MS)
    s.heartbeat(2)
    partition = s.partition("t")
    assert (partition.leader, partition.isr) == (2, (2,))
    assert partition.leader_recovery_state == 1


def test_controlled_shutdown_moves_leaders_and_lets_go_when_everybody_knows() -> None:
    s = Scenario()
    s.start_brokers(1, 2, 3)
    s.create("t", (1, 2, 3))
    first = s.heartbeat(1, want_shut_down=True)
    assert (first.should_shut_down, first.is_fenced) == (False, False)
    assert (s.partition("t").leader, s.partition("t").isr) == (2, (2, 3))
    moved = s.offset - 1
    s.heartbeat(2, offset=moved)
    s.heartbeat(3, offset=moved - 1)
    assert not s.heartbeat(1, want_shut_down=True).should_shut_down
    s.heartbeat(3, offset=moved)
    last = s.heartbeat(1, want_shut_down=True)
    assert (last.should_shut_down, last.is_fenced) == (True, True)
    assert s.image.brokers[1].fenced


def test_a_broker_without_leaderships_may_shut_down_at_once() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    s.create("t", (2, 1))
    assert s.heartbeat(1, want_shut_down=True).should_shut_down
    assert s.partition("t").isr == (2,)


def test_a_fenced_broker_may_shut_down_at_once() -> None:
    s = Scenario()
    s.register(1)
    assert s.heartbeat(1, want_shut_down=True).should_shut_down
    assert s.written == []


def test_a_broker_shutting_down_gets_no_new_replicas() -> None:
    s = Scenario()
    s.start_brokers(1, 2, 3)
    s.create("t", (1, 2))
    s.heartbeat(1, want_shut_down=True)
    assert s.image.brokers[1].in_controlled_shutdown
    assert s.try_create("u", partitions=6, factor=2).error_code == 0
    topic = s.image.topics.get("u")
    assert topic is not None
    assert all(1 not in p.replicas for p in topic.partitions.values())
    assert s.try_create("v", partitions=1, factor=3).error_code == 38


def test_a_new_controller_gives_every_broker_in_service_a_fresh_session() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    image = s.image
    s.core.deactivate()
    s.now_ms += 10 * SESSION_MS
    s.apply(s.core.activate(image, 2, s.now_ms))
    s.advance(SESSION_MS - 1)
    assert not any(b.fenced for b in s.image.brokers.values())
    s.advance(2 * SESSION_MS)
    assert all(b.fenced for b in s.image.brokers.values())


def test_producer_ids_come_in_blocks_that_nobody_gets_twice() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    starts = []
    for broker_id in (1, 2, 1):
        request = controller_pb2.AllocateProducerIdsRequest(
            broker_id=broker_id, broker_epoch=s.epochs[broker_id]
        )
        answer = s.ask(request)
        assert answer.producer_id_len == 1_000
        starts.append(answer.producer_id_start)
    assert starts == [0, 1_000, 2_000]
    stale = controller_pb2.AllocateProducerIdsRequest(broker_id=1, broker_epoch=0)
    with pytest.raises(StaleBrokerEpochError):
        s.generate(stale)


def test_an_idle_controller_writes_a_no_op_and_a_busy_one_does_not() -> None:
    s = Scenario(config=controller_config(metadata_max_idle_interval_ms="500"))
    s.advance(499)
    assert not any(r.HasField("no_op") for r in s.log)
    s.register(1)
    s.advance(499)
    assert not any(r.HasField("no_op") for r in s.log)
    s.advance(2_001)
    assert sum(r.HasField("no_op") for r in s.log) == 5


def test_an_inactive_core_refuses_everything() -> None:
    s = Scenario()
    s.core.deactivate()
    assert s.core.next_deadline_ms() is None
    with pytest.raises(NotControllerError):
        s.core.tick(s.now_ms)
    with pytest.raises(NotControllerError):
        s.register(1)
    assert s.core.activate(EMPTY_IMAGE, 3, 0).records


def test_a_broker_that_is_not_registered_has_no_epoch() -> None:
    s = Scenario()
    s.epochs[9] = 0
    with pytest.raises(StaleBrokerEpochError, match="not registered"):
        s.heartbeat(9)


def test_a_new_incarnation_is_alive_from_its_registration_on_and_the_same_one_is_not_renewed() -> (
    None
):
    s = Scenario()
    s.register(1)
    s.now_ms += SESSION_MS
    s.register(1, incarnation=2)
    with pytest.raises(DuplicateBrokerRegistrationError):
        s.register(1, incarnation=3)
    s.now_ms += SESSION_MS - 1
    s.register(1, incarnation=2)
    s.now_ms += 1
    s.register(1, incarnation=3)


def test_a_rack_that_is_not_named_is_none() -> None:
    s = Scenario()
    s.register(1)
    assert s.image.brokers[1].rack is None


def test_a_registration_that_is_repeated_writes_nothing_but_itself() -> None:
    s = Scenario()
    directories = (UUID(int=5, version=4), UUID(int=6, version=4))
    for _ in range(2):
        s.register(1, log_dirs=directories)
        assert [r.WhichOneof("record") for r in s.written] == ["register_broker"]
    s.now_ms += SESSION_MS
    s.register(1, incarnation=2, log_dirs=directories)
    assert [r.WhichOneof("record") for r in s.written] == ["register_broker"], "fenced already"


def test_a_broker_that_is_fenced_in_its_shutdown_and_stays_may_lead_again() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    s.create("t", (1, 2))
    s.heartbeat(1, want_shut_down=True)
    assert s.image.brokers[1].in_controlled_shutdown
    s.keep_alive(2 * SESSION_MS, 2)
    assert s.image.brokers[1].fenced
    s.heartbeat(1)
    assert not s.image.brokers[1].in_controlled_shutdown
    assert s.image.is_active(1)
    s.register(3)
    s.heartbeat(3)
    (change,) = [r.broker_registration_change for r in s.written]
    assert not change.HasField("in_controlled_shutdown")


def test_a_leader_that_wants_a_fence_as_well_shuts_down_at_once() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    s.create("t", (1, 2))
    answer = s.heartbeat(1, want_shut_down=True, want_fence=True)
    assert answer.should_shut_down
    assert s.image.brokers[1].fenced
    assert s.partition("t").leader == 2


def test_a_broker_in_shutdown_waits_for_active_brokers_and_for_no_others() -> None:
    s = Scenario()
    s.start_brokers(1, 2, 3, 4)
    s.create("t", (1, 2))
    s.create("u", (4, 2))
    s.register(5)
    before = s.offset - 1
    assert not s.heartbeat(1, want_shut_down=True).should_shut_down
    assert not s.heartbeat(4, want_shut_down=True, offset=before).should_shut_down
    s.heartbeat(2)
    assert not s.heartbeat(1, want_shut_down=True, offset=before).should_shut_down, "3 is behind"
    s.heartbeat(3)
    assert s.heartbeat(1, want_shut_down=True, offset=before).should_shut_down


def test_the_broker_without_a_session_is_the_stalest() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    sessions = BrokerSessions(SESSION_MS)
    sessions.touch(1, 100)
    assert sessions.stalest(s.image, 100) == 2
    sessions.touch(2, 50)
    assert sessions.stalest(s.image, 100 + SESSION_MS) == 2
    sessions.touch(2, 150)
    assert sessions.stalest(s.image, 150 + SESSION_MS) == 1


def test_an_image_that_is_ahead_of_the_committed_one_is_kept() -> None:
    s = Scenario()
    older = s.image
    s.register(1)
    newer = s.image
    s.core.adopt(older)
    assert s.image is newer
    s.core.deactivate()
    s.core.adopt(newer)
    assert not s.core.is_active


def test_a_controller_without_an_idle_interval_writes_no_no_ops() -> None:
    s = Scenario(config=controller_config(metadata_max_idle_interval_ms="0"))
    s.advance(600_000)
    assert not any(r.HasField("no_op") for r in s.log)


def test_records_are_packed_into_batches_that_are_full_and_none_is_empty() -> None:
    record = pb.MetadataRecord(no_op=pb.NoOpRecord())

    def sizes(result: ControllerResult[None]) -> list[int]:
        return [len(batch) for batch in result.batches()]

    most = RECORDS_PER_BATCH_MAX
    assert sizes(ControllerResult.each([record] * most, None)) == [most]
    assert sizes(ControllerResult.each([record] * (most + 1), None)) == [most, 1]
    assert sizes(ControllerResult.atomic([record] * (most + 1), None)) == [most + 1]
    assert ControllerResult.atomic([], None).groups == []
