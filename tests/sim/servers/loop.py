"""The event loop of the simulated servers, in virtual time. Disk work takes virtual time on the
loop instead of on threads, and tasks belong to one life of one node.

A node that crashes loses all its tasks and disk work at once, whatever they wait for. A paused node
(SIGSTOP) runs nothing; work that became due meanwhile runs when it resumes.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakKeyDictionary

from tests.virtual_time import VirtualTimeLoop


class Life:
    """One life of a process: its tasks end with it."""

    def __init__(self, disk_delay_s: Callable[[], float]) -> None:
        self.alive = True
        self.disk_delay_s = disk_delay_s
        self.tasks: dict[asyncio.Task[Any], None] = {}  # an ordered set
        self.held: list[asyncio.Handle] | None = None  # work that became due during a pause

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task of this life, and retrieves its exception at the end."""
        context = contextvars.copy_context()
        context.run(_LIFE.set, self)
        task = asyncio.get_running_loop().create_task(work, context=context)
        task.add_done_callback(_look)
        return task

    def pause(self) -> None:
        """Stops everything of this life until `resume`."""
        if self.held is None:
            self.held = []

    def resume(self) -> None:
        held, self.held = self.held, None
        if held:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, ServerLoop)
            loop.take_back(held)

    def end(self) -> None:
        self.alive = False
        self.resume()
        for task in list(self.tasks):
            task.cancel()


_LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


def _look(task: asyncio.Task[Any]) -> None:
    """Retrieves the exception of a task, so that asyncio does not report it as lost."""
    if not task.cancelled():
        task.exception()


class _Ready(deque[asyncio.Handle]):
    """The loop's queue of ready work; handles of a paused life are held for later."""

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        life = handle._context.get(_LIFE)
        if life is None or life.held is None:
            return handle
        life.held.append(handle)
        return _NOTHING


def _nothing() -> asyncio.Handle:
    loop = asyncio.new_event_loop()
    handle = asyncio.Handle(lambda: None, (), loop)
    handle.cancel()
    loop.close()
    return handle


_NOTHING = _nothing()
"""A cancelled handle, which the loop skips."""


class _DefaultExecutor:
    """The executor of `asyncio.to_thread`."""


class ServerLoop(VirtualTimeLoop):
    """`run_in_executor` runs the work after a delay, one job at a time per executor."""

    def __init__(self) -> None:
        super().__init__()
        self._ready = _Ready(self._ready)
        self._busy_until_s: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._threads = _DefaultExecutor()
        self.set_task_factory(self._task_of_life)

    def take_back(self, handles: list[asyncio.Handle]) -> None:
        """Queues held handles after the ready ones."""
        self._ready.extend(handles)

    @staticmethod
    def _task_of_life(loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        life = (options.get("context") or contextvars.copy_context()).get(_LIFE)
        if life is not None:
            life.tasks[task] = None
            task.add_done_callback(lambda ended: life.tasks.pop(ended, None))
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()
        life = _LIFE.get()
        assert life is not None, "disk work belongs to a node"
        executor = executor or self._threads
        begin_s = max(self.time(), self._busy_until_s.get(executor, 0.0))
        end_s = begin_s + life.disk_delay_s()
        self._busy_until_s[executor] = end_s

        def work() -> None:
            if not life.alive or future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_at(end_s, work)
        return future
