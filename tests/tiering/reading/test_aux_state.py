"""Followers that start from the tier share a pool and a limit of their own."""

from __future__ import annotations

import asyncio
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from commitlog.disk.os_files import OsDirectory
from tests.tiering.builders import PARTITION
from tests.tiering.metadata.test_manager_contract import Broker, FakeTopic
from tests.tiering.world import World
from tidemark.errors import RequestTimedOutError
from tidemark.types import uuid_to_text
from tiering.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageNotReadyError,
    RetriableRemoteStorageError,
)
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.segments import RemoteLogSegmentId, RemoteLogSegmentState
from tiering.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from tiering.store.directory import DirectoryRemoteStorageManager
from tiering.store.manager import IndexType
from tiering.tasks.unrecorded import UnrecordedSegmentsError


class Hanging(DirectoryRemoteStorageManager):
    """Answers no look-up of leader epochs until it is released."""

    def __init__(self, path: Path) -> None:
        super().__init__(OsDirectory(path))
        self.released = threading.Event()
        self.waiting = threading.Semaphore(0)

    def fetch_index(self, metadata: Any, index_type: IndexType) -> bytes:
        if index_type is IndexType.LEADER_EPOCH:
            self.waiting.release()
            self.released.wait()
        return super().fetch_index(metadata, index_type)


def test_followers_that_wait_for_a_hanging_store_hold_no_consumer(tmp_path: Path) -> None:
    storage = Hanging(tmp_path / "tier")
    limits = {
        "remote_log_reader_threads": 1,
        "remote_log_reader_max_pending_tasks": 1,
        "remote_log_manager_follower_thread_pool_size": 2,
    }
    world = World(tmp_path, storage=storage, settings=limits, local_retention_bytes=1)
    world.lead()
    world.produce_segment()
    world.produce(1)
    records = world.local_bytes(0, 20)

    async def main() -> None:
        await world.once()
        followers = [
            asyncio.ensure_future(world.manager.fetch_aux_state(PARTITION, 0, 20)) for _ in range(5)
        ]
        for _ in range(2):  # of five
            await asyncio.to_thread(storage.waiting.acquire)
        assert await world.read_all(0, 20) == records
        assert not any(follower.done() for follower in followers)
        storage.released.set()
        states = await asyncio.gather(*followers)
        assert {state.start_offset for state in states} == {20}
        assert world.manager.metrics.remote_fetch_busy == 0

    try:
        asyncio.run(main())
    finally:
        storage.released.set()


def test_a_follower_gives_up_after_its_deadline_and_the_next_one_has_its_turn(
    tmp_path: Path,
) -> None:
    storage = Hanging(tmp_path / "tier")
    limits = {"remote_log_reader_timeout_ms": 50, "remote_log_manager_follower_thread_pool_size": 1}
    world = World(tmp_path, storage=storage, settings=limits)
    world.lead()
    world.produce_segment()
    world.produce(1)

    async def main() -> None:
        await world.once()
        for _ in range(2):
            with pytest.raises(RequestTimedOutError):
                await world.manager.fetch_aux_state(PARTITION, 0, 20)
        assert world.manager.metrics.build_remote_log_aux_state_errors == 2
        storage.released.set()

    try:
        asyncio.run(main())
    finally:
        storage.released.set()


