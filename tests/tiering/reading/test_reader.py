"""Reads of the tier in bad conditions: slow, broken and overloaded stores, small caches, corrupt
indexes.
"""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.expiration import delete_expired
from tests.tiering.builders import PARTITION, segment
from tests.tiering.world import World, batch
from tidemark.errors import CorruptMessageError, OffsetOutOfRangeError, RequestTimedOutError
from tidemark.records import read_header
from tiering.errors import (
    RemoteReadBusyError,
    RemoteStorageError,
    RemoteStorageNotReadyError,
    RetriableRemoteStorageError,
)
from tiering.metadata.segments import RemoteLogSegmentState
from tiering.metrics import RemoteMetrics
from tiering.reading.calls import StorageCalls
from tiering.reading.chunk_cache import ChunkCache
from tiering.reading.failures import Failures
from tiering.reading.index_cache import RemoteIndexCache
from tiering.reading.remote_indexes import RemoteIndexes
from tiering.store.manager import IndexType, LogSegmentData
from tiering.store.sidecar import SidecarBuilder


class SlowStorage:
    """A storage whose log fetches wait for a gate; every call is counted."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.fetches: list[tuple[int, int | None]] = []
        self.index_fetches = 0

    def fetch_log_segment(self, metadata: Any, start: int, end: int | None = None) -> bytes:
        self.fetches.append((start, end))
        self.begun.release()
        assert self.gate.wait(30)
        content: bytes = self.inner.fetch_log_segment(metadata, start, end)
        return content

    def fetch_sidecar(self, metadata: Any, start: int, end: int | None = None) -> bytes:
        self.index_fetches += 1
        content: bytes = self.inner.fetch_sidecar(metadata, start, end)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def tiered_world(
    path: Path, *, segments: int = 2, settings: dict[str, object] | None = None, **topic: Any
) -> tuple[World, SlowStorage]:
    """Returns a world with segments of 20 records each in the tier, behind a `SlowStorage`."""
    world = World(path, settings=settings, **topic)
    storage = SlowStorage(world.storage)
    world.storage = storage
    world.manager = world.new_manager()
    world.lead()
    for _ in range(segments):
        world.produce_segment()
    world.produce(1)
    storage.gate.set()
    asyncio.run(world.once())
    world.manager = world.new_manager()
    world.lead()
    return world, storage


def test_a_read_whose_caller_left_goes_on_into_the_cache(tmp_path: Path) -> None:
    world, storage = tiered_world(tmp_path, settings={"remote_log_reader_prefetch_chunks": 0})
    storage.gate.clear()

    async def scenario() -> None:
        reading = asyncio.ensure_future(world.manager.read(PARTITION, world.log, 0, 500))
        await asyncio.to_thread(storage.begun.acquire)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        storage.gate.set()
        records = await world.manager.read(PARTITION, world.log, 0, 500)
        assert records == bytes(world.log.read(0, 500).records)

    asyncio.run(scenario())
    assert len(storage.fetches) == 1


def test_a_read_that_takes_too_long_times_out_and_the_next_one_has_its_bytes(
    tmp_path: Path,
) -> None:
    world, storage = tiered_world(tmp_path, settings={"remote_log_reader_timeout_ms": 1})
    storage.gate.clear()

    async def scenario() -> None:
        with pytest.raises(RequestTimedOutError):
            await world.manager.read(PARTITION, world.log, 0, 500)
        assert world.manager.metrics.remote_fetch_timeouts == 1
        assert world.manager.metrics.reader_pending_tasks == 0
        storage.gate.set()

    asyncio.run(scenario())


def test_reads_beyond_the_limit_are_refused_at_once(tmp_path: Path) -> None:
    settings = {"remote_log_reader_max_pending_tasks": 2, "remote_log_reader_threads": 1}
    world, storage = tiered_world(tmp_path, settings=settings)
    storage.gate.clear()

    async def scenario() -> None:
        reads = [
            asyncio.ensure_future(world.manager.read(PARTITION, world.log, offset, 500))
            for offset in (0, 20)
        ]
        await asyncio.to_thread(storage.begun.acquire)
        with pytest.raises(RemoteReadBusyError):
            await world.manager.read(PARTITION, world.log, 0, 500)
        storage.gate.set()
        assert all(await asyncio.gather(*reads))
        assert await world.manager.read(PARTITION, world.log, 0, 500)

    asyncio.run(scenario())
    assert world.manager.metrics.remote_fetch_busy == 1


def test_bytes_of_the_store_count_against_the_quota_those_of_the_cache_do_not(
    tmp_path: Path,
) -> None:
    quota: dict[str, object] = {"remote_log_manager_fetch_max_bytes_per_second": 1}
    world, storage = tiered_world(tmp_path, settings=quota)

    async def scenario() -> None:
        assert world.manager.fetch_throttle_s() == 0
        assert await world.manager.read(PARTITION, world.log, 0, 500)
        wait_s = world.manager.fetch_throttle_s()
        (fetched,) = storage.fetches
        assert fetched[1] is not None and fetched[1] - 12 < wait_s <= fetched[1]
        assert await world.manager.read(PARTITION, world.log, 5, 500)
        assert world.manager.fetch_throttle_s() <= wait_s
        assert world.manager._reader.segments.quota.throttle_time.count == 2

    asyncio.run(scenario())
    assert world.manager.metrics.chunk_prefetches == 0  # of the next segment


def test_calls_that_hang_leave_threads_to_other_partitions() -> None:
    gate, began = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        began.release()
        gate.wait()

    async def scenario() -> None:
        calls = StorageCalls(4)
        hanging = [asyncio.ensure_future(calls.run(hang, PARTITION)) for _ in range(9)]
        for _ in range(2):
            await asyncio.to_thread(began.acquire)
        for left in hanging[:8]:  # a caller that leaves gives back no thread
            left.cancel()
        await asyncio.gather(*hanging[:8], return_exceptions=True)
        other = PARTITION._replace(partition=7)
        assert await calls.run(lambda: "read", other) == "read"
        assert not began.acquire(blocking=False)
        gate.set()
        await hanging[8]
        assert await calls.run(lambda: "read", PARTITION) == "read"
        calls.close()

    try:
        asyncio.run(scenario())
    finally:
        gate.set()


def test_several_readers_of_one_chunk_fetch_it_once(tmp_path: Path) -> None:
    world, storage = tiered_world(tmp_path, settings={"remote_log_reader_prefetch_chunks": 0})

    async def scenario() -> None:
        answers = await asyncio.gather(
            *(world.manager.read(PARTITION, world.log, offset, 200) for offset in range(20))
        )
        assert all(answers)

    asyncio.run(scenario())
    assert len(storage.fetches) == 1


def test_a_sequential_reader_finds_the_next_segment_loaded(tmp_path: Path) -> None:
    world, storage = tiered_world(tmp_path, segments=4)

    async def scenario() -> None:
        await world.manager.read(PARTITION, world.log, 0, 1 << 20)
        for _ in range(2):
            await asyncio.to_thread(storage.begun.acquire)
        assert len(storage.fetches) == 2
        assert await world.read_all(0, 80, 1 << 20) == world.local_bytes(0, 80)

    asyncio.run(scenario())
    assert world.manager.metrics.chunk_prefetches >= 3
    assert len(storage.fetches) == 4


def test_the_requests_ahead_of_a_sequential_reader_are_beside_the_one_it_is_in(
    tmp_path: Path,
) -> None:
    """Two ahead: with the present one three are under way at once, as the thread pool may have."""
    settings: dict[str, object] = {"remote_log_reader_chunk_bytes": 1024}
    world, storage = tiered_world(tmp_path, segments=0, settings=settings)
    world.produce_segment(batches=16)
    world.produce(1)

    async def scenario() -> None:
        await world.once()
        await world.manager.read(PARTITION, world.log, 0, 200)
        for _ in range(3):
            assert await asyncio.to_thread(storage.begun.acquire, timeout=30)

    asyncio.run(scenario())
    assert world.manager.metrics.chunk_prefetches == 2
    assert len(storage.fetches) == 3


def test_a_first_read_within_a_segment_asks_the_store_once_for_its_log(tmp_path: Path) -> None:
    settings: dict[str, object] = {"remote_log_reader_prefetch_chunks": 0}
    world, storage = tiered_world(tmp_path, segments=0, settings=settings, segment_bytes=4 << 20)
    world.produce_segment(batches=16, count=1, size=100_000)
    world.produce(1)

    async def scenario() -> None:
        await world.once()
        records = await world.manager.read(PARTITION, world.log, 12, 600_000)
        assert records == bytes(world.log.read(12, 600_000).records)

    asyncio.run(scenario())
    first, end = storage.fetches[0]
    assert end is not None and end - first > 600_000


def test_a_short_or_corrupt_answer_is_not_kept(tmp_path: Path) -> None:
    world, storage = tiered_world(tmp_path, settings={"remote_log_reader_prefetch_chunks": 0})
    fetch = storage.fetch_log_segment

    async def scenario() -> None:
        storage.fetch_log_segment = lambda *args: fetch(*args)[:-1]  # type: ignore[method-assign]
        with pytest.raises(CorruptMessageError, match="damaged at byte"):
            await world.manager.read(PARTITION, world.log, 0, 500)
        storage.fetch_log_segment = lambda *args: bytes(len(fetch(*args)))  # type: ignore[method-assign]
        with pytest.raises(CorruptMessageError):
            await world.manager.read(PARTITION, world.log, 0, 500)
        storage.fetch_log_segment = fetch  # type: ignore[method-assign]
        expected = bytes(world.log.read(0, 500).records)
        assert await world.manager.read(PARTITION, world.log, 0, 500) == expected

    asyncio.run(scenario())


def test_a_segment_that_expires_under_a_reader_is_out_of_range(tmp_path: Path) -> None:
    world, storage = tiered_world(tmp_path)
    world.manager = world.new_manager()
    fetch = storage.inner.fetch_log_segment
    (first, _) = world.metadata.list_remote_log_segments(PARTITION)

    def expire(metadata: Any, start: int, end: int | None = None) -> bytes:
        world.metadata.history.caches[PARTITION].update(
            first.update(RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 1, 6_000)
        )
        storage.inner.delete_log_segment_data(metadata)
        content: bytes = fetch(metadata, start, end)
        return content

    storage.fetch_log_segment = expire  # type: ignore[method-assign]
    with pytest.raises(OffsetOutOfRangeError):
        asyncio.run(world.manager.read(PARTITION, world.log, 0, 500))


@pytest.mark.parametrize(
    "error",
    [
        RemoteStorageError("access denied"),
        ZeroDivisionError("a bug"),
        OSError(5, "a disk"),
        SystemExit(1),
        asyncio.CancelledError(),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_store_raises_is_retriable_names_its_segment_and_is_logged_once(
    tmp_path: Path, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, object] = {"remote_log_reader_prefetch_chunks": 0}
    world, storage = tiered_world(tmp_path, settings=settings, local_retention_bytes=1)

    def fail(*_: Any) -> bytes:
        raise error

    storage.fetch_log_segment = fail  # type: ignore[method-assign]
    caplog.clear()

    async def scenario() -> None:
        name = str(world.metadata.list_remote_log_segments(PARTITION)[0].remote_log_segment_id)
        for _ in range(3):
            with pytest.raises(RetriableRemoteStorageError, match=re.escape(name)):
                await world.manager.read(PARTITION, world.log, 0, 500)
        with pytest.raises(RetriableRemoteStorageError, match=re.escape(name)):
            await world.manager.offset_for_timestamp(PARTITION, world.log, 0)

    delete_expired(world.log, world.now_ms)
    asyncio.run(scenario())
    assert world.manager.metrics.remote_fetch_errors == 4
    assert len([one for one in caplog.records if one.levelname == "WARNING"]) == 1


def test_failures_of_one_cause_are_counted_in_the_next_line_a_minute_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = Failures(RemoteMetrics())
    for now_s in (0.0, 1.0, 59.0, 60.0):
        failures.typed("a read", RemoteStorageError("no"), now_s, "tale")
    failures.typed("a read", RuntimeError("another cause"), 60.0, "tale")
    assert [one.getMessage() for one in caplog.records] == [
        "a read: no",
        "a read: no; 2 more by RemoteStorageError since the last line",
        "a read: another cause",
    ]


def test_an_object_that_is_gone_while_its_metadata_stands_is_a_retriable_outage(
    tmp_path: Path,
) -> None:
    world, storage = tiered_world(tmp_path)
    (first, _) = world.metadata.list_remote_log_segments(PARTITION)
    storage.inner.delete_log_segment_data(first)
    with pytest.raises(RetriableRemoteStorageError, match="tier has no"):
        asyncio.run(world.manager.read(PARTITION, world.log, 0, 500))


def test_indexes_of_a_segment_are_loaded_once_for_all_its_readers(tmp_path: Path) -> None:
    world, storage = tiered_world(tmp_path, settings={"remote_log_reader_prefetch_chunks": 0})

    async def scenario() -> None:
        answers = await asyncio.gather(
            *(world.manager.read(PARTITION, world.log, offset, 200) for offset in range(20))
        )
        assert all(answers)

    asyncio.run(scenario())
    assert storage.index_fetches == 1  # the table with the indexes behind it


def test_before_the_metadata_is_read_a_read_is_retriable(tmp_path: Path) -> None:
    world, _ = tiered_world(tmp_path)
    world.metadata.on_stop_partitions([PARTITION])
    with pytest.raises(RemoteStorageNotReadyError) as caught:
        asyncio.run(world.manager.read(PARTITION, world.log, 0, 500))
    assert caught.value.retriable


def test_the_index_cache_survives_a_restart_and_repairs_itself(tmp_path: Path) -> None:
    world, storage = tiered_world(tmp_path)
    asyncio.run(world.read_all(0, 40))
    assert storage.index_fetches == 2
    cache = tmp_path / "cache-1" / "remote-log-index-cache"
    names = sorted(path.name for path in cache.iterdir())
    assert [name.partition("_")[0] for name in names] == ["0", "20"]
    (cache / names[0]).write_bytes(b"torn!")
    (cache / (names[1] + ".123.tmp")).write_bytes(b"half written")
    world.manager = world.new_manager()
    world.lead()
    assert asyncio.run(world.read_all(0, 40)) == world.local_bytes(0, 40)
    assert storage.index_fetches == 3
    assert world.manager.metrics.index_cache_refetches == 1
    assert sorted(path.name for path in cache.iterdir()) == names


class Indexes:
    """A storage of sidecars only, each with an offset index of 96 bytes."""

    def __init__(self, entries: int = 12, size_bytes: int = 100) -> None:
        self.size_bytes = size_bytes
        self.entries = entries
        self.fetches: list[tuple[int, int | None]] = []

    def pread(self, position: int, size: int) -> bytes:
        return bytes(size)

    def fetch_sidecar(self, metadata: Any, start: int, end: int | None = None) -> bytes:
        self.fetches.append((start, end))
        numbers = range(1, 1 + self.entries)
        offsets = b"".join(n.to_bytes(4, "big") + n.to_bytes(4, "big") for n in numbers)
        indexes = {IndexType.OFFSET: offsets, IndexType.TIMESTAMP: b""}
        builder = SidecarBuilder(metadata, LogSegmentData(self, indexes))
        return builder.finish()[0][start:end]


def test_the_index_cache_keeps_to_its_limit() -> None:
    disk = MemoryDirectory()
    storage: Any = Indexes()
    size = RemoteIndexCache(disk, 1, storage, RemoteMetrics()).load(segment(0, 9, 1)).size_bytes
    limit = 3 * size + size // 2
    cache = RemoteIndexCache(disk, limit, storage, RemoteMetrics())
    for number in range(10):
        cache.load(segment(number * 10, number * 10 + 9, number + 1))
        assert cache.size_bytes <= limit
    assert len(cache) == 3
    assert {name.partition("_")[0] for name in disk.list()} == {"70", "80", "90"}
    smaller = RemoteIndexCache(disk, size, storage, RemoteMetrics())
    assert len(smaller) == 1
    smaller.remove(segment(90, 99, 10).id)
    assert len(disk.list()) <= 2


def test_indexes_larger_than_usual_are_fetched_to_their_end() -> None:
    storage: Any = Indexes(entries=9_000, size_bytes=10_000)
    large = replace(segment(0, 9_999, 1), segment_size_bytes=10_000)
    cache = RemoteIndexCache(MemoryDirectory(), 1 << 20, storage, RemoteMetrics())
    assert cache.load(large).indexes.position_of(8_999) == 8_999
    assert len(storage.fetches) == 3  # its table is not pinned, so its head comes first


def test_a_full_disk_does_not_stop_reads_through_the_index_cache() -> None:
    disk = MemoryDirectory()
    disk.set_capacity(10)
    storage: Any = Indexes()
    cache = RemoteIndexCache(disk, 300, storage, RemoteMetrics())
    assert cache.load(segment(0, 9, 1)).indexes.position_of(5) == 5


def test_indexes_that_can_not_be_true_are_corrupt() -> None:
    def entries(*pairs: tuple[int, int]) -> bytes:
        return b"".join(a.to_bytes(4, "big") + b.to_bytes(4, "big") for a, b in pairs)

    good = RemoteIndexes.parse(100, 1000, entries((5, 10), (9, 90)), b"")
    assert [good.position_of(offset) for offset in (100, 104, 105, 108, 109, 500)] == [
        0,
        0,
        10,
        10,
        90,
        90,
    ]
    for wrong in (
        b"1234567",
        entries((5, 10), (5, 20)),
        entries((5, 10), (6, 9)),
        entries((1, 1000)),
    ):
        with pytest.raises(CorruptMessageError):
            RemoteIndexes.parse(100, 1000, wrong, b"")
    with pytest.raises(CorruptMessageError):
        RemoteIndexes.parse(100, 1000, b"", bytes(11))


def test_the_chunk_cache_keeps_to_its_limit_and_forgets_failures() -> None:
    async def scenario() -> None:
        cache = ChunkCache(250, RemoteMetrics())

        async def load() -> list[bytes]:
            return [bytes(100)]

        async def fail() -> list[bytes]:
            raise RemoteStorageError("no")

        one = segment(0, 9, 1).id
        for number in range(5):
            assert len(await cache.get((one.int, number), load)) == 100
            assert cache.size_bytes <= 250
        assert (one.int, 4) in cache and (one.int, 0) not in cache
        with pytest.raises(RemoteStorageError):
            await cache.get((one.int, 0), fail)
        assert len(await cache.get((one.int, 0), load)) == 100
        cache.drop(one)
        assert cache.size_bytes == 0
        await cache.close()

    asyncio.run(scenario())


def test_bounds_are_read_from_the_header_alone() -> None:
    content = batch(0, 5)
    bounds = read_header(content[:61])
    assert (bounds.base_offset, bounds.last_offset, bounds.size_bytes) == (0, 4, len(content))
    with pytest.raises(CorruptMessageError):
        read_header(bytes(61))
