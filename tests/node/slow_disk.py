"""A virtual-time loop on slow disks: an fsync prolongs the loop's turn, unless a pool does it.

`longest_turn_s` is the longest time that the loop did not look for events. `run_in_executor` runs
the work at once and completes when its fsyncs would have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, cast

from commitlog.disk.memory_files import MemoryDisk
from tests.virtual_time import VirtualTimeLoop

FSYNC_S = 0.05
POOL = cast(Executor, type("Pool", (), {"shutdown": lambda self: None})())


class SlowDiskLoop(VirtualTimeLoop):
    """An event loop for tests of its turns."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_turn_s = 0.0
        self.turn = 0
        self._turn_s = 0.0
        self._pool_s: float | None = None

    def slow_down(self, disk: MemoryDisk) -> None:
        """Has each fsync of the disk take FSYNC_S from now on."""
        disk.on_fsync = self._fsync

    def _fsync(self) -> None:
        if self._pool_s is not None:
            self._pool_s += FSYNC_S
        else:
            self._selector_clock.now_s += FSYNC_S
            self._turn_s += FSYNC_S

    def _run_once(self) -> None:
        self._turn_s = 0.0
        self.turn += 1
        super()._run_once()  # type: ignore[misc]
        self.longest_turn_s = max(self.longest_turn_s, self._turn_s)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()
        outer, self._pool_s = self._pool_s, 0.0
        try:
            result, error = func(*args), None
        except BaseException as failure:
            result, error = None, failure
        took_s, self._pool_s = self._pool_s, outer

        def complete() -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(took_s, complete)
        return future
