"""Damaged objects of the tier: flipped outside the CRC, cut, exchanged, or with a wrong index.

A read gives the bytes of the local log, or an error; never a hole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from commitlog.disk.os_files import OsDirectory
from commitlog.log.expiration import delete_expired
from commitlog.segment.producer_state import encode_snapshot
from commitlog.types import TimestampOffset
from tests.tiering.builders import PARTITION
from tests.tiering.world import NOW_MS, World
from tidemark.errors import ApiError, CorruptMessageError
from tidemark.records import iter_batches
from tidemark.records.header import CRC_AT, HEADER_BYTES
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.store.directory import DirectoryRemoteStorageManager
from tiering.store.manager import IndexType, LogSegmentData, RemoteStorageManager

END = 60
EMPTY_SNAPSHOT = encode_snapshot(())


def tiered(path: Path, storage: RemoteStorageManager | None = None) -> World:
    """Returns a world with three segments of 20 records each in the tier."""
    world = World(path, index_interval_bytes=300, storage=storage)
    world.lead()
    for epoch in (0, 1, 1):
        world.lead(epoch)
        world.log.epochs.assign(epoch, world.log.log_end_offset)
        world.produce_segment(count=5)
    world.produce(1)
    asyncio.run(world.once())
    assert world.tier_logs() == [0, 20, 40]
    return world


def objects(world: World, suffix: str) -> list[Path]:
    """The files of the tier that end so, by offset."""
    return sorted((world.path / "tier").rglob(f"*{suffix}"))


def reads(world: World) -> bool:
    """Reads everything in several ways, without caches. Returns whether each gave all of it."""
    manager = world.manager = world.new_manager()
    world.lead(world.epoch)
    complete = True

    async def read_from(offset: int, max_bytes: int) -> bool:
        tries = 0
        while offset < END:
            try:
                records = await manager.read(PARTITION, world.log, offset, max_bytes)
            except CorruptMessageError:
                return False
            except ApiError:
                tries += 1
                assert tries < 3, "an error that does not end"
                continue
            headers = [header for _, header in iter_batches(records)]
            assert headers[0].base_offset <= offset <= headers[0].last_offset
            end = headers[-1].next_offset
            local = world.local_bytes(headers[0].base_offset, end)
            assert records == local[: len(records)]
            offset = end
        return True

    async def scenario() -> None:
        nonlocal complete
        for start in (0, 23, 30, 38):
            for max_bytes in (1, 1 << 20):
                complete &= await read_from(start, max_bytes)
        await manager.stop()

    asyncio.run(scenario())
    return complete


def look_ups(world: World, times: list[int]) -> list[TimestampOffset | None]:
    """Looks times up without caches in the tier; None for an error."""
    manager = world.manager = world.new_manager()
    world.lead(world.epoch)

    async def look_up(timestamp_ms: int) -> TimestampOffset | None:
        try:
            found = await manager.offset_for_timestamp(PARTITION, world.log, timestamp_ms)
        except CorruptMessageError:
            return None
        assert found is not None
        return found

    async def scenario() -> list[TimestampOffset | None]:
        found = [await look_up(timestamp_ms) for timestamp_ms in times]
        await manager.stop()
        return found

    return asyncio.run(scenario())


def test_no_flipped_bit_outside_the_crc_is_served(tmp_path: Path) -> None:
    world = tiered(tmp_path)
    assert reads(world)
    middle = objects(world, ".log")[1]
    whole = middle.read_bytes()
    for position, _ in iter_batches(whole):
        for at in range(position % 2, CRC_AT, 2):
            damaged = bytearray(whole)
            damaged[position + at] ^= 1 << (at + position) % 8
            middle.write_bytes(damaged)
            assert not reads(world), (position, at)
    middle.write_bytes(whole)
    assert reads(world)


def test_a_look_up_by_time_gives_no_offset_of_a_batch_with_a_flipped_bit(tmp_path: Path) -> None:
    world = World(tmp_path, index_interval_bytes=300, local_retention_bytes=1)
    world.lead()
    for number in range(12):
        world.produce(1, timestamp_ms=NOW_MS + number)
        if number % 4 == 3:
            world.log.roll(world.now_ms)
    world.produce(1)
    asyncio.run(world.once())
    delete_expired(world.log, world.now_ms)
    times = [NOW_MS + number for number in range(4, 9)]
    wanted = look_ups(world, times)
    assert [found and found.offset for found in wanted] == [20, 25, 30, 35, 40]
    middle = objects(world, ".log")[1]
    whole = middle.read_bytes()
    refused = 0
    for position, _ in iter_batches(whole):
        for at in range(HEADER_BYTES):
            damaged = bytearray(whole)
            damaged[position + at] ^= 1 << (at + position) % 8
            middle.write_bytes(damaged)
            found = look_ups(world, times)
            assert all(
                one is None or one == right for one, right in zip(found, wanted, strict=True)
            ), (position, at)
            refused += None in found
    assert refused
    middle.write_bytes(whole)
    assert look_ups(world, times) == wanted


@pytest.mark.parametrize("cut", [1, 61, 200])
def test_an_object_that_is_cut_is_an_error(tmp_path: Path, cut: int) -> None:
    world = tiered(tmp_path)
    for path in objects(world, ".log"):
        whole = path.read_bytes()
        path.write_bytes(whole[:-cut])
        assert not reads(world)
        path.write_bytes(whole)


def _rotated(paths: list[Path], change: Callable[[list[bytes]], list[bytes]]) -> None:
    for path, content in zip(paths, change([p.read_bytes() for p in paths]), strict=True):
        path.write_bytes(content)


def test_exchanged_logs_are_an_error(tmp_path: Path) -> None:
    world = tiered(tmp_path)
    _rotated(objects(world, ".log"), lambda contents: contents[1:] + contents[:1])
    assert not reads(world)


def test_a_wrong_index_under_a_sound_checksum_costs_time_not_records(tmp_path: Path) -> None:
    wrong: Iterator[Callable[[bytes], bytes]] = iter(
        [
            lambda one: one,
            lambda one: b"\0\0\0\x07" + one[4:],  # an offset that is not at its position
            lambda one: one[:7] + b"\x07",  # a position within a batch
        ]
    )
    storage = DirectoryRemoteStorageManager(OsDirectory(tmp_path / "tier"))
    copy = storage.copy_log_segment_data

    def copy_wrongly(metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        index = next(wrong)(data.indexes[IndexType.OFFSET])
        return copy(metadata, replace(data, indexes={**data.indexes, IndexType.OFFSET: index}))

    storage.copy_log_segment_data = copy_wrongly  # type: ignore[method-assign]
    assert reads(tiered(tmp_path, storage))


def test_no_flipped_bit_of_the_table_or_an_index_is_used(tmp_path: Path) -> None:
    world = tiered(tmp_path)
    middle = objects(world, ".sidecar")[1]
    whole = middle.read_bytes()
    end = whole.index(EMPTY_SNAPSHOT)  # behind the table and the indexes
    for at in range(0, end, 3):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        middle.write_bytes(damaged)
        assert not reads(world), at
    middle.write_bytes(whole)
    assert reads(world)


def read_once(world: World) -> bytes | None:
    """Reads the middle segment without what is in memory; None for a typed error of damage."""
    manager = world.manager = world.new_manager()
    world.lead(world.epoch)

    async def scenario() -> bytes | None:
        try:
            return await manager.read(PARTITION, world.log, 20, 1 << 20)
        except CorruptMessageError as error:
            assert "damaged at byte" in str(error)
            return None
        finally:
            await manager.stop()

    return asyncio.run(scenario())


def test_no_flipped_byte_of_an_object_or_its_sidecar_is_served(tmp_path: Path) -> None:
    world = tiered(tmp_path)
    wanted = read_once(world)
    assert wanted == world.local_bytes(20, 40)
    for suffix in (".log", ".sidecar"):
        middle = objects(world, suffix)[1]
        whole = middle.read_bytes()
        end = len(whole) if suffix == ".log" else whole.index(EMPTY_SNAPSHOT)
        for at in range(end):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at % 8
            middle.write_bytes(damaged)
            for cached in (tmp_path / "cache-1" / "remote-log-index-cache").iterdir():
                cached.unlink()
            assert read_once(world) is None, (suffix, at)
            assert world.manager.metrics.remote_fetch_corrupt == 1
        middle.write_bytes(whole)
    assert read_once(world) == wanted


def test_a_flipped_byte_of_a_cached_index_is_fetched_again(tmp_path: Path) -> None:
    world = tiered(tmp_path)
    wanted = read_once(world)
    (cached,) = (tmp_path / "cache-1" / "remote-log-index-cache").iterdir()
    whole = cached.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        cached.write_bytes(damaged)
        assert read_once(world) == wanted, at
        assert world.manager.metrics.index_cache_refetches == 1
        assert cached.read_bytes() == whole
    cached.write_bytes(whole[:-1])
    assert read_once(world) == wanted
    assert read_once(world) == wanted
    assert world.manager.metrics.index_cache_refetches == 0


class WrongOnce:
    """A fetch of a store whose first answer is damaged on its way."""

    def __init__(self, fetch: Callable[[RemoteLogSegmentMetadata, int, int], bytes]) -> None:
        self.fetch = fetch
        self.calls = 0

    def __call__(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        content = bytearray(self.fetch(metadata, start, end))
        content[20] ^= self.calls == 0  # of the first batch, or of the table
        self.calls += 1
        return bytes(content)


def test_what_the_transport_damaged_once_is_fetched_again_and_served(tmp_path: Path) -> None:
    world = tiered(tmp_path)
    wanted = read_once(world)
    for name in ("fetch_log_segment", "fetch_sidecar"):
        for cached in (tmp_path / "cache-1" / "remote-log-index-cache").iterdir():
            cached.unlink()
        fetch = getattr(world.storage, name)
        wrong = WrongOnce(fetch)
        setattr(world.storage, name, wrong)
        assert read_once(world) == wanted
        assert wrong.calls > 1
        assert world.manager.metrics.remote_fetch_corrupt == 0
        setattr(world.storage, name, fetch)