def test_a_segment_that_retention_deleted_meanwhile_is_an_error_to_retry(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lead()
    world.produce_segment()
    world.produce(1)
    asyncio.run(world.once())
    (segment,) = world.metadata.list_remote_log_segments(PARTITION)
    world.storage.delete_log_segment_data(segment)
    with pytest.raises(RemoteResourceNotFoundError):
        asyncio.run(world.manager.fetch_aux_state(PARTITION, 0, 20))


def test_a_follower_waits_until_the_metadata_of_its_partition_is_read(tmp_path: Path) -> None:
    old = World(tmp_path)
    old.lead()
    old.produce_segment()
    old.produce(1)
    asyncio.run(old.once())
    follower = World(tmp_path, broker_id=2, history=old.metadata.history)

    async def main() -> int:
        state = asyncio.ensure_future(follower.manager.fetch_aux_state(PARTITION, 0, 20))
        await asyncio.sleep(0)
        assert not state.done()
        follower.follow()
        return (await state).start_offset

    assert asyncio.run(main()) == 20


def test_an_empty_leader_takes_no_tier_for_empty_before_its_metadata_is_read(
    tmp_path: Path,
) -> None:
    old = World(tmp_path)
    old.lead()
    old.produce_segment()
    old.produce(1)
    asyncio.run(old.once())
    leader = World(tmp_path, broker_id=2, history=old.metadata.history)

    async def main() -> None:
        history = asyncio.ensure_future(leader.manager.latest_history(PARTITION))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not history.done()
        leader.lead(1)
        found = await history
        assert found is not None
        assert (found.log_start_offset, found.next_offset) == (0, 20)
        assert found.epochs == ((0, 0),)

    asyncio.run(main())


def test_metadata_that_is_never_read_is_an_error_to_retry(tmp_path: Path) -> None:
    world = World(tmp_path, settings={"remote_log_reader_timeout_ms": 50})
    for call in (
        lambda: world.manager.fetch_aux_state(PARTITION, 0, 20),
        lambda: world.manager.latest_history(PARTITION),
    ):
        with pytest.raises(RemoteStorageNotReadyError):
            asyncio.run(call())
    report = world.manager.report(world.now_ms)
    assert report["BuildRemoteLogAuxStateErrorsTotal"] == 2
    assert report["RemoteLogRestoreErrorsTotal"] == report["RemoteLogRestoreRequestsTotal"] == 1


@pytest.mark.parametrize("error", [RuntimeError("plug-in"), SystemExit(3), KeyError("x")])
def test_whatever_a_store_raises_for_a_follower_or_a_restore_is_an_error_to_retry(
    tmp_path: Path, error: BaseException
) -> None:
    """Their callers take other errors for defects of the node, and end the process."""

    class Raising(DirectoryRemoteStorageManager):
        def fetch_index(self, metadata: Any, index_type: IndexType) -> bytes:
            raise error

    world = World(tmp_path, storage=Raising(OsDirectory(tmp_path / "tier")))
    world.lead()
    world.produce_segment()
    world.produce(1)
    asyncio.run(world.once())
    for call in (
        lambda: world.manager.fetch_aux_state(PARTITION, 0, 20),
        lambda: world.manager.latest_history(PARTITION),
    ):
        with pytest.raises(RetriableRemoteStorageError, match="remote segment"):
            asyncio.run(call())


def test_a_whole_segment_whose_copy_has_no_end_on_record_is_not_left_out_of_a_restore(
    tmp_path: Path,
) -> None:
    """The log would begin below it and use its offsets again."""
    old = World(tmp_path, local_retention_bytes=1)
    old.lead()
    old.produce_segment()
    old.produce_segment()
    old.produce(1)
    asyncio.run(old.once())
    history = old.metadata.history
    first, last = sorted(history.caches.pop(PARTITION).segments(), key=lambda s: s.start_offset)
    history.caches[PARTITION] = cache = RemoteLogMetadataCache()
    leader = World(tmp_path, broker_id=2, history=history)
    leader.lead(1)

    cache.restore(replace(last, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED))
    old.storage.delete_log_segment_data(first)
    with pytest.raises(UnrecordedSegmentsError, match="tidemark tier rebuild"):
        asyncio.run(leader.manager.latest_history(PARTITION))
    old.storage.delete_log_segment_data(last)
    assert asyncio.run(leader.manager.latest_history(PARTITION)) is None


def test_an_unfinished_copy_below_the_end_of_the_tier_holds_back_no_restore(
    tmp_path: Path,
) -> None:
    old = World(tmp_path, local_retention_bytes=1)
    old.lead()
    old.produce_segment()
    old.produce_segment()
    old.produce(1)
    asyncio.run(old.once())
    cache = old.metadata.history.caches[PARTITION]
    first = min(cache.segments(), key=lambda s: s.start_offset)
    begun = RemoteLogSegmentId(PARTITION, UUID(int=99))
    cache.restore(
        replace(
            first,
            remote_log_segment_id=begun,
            state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
            custom_metadata=None,
        )
    )
    for name in (tmp_path / "tier").rglob(f"*{uuid_to_text(first.id)}*"):
        shutil.copy(name, str(name).replace(uuid_to_text(first.id), uuid_to_text(UUID(int=99))))
    leader = World(tmp_path, broker_id=2, history=old.metadata.history)
    leader.lead(1)
    found = asyncio.run(leader.manager.latest_history(PARTITION))
    assert found is not None
    assert (found.log_start_offset, found.next_offset) == (0, 40)


@pytest.mark.parametrize("restores", [False, True])
def test_a_lagging_metadata_topic_is_waited_for(tmp_path: Path, restores: bool) -> None:
    """With the real manager of the topic: its reader does not get on, then it does."""
    broker = Broker()
    topic = FakeTopic(broker)

    async def main() -> None:
        old = World(tmp_path, metadata=TopicBasedRemoteLogMetadataManager(FakeTopic(broker)))
        await old.metadata.start()
        old.lead()
        while not old.metadata.is_ready(PARTITION):  # noqa: ASYNC110
            await asyncio.sleep(0)
        old.produce_segment()
        old.produce(1)
        await old.once()
        new = World(tmp_path, broker_id=2, metadata=TopicBasedRemoteLogMetadataManager(topic))
        await new.metadata.start()
        topic.hold = True
        if restores:
            new.lead(1)
            asked = asyncio.ensure_future(new.manager.latest_history(PARTITION))
        else:
            new.follow()
            asked = asyncio.ensure_future(new.manager.fetch_aux_state(PARTITION, 0, 20))
        for _ in range(200):
            await asyncio.sleep(0)
        assert not asked.done()
        topic.hold = False
        found: Any = await asked
        assert found is not None
        assert (found.next_offset if restores else found.start_offset) == 20
        for world in (old, new):
            await world.metadata.close()

    asyncio.run(main())
