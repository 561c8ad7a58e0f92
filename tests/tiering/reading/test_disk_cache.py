"""Chunks of remote segments on local disk: fewer reads of the store, and never a wrong byte."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from commitlog.disk.files import Directory
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.os_files import OsDirectory
from tests.tiering.builders import segment
from tests.tiering.world import World
from tidemark.errors import CorruptMessageError
from tiering.errors import RemoteStorageError
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.metrics import RemoteMetrics
from tiering.reading.disk_cache import DIRECTORY_NAME, DiskChunkCache
from tiering.store.manager import IndexType, LogSegmentData
from tiering.store.sidecar import SegmentTable, SidecarBuilder, decode_table

CHUNK = 16


class Store:
    """Logs of 100 bytes in memory, in chunks of 16; `asked` are the ranges fetched since."""

    def __init__(self) -> None:
        self.logs: dict[UUID, bytes] = {}
        self.asked: list[tuple[int, int]] = []
        self.is_away = False

    def add(self, number: int) -> tuple[RemoteLogSegmentMetadata, SegmentTable]:
        found = segment(number * 10, number * 10 + 9, number + 1)
        content = random.Random(number).randbytes(100)
        found = replace(found, segment_size_bytes=len(content))
        self.logs[found.id] = content
        source: Any = _Bytes(content)
        indexes = dict.fromkeys((IndexType.OFFSET, IndexType.TIMESTAMP), b"")
        builder = SidecarBuilder(found, LogSegmentData(source, indexes), CHUNK)
        return found, decode_table(builder.finish()[0], found)

    def fetch_log_segment(self, metadata: Any, start: int, end: int | None = None) -> bytes:
        if self.is_away:
            raise RemoteStorageError("the store is away")
        assert end is not None
        self.asked.append((start, end))
        return self.logs[metadata.id][start:end]


class _Bytes:
    def __init__(self, content: bytes) -> None:
        self.size_bytes = len(content)
        self._content = content

    def pread(self, position: int, size: int) -> bytes:
        return self._content[position : position + size]


def cache_of(
    store: Any, capacity: int = 1 << 20, disk: Directory | None = None
) -> tuple[DiskChunkCache, Any, RemoteMetrics]:
    disk, metrics = disk or MemoryDirectory(), RemoteMetrics()
    cache = DiskChunkCache(disk, capacity, store, metrics)
    cache.open()
    return cache, disk, metrics


@pytest.mark.parametrize("seed", range(20))
def test_any_ranges_give_the_logs_bytes_and_only_what_is_missing_is_fetched(seed: int) -> None:
    rng, store = random.Random(seed), Store()
    cache, _, metrics = cache_of(store)
    one, table = store.add(seed)
    kept: set[int] = set()
    for _ in range(6):
        start, end = sorted(rng.sample(range(8), 2))
        first, last = start * CHUNK, min(end * CHUNK, 100)
        missing = [number for number in range(start, end) if number not in kept]
        before = metrics.chunk_disk_cache_hits
        assert cache.fetch(one, table, first, last) == store.logs[one.id][first:last]
        if missing:
            assert store.asked.pop() == (missing[0] * CHUNK, min((missing[-1] + 1) * CHUNK, 100))
        assert not store.asked
        between = missing[-1] + 1 - missing[0] if missing else 0
        assert metrics.chunk_disk_cache_hits - before == end - start - between
        kept |= set(range(start, end))


def test_a_restart_keeps_the_chunks_and_the_store_may_be_away() -> None:
    store = Store()
    cache, disk, _ = cache_of(store)
    one, table = store.add(1)
    cache.fetch(one, table, 0, 100)
    disk.subdirectory(DIRECTORY_NAME).write_atomic("strange", b"")
    store.is_away = True
    again, _, _ = cache_of(store, disk=disk)
    assert again.size_bytes == 100
    assert again.fetch(one, table, 0, 100) == store.logs[one.id]
    assert not disk.subdirectory(DIRECTORY_NAME).exists("strange")


@pytest.mark.parametrize("damage", ["flip", "cut", "lose"])
def test_a_damaged_file_is_fetched_again_and_replaced(damage: str) -> None:
    store = Store()
    cache, disk, _ = cache_of(store)
    one, table = store.add(1)
    cache.fetch(one, table, 0, 100)
    directory = disk.subdirectory(DIRECTORY_NAME)
    for name in directory.list():
        sound = directory.read(name)
        if damage == "lose":
            directory.remove(name)
        else:
            bad = sound[:-1] if damage == "cut" else bytes([sound[0] ^ 1]) + sound[1:]
            directory.write_atomic(name, bad)
        store.asked.clear()
        assert cache.fetch(one, table, 0, 100) == store.logs[one.id]
        assert store.asked == [(0, 100)]
        assert cache.fetch(one, table, 0, 100) == store.logs[one.id]
        assert store.asked == [(0, 100)]
        assert (directory.read(name), cache.size_bytes) == (sound, 100)


def test_what_the_store_sends_damaged_is_refused_and_not_kept() -> None:
    store = Store()
    cache, disk, _ = cache_of(store)
    one, table = store.add(1)
    sound = store.logs[one.id]
    for bad in (sound[:20] + bytes([sound[20] ^ 1]) + sound[21:], sound[:90]):
        store.logs[one.id] = bad
        with pytest.raises(CorruptMessageError):
            cache.fetch(one, table, 0, 100)
        assert disk.subdirectory(DIRECTORY_NAME).list() == []


def test_the_chunks_used_longest_ago_make_room_and_those_of_a_deleted_segment_go() -> None:
    store = Store()
    cache, disk, _ = cache_of(store, capacity=250)
    segments = [store.add(number) for number in range(4)]
    for one, table in (*segments[:2], segments[0], segments[2]):
        cache.fetch(one, table, 0, 100)
        assert cache.size_bytes <= 250
    store.asked.clear()
    cache.fetch(*segments[0], 0, 100)
    cache.fetch(*segments[2], 0, 100)
    assert store.asked == []
    cache.drop(segments[0][0].id)
    assert cache.size_bytes <= 150
    directory = disk.subdirectory(DIRECTORY_NAME)
    assert sum(map(directory.size_of, directory.list())) == cache.size_bytes
    smaller, _, _ = cache_of(store, capacity=40, disk=disk)
    assert smaller.size_bytes <= 40
    off, _, _ = cache_of(store, capacity=0, disk=disk)
    assert off.fetch(*segments[3], 0, 100) == store.logs[segments[3][0].id]
    assert not disk.exists(DIRECTORY_NAME)


def test_a_full_disk_stops_no_read_and_is_not_tried_for_each_chunk(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, disk = Store(), MemoryDirectory()
    disk.set_capacity(40)
    cache, _, _ = cache_of(store, disk=disk)
    for number in range(4):
        one, table = store.add(number)
        assert cache.fetch(one, table, 0, 100) == store.logs[one.id]
    assert cache.size_bytes == 32
    assert len(caplog.records) == 1


def test_a_broker_serves_from_the_disk_what_it_read_once(tmp_path: Path) -> None:
    """The second process asks the store for nothing, and pays nothing of the fetch quota."""
    world = World(tmp_path, settings={"remote_log_reader_chunk_cache_disk_size_bytes": 1 << 20})
    world.lead()
    for _ in range(3):
        world.produce_segment()
    world.produce(1)
    asyncio.run(world.once())
    wanted = world.local_bytes(0, 60)
    assert asyncio.run(world.read_all(0, 60)) == wanted
    fetched: list[int] = []

    def fetch_log_segment(metadata: Any, start: int, end: int | None = None) -> bytes:
        fetched.append(start)
        raise RemoteStorageError("the store is away")

    world.storage.fetch_log_segment = fetch_log_segment
    world.manager = world.new_manager()
    world.lead()
    assert asyncio.run(world.read_all(0, 60)) == wanted
    assert fetched == []
    assert world.manager.metrics.chunk_disk_cache_hits == 3
    files = tmp_path / "cache-1" / DIRECTORY_NAME
    assert len(list(files.iterdir())) == 3
    world.log.config = replace(world.log.config, retention_bytes=1)
    asyncio.run(world.once())
    assert world.tier_logs() == []
    assert list(files.iterdir()) == []


@pytest.mark.parametrize("how", ["evict", "drop", "damage"])
def test_the_loop_waits_for_no_removal_and_nothing_is_written_under_a_name_that_goes(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`missing` is called on the event loop. A disk takes long to remove a file."""
    store = Store()
    cache, disk, _ = cache_of(store, capacity=100)
    (one, table), other = store.add(1), store.add(2)
    cache.fetch(one, table, 0, 100)
    removed: list[str] = []

    remove = MemoryDirectory.remove

    def removing(directory: MemoryDirectory, name: str) -> None:
        if name.endswith(".chunk"):
            assert not cache._lock.locked()
            removed.append(name)
            assert cache.fetch(one, table, 0, 16) == store.logs[one.id][:16]
        remove(directory, name)

    monkeypatch.setattr(MemoryDirectory, "remove", removing)
    if how == "evict":
        cache.fetch(*other, 0, 100)
    elif how == "drop":
        cache.drop(one.id)
    else:
        directory = disk.subdirectory(DIRECTORY_NAME)
        directory.write_atomic(directory.list()[0], b"torn")
        cache.fetch(one, table, 0, 100)
    monkeypatch.undo()
    directory = disk.subdirectory(DIRECTORY_NAME)
    assert removed
    assert sum(map(directory.size_of, directory.list())) == cache.size_bytes <= 100


