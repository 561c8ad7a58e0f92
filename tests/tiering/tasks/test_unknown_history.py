"""RULES.md rule 12: what a log does not know is not taken for absent. Each test is a way in which a
leader deleted the tier of its partition, or hid it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from commitlog.disk.checkpoints import LEADER_EPOCH_CHECKPOINT, format_epochs
from tests.tiering.builders import FINISHED, PARTITION, STARTED, epochs
from tests.tiering.world import NOW_MS, World
from tidemark.errors import OffsetOutOfRangeError
from tiering.errors import RemoteStorageNotReadyError
from tiering.metadata.memory import MemoryHistory
from tiering.metadata.segments import EpochEntry, RemoteLogSegmentId
from tiering.tasks import history
from tiering.tasks.history import UnknownHistoryError


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


def with_a_tier_of_three_epochs(path: Path, **topic: Any) -> tuple[World, bytes]:
    """Returns a leader whose records 0..59, of the epochs 0, 3 and 5, are only in the tier."""
    world = World(path, local_retention_bytes=1, **topic)
    for epoch in (0, 3, 5):
        world.lead(epoch)
        world.produce_segment()
    expected = world.local_bytes(0, 60)
    world.produce(2)
    asyncio.run(world.once())
    assert world.log.local_log_start_offset == 60
    return world, expected


def restart(world: World, checkpoint: bytes | None) -> None:
    """Opens the log anew, with another leader-epoch checkpoint or none, and leads."""
    world.log.close()
    if checkpoint is None:
        world.directory.remove(LEADER_EPOCH_CHECKPOINT)
    else:
        world.directory.write_atomic(LEADER_EPOCH_CHECKPOINT, checkpoint)
    world.log = world.open_log()
    world.log.update_high_watermark(world.log.log_end_offset)
    world.log.epochs.assign(6, world.log.log_end_offset)
    world.lead(6)
    world.produce(1)


@pytest.mark.parametrize(
    "checkpoint",
    [None, b"damaged", format_epochs([(5, 60)]), format_epochs([(5, 47)])],
    ids=["removed", "damaged", "short", "without-what-lies-before"],
)
def test_a_lost_or_short_checkpoint_of_leader_epochs_is_rebuilt_from_the_tier(
    tmp_path: Path, checkpoint: bytes | None
) -> None:
    world, expected = with_a_tier_of_three_epochs(tmp_path)
    restart(world, checkpoint)
    asyncio.run(world.once())
    assert world.log.epochs.entries() == ((0, 0), (3, 20), (5, 40), (6, 70))
    assert world.log.log_start_offset == 0
    assert world.tier_logs() == [0, 20, 40]
    assert asyncio.run(world.read_all(0, 60)) == expected


def test_until_its_history_is_rebuilt_a_log_asks_readers_to_try_again(tmp_path: Path) -> None:
    world, _ = with_a_tier_of_three_epochs(tmp_path)
    restart(world, None)
    with pytest.raises(RemoteStorageNotReadyError):
        asyncio.run(world.manager.read(PARTITION, world.log, 5, 1000))


def test_a_lost_history_of_which_the_tier_has_two_moves_and_deletes_nothing(
    tmp_path: Path,
) -> None:
    """No segment in the tier holds a record of the local log, and the record before it is there in
    two epochs. The error tells a person what to do.
    """
    world, _ = with_a_tier_of_three_epochs(tmp_path, retention_bytes=1_000_000)
    cache = world.metadata.history.caches[PARTITION]
    for one in cache.segments():
        twin = dataclasses.replace(
            one,
            remote_log_segment_id=RemoteLogSegmentId(PARTITION, UUID(int=one.start_offset + 1)),
            segment_leader_epochs=(EpochEntry(4, one.start_offset),),
            state=STARTED,
            max_timestamp_ms=NOW_MS,
        )
        cache.add(twin)
        cache.update(twin.update(FINISHED, NOW_MS, 9))
    world.produce_segment()  # the local log goes on with another epoch
    world.log.config = dataclasses.replace(world.topic_config, retention_bytes=1)
    assert world.log.epochs.entries()[-1] == (5, 40)
    local = history.local_epochs(epochs(e7=60), 60)
    with pytest.raises(UnknownHistoryError, match=r"2 epochs"):
        history.find_anchor(local, cache.segments(), 60, 0, 90)
    world.log.epochs.replace([(7, 60)])
    world.follow()
    world.lead(7)
    before = world.states()
    with pytest.raises(UnknownHistoryError, match="leader-epoch-checkpoint"):
        asyncio.run(world.once())
    assert world.log.log_start_offset == 0
    assert world.states() == before


def test_an_empty_replica_that_leads_leaves_the_tier_of_its_partition_alone(tmp_path: Path) -> None:
    first, _ = with_a_tier_of_three_epochs(tmp_path)
    empty = World(tmp_path, broker_id=2, history=first.metadata.history)
    empty.log.epochs.assign(6, 0)
    empty.lead(6)
    asyncio.run(empty.once())
    assert empty.tier_logs() == [0, 20, 40]
    assert empty.log.log_start_offset == 0


def test_the_log_start_follows_what_a_deposed_leader_expires_after_it_was_checked(
    tmp_path: Path,
) -> None:
    memory = MemoryHistory()
    deposed = World(tmp_path, broker_id=1, history=memory)
    leader = World(tmp_path, broker_id=2, history=memory, local_retention_bytes=1)
    deposed.lead(0)
    for start in (0, 20):
        deposed.produce_segment()
        leader.log.append_as_follower(deposed.local_bytes(start, start + 20), leader.now_ms)
        leader.log.roll(leader.now_ms)
    asyncio.run(deposed.once())
    leader.next = 40
    leader.log.update_high_watermark(40)
    leader.lead(1)
    leader.produce(1)
    asyncio.run(leader.once())
    assert (leader.log.log_start_offset, leader.log.local_log_start_offset) == (0, 40)
    deposed.produce(1)
    deposed.log.config = dataclasses.replace(
        deposed.topic_config, retention_bytes=deposed.log.segments[1].size_bytes + 600
    )
    asyncio.run(deposed.once())
    assert [state[0] for state in leader.states()] == [20]
    hosted = leader.manager._hosted[PARTITION]
    hosted.nudged.clear()
    with pytest.raises(OffsetOutOfRangeError):
        asyncio.run(leader.manager.read(PARTITION, leader.log, 0, 1000))
    assert hosted.nudged.is_set()  # the next pass comes at once, not after the interval
    asyncio.run(leader.once())
    assert leader.log.log_start_offset == 20
    assert asyncio.run(leader.read_all(20, 40))


def test_a_copy_whose_first_records_were_deleted_contradicts_no_log_that_still_has_them(
    tmp_path: Path,
) -> None:
    """Broker 1 copies a segment after DeleteRecords within it. Broker 2 leads before it heard of
    the new log start, or after a crash took it back: its own epochs are whole.
    """
    shared = MemoryHistory()
    old = World(tmp_path, broker_id=1, history=shared)
    new = World(tmp_path, broker_id=2, history=shared)
    for world in (old, new):
        for epoch in (0, 1):
            world.epoch = epoch
            world.produce_segment()
        world.produce(1)
    old.log.increment_log_start_offset(33)
    old.lead(1)
    asyncio.run(old.once())
    new.lead(2)
    new.produce(1)
    before = new.log.epochs.entries()
    assert before == ((0, 0), (1, 20), (2, 45))
    asyncio.run(new.once())
    assert new.log.epochs.entries() == before
    new.produce_segment()
    asyncio.run(new.once())
    assert new.states()[-1] == (40, 69, FINISHED)
