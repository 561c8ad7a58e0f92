"""A pool of daemon threads: a call of a store that hangs does not keep the process from its end.

The threads of concurrent.futures are joined when the interpreter exits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonPool(Executor):
    """An Executor of at most `threads_max` daemon threads, started as they are needed."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queues a call. Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the pool {self._name} is closed")
            self._work.put((future, partial(fn, *args, **kwargs)))
            if not self._idle.acquire(blocking=False) and self._threads < self._threads_max:
                self._threads += 1
                name = f"{self._name}_{self._threads}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:
        """Refuses new calls and cancels queued ones; never waits for those under way."""
        with self._lock:
            self._closed = True
        while cancel_futures:
            try:
                item = self._work.get_nowait()
            except Empty:
                break
            if item is not None:
                item[0].cancel()
        for _ in range(self._threads):
            self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # the future's reader gets it
                    future.set_exception(error)
            del item, future, call  # nothing is kept alive while the thread waits
            self._idle.release()
