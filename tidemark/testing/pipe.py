"""The messages of one direction of a simulated call that stays open, as its reader sees them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import grpc.aio

from tidemark.testing.loop import SimLoop

END: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs do not know it


class Pipe:
    """Messages of one direction that arrived and are not read yet."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._messages: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None

    def put(self, message: Any) -> None:
        self._messages.append(message)
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Ends the pipe behind what arrived."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Any:
        while not self._messages:
            if self._error is not None:
                raise self._error
            self._waiter = self._loop.create_future()
            await self._waiter
        found = self._messages[0]
        if found is not END:  # the end stays
            self._messages.popleft()
        return found
