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
    task = asyncio.ensure_future(call)
    try:
        while True:
            done, _ = await asyncio.wait((task,), timeout=SLOW_CALL_S)
            if done:
                return task.result()
            if moved():
                raise NetworkError("the leader changed while the request was under way")
            ask()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
