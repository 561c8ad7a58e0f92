"""The edge of the consumer's fetches: sends the core's requests, and tells it what became of them.

Each request is a task, and ends with exactly one event of the core, whatever happens to it. An
error that nobody foresaw fails the partitions of its request; the pump goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from tidemark.client.connections import Connections
from tidemark.client.consuming.core import FetchCore
from tidemark.client.consuming.partition import Reset
from tidemark.client.consuming.requests import Request
from tidemark.client.consuming.sessions import FetchSessions
from tidemark.client.errors import ClientClosedError
from tidemark.client.metadata import MetadataCache
from tidemark.client.offsets import OffsetLookup
from tidemark.client.retry import is_retriable
from tidemark.errors import ApiError, NetworkError

logger = logging.getLogger(__name__)

_PUMP_AGAIN_S = 1.0


class Fetcher:
    """Carries out what `core` decides; belongs to the running event loop."""

    def __init__(
        self,
        core: FetchCore,
        connections: Connections,
        metadata: MetadataCache,
        lookup: OffsetLookup,
    ) -> None:
        self.core = core
        self._metadata = metadata
        self._lookup = lookup
        self._loop = asyncio.get_running_loop()
        self._sessions = FetchSessions(connections, core.settings)
        self._tasks: dict[asyncio.Task[None], int] = {}  # with the id of the request, or 0
        self._timer: asyncio.TimerHandle | None = None
        self._told = 0  # version of the core that waiters know
        self._news: list[asyncio.Future[None]] = []
        self._is_scheduled = False
        self._is_closed = False

    def now_ms(self) -> float:
        return self._loop.time() * 1000

    async def news(self, seen: int, timeout_s: float) -> None:
        """Returns when the core's version is beyond `seen`, or after `timeout_s`."""
        if self.core.assignment.version != seen or self._is_closed:
            return
        future = self._loop.create_future()
        self._news.append(future)
        self.schedule()
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return
        finally:
            if future in self._news:
                self._news.remove(future)

    def wake(self) -> None:
        """Has waiting polls look again."""
        self.core.assignment.version += 1
        self._tell()

    async def close(self) -> None:
        """Cancels the requests under way."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sessions.close()
        self._tell()

    def schedule(self) -> None:
        """Runs the pump soon, because something has changed."""
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_scheduled = False
        if self._is_closed:
            return
        try:
            self._carry_out()
        except Exception:
            logger.exception("the consumer's pump failed; it runs again in %.0f s", _PUMP_AGAIN_S)
            self._wake_at(self._loop.time() + _PUMP_AGAIN_S)
        self._tell()

    def _carry_out(self) -> None:
        effects = self.core.step(self.now_ms())
        for request in effects.requests:
            work = self._fetch(request) if request.is_fetch else self._look_up(request)
            self._spawn(work, request.request_id)
        for request_id in effects.ended:
            self._sessions.end(request_id)
        if effects.refresh_metadata:
            self._spawn(self._refresh(), 0)
        if effects.cancelled:
            for task, request_id in list(self._tasks.items()):
                if request_id in effects.cancelled:
                    task.cancel()
        self._wake_at(None if effects.wake_at_ms is None else effects.wake_at_ms / 1000)

    def _wake_at(self, when: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if when is None else self._loop.call_at(when, self.schedule)

    def _spawn(self, work: Coroutine[Any, Any, None], request_id: int) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = request_id
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Tells the core, also if the request's task ended in a way that no line of it foresees."""
        request_id = self._tasks.pop(task)
        error = NetworkError("cancelled") if task.cancelled() else task.exception()
        if error is not None and not self._is_closed:
            if request_id:
                self.core.failed(request_id, error, self.now_ms())
            else:
                self.core.refreshed(error, self.now_ms())
        self.schedule()
        self._tell()

    def _tell(self) -> None:
        if self._told == self.core.assignment.version and not self._is_closed:
            return
        self._told = self.core.assignment.version
        waiting, self._news = self._news, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # Requests.

    async def _fetch(self, request: Request) -> None:
        address = self._metadata.address(request.node)
        if address is None:
            raise NetworkError(f"broker {request.node} is not alive")
        answer = await self._sessions.fetch(address, request)
        self.core.answered(request.request_id, answer, self.now_ms())

    async def _look_up(self, request: Request) -> None:
        wanted = {
            partition: ask.target.where
            for partition, ask in request.asked.items()
            if isinstance(ask.target, Reset)
        }
        found = await self._lookup.ask(request.node, wanted)
        self.core.found(request.request_id, found, self.now_ms())

    async def _refresh(self) -> None:
        error: Exception | None = None
        try:
            await self._metadata.refresh()
        except ClientClosedError:
            raise
        except Exception as failure:
            if isinstance(failure, ApiError) and is_retriable(failure):
                logger.debug("metadata: %s", failure)
            else:
                logger.warning("the metadata could not be refreshed", exc_info=failure)
            error = failure
        self.core.refreshed(error, self.now_ms())
