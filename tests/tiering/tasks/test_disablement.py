"""Tiering of a topic is switched off (KIP-950): the leader deletes what the tier has, and switching
it on again loses nothing, whenever that happens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tiering.builders import DELETED, DELETING, FINISHED, PARTITION, STARTED, segment
from tests.tiering.metadata.test_manager_contract import Broker, FakeTopic, ready
from tests.tiering.world import World
from tiering.errors import RemoteStorageError, RetriableRemoteStorageError
from tiering.metadata.codec import encode
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from tiering.tasks.expirer import DANGLING_GRACE_MS


class Stopping:
    """A store that deletes no more segments after `left`; it calls `before` each deletion."""

    def __init__(self, world: World, left: int, before: Any = lambda: None) -> None:
        self.left, self.before = left, before
        self.deleted: list[int] = []
        self._delete = world.storage.delete_log_segment_data
        world.storage.delete_log_segment_data = self

    def __call__(self, segment: RemoteLogSegmentMetadata) -> None:
        self.before()
        if len(self.deleted) >= self.left:
            raise RemoteStorageError("the store is away")
        self._delete(segment)
        self.deleted.append(segment.start_offset)


def tiered(path: Path, segments: int = 4, **topic: Any) -> World:
    """A leader with segments of 20 offsets in the tier, the last two of which are here, too."""
    world = World(path, **topic)
    world.lead()
    for _ in range(segments):
        world.produce_segment()
    world.produce(1)
    asyncio.run(world.once())
    world.log.config = replace(
        world.topic_config, local_retention_bytes=2 * world.log.segments[0].size_bytes
    )
    asyncio.run(world.once())
    assert (world.log.log_start_offset, world.log.local_log_start_offset) == (0, 40)
    return world


def switch(world: World, on: bool) -> None:
    """Applies the setting as the node does."""
    world.log.config = replace(
        world.log.config,
        remote_storage_enable=on,
        remote_log_delete_on_disable=True,
        local_retention_bytes=1 if on else -2,
    )
    world.log.highest_remote_offset = -1


def test_all_goes_the_newest_first_after_the_log_begins_on_this_disk(tmp_path: Path) -> None:
    world = tiered(tmp_path)
    switch(world, on=False)
    starts: list[int] = []
    store = Stopping(world, 9, lambda: starts.append(world.log.log_start_offset))
    asyncio.run(world.once())
    assert store.deleted == [60, 40, 20, 0]
    assert starts == [40] * 4
    assert (world.states(), world.tier_logs()) == ([], [])
    assert world.manager.copy_lag(PARTITION) == (0, 0)
    asyncio.run(world.once())
    assert len(store.deleted) == 4


@pytest.mark.parametrize("left", range(5))
def test_switched_on_again_after_any_deletion_no_record_of_the_log_is_lost(
    tmp_path: Path, left: int
) -> None:
    """Local retention may delete everything once it is copied again."""
    world = tiered(tmp_path)
    end = world.log.active_segment.base_offset
    expected = world.local_bytes(40, end)
    switch(world, on=False)
    store = Stopping(world, left)
    try:
        asyncio.run(world.once())
    except RemoteStorageError:
        assert left < 4
    store.left = 99
    world.manager = world.new_manager()  # also by another process
    world.lead(epoch=0)
    switch(world, on=True)
    asyncio.run(world.once())
    assert (world.log.log_start_offset, world.log.local_log_start_offset) == (40, end)
    assert asyncio.run(world.read_all(40, end)) == expected
    assert world.tier_logs() == [40, 60]
    assert [state for *_, state in world.states()] == [FINISHED] * 2


def test_a_deletion_that_failed_is_repeated_and_ends_when_tiering_is_on_again(
    tmp_path: Path,
) -> None:
    world = tiered(tmp_path)
    switch(world, on=False)
    store = Stopping(world, 1)
    for _ in range(2):
        with pytest.raises(RemoteStorageError):
            asyncio.run(world.once())
    assert world.log.log_start_offset == 40
    store.left, store.before = 99, lambda: switch(world, on=True)
    asyncio.run(world.once())
    assert store.deleted == [60, 40], "the one that was begun"


def test_a_follower_and_a_leader_that_lags_delete_nothing(tmp_path: Path) -> None:
    world = tiered(tmp_path)
    switch(world, on=False)
    before = world.states()
    world.log._high_watermark = 30  # of a new leader, for a moment
    asyncio.run(world.once())
    assert (world.states(), world.log.log_start_offset) == (before, 0)
    world.log._high_watermark = world.log.log_end_offset
    world.follow()
    asyncio.run(world.once())
    assert (world.states(), world.log.highest_remote_offset) == (before, -1)


def test_copies_that_were_begun_go_too_those_of_other_brokers_after_their_grace(
    tmp_path: Path,
) -> None:
    world = tiered(tmp_path)
    for broker_id, start in ((1, 80), (2, 100)):
        begun = segment(start, start + 19, broker_id, state=STARTED, broker_id=broker_id, e0=start)
        asyncio.run(world.metadata.add_remote_log_segment_metadata(begun))
    switch(world, on=False)
    asyncio.run(world.once())
    assert world.states() == [(100, 119, STARTED)]
    world.now_ms += DANGLING_GRACE_MS + 1
    asyncio.run(world.once())
    assert (world.states(), world.tier_logs()) == ([], [])


def test_a_copy_that_was_to_be_continued_goes_too(tmp_path: Path) -> None:
    world = tiered(tmp_path)

    def fails(*_: object) -> None:
        raise RetriableRemoteStorageError("the store is slow")

    world.produce_segment()
    world.storage.copy_log_segment_data = fails
    with pytest.raises(RetriableRemoteStorageError):
        asyncio.run(world.once())
    del world.storage.copy_log_segment_data
    assert world.states()[-1] == (80, 104, STARTED)
    switch(world, on=False)
    asyncio.run(world.once())
    assert (world.states(), world.tier_logs()) == ([], [])


@pytest.mark.parametrize("leads", [False, True])
def test_switched_on_again_a_replica_whose_metadata_lag_takes_nothing_deleted_for_copied(
    tmp_path: Path, leads: bool
) -> None:
    async def scenario() -> None:
        broker = Broker(partitions=1)
        topic = FakeTopic(broker)
        world = World(tmp_path, metadata=TopicBasedRemoteLogMetadataManager(topic))
        for _ in range(3):
            world.produce_segment()
        copies = [segment(start, start + 19, start + 1, e0=start) for start in (0, 20, 40)]
        for one in copies:
            for record in (replace(one, state=STARTED), one.update(FINISHED, 1, 1)):
                broker.append(0, encode(record))
        world.follow()
        await world.metadata.start()
        await ready(world.metadata)
        await world.once()
        assert world.log.highest_remote_offset == 59
        topic.hold = True
        for state in (DELETING, DELETED):
            broker.append(0, encode(copies[2].update(state, 2, 1)))
        switch(world, on=False)
        switch(world, on=True)
        world.manager.tiering_switched(PARTITION)
        if leads:
            world.lead(epoch=1)
        for _ in range(100):
            await world.once()
            await asyncio.sleep(0)
        assert world.log.local_log_start_offset == 0
        topic.hold = False
        await ready(world.metadata)
        world.follow()
        await world.once()
        assert (world.log.highest_remote_offset, world.log.local_log_start_offset) == (39, 40)
        await world.metadata.close()

    asyncio.run(scenario())
