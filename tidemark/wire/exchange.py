"""Ordered requests and answers over one gRPC call that stays open.

A unary call costs gRPC's Python side 300 to 400 us of CPU in both processes together, whatever its
size. A message on an open call costs a third of that (scripts/bench produce_raw). Frequent
requests, produce and followers' fetches, therefore use such a call, with the messages of the unary
method. As on a connection of Kafka's, answers come in the order of the requests.

`Exchange` is the requesting side, `answer_in_order` and `answer_each` are the answering side.
Importing this module imports gRPC.
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
    """The requesting side of one call; belongs to one event loop.

    After a failure it stays failed: all requests under way, and all later ones, raise the error
    that ended the call. The caller limits the number of requests under way.
    """

    def __init__(self, channel: Any, path: str) -> None:
        # No serializers: requests and answers are bytes.
        self._call = channel.stream_stream(path, None, None)()
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._error: grpc.aio.AioRpcError | None = None
        self._tasks = [asyncio.ensure_future(self._send()), asyncio.ensure_future(self._receive())]

    @property
    def is_open(self) -> bool:
        return self._error is None

    async def ask(self, request: bytes, timeout_s: float) -> bytes:
        """Sends `request` and returns its answer.

        A request that times out or is cancelled does not end the call: its answer is dropped when
        it comes. Raises grpc.aio.AioRpcError; its code is DEADLINE_EXCEEDED after `timeout_s`
        seconds.
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
        """Ends the call; requests under way raise CANCELLED. Idempotent."""
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
                return  # the call has ended; `_receive` gets the reason

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
            # By `_fail`, or by gRPC: closing a channel cancels its calls.
            error = _status(grpc.StatusCode.CANCELLED, "the call was cancelled")
        self._fail(error)


def _expire(answer: asyncio.Future[bytes], timeout_s: float) -> None:
    if not answer.done():
        text = f"no answer in {timeout_s:.3f} s"
        answer.set_exception(_status(grpc.StatusCode.DEADLINE_EXCEEDED, text))


def _status(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, "")


async def answer_each(context: Any, answer: Callable[[Any], Coroutine[Any, Any, bytes]]) -> None:
    """Serves one exchange whose requests come one at a time."""
    while (request := await context.read()) is not _END:
        await context.write(await answer(request))


Answer = bytes | asyncio.Future[bytes] | Coroutine[Any, Any, bytes]


async def answer_in_order(context: Any, answer: Callable[[bytes], Answer]) -> None:
    """Serves one exchange: works on up to `_UNDER_WAY_MAX` requests at once and answers in their
    order.

    Further requests wait in gRPC's flow control. `answer` returns the answer, or an awaitable of
    it: a future, or a coroutine, which costs a task. Both are cancelled if the call ends first.
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
    """The answer or a future of it. An error takes its place in the order and ends the call."""
    try:
        found = answer(request)
    except Exception as error:
        failed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        failed.set_exception(error)
        return failed
    return found if isinstance(found, bytes) else asyncio.ensure_future(found)


class _UnderWay:
    """Answers that are still to be written, in order. One task adds and one removes; None is the
    end.
    """

    def __init__(self) -> None:
        self.answers: deque[bytes | asyncio.Future[bytes] | None] = deque()
        self._waiter: asyncio.Future[None] | None = None  # a task waiting for an answer or room

    def add(self, answer: bytes | asyncio.Future[bytes] | None) -> None:
        self.answers.append(answer)
        self._wake()

    def done(self) -> None:
        """Removes the first answer, which has been written."""
        self.answers.popleft()
        if len(self.answers) == _UNDER_WAY_MAX - 1:
            self._wake()

    async def first(self) -> bytes | asyncio.Future[bytes] | None:
        """Waits for the first answer and returns it; it stays until `done` is called."""
        if not self.answers:
            await self._wait()
        return self.answers[0]

    async def room(self) -> None:
        """Waits until fewer than `_UNDER_WAY_MAX` answers are to be written."""
        await self._wait()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