def test_strange_things_under_the_names_of_chunks_end_no_start_and_no_caching(
    tmp_path: Path,
) -> None:
    store = Store()
    one, table = store.add(1)
    directory = OsDirectory(tmp_path)
    cache_of(store, disk=directory)[0].fetch(one, table, 0, 100)
    files = sorted((tmp_path / DIRECTORY_NAME).iterdir())
    files[0].unlink()
    files[0].symlink_to("nowhere")
    files[1].unlink()
    files[1].mkdir()
    again, _, _ = cache_of(store, disk=directory)
    assert again.size_bytes == 100 - 2 * CHUNK
    assert again.fetch(one, table, 0, 100) == store.logs[one.id]
    files[2].unlink()
    files[2].mkdir()  # while it runs
    for _ in range(2):
        assert again.fetch(one, table, 0, 100) == store.logs[one.id]
    assert again.size_bytes == 100
    assert all(file.is_file() for file in files)


def test_where_the_directory_can_not_be_made_reads_ask_the_store(tmp_path: Path) -> None:
    store = Store()
    one, table = store.add(1)
    (tmp_path / DIRECTORY_NAME).write_bytes(b"a file")
    cache, _, _ = cache_of(store, disk=OsDirectory(tmp_path))
    for _ in range(2):
        assert cache.fetch(one, table, 0, 100) == store.logs[one.id]
    assert store.asked == [(0, 100)] * 2


