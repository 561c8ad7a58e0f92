"""Abandoning a call when its node no longer leads.

A node that hangs (stopped, or cut off) keeps its connections open. Without this, a client would
wait for it up to request.timeout.ms, long after another node took over. A slow call therefore makes
the client refresh its metadata now and then, and ends when that names other leaders.
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
    """The outcome of `call`, abandoned when `moved()` becomes true.

    `moved()` is called every SLOW_CALL_S seconds; while it is false, `ask()` requests a refresh of
    the metadata. Raises NetworkError if the call is abandoned.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    is_given_up = False
    timer = loop.call_later(SLOW_CALL_S, lambda: look())

    def look() -> None:
        nonlocal timer, is_given_up
        if moved():
            is_given_up = True
            task.cancel()  # as asyncio.timeout does; a task for each call costs ten times it
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
