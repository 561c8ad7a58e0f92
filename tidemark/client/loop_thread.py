"""The event loop of the blocking classes, in a thread of its own.

gRPC's asyncio driver wakes every loop of a process for each event, so one loop serves ten clients
better than ten loops would.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tidemark.client.closing import Closes
from tidemark.client.errors import ClientForkedError
from tidemark.surroundings import surroundings

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_quietly)
        self._thread = threading.Thread(target=self._run, name="tidemark-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Runs `work` on the loop and waits for it. Raises TimeoutError after `timeout_s`, and
        cancels it; ClientForkedError in a forked child.
        """
        if _is_forked:
            work.close()
            check_fork()
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking client can not be called from its own event loop")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise
        except BaseException:  # KeyboardInterrupt, or the error of `work`
            future.cancel()
            raise

    def stop(self) -> None:
        """Ends the thread, at the end of the process."""
        if _is_forked:
            return  # the thread and the loop are the parent's
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)


def _quietly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignores BlockingIOError of gRPC's poller.

    It wakes every loop of the process for each event, and only the first one finds something to
    read.
    """
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)


_shared: LoopThread | None = None
_shared_lock = threading.Lock()
_is_forked = False  # after the loop's thread began: it is the parent's


def _after_fork() -> None:
    global _is_forked, _shared_lock
    _is_forked = _shared is not None
    _shared_lock = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def check_fork() -> None:
    """Raises ClientForkedError in the child of a process that had a blocking client."""
    if _is_forked:
        raise ClientForkedError(
            "this process was forked after its parent made a blocking client, and the threads of"
            " clients do not exist here: make the first client after the fork, or start the"
            " process by the method 'spawn' or 'forkserver' of multiprocessing"
        )


def shared_loop() -> LoopThread:
    """The loop thread of this process, started on first use and stopped at exit."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = LoopThread()
            atexit.register(_shared.stop)
        return _shared


class Face(Closes):
    """The part that the blocking classes share: `_core` is the asyncio class, on the loop."""

    def __init__(self, make: Any) -> None:
        check_fork()
        self._thread: LoopThread = surroundings().loop_thread or shared_loop()

        async def on_loop() -> Any:
            return make()

        self._core = self._thread.run(on_loop())

    def _call(self, function: Any, *arguments: Any) -> Any:
        """Makes a plain call of the core on its loop."""

        async def on_loop() -> Any:
            return function(*arguments)

        return self._thread.run(on_loop())
