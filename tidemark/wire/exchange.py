"""Requests and their answers, in order, over one gRPC call that stays open.

A unary call costs gRPC's Python side 300 to 400 us of CPU in both processes together, whatever its
size; a message on a call that is open already costs a third of it (scripts/bench produce_raw). So
what comes often, produce requests and followers' fetches, goes over such a call, with the messages
of the unary method. As on a connection of Kafka's, answers come in the order of the requests.

`Exchange` is the asking side, `answer_in_order` and `answer_each` the answering one. Importing this
imports gRPC.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio

_END: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs do not know it
_UNDER_WAY_MAX = 64


class Exchange:
    """The asking side of one call; belongs to one event loop.

    Once it has failed it stays so: every request under way, and every later one, raises what ended
    it. Whoever asks bounds how many requests are under way.
    """

    def __init__(self, channel: Any, path: str) -> None:
        # No serializers: bytes go out and come in as they are.
        self._call = channel.stream_stream(path, None, None)()
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._error: grpc.aio.AioRpcError | None = None
        self._tasks = [asyncio.ensure_future(self._send()), asyncio.ensure_future(self._receive())]

    @property
    def is_open(self) -> bool:
        return self._error is None

    async def ask(self, request: bytes, timeout_s: float) -> bytes:
        """The answer to `request`. Raises grpc.aio.AioRpcError; DEADLINE_EXCEEDED concerns this
        request alone, as the cancellation of who asks does: its answer is dropped when it comes.
        """
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._waiting.append(answer)
        self._outgoing.put_nowait(request)
        limit = loop.call_later(timeout_s, _expire, answer, timeout_s)
        try:
            return await answer
        finally:
            limit.cancel()

    def close(self) -> None:
        """Ends the call; requests under way raise CANCELLED. Harmless when repeated."""
        self._fail(_status(grpc.StatusCode.CANCELLED, "the exchange was closed"))

    def _fail(self, error: grpc.aio.AioRpcError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._call.cancel()
        for task in self._tasks:
            task.cancel()
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(error)
        self._waiting.clear()

    async def _send(self) -> None:
        while True:
            try:
                await self._call.write(await self._outgoing.get())
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # the call has ended, and its reading side says why

    async def _receive(self) -> None:
        error = _status(grpc.StatusCode.UNAVAILABLE, "the node ended the call")
        try:
            while (message := await self._call.read()) is not _END:
                answer = self._waiting.popleft()
                if not answer.done():
                    answer.set_result(message)
        except grpc.aio.AioRpcError as ended:
            error = ended
        except asyncio.CancelledError:
            # Ours, or from within: a channel that is closed cancels its calls.
            error = _status(grpc.StatusCode.CANCELLED, "the call was cancelled")
        self._fail(error)


def _expire(answer: asyncio.Future[bytes], timeout_s: float) -> None:
    if not answer.done():
        text = f"no answer in {timeout_s:.3f} s"
        answer.set_exception(_status(grpc.StatusCode.DEADLINE_EXCEEDED, text))


def _status(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, "")


async def answer_each(context: Any, answer: Callable[[Any], Coroutine[Any, Any, bytes]]) -> None:
    """Serves one exchange whose asker has one request under way at a time."""
    while (request := await context.read()) is not _END:
        await context.write(await answer(request))


async def answer_in_order(
    context: Any, answer: Callable[[bytes], Coroutine[Any, Any, bytes]]
) -> None:
    """Serves one exchange: works on up to `_UNDER_WAY_MAX` requests at once and answers in their
    order; the rest waits in gRPC's flow control.
    """
    room = asyncio.Semaphore(_UNDER_WAY_MAX)
    under_way: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
    begun: set[asyncio.Task[bytes]] = set()

    async def take() -> None:
        try:
            while (await room.acquire()) and (request := await context.read()) is not _END:
                task = asyncio.ensure_future(answer(request))
                begun.add(task)
                under_way.put_nowait(task)
        finally:
            under_way.put_nowait(None)

    taking = asyncio.ensure_future(take())
    try:
        while (task := await under_way.get()) is not None:
            await context.write(await task)
            begun.discard(task)
            room.release()
    finally:
        for left in (taking, *begun):
            left.cancel()
        await asyncio.gather(taking, *begun, return_exceptions=True)
