"""The next state of one partition, in tables of small cases; and which partitions a task wants."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from quorum.controller.elections import (
    NEEDLESS_ELR,
    PREFERRED,
    UNSETTLED,
    Task,
    directories_gone,
    forgotten,
    in_service,
    out_of_service,
)
from quorum.controller.partition_change import Election, PartitionChangeBuilder
from quorum.image import LeaderRecoveryState, PartitionRegistration
from quorum.image.records import partition_after_change
from quorum.image.types import LOST_DIRECTORY, BrokerRegistration

RECOVERING = LeaderRecoveryState.RECOVERING
HERE, GONE = UUID(int=1 << 70), UUID(int=2 << 70)


def after(before: PartitionRegistration, active: tuple[int, ...], **change: Any) -> Any:
    """The state that follows, with its record's new leader (None: no new epoch)."""
    builder = PartitionChangeBuilder(UUID(int=9), 0, before, active.__contains__, **change)
    record = builder.build()
    if record is None:
        return None
    changed = record.partition_change
    assert (changed.partition_id, changed.topic_id) == (0, UUID(int=9).bytes)
    return partition_after_change(before, changed), changed.HasField("leader")


def part(
    isr: tuple[int, ...], leader: int | None, elr: tuple[int, ...] = (), **more: Any
) -> PartitionRegistration:
    return PartitionRegistration((1, 2, 3), isr, leader, 5, 8, elr=elr, **more)


# --- leaders --------------------------------------------------------------------------------------


def test_nothing_changes_where_the_leader_is_in_service() -> None:
    assert after(part((1, 2, 3), 2), (1, 2, 3)) is None
    assert after(part((1, 2, 3), 2), (2,)) is None


@pytest.mark.parametrize(
    ("before", "active", "change", "leader", "isr"),
    [
        (part((1, 2, 3), 1), (2, 3), {}, 2, (1, 2, 3)),
        (part((1, 3), 1), (2, 3), {}, 3, (1, 3)),
        (part((1, 2, 3), 2), (1, 2, 3), {"election": Election.PREFERRED}, 1, (1, 2, 3)),
        (part((1, 2, 3), 3), (2, 3), {"election": Election.PREFERRED}, None, None),
        (part((2, 3), 3), (1, 2, 3), {"election": Election.PREFERRED}, None, None),
        (part((1,), 1), (2, 3), {}, -1, (1,)),
        (part((1, 2), 2), (1, 2, 3), {"target_isr": (1,)}, 1, (1,)),
    ],
    ids=[
        "the next of the ISR",
        "never one outside of it",
        "preferred",
        "preferred but fenced",
        "preferred but not in sync",
        "nobody",
        "out of the ISR",
    ],
)
def test_a_clean_leader_is_of_the_isr_and_in_service(before, active, change, leader, isr) -> None:
    found = after(before, active, **change)
    if leader is None:
        assert found is None
        return
    state, new_epoch = found
    assert (state.leader, state.isr) == (None if leader < 0 else leader, isr)
    assert new_epoch
    assert state.leader_recovery_state is LeaderRecoveryState.RECOVERED


def test_the_last_known_leader_waits_while_the_isr_has_a_member() -> None:
    """The member has everything that was committed, though it is out of service now."""
    before = part((1,), 1, last_known_elr=(3,))
    state, _ = after(before, (2, 3), elr_enabled=True, min_isr=2)
    assert (state.leader, state.isr, state.last_known_elr) == (None, (1,), (3,))


def test_the_last_known_leader_waits_while_another_is_eligible() -> None:
    before = part((), None, (2,), last_known_elr=(3,))
    assert after(before, (3,), elr_enabled=True, min_isr=2) is None


def test_an_unclean_leader_begins_a_new_epoch_even_if_it_led_before() -> None:
    before = part((1, 2), 1)
    change = {"target_isr": (2,), "election": Election.UNCLEAN}
    state, new_epoch = after(before, (1, 3), **change)
    assert (state.leader, state.isr, state.leader_recovery_state) == (1, (1,), RECOVERING)
    assert new_epoch
    assert state.leader_epoch == before.leader_epoch + 1


