"""Background tasks whose failure never stays unnoticed: an unhandled error stops the process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tidemark.errors import FatalError, TidemarkError

logger = logging.getLogger(__name__)

OnFatal = Callable[[FatalError], None]


def spawn(name: str, work: Coroutine[Any, Any, None], on_fatal: OnFatal) -> asyncio.Task[None]:
    """Runs `work` as a task; passes a FatalError, or any other unhandled error wrapped in one, to
    `on_fatal`."""
    task = asyncio.get_running_loop().create_task(work, name=name)

    def ended(done: asyncio.Task[None]) -> None:
        if done.cancelled() or done.exception() is None:
            return
        error = done.exception()
        has_advice = isinstance(error, TidemarkError)
        logger.critical("task %s failed: %s", name, error, exc_info=None if has_advice else error)
        if isinstance(error, FatalError):
            on_fatal(error)
        else:
            on_fatal(FatalError(f"task {name} failed: {type(error).__name__}: {error}"))

    task.add_done_callback(ended)
    return task


async def cancel_all(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels and awaits tasks; `spawn` has reported their errors."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def every(interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
    """Runs `work` forever, each time `interval_ms` after its last end; begins after one
    interval."""
    while True:
        await asyncio.sleep(interval_ms / 1000)
        await work()
