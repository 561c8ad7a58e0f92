"""The world of a process: the machine's, or by context another one, which all rooms then use."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.os_files import OsDirectory, open_directory
from commitlog.disk.threads import work_off
from node.runtime.clock import Clock
from tidemark.surroundings import Surroundings, surroundings, use
from tidemark.types import random_uuid
from tidemark.wire.network import Channels, make_server


class Recorder:
    """A network that records what is asked of it."""

    def channel(self, address: str) -> str:
        return f"channel to {address}"

    def server(self) -> str:
        return "server"


def test_ids_clocks_channels_servers_and_directories_are_those_of_the_context():
    disk = MemoryDirectory("disk")
    world = Surroundings(
        wall_ms=lambda: 7,
        mono_ms=lambda: 8,
        random_bytes=random.Random(1).randbytes,
        network=Recorder(),
        open_directory=lambda path, create: disk,
    )
    with use(world):
        first = random_uuid()
        clock = Clock()
        assert (clock.wall_ms(), clock.mono_ms()) == (7, 8)
        assert Channels().open("a:1") == "channel to a:1"  # type: ignore[comparison-overlap]
        assert make_server() == "server"  # type: ignore[comparison-overlap]
        assert open_directory("/anywhere") is disk
    with use(replace(world, random_bytes=random.Random(1).randbytes)):
        assert random_uuid() == first
    assert random_uuid() != first


def test_outside_a_simulation_they_are_those_of_the_machine(tmp_path):
    assert isinstance(open_directory(str(tmp_path)), OsDirectory)
    assert Clock().wall_ms() > 1_600_000_000_000
    assert surroundings().network is None


def test_tasks_inherit_the_world_in_which_they_are_started():
    world = Surroundings(wall_ms=lambda: 7)

    async def now() -> int:
        return surroundings().wall_ms()

    async def main() -> list[int]:
        with use(world):
            inside = asyncio.create_task(now())
        return [await inside, await now()]

    inside, outside = asyncio.run(main())
    assert inside == 7 < outside


def test_without_threads_work_of_several_disks_is_done_in_turn():
    done: list[int] = []
    with use(Surroundings(has_threads=False)):
        work_off([[1, 2], [3, 4]], done.append, 3, "open")
    assert done == [1, 2, 3, 4]