# --- eligible replicas ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "gone", "elr"),
    [
        ((1, 2), (), ()),
        ((1,), (), (2, 3)),
        ((1,), (2,), (3,)),
    ],
    ids=["the ISR is enough", "they left", "one may have lost records"],
)
def test_who_leaves_an_isr_that_becomes_too_small_is_eligible(target, gone, elr) -> None:
    state, _ = after(
        part((1, 2, 3), 1),
        (1, 2, 3),
        elr_enabled=True,
        min_isr=2,
        target_isr=target,
        unclean_shutdown=frozenset(gone),
    )
    assert (state.isr, state.elr) == (target, elr)


def test_an_eligible_leader_begins_the_isr_and_the_former_members_stay_eligible() -> None:
    before = part((1,), 1, (2, 3))
    state, _ = after(before, (3,), elr_enabled=True, min_isr=2)
    assert (state.leader, state.isr, state.elr) == (3, (3,), (2, 1))


# --- reassignments --------------------------------------------------------------------------------


def test_a_replica_that_is_removed_leaves_the_isr_and_ends_the_epoch() -> None:
    state, new_epoch = after(part((1, 2, 3), 1), (1, 2, 3), target_replicas=(1, 2))
    assert (state.replicas, state.isr, state.leader) == ((1, 2), (1, 2), 1)
    assert new_epoch, "its fetches are refused from now on"
    state, new_epoch = after(part((1, 2, 3), 1), (1, 2, 3, 4), target_replicas=(1, 2, 3, 4))
    assert (state.replicas, new_epoch) == ((1, 2, 3, 4), False)


def test_a_replica_that_is_removed_is_not_eligible_either() -> None:
    before = part((1, 3), 1, (2,))
    change = {"elr_enabled": True, "min_isr": 2, "target_replicas": (1, 2)}
    state, _ = after(before, (1, 2, 3), **change)
    assert (state.isr, state.elr) == ((1,), (2,))
    before = part((1,), 1, (3,))
    state, _ = after(before, (1, 2, 3), **change)
    assert (state.isr, state.elr) == ((1,), ())


@pytest.mark.parametrize(
    ("isr", "adding", "removing", "replicas"),
    [
        ((1, 2, 3), (3,), (), (1, 2, 3)),
        ((1, 2, 3), (), (1,), (2, 3)),
        ((1, 2, 3), (3,), (1,), (2, 3)),
        ((1, 2), (3,), (1,), None),
        ((1,), (), (1,), None),
    ],
    ids=["adding", "removing", "both", "not in sync yet", "the last one"],
)
def test_a_reassignment_is_complete_when_all_new_replicas_are_in_sync(
    isr, adding, removing, replicas
) -> None:
    found = after(part(isr, isr[-1], adding=adding, removing=removing), (1, 2, 3))
    if replicas is None:
        assert found is None
    else:
        state, _ = found
        assert (state.replicas, state.adding, state.removing) == (replicas, (), ())
        assert state.isr == tuple(r for r in isr if r in replicas)


# --- which partitions a task wants ----------------------------------------------------------------


def at(directory: UUID, *lists: Any, **more: Any) -> PartitionRegistration:
    return part(*lists, directories=(directory, HERE, HERE), **more)


def broker(*log_dirs: UUID) -> BrokerRegistration:
    return BrokerRegistration(1, 7, UUID(int=3), (), log_dirs=log_dirs)


def clean_stop() -> Task:
    return forgotten(broker(HERE, GONE), unclean=False, gone=(GONE,))


def clean_of_one() -> Task:
    return forgotten(broker(GONE), unclean=False, gone=(GONE,))


def unclean_stop() -> Task:
    return forgotten(broker(HERE), unclean=True, gone=())


