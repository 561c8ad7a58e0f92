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


Answer = bytes | asyncio.Future[bytes] | Coroutine[Any, Any, bytes]


async def answer_in_order(context: Any, answer: Callable[[bytes], Answer]) -> None:
    """Serves one exchange: works on up to `_UNDER_WAY_MAX` requests at once and answers in their
    order; the rest waits in gRPC's flow control.

    `answer` gives the answer at once, or what to wait for: a future, or a coroutine, which costs a
    task. Both are cancelled when the call ends before.
    """
    under_way = _UnderWay()

    async def take() -> None:
        try:
            while (request := await context.read()) is not _END:
                under_way.add(_begun(answer, request))
                if len(under_way.answers) >= _UNDER_WAY_MAX:
                    await under_way.room()
        finally:
            under_way.add(None)

    taking = asyncio.ensure_future(take())
    try:
        while (found := await under_way.first()) is not None:
            await context.write(found if isinstance(found, bytes) else await found)
            under_way.done()
    finally:
        left: list[asyncio.Future[Any]] = [taking]
        left += [found for found in under_way.answers if isinstance(found, asyncio.Future)]
        for waiting in left:
            waiting.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _begun(answer: Callable[[bytes], Answer], request: bytes) -> bytes | asyncio.Future[bytes]:
    """The answer, or what will have it; an error comes in its turn, too, and ends the call."""
    try:
        found = answer(request)
    except Exception as error:
        failed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        failed.set_exception(error)
        return failed
    return found if isinstance(found, bytes) else asyncio.ensure_future(found)


class _UnderWay:
    """The answers that are still to be written, in order; one task adds, one takes away. None says
    that no more will come.
    """

    def __init__(self) -> None:
        self.answers: deque[bytes | asyncio.Future[bytes] | None] = deque()
        self._waiter: asyncio.Future[None] | None = None  # of the task that finds none, or too many

    def add(self, answer: bytes | asyncio.Future[bytes] | None) -> None:
        self.answers.append(answer)
        self._wake()

    def done(self) -> None:
        """The first one is written."""
        self.answers.popleft()
        if len(self.answers) == _UNDER_WAY_MAX - 1:
            self._wake()

    async def first(self) -> bytes | asyncio.Future[bytes] | None:
        """The first one, as soon as there is one; it stays until it is `done`."""
        if not self.answers:
            await self._wait()
        return self.answers[0]

    async def room(self) -> None:
        """Until one of `_UNDER_WAY_MAX` is written."""
        await self._wait()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
