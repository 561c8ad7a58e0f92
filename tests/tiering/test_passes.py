"""The passes of a partition's task: they outlive errors, and retention does not wait for copies."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from tests.tiering.builders import FINISHED
from tests.tiering.test_manager import SignallingMetadata
from tests.tiering.world import World
from tidemark.errors import FatalError
from tiering.errors import RetriableRemoteStorageError


def test_whatever_a_plug_in_raises_the_task_is_logged_counted_and_tries_again(
    tmp_path: Path,
) -> None:
    metadata = SignallingMetadata()
    settings: dict[str, object] = {"remote_log_manager_task_retry_backoff_ms": 1}
    world = World(tmp_path, settings=settings, metadata=metadata)
    world.produce_segment()
    world.produce(1)
    listed, failures = metadata.list_remote_log_segments, [KeyError("bug"), RuntimeError("bug")]

    def fail(partition, epoch=None):  # type: ignore[no-untyped-def]
        if failures:
            raise failures.pop()
        return listed(partition, epoch)

    world.metadata.list_remote_log_segments = fail

    async def scenario() -> None:
        async with asyncio.timeout(20):
            world.lead()
            await world.manager.start()
            while (0, 19, FINISHED) not in world.states():
                await metadata.finished.acquire()
            await world.manager.stop()

    asyncio.run(scenario())
    assert world.manager.metrics.task_errors == 2


def test_a_fatal_error_of_a_task_ends_the_process(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.produce_segment()
    world.produce(1)

    def fail(metadata, data):  # type: ignore[no-untyped-def]
        raise FatalError("the disk is gone")

    world.storage.copy_log_segment_data = fail

    async def scenario() -> FatalError:
        fatal: asyncio.Future[FatalError] = asyncio.get_running_loop().create_future()
        world.manager._on_fatal = fatal.set_result
        async with asyncio.timeout(20):
            world.lead()
            await world.manager.start()
            error = await fatal
            await world.manager.stop()
        return error

    assert str(asyncio.run(scenario())) == "the disk is gone"


def test_a_copy_that_fails_does_not_hold_back_the_retention_of_the_same_pass(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, retention_ms=1000)
    world.lead()
    world.produce_segment()
    asyncio.run(world.once())
    world.now_ms += 5000
    world.produce_segment(timestamp_ms=world.now_ms)
    world.produce(1, timestamp_ms=world.now_ms)

    def fail(metadata, data):  # type: ignore[no-untyped-def]
        raise RetriableRemoteStorageError("down")

    world.storage.copy_log_segment_data = fail
    with pytest.raises(RetriableRemoteStorageError):
        asyncio.run(world.once())
    assert world.log.log_start_offset == 20


@pytest.mark.parametrize("policy", [(), ("compact",)])  # compact: a changed default of the brokers
def test_without_deletion_local_disks_are_cleaned_and_the_tier_keeps_everything(
    tmp_path: Path, policy: tuple[str, ...]
) -> None:
    world = World(
        tmp_path,
        cleanup_policy=policy,
        retention_ms=1000,
        retention_bytes=1,
        local_retention_bytes=1,
    )
    world.lead()
    for _ in range(3):
        world.produce_segment()
    world.produce(1)
    world.now_ms += 1_000_000
    asyncio.run(world.once())
    assert world.log.log_start_offset == 0
    assert [state for _, _, state in world.states()] == [FINISHED] * 3
    assert world.log.local_log_start_offset == 60
    world.log.increment_log_start_offset(20)
    asyncio.run(world.once())
    assert world.tier_logs() == [20, 40, 60]


def test_without_copies_the_local_log_has_the_whole_retention(tmp_path: Path) -> None:
    world = World(
        tmp_path, remote_log_copy_disable=True, local_retention_bytes=1, retention_bytes=100_000
    )
    world.lead()
    for _ in range(3):
        world.produce_segment()
    world.produce(1)
    asyncio.run(world.once())
    assert world.log.local_log_start_offset == 0
    world.log.config = dataclasses.replace(
        world.topic_config, retention_bytes=world.log.segments[-2].size_bytes
    )
    asyncio.run(world.once())
    assert world.log.local_log_start_offset == world.log.log_start_offset == 40