@pytest.mark.parametrize(
    ("task", "partition", "wanted"),
    [
        (lambda: out_of_service(1), part((1, 2), 2), True),
        (lambda: out_of_service(1), part((2,), 1), True),
        (lambda: out_of_service(1), part((2, 3), 2, (1,)), False),
        (lambda: directories_gone(1, (GONE,)), at(GONE, (1, 2), 2), True),
        (lambda: directories_gone(1, (GONE,)), at(GONE, (2,), 1), True),
        (lambda: directories_gone(1, (GONE,)), at(GONE, (2,), 2, (1,)), True),
        (lambda: directories_gone(1, (GONE,)), at(GONE, (2,), 2), False),
        (lambda: directories_gone(1, (GONE,)), at(HERE, (1, 2), 1), False),
        (clean_stop, at(HERE, (1, 2), 2), True),
        (clean_stop, at(HERE, (2,), 1), True),
        (clean_stop, at(HERE, (2,), 2, (1,)), False),
        (clean_stop, at(GONE, (2,), 2, (1,)), True),
        (clean_stop, at(GONE, (), None, last_known_elr=(1,)), True),
        (clean_stop, part((2,), 2, (1,)), True),
        (clean_stop, at(HERE, (), None, last_known_elr=(1,)), False),
        (clean_stop, at(GONE, (2,), 2), False),
        (unclean_stop, at(HERE, (2,), 2, (1,)), True),
        (unclean_stop, at(HERE, (), None, last_known_elr=(1,)), False),
        (unclean_stop, at(HERE, (2, 3), 2), False),
        (lambda: in_service(1), part((1,), None), True),
        (lambda: in_service(1), part((1,), 1), False),
        (NEEDLESS_ELR, part((1,), 1, (2,)), True),
        (NEEDLESS_ELR, part((), None, (2,)), False),
        (NEEDLESS_ELR, part((1,), 1), False),
        (UNSETTLED, part((), None), True),
        (UNSETTLED, part((1,), 1, (2,)), True),
        (UNSETTLED, part((1,), 1), False),
        (PREFERRED, part((1, 2), 2), True),
        (PREFERRED, part((1, 2), 1), False),
        (PREFERRED, part((2, 3), 2), False),
        (PREFERRED, PartitionRegistration((4, 2), (4, 2), 2), False),
    ],
)
def test_a_task_wants_the_partitions_that_it_changes_and_no_others(task, partition, wanted) -> None:
    image: Any = SimpleNamespace(is_active=(1, 2, 3).__contains__)
    made = task() if callable(task) else task
    assert made.wanted(image, partition) is wanted


def test_a_partition_that_is_gone_or_wanted_no_more_is_not_changed() -> None:
    rules: Any = SimpleNamespace(image=None)
    drafts: list[int] = []

    def draft(_: Any, __: Any, index: int, ___: Any) -> Any:
        drafts.append(index)
        return SimpleNamespace(build=lambda: "changed")

    task = Task(1, lambda _, p: p.leader is None, draft)
    topic: Any = SimpleNamespace(partitions={0: part((1,), None), 1: part((1,), 1)})
    assert [task.change(rules, topic, index) for index in (0, 1, 2)] == ["changed", None, None]
    assert drafts == [0]


@pytest.mark.parametrize(
    ("task", "partition", "unclean", "directories"),
    [
        (clean_stop, at(HERE, (1, 2), 1), frozenset(), None),
        (clean_stop, at(GONE, (1, 2), 1), frozenset((1,)), None),
        (clean_stop, part((1, 2), 1), frozenset((1,)), None),
        (clean_stop, part((1,), 1), frozenset((1,)), LOST_DIRECTORY),
        (
            clean_of_one,
            part((1,), 1),
            frozenset((1,)),
            GONE,
        ),
        (unclean_stop, at(HERE, (1, 2), 1), frozenset((1,)), None),
        (lambda: directories_gone(1, (GONE,)), at(GONE, (1, 2), 1), frozenset((1,)), None),
        (lambda: out_of_service(1), at(HERE, (1, 2), 1), frozenset(), None),
    ],
)
def test_what_a_broker_may_have_lost_makes_it_not_eligible(
    task, partition, unclean, directories
) -> None:
    made = []

    def builder(topic: Any, index: int, before: Any, **_: Any) -> PartitionChangeBuilder:
        made.append(PartitionChangeBuilder(UUID(int=9), index, before, (2, 3).__contains__))
        return made[-1]

    rules: Any = SimpleNamespace(builder=builder)
    task().draft(rules, None, 0, partition)
    assert made[0].unclean_shutdown == unclean
    assert made[0].target_isr == tuple(r for r in partition.isr if r != 1)
    found = made[0].target_directories
    assert (found[0] if found else None) == directories