def test_the_files_of_another_directory_that_was_the_first_one_go() -> None:
    store, away, here = Store(), MemoryDirectory(), MemoryDirectory()
    cache_of(store, disk=here)[0].fetch(*store.add(1), 0, 100)  # while the other was away
    DiskChunkCache(away, 100, cast("Any", store), RemoteMetrics(), former=[here]).open()
    assert not here.exists(DIRECTORY_NAME)
    assert away.exists(DIRECTORY_NAME)


def test_while_the_files_are_taken_over_reads_ask_the_store() -> None:
    """Many files take long to list: no reader waits for it."""
    store = Store()
    cache, disk, _ = cache_of(store)
    one, table = store.add(1)
    cache.fetch(one, table, 0, 100)
    store.asked.clear()
    again = DiskChunkCache(disk, 1 << 20, cast("Any", store), RemoteMetrics())
    assert again._opening.acquire(blocking=False)  # another thread is in `open`
    assert again.fetch(one, table, 0, 100) == store.logs[one.id]
    assert store.asked == [(0, 100)]


def test_a_cache_on_a_disk_that_fails_stops_neither_reads_nor_deletions(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "remote_log_reader_chunk_cache_disk_size_bytes": 1 << 20,
        "remote_log_index_file_cache_total_size_bytes": 1,
    }
    world = World(tmp_path, settings=settings)
    world.lead()
    for _ in range(3):
        world.produce_segment()
    world.produce(1)

    async def scenario() -> None:
        await world.once()
        assert await world.read_all(0, 20) == world.local_bytes(0, 20)
        for name in (DIRECTORY_NAME, "remote-log-index-cache"):
            for file in (tmp_path / "cache-1" / name).iterdir():
                file.unlink()
                file.mkdir()
                (file / "not empty").touch()
        assert await world.read_all(0, 60) == world.local_bytes(0, 60)
        world.log.config = replace(world.log.config, retention_bytes=1)
        await world.once()
        assert world.tier_logs() == []

    asyncio.run(scenario())
