"""Metadata that lost its records is not taken for an empty tier (RULES.md rule 12).

A leader asks the store before it gives up offsets, and before it begins an empty log.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.tiering.builders import PARTITION
from tests.tiering.world import World
from tiering.errors import RetriableRemoteStorageError
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.memory import MemoryHistory
from tiering.store.marker import MARKER
from tiering.tasks.unrecorded import UnrecordedSegmentsError


def tiered(path: Path) -> World:
    """Returns a leader whose records 0..39 are only in the tier, in two segments."""
    world = World(path, local_retention_bytes=1)
    world.lead()
    world.produce_segment()
    world.produce_segment()
    world.produce(1)
    asyncio.run(world.once())
    assert world.log.local_log_start_offset == 40
    return world


def forget(world: World, *starts: int) -> None:
    """Takes the records of segments out of the metadata, as the loss of its disks does."""
    history = world.metadata.history
    kept = [s for s in history.caches.pop(PARTITION).segments() if s.start_offset not in starts]
    history.caches[PARTITION] = cache = RemoteLogMetadataCache()
    for one in kept:
        cache.restore(one)


def test_a_leader_gives_up_no_offsets_that_the_store_still_has(tmp_path: Path) -> None:
    world = tiered(tmp_path)
    forget(world, 0, 20)
    with pytest.raises(UnrecordedSegmentsError, match="tidemark tier rebuild"):
        asyncio.run(world.once())
    assert world.log.log_start_offset == 0
    assert world.tier_logs() == [0, 20]


def test_a_leader_gives_up_no_offsets_before_the_first_segment_that_the_metadata_still_names(
    tmp_path: Path,
) -> None:
    world = tiered(tmp_path)
    forget(world, 0)
    with pytest.raises(UnrecordedSegmentsError, match="from offset 0 on"):
        asyncio.run(world.once())
    assert world.log.log_start_offset == 0
    assert [state[0] for state in world.states()] == [20]


def test_offsets_that_the_store_has_no_more_are_given_up(tmp_path: Path) -> None:
    """An earlier leader deleted them, and this log does not know of it."""
    world = tiered(tmp_path)
    for one in world.metadata.history.caches[PARTITION].segments():
        if one.start_offset == 0:
            world.storage.delete_log_segment_data(one)
    forget(world, 0)
    asyncio.run(world.once())
    assert world.log.log_start_offset == 20


def test_a_tier_that_is_not_mounted_has_given_up_nothing(tmp_path: Path) -> None:
    world = tiered(tmp_path)
    forget(world, 0, 20)
    (tmp_path / "tier" / MARKER).rename(tmp_path / "away")
    world.storage = type(world.storage)(world.storage._root)  # the node was restarted
    world.manager = world.new_manager()
    world.lead(1)
    with pytest.raises(RetriableRemoteStorageError, match="looks empty"):
        asyncio.run(world.once())
    assert world.log.log_start_offset == 0


def test_an_empty_log_is_not_restored_while_the_store_has_more_than_the_metadata(
    tmp_path: Path,
) -> None:
    old = tiered(tmp_path)
    forget(old, 20)
    world = World(tmp_path, broker_id=2, history=old.metadata.history)
    world.lead(1)
    with pytest.raises(UnrecordedSegmentsError, match="from offset 20 on"):
        asyncio.run(world.manager.latest_history(PARTITION))
    forget(old, 0)
    with pytest.raises(UnrecordedSegmentsError):
        asyncio.run(world.manager.latest_history(PARTITION))


def test_a_partition_that_never_was_in_the_tier_has_no_history(tmp_path: Path) -> None:
    world = World(tmp_path, history=MemoryHistory())
    world.lead()
    assert asyncio.run(world.manager.latest_history(PARTITION)) is None
