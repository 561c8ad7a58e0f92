"""No upload leaves objects that nobody owns, whatever happens to its partition, and errors that
last upload nothing for ever.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.os_files import OsDirectory
from tests.tiering.builders import FINISHED, PARTITION, STARTED, segment
from tests.tiering.world import World
from tidemark.errors import TidemarkError
from tiering.errors import RemoteStorageError, RetriableRemoteStorageError
from tiering.metadata.memory import MemoryHistory
from tiering.store.directory import DirectoryRemoteStorageManager
from tiering.store.manager import LogSegmentData
from tiering.tasks.copier import REFUSED_WAIT_MS
from tiering.tasks.deleter import LATE_WRITE_MS
from tiering.tasks.expirer import DANGLING_GRACE_MS


class GatedStorage(DirectoryRemoteStorageManager):
    """A tier whose uploads wait for a gate before they put anything."""

    def __init__(self, path: Path, is_begun: bool = True) -> None:
        super().__init__(OsDirectory(path))
        if is_begun:
            self._marker.require_or_begin()
        self.gate = threading.Event()
        self.begun = asyncio.Semaphore(0)
        self.ended = asyncio.Semaphore(0)
        self.uploads = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    def copy_log_segment_data(self, metadata: Any, data: LogSegmentData) -> bytes | None:
        self.uploads += 1
        loop = self.loop
        assert loop is not None
        loop.call_soon_threadsafe(self.begun.release)
        assert self.gate.wait(30)
        return super().copy_log_segment_data(metadata, data)

    def delete_log_segment_data(self, metadata: Any) -> None:
        super().delete_log_segment_data(metadata)
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.ended.release)


def gated_world(
    path: Path, history: MemoryHistory | None = None, broker_id: int = 1, **topic: object
) -> tuple[World, GatedStorage]:
    """Returns a leader with one segment to copy."""
    storage = GatedStorage(path / "tier")
    world = World(path, broker_id=broker_id, history=history, storage=storage, **topic)
    world.lead()
    world.produce_segment()
    world.produce(1)
    return world, storage


def run(storage: GatedStorage, scenario: Callable[[], Any]) -> None:
    async def main() -> None:
        storage.loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(main())


async def ended(passing: asyncio.Task[None]) -> None:
    passing.cancel()
    with suppress(asyncio.CancelledError, TidemarkError):
        await passing


def test_a_replica_that_leaves_amid_an_upload_and_returns_leaves_one_copy(tmp_path: Path) -> None:
    world, storage = gated_world(tmp_path)

    async def scenario() -> None:
        passing = asyncio.ensure_future(world.once())
        await storage.begun.acquire()
        await ended(passing)
        await world.manager.stop_partitions([PARTITION], delete_remote=False)
        world.lead(1)
        # The pass finds a copy of this broker that no partition knows. It is being uploaded.
        hosted = world.manager._hosted[PARTITION]
        await world.manager._expirer.expire(hosted)
        assert world.states() == [(0, 19, STARTED)]
        storage.gate.set()
        await storage.ended.acquire()
        await world.once()
        assert world.states() == [(0, 19, FINISHED)]
        assert world.tier_logs() == [0]

    run(storage, scenario)


def test_an_upload_of_a_partition_that_left_removes_what_it_put(tmp_path: Path) -> None:
    world, storage = gated_world(tmp_path)

    async def scenario() -> None:
        passing = asyncio.ensure_future(world.once())
        await storage.begun.acquire()
        await ended(passing)
        await world.manager.stop_partitions([PARTITION], delete_remote=False)
        storage.gate.set()
        await storage.ended.acquire()
        assert storage.list_files(PARTITION) == []
        assert world.states() == [(0, 19, STARTED)]  # for the next leader to delete

    run(storage, scenario)


def test_an_upload_that_ends_after_the_partition_left_is_removed_too(tmp_path: Path) -> None:
    world, storage = gated_world(tmp_path)
    storage.gate.set()

    async def scenario() -> None:
        passing = asyncio.ensure_future(world.once())
        await storage.begun.acquire()
        while not any(name.endswith(".log") for name in storage.list_files(PARTITION)):
            pass  # holds the loop: the thread ends, and nobody has heard of it
        await ended(passing)
        if world.states() == [(0, 19, STARTED)]:
            await storage.ended.acquire()
            assert storage.list_files(PARTITION) == []

    run(storage, scenario)


def test_an_upload_slower_than_the_grace_of_a_deposed_leader_leaves_nothing(
    tmp_path: Path,
) -> None:
    history = MemoryHistory()
    old, storage = gated_world(tmp_path, history)
    new = World(tmp_path, broker_id=2, history=history)
    new.lead(1)

    async def scenario() -> None:
        passing = asyncio.ensure_future(old.once())
        await storage.begun.acquire()
        await new.once()
        new.now_ms += DANGLING_GRACE_MS + 1
        await new.once()
        assert old.states() == []
        storage.gate.set()
        with pytest.raises(TidemarkError):
            await passing
        assert storage.list_files(PARTITION) == []
        assert old.manager.metrics.remote_copy_refusals == 0

    run(storage, scenario)


def test_a_topic_that_is_deleted_amid_an_upload_leaves_nothing(tmp_path: Path) -> None:
    world, storage = gated_world(tmp_path)
    world.leads_metadata = True

    async def scenario() -> None:
        passing = asyncio.ensure_future(world.once())
        await storage.begun.acquire()
        await ended(passing)
        await world.manager.stop_partitions([PARTITION], delete_remote=True)
        world.metadata.recorded_partitions(lambda _: True)  # the node owns its removal
        (one,) = world.metadata.history.caches[PARTITION].segments()
        deleting = asyncio.ensure_future(world.manager._deleter.delete(one))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not deleting.done(), "the deletion waits for the upload"
        storage.gate.set()
        await deleting
        assert storage.list_files(PARTITION) == []
        assert world.states() == []

    run(storage, scenario)


def test_a_request_that_arrives_after_the_deletion_is_cleaned_up(tmp_path: Path) -> None:
    world, storage = gated_world(tmp_path)
    copy, put = DirectoryRemoteStorageManager.copy_log_segment_data, []

    def times_out(metadata: Any, data: LogSegmentData) -> bytes | None:
        put.append((metadata, LogSegmentData(_Bytes(data.log_segment.pread(0, 9)), data.indexes)))
        raise RemoteStorageError("refused, after a request that timed out")

    storage.copy_log_segment_data = times_out  # type: ignore[method-assign]

    async def scenario() -> None:
        with pytest.raises(RemoteStorageError):
            await world.once()
        assert world.states() == []
        copy(storage, *put[0])
        assert storage.list_files(PARTITION)
        deleter = world.manager._deleter
        await deleter.delete_late_writes()
        assert storage.list_files(PARTITION), "not yet"
        world.now_ms += LATE_WRITE_MS
        await deleter.delete_late_writes()
        assert storage.list_files(PARTITION) == []
        deleter.close()

    run(storage, scenario)


def test_a_try_that_arrives_after_a_later_one_was_finished_and_deleted_is_cleaned_up(
    tmp_path: Path,
) -> None:
    world, storage = gated_world(tmp_path)
    storage.gate.set()
    copy, put = storage.copy_log_segment_data, []

    def times_out_once(metadata: Any, data: LogSegmentData) -> bytes | None:
        if put:
            return copy(metadata, data)
        put.append((metadata, LogSegmentData(_Bytes(data.log_segment.pread(0, 9)), data.indexes)))
        raise RetriableRemoteStorageError("timed out")

    storage.copy_log_segment_data = times_out_once  # type: ignore[method-assign]

    async def scenario() -> None:
        with pytest.raises(RetriableRemoteStorageError):
            await world.once()
        await world.once()
        assert [state for _, _, state in world.states()] == [FINISHED]
        (one,) = world.metadata.history.caches[PARTITION].segments()
        deleter = world.manager._deleter
        await deleter.delete(one)
        assert storage.list_files(PARTITION) == []
        copy(*put[0])
        assert storage.list_files(PARTITION)
        world.now_ms += LATE_WRITE_MS
        await deleter.delete_late_writes()
        assert storage.list_files(PARTITION) == []
        deleter.close()

    run(storage, scenario)


class _Bytes:
    def __init__(self, content: bytes) -> None:
        self.content = content

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def pread(self, position: int, size: int) -> bytes:
        return self.content[position : position + size]


@pytest.mark.parametrize("skew_ms", [-10 * DANGLING_GRACE_MS, 10 * DANGLING_GRACE_MS])
@pytest.mark.parametrize("jump_ms", [-600_000, 0, 600_000])
def test_the_grace_of_anothers_copy_is_measured_by_the_own_clock_even_if_it_jumps(
    tmp_path: Path, skew_ms: int, jump_ms: int
) -> None:
    world, storage = gated_world(tmp_path)
    storage.gate.set()
    theirs = segment(
        100, 199, 7, state=STARTED, broker_id=2, event_timestamp_ms=world.now_ms + skew_ms
    )

    async def scenario() -> None:
        await world.metadata.add_remote_log_segment_metadata(theirs)
        await world.once()
        world.clock_jump_ms = jump_ms
        world.now_ms += DANGLING_GRACE_MS
        await world.once()
        assert world.states() == [(0, 19, FINISHED), (100, 199, STARTED)]
        world.now_ms += 1
        await world.once()
        assert world.states() == [(0, 19, FINISHED)]

    run(storage, scenario)


def test_an_error_that_lasts_does_not_upload_the_segment_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world, storage = gated_world(tmp_path)
    uploads = 0

    def refuse(metadata: Any, data: LogSegmentData) -> bytes | None:
        nonlocal uploads
        uploads += 1
        raise RemoteStorageError("403 AccessDenied")

    storage.copy_log_segment_data = refuse  # type: ignore[method-assign]

    async def scenario() -> None:
        for _ in range(3600):
            with suppress(RemoteStorageError):
                await world.once()
            world.now_ms += 1000
        world.manager._deleter.close()

    with caplog.at_level(logging.ERROR):
        run(storage, scenario)
    assert uploads == world.manager.metrics.remote_copy_refusals == 7  # 30 s, 60 s, 120 s, ...
    assert "flights-3" in caplog.text and "[0, 19]" in caplog.text
    assert "403 AccessDenied" in caplog.text and "no copies" in caplog.text


def test_a_copy_that_succeeds_ends_the_wait(tmp_path: Path) -> None:
    world, storage = gated_world(tmp_path)
    storage.gate.set()
    copy = storage.copy_log_segment_data

    def refuse(metadata: Any, data: LogSegmentData) -> bytes | None:
        raise RemoteStorageError("403 AccessDenied")

    async def scenario() -> None:
        storage.copy_log_segment_data = refuse  # type: ignore[method-assign]
        with pytest.raises(RemoteStorageError):
            await world.once()
        storage.copy_log_segment_data = copy  # type: ignore[method-assign]
        world.now_ms += REFUSED_WAIT_MS
        await world.once()
        world.produce_segment()
        world.produce(1)
        await world.once()
        assert [state for *_, state in world.states()] == [FINISHED, FINISHED]

    run(storage, scenario)


@pytest.mark.parametrize("error", [RuntimeError("bug"), KeyError("x"), AssertionError()])
def test_whatever_a_plug_in_raises_is_an_error_of_the_tier(
    tmp_path: Path, error: Exception
) -> None:
    world, storage = gated_world(tmp_path)

    def fail(metadata: Any, data: LogSegmentData) -> bytes | None:
        raise error

    storage.copy_log_segment_data = fail  # type: ignore[method-assign]

    async def scenario() -> None:
        with pytest.raises(RemoteStorageError, match=type(error).__name__):
            await world.once()
        assert world.states() == []
        assert world.manager.metrics.remote_copy_refusals == 1

    run(storage, scenario)


def test_a_retriable_error_keeps_the_copy_and_does_not_wait(tmp_path: Path) -> None:
    world, storage = gated_world(tmp_path)

    def fail(metadata: Any, data: LogSegmentData) -> bytes | None:
        raise RetriableRemoteStorageError("503")

    storage.copy_log_segment_data = fail  # type: ignore[method-assign]

    async def scenario() -> None:
        for _ in range(3):
            with pytest.raises(RetriableRemoteStorageError):
                await world.once()
        assert world.states() == [(0, 19, STARTED)]
        assert world.manager.metrics.remote_copy_refusals == 0

    run(storage, scenario)


def test_a_directory_that_is_not_mounted_gets_no_copies_and_believes_no_deletion(
    tmp_path: Path,
) -> None:
    world, storage = gated_world(tmp_path)
    storage.gate.set()

    async def scenario() -> None:
        await world.once()
        (tmp_path / "tier").rename(tmp_path / "elsewhere")
        (tmp_path / "tier").mkdir()
        # A new process: nothing but the metadata knows that the tier had segments.
        world.storage = other = GatedStorage(tmp_path / "tier", is_begun=False)
        other.loop, _ = storage.loop, other.gate.set()
        world.manager = world.new_manager()
        world.lead(1)
        world.produce_segment()
        world.produce(1)
        with pytest.raises(RetriableRemoteStorageError, match="looks empty"):
            await world.once()
        world.log.increment_log_start_offset(20)
        with pytest.raises(RetriableRemoteStorageError, match="looks empty"):
            await world.manager._expirer.expire(world.manager._hosted[PARTITION])
        assert not list((tmp_path / "tier").iterdir())
        (tmp_path / "tier").rmdir()
        (tmp_path / "elsewhere").rename(tmp_path / "tier")
        await world.once()
        assert [(start, state) for start, _, state in world.states()] == [(20, FINISHED)]
        assert world.tier_logs() == [20]

    run(storage, scenario)
