"""Damaged objects of the tier: flipped outside the CRC, cut, exchanged, or with a wrong index.

A read gives the bytes of the local log, or an error; never a hole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiering.builders import PARTITION
from tests.tiering.world import World
from tidemark.errors import ApiError, CorruptMessageError
from tidemark.records import iter_batches
from tidemark.records.header import CRC_AT

END = 60


def tiered(path: Path) -> World:
    """Returns a world with three segments of 20 records each in the tier."""
    world = World(path, index_interval_bytes=300)
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


def test_an_index_of_another_segment_costs_time_not_records(tmp_path: Path) -> None:
    world = tiered(tmp_path)
    first, second, third = objects(world, ".index")
    one = first.read_bytes()
    second.write_bytes(b"\0\0\0\x07" + one[4:])  # an offset that is not at that position
    third.write_bytes(one[:7] + b"\x07")  # a position within a batch
    assert reads(world)
