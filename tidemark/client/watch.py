"""A call that is given up when the node it went to no longer leads.

A node that hangs (stopped, or cut off) keeps its connections open; without this a client would wait
for it up to request.timeout.ms, long after another node took over. So a slow call makes the caller
look at the metadata now and then, and ends when that names other leaders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidemark.errors import NetworkError

T = TypeVar("T")

SLOW_CALL_S = 2.0


async def unless_moved(
    call: Coroutine[Any, Any, T], moved: Callable[[], bool], ask: Callable[[], None]
) -> T:
    """The outcome of `call`; NetworkError when `moved()` after a while says that nobody leads there
    any more. `ask` makes the metadata be refreshed.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    is_given_up = False
    timer = loop.call_later(SLOW_CALL_S, lambda: look())

    def look() -> None:
        nonlocal timer, is_given_up
        if moved():
            is_given_up = True
            task.cancel()  # as asyncio.timeout does: a task for each call would cost ten times it
        else:
            timer = loop.call_later(SLOW_CALL_S, look)
            ask()

    try:
        return await call
    except asyncio.CancelledError:
        if is_given_up and task.uncancel() <= 0:
            raise NetworkError("the leader changed while the request was under way") from None
        raise
    finally:
        timer.cancel()
