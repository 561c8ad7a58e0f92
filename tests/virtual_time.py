"""An asyncio event loop whose time is virtual: it jumps to the next timer when nothing else is
ready.

`run(main())` runs a coroutine to its end in no real time, however long it sleeps, and in the same
order each time. Real sockets and threads do not work in it (nothing waits for them): use it for
code over in-memory transports. When nothing is ready and no timer is set, the test hangs by design;
the loop then raises Deadlock instead of waiting for ever.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# Added at each jump: a sum of floats must not end just before the timer it was made for.
_GRAIN_S = 1e-8


class Deadlock(AssertionError):
    """Every task waits for something that can not come."""


class _NoSelector(selectors.SelectSelector):
    """Polls without waiting and moves the loop's clock by the time it should have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock("no task is ready and no timer is set")
        self.now_s += timeout + _GRAIN_S
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop on a `_NoSelector`; `time()` starts at 0."""

    def __init__(self) -> None:
        self._selector_clock = _NoSelector()
        super().__init__(self._selector_clock)

    def time(self) -> float:
        return self._selector_clock.now_s

    def now_ms(self) -> int:
        """The virtual time in milliseconds, rounded so that a timer's own time is reached."""
        return round(self.time() * 1000)


def run(main: Coroutine[Any, Any, T], loop: VirtualTimeLoop | None = None) -> T:
    """Runs `main` on a new virtual-time loop, or on `loop`; then cancels what it left behind and
    closes the loop."""
    loop = loop or VirtualTimeLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
