"""A node ends within seconds while calls of its store hang: reads, followers' state, copies,
deletions. The process is real: the interpreter itself waits for threads when it ends.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from commitlog.disk.os_files import OsDirectory
from tests.tiering.builders import PARTITION
from tests.tiering.world import World
from tiering.store.directory import DirectoryRemoteStorageManager

CALLS = (
    "fetch_log_segment",
    "fetch_sidecar",
    "fetch_index",
    "copy_log_segment_data",
    "delete_log_segment_data",
)


class Hanging(DirectoryRemoteStorageManager):
    """A directory store whose calls never return once `hangs` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(OsDirectory(path))
        self.hangs = False
        self.began = {call: threading.Event() for call in CALLS}
        for call in CALLS:
            setattr(self, call, self._hanging(call, getattr(self, call)))

    def _hanging(self, name: str, call: Any) -> Any:
        def hang(*arguments: Any) -> Any:
            if self.hangs:
                self.began[name].set()
                threading.Event().wait()
            return call(*arguments)

        return hang


async def _with_two_segments(path: Path) -> tuple[World, Hanging]:
    storage = Hanging(path / "tier")
    world = World(path, storage=storage)
    world.lead()
    for _ in range(2):
        world.produce_segment()
    world.produce(1)
    await world.once()
    return world, storage


async def stop_while_calls_hang(path: Path) -> None:
    """Stops two managers: calls of every pool hang, reads at an index and at a log."""
    world, storage = await _with_two_segments(path / "copies")
    assert await world.manager.read(PARTITION, world.log, 20, 500)
    world.manager = world.new_manager()  # finds those indexes on its disk, and no chunk
    world.lead()
    other, deleting = await _with_two_segments(path / "deletions")
    world.produce_segment()
    world.produce(1)
    other.log.increment_log_start_offset(20)
    storage.hangs = deleting.hangs = True
    work = [
        asyncio.ensure_future(one)
        for one in (
            world.manager.read(PARTITION, world.log, 0, 500),
            world.manager.read(PARTITION, world.log, 20, 500),
            world.manager.fetch_aux_state(PARTITION, 0, 40),
            world.once(),
            other.once(),
        )
    ]
    hanging = [storage.began[name] for name in CALLS[:4]] + [deleting.began[CALLS[4]]]
    for event in hanging:
        await asyncio.to_thread(event.wait)
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await world.manager.stop()
    await other.manager.stop()
    print("stopped", flush=True)


def test_a_process_whose_store_hangs_in_every_pool_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tiering.test_hanging_store", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


if __name__ == "__main__":
    asyncio.run(stop_while_calls_hang(Path(sys.argv[1])))
