"""RULES.md rule 12: what a log does not know is not taken for absent. Each test is a way in which a
leader deleted the tier of its partition, or hid it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.tiering.builders import FINISHED, PARTITION
from tests.tiering.world import NOW_MS, World
from tiering.metadata.memory import MemoryHistory


def after_an_unclean_election(path: Path) -> tuple[World, bytes]:
    """Returns the leader of epoch 1, whose first ten records are only in a segment that goes on in
    another lineage, and all its records.

    Broker 1 copied [0, 19] of epoch 0 and died. Broker 2 has 0..9, leads epoch 1 from 10, copies
    [10, 29], and deletes both of its segments locally.
    """
    history = MemoryHistory()
    old = World(path, broker_id=1, history=history)
    new = World(path, broker_id=2, history=history, local_retention_bytes=1)
    old.lead(0)
    for number in range(4):
        if number == 2:
            new.log.append_as_follower(old.local_bytes(0, 10), new.now_ms)
            new.log.roll(new.now_ms)
        old.produce(1, timestamp_ms=NOW_MS + 1000 * number)
    old.log.roll(old.now_ms)
    asyncio.run(old.once())
    new.next = 10
    new.lead(1)
    for number in range(4):
        new.produce(1, timestamp_ms=NOW_MS + 1500 + 1000 * number)
    new.log.roll(new.now_ms)
    expected = new.local_bytes(0, 30)
    new.produce(1, timestamp_ms=NOW_MS + 9000)
    asyncio.run(new.once())
    assert new.log.local_log_start_offset == 30
    assert new.states() == [(0, 19, FINISHED), (10, 29, FINISHED)]
    return new, expected


def lead_again(world: World, epoch: int) -> None:
    """Makes the broker a leader anew, which checks the log start against the tier."""
    world.follow()
    world.lead(epoch)
    world.produce(1, timestamp_ms=NOW_MS + 9500)


def test_records_in_a_segment_that_goes_on_in_another_lineage_stay_at_a_leader_change(
    tmp_path: Path,
) -> None:
    world, expected = after_an_unclean_election(tmp_path)
    lead_again(world, 2)
    asyncio.run(world.once())
    assert world.log.log_start_offset == 0
    assert world.tier_logs() == [0, 10]
    assert asyncio.run(world.read_all(0, 30)) == expected


def test_a_search_by_time_finds_records_in_a_segment_that_goes_on_in_another_lineage(
    tmp_path: Path,
) -> None:
    world, _ = after_an_unclean_election(tmp_path)

    def found(timestamp_ms: int) -> int | None:
        search = world.manager.offset_for_timestamp(PARTITION, world.log, timestamp_ms)
        answer = asyncio.run(search)
        return None if answer is None else answer.offset

    assert found(NOW_MS + 1000) == 5
    # Broker 1 wrote records of this time at offset 15, but they are none of this lineage.
    assert found(NOW_MS + 3000) == 20


def test_a_segment_that_goes_on_in_another_lineage_is_retained_and_expires_by_size_as_any_other(
    tmp_path: Path,
) -> None:
    world, _ = after_an_unclean_election(tmp_path)
    sizes = [s.segment_size_bytes for s in world.metadata.history.caches[PARTITION].segments()]
    world.log.config = world.topic_config.__class__(
        remote_storage_enable=True, retention_ms=-1, retention_bytes=sum(sizes) + 1_000_000
    )
    asyncio.run(world.once())
    assert world.log.log_start_offset == 0
    world.log.config = world.topic_config.__class__(
        remote_storage_enable=True, retention_ms=-1, retention_bytes=sum(sizes)
    )
    asyncio.run(world.once())
    assert world.log.log_start_offset == 10
    assert world.tier_logs() == [10]
