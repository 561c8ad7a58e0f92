"""An event loop in virtual time, and the processes that run on it.

Time jumps to the next timer when no work is ready. Work for threads runs on the loop, after a delay
and one job at a time per pool. Each task, timer and job belongs to the process in whose context it
was made. A killed process loses all of them at once. A paused one (SIGSTOP) runs nothing until it
resumes, and then at first the work that became due.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from tidemark.surroundings import Surroundings, settle

T = TypeVar("T")

_GRAIN_S = 1e-9
"""Added to the time of a timer: sums of floats must not end just before it."""


class Deadlock(AssertionError):
    """Every task waits for something that cannot come."""


class Process:
    """One life of a process: its tasks end with it."""

    def __init__(
        self, loop: SimLoop, node_id: int, name: str, job_delay_s: Callable[[Any], float]
    ) -> None:
        self.loop = loop
        self.node_id = node_id
        self.name = name
        self.job_delay_s = job_delay_s
        self.alive = True
        self.held: list[asyncio.Handle] | None = None  # work that became due during a pause
        self.tasks: dict[asyncio.Task[Any], None] = {}  # an ordered set
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)

    def enter(self, world: Surroundings) -> None:
        """Makes `world` that of everything this process runs from now on."""
        self.context.run(settle, world)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task of this process."""
        return self.loop.create_task(work, context=self.context.copy())

    def pause(self) -> None:
        """Stops everything of this process until `resume`."""
        if self.held is None:
            self.held = []

    def resume(self) -> None:
        """Runs again, at first what became due meanwhile."""
        held, self.held = self.held, None
        if held:
            self.loop.take_back(held)

    def end(self) -> None:
        """Ends all tasks at once."""
        self.alive = False
        self.resume()
        for task in list(self.tasks):
            task.cancel()


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class SimLoop(asyncio.BaseEventLoop):
    """An event loop without sockets, threads and real time; `time()` starts at 0."""

    # Attributes of BaseEventLoop that its stubs do not know.
    _ready: deque[Any]
    _scheduled: list[Any]
    _timer_cancelled_count: int
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._busy_until_s: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._default_pool = _DefaultPool()
        self.steps = 0
        self._made = 0
        self.after_instant: Callable[[], None] = _nothing
        """Called whenever time is about to move on."""
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now_s

    def create_future(self) -> asyncio.Future[Any]:
        future = _Future(loop=self)
        self._made += 1
        future.number = self._made
        return future

    def take_back(self, handles: list[asyncio.Handle]) -> None:
        """Queues held handles after the ready ones."""
        self._ready.extend(handles)

    def _make_task(self, loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = _Task(work, loop=loop, **options)
        self._made += 1
        task.number = self._made
        context = options.get("context")
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        if process is not None:
            tasks = process.tasks
            tasks[task] = None
            task.add_done_callback(lambda ended: _forget(tasks, ended))
            if not process.alive:  # made while the others of this process were cancelled
                self.call_soon(task.cancel)
        return task

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:
            self.after_instant()
            if not scheduled:
                raise Deadlock("no task is ready and no timer is set")
            self._now_s = max(self._now_s, scheduled[0]._when) + _GRAIN_S
        while scheduled and scheduled[0]._when <= self._now_s:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)
            if process is not None and process.held is not None:
                process.held.append(handle)
                continue
            self.steps += 1
            handle._run()

    def run_until_idle(self) -> None:
        """Runs what is ready, without letting time pass."""
        while self._ready:
            self.call_soon(self.stop)
            self.run_forever()
            if len(self._ready) == 0:
                break

    def _write_to_self(self) -> None:
        """Wakes no selector: there is none."""

    def _process_events(self, event_list: Any) -> None:
        """Handles no events: there are no sockets."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        process = _PROCESS.get()
        pool = executor or self._default_pool
        begin_s = max(self._now_s, self._busy_until_s.get(pool, 0.0))
        end_s = begin_s + (process.job_delay_s(pool) if process is not None else _GRAIN_S)
        self._busy_until_s[pool] = end_s

        def work() -> None:
            if (process is not None and not process.alive) or future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_at(end_s, work)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Ends no threads: there are none."""


def _nothing() -> None:
    """Does nothing."""


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not follow from its address: sets are iterated."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    """As `_Task`."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _DefaultPool:
    """The executor of `asyncio.to_thread`."""


def _forget(tasks: dict[asyncio.Task[Any], None], ended: asyncio.Task[Any]) -> None:
    tasks.pop(ended, None)
