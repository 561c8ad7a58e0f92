"""The end and the beginning of the log that the tier has, for a leader that has nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.tiering.builders import DELETING, PARTITION, STARTED, epochs, segment
from tests.tiering.world import World
from tiering.tasks.recovery import first_offset, latest_segment


def test_the_latest_lineage_ends_the_log_not_the_highest_offset() -> None:
    older = segment(0, 29, 1, e0=0)
    newer = segment(0, 14, 2, e0=0, e1=10)
    assert latest_segment([older, newer]) is newer
    assert latest_segment([older, newer, segment(15, 19, 3, e2=15, state=STARTED)]) is newer
    assert latest_segment([segment(0, 9, 1, state=DELETING)]) is None
    assert latest_segment([]) is None


def test_the_log_begins_where_its_lineage_can_be_reached_without_a_hole() -> None:
    """Broker A copied [0-19] of epoch 0; B led from 10 on, and copied [10-29]."""
    first, second = segment(0, 19, 1, e0=0), segment(10, 29, 2, e1=10)
    lineage = epochs(e0=0, e1=10)
    assert first_offset([first, second], lineage, second) == 0
    assert first_offset([second], lineage, second) == 10
    third = segment(40, 49, 3, e1=40)
    assert first_offset([first, second, third], lineage, third) == 40  # [30-39] is missing
    overlapping = segment(25, 49, 4, e1=25)
    assert first_offset([first, second, overlapping], lineage, overlapping) == 0


def test_segments_of_another_lineage_are_not_the_beginning() -> None:
    other, last = segment(0, 29, 1, e0=0, e1=5), segment(10, 29, 2, e2=10)
    assert first_offset([other, last], epochs(e0=0, e2=8), last) == 10
    assert first_offset([other, last], epochs(e1=5, e2=10), last) == 0
    assert first_offset([other, last], (), last) == 10


def test_the_history_of_the_tier_is_the_log_that_was_copied(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.follow()
    assert asyncio.run(world.manager.latest_history(PARTITION)) is None
    world.lead(0)
    world.produce_segment()
    world.lead(3)
    world.produce_segment()
    world.produce(1)
    asyncio.run(world.once())
    history = asyncio.run(world.manager.latest_history(PARTITION))
    assert history is not None
    assert (history.log_start_offset, history.next_offset) == (0, 40)
    assert history.epochs == ((0, 0), (3, 20))
