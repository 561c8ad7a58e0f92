"""The segments that a rebuild records again, and the ones it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.tiering.builders import PARTITION, epochs, segment
from tiering.store.recovered import RecoveredSegment
from tiering.tasks.rebuild import PartitionPlan, plan_partition


def whole(
    start: int, end: int, number: int, *, has_log: bool = True, lineage: Any = None, **starts: int
) -> RecoveredSegment:
    made = segment(start, end, number, **starts)
    known = lineage or (epochs(e0=0) if not starts else made.segment_leader_epochs)
    return RecoveredSegment(made, tuple(known), has_log)


def plan(*segments: RecoveredSegment) -> PartitionPlan:
    return plan_partition(PARTITION, segments)


def chosen(made: PartitionPlan) -> list[int]:
    return [one.id.int for one in made.chosen]


def holes(made: PartitionPlan) -> list[tuple[int, int]]:
    return [(hole.start, hole.end) for hole in made.holes]


def left(made: PartitionPlan) -> list[int]:
    return [one.id.int for one, _ in made.left]


def extra(made: PartitionPlan) -> list[int]:
    return [one.id.int for one, _ in made.extra]


def test_a_whole_log_is_recorded_from_its_first_segment_to_its_last() -> None:
    made = plan(whole(20, 29, 3), whole(10, 19, 2))
    assert (chosen(made), holes(made), left(made)) == ([2, 3], [], [])
    assert (made.first_offset, made.next_offset, made.leader_epoch) == (10, 30, 0)


def test_nothing_in_the_tier_is_an_empty_plan() -> None:
    made = plan()
    assert (made.chosen, made.holes, made.next_offset, made.leader_epoch) == ([], [], 0, 0)


def test_the_newest_epoch_decides_and_another_lineage_is_left_alone() -> None:
    """A led epochs 0 and 1 to offset 39; an unclean election took B, which had 0 to 14 alone."""
    first = whole(0, 9, 1, lineage=epochs(e0=0))
    ours = whole(10, 24, 2, e0=10, e2=15)
    ours = replace(ours, lineage=epochs(e0=0, e2=15))
    theirs = replace(whole(10, 39, 3, e0=10, e1=20), lineage=epochs(e0=0, e1=20))
    later = replace(whole(40, 49, 4, e1=40), lineage=epochs(e0=0, e1=20))
    made = plan(first, theirs, ours, later)
    assert (chosen(made), holes(made)) == ([1, 2], [])
    assert sorted(extra(made)) == [3, 4] and left(made) == []
    assert [one.id.int for one in made.recorded] == [1, 2, 3, 4]
    assert (made.next_offset, made.leader_epoch) == (25, 2)


def test_the_new_leader_begins_above_every_epoch_that_the_tier_names() -> None:
    lost = replace(whole(0, 9, 1, has_log=False), lineage=epochs(e0=0, e7=9))
    assert plan(lost).leader_epoch == 7


def test_of_overlapping_copies_the_fewest_are_recorded() -> None:
    made = plan(whole(0, 9, 1), whole(0, 19, 2), whole(10, 19, 3), whole(20, 29, 4))
    assert (chosen(made), extra(made), holes(made)) == ([2, 4], [1, 3], [])


def test_a_hole_is_told_and_the_log_begins_above_it() -> None:
    made = plan(whole(0, 9, 1), whole(20, 29, 3))
    assert (chosen(made), extra(made), holes(made)) == ([3], [1], [(10, 20)])
    assert made.first_offset == 20


def test_a_sidecar_without_log_is_a_lost_segment_unless_a_deletion_explains_it() -> None:
    expired = whole(0, 9, 1, has_log=False)
    second_copy = whole(12, 17, 2, has_log=False)
    made = plan(expired, second_copy, whole(10, 19, 3))
    assert (chosen(made), sorted(left(made)), holes(made)) == ([3], [1, 2], [])

    newest = whole(20, 29, 4, has_log=False)
    assert holes(plan(whole(10, 19, 3), newest)) == [(20, 30)]
    assert holes(plan(newest)) == [(20, 30)]
    between = plan(whole(0, 9, 1), whole(10, 19, 2, has_log=False), whole(20, 29, 3))
    assert (10, 20) in holes(between)
