"""A bound on the bytes of requests in flight (`queued.max.request.bytes`).

A request acquires its size before it is processed and releases it when it is answered. At the
limit, new requests wait in order. As many bytes may wait as may be in flight. Beyond that, or after
a wait that takes too long, a request fails with a retriable error, and nothing is written.
"""

from __future__ import annotations

import asyncio
from collections import deque

from tidemark.errors import ThrottlingQuotaExceededError


class RequestMemory:
    """A first-come, first-served budget of bytes on one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waiting_bytes = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, size_bytes: int) -> int | None:
        """Acquires the bytes if that needs no wait, else returns None."""
        taken = min(size_bytes, self.limit_bytes)
        if self._queue or self.used_bytes + taken > self.limit_bytes:
            return None
        self.used_bytes += taken
        return taken

    async def acquire(self, size_bytes: int, timeout_ms: int) -> int:
        """Waits for room; returns the bytes to `release`. Raises ThrottlingQuotaExceededError.

        A request larger than the limit is admitted alone: slow rather than impossible.
        """
        taken = self.take(size_bytes)
        if taken is not None:
            return taken
        taken = min(size_bytes, self.limit_bytes)
        if self.waiting_bytes + taken > self.limit_bytes:
            raise ThrottlingQuotaExceededError(self._message())
        await self._wait(taken, timeout_ms)
        return taken

    async def _wait(self, taken: int, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        entry = (taken, turn)
        self._queue.append(entry)
        self.waiting_bytes += taken
        handle = loop.call_later(timeout_ms / 1000, _expire, turn)
        try:
            await turn
        except BaseException as error:
            if entry in self._queue:
                self._queue.remove(entry)
                self.waiting_bytes -= taken
                self._admit()
            elif not turn.cancelled() and turn.exception() is None:
                self.release(taken)  # admitted at the same moment
            if isinstance(error, TimeoutError):
                raise ThrottlingQuotaExceededError(self._message()) from None
            raise
        finally:
            handle.cancel()

    def release(self, taken_bytes: int) -> None:
        """Releases the bytes that `acquire` returned, and admits waiting requests."""
        self.used_bytes -= taken_bytes
        assert self.used_bytes >= 0, "released more than was taken"
        self._admit()

    def _admit(self) -> None:
        while self._queue and self.used_bytes + self._queue[0][0] <= self.limit_bytes:
            taken, turn = self._queue.popleft()
            self.waiting_bytes -= taken
            if turn.done():
                continue
            self.used_bytes += taken
            turn.set_result(None)

    def _message(self) -> str:
        return (
            f"{self.used_bytes} bytes of requests are under way and {self.waiting_bytes} wait "
            f"(queued.max.request.bytes={self.limit_bytes}); send again later"
        )


def _expire(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())
