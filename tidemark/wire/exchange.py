"""Ordered requests and answers over one gRPC call that stays open.

A unary call costs gRPC's Python side 300 to 400 us of CPU in both processes together, whatever its
size. A message on an open call costs a third of that (scripts/bench produce_raw). Frequent
requests, produce and followers' fetches, therefore use such a call, with the messages of the unary
method. As on a connection of Kafka's, answers come in the order of the requests.

`Exchange` is the requesting side, `answer_in_order`, `answer_each` and
`answer_until_next` are the answering side.
Importing this module imports gRPC.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio

logger = logging.getLogger(__name__)

_END: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs do not know it
Metadata = tuple[tuple[str, str], ...] | None
"""Metadata of a call; None: it has none."""

_UNDER_WAY_MAX = 64  # that a node works on
_ASKED_MAX = 1024  # that a call takes from its client before it refuses more


class Exchange:
    """The requesting side of one call; belongs to one event loop.

    After a failure it stays failed: all requests under way, and all later ones, raise the error
    that ended the call. Any end of one of its two tasks is such a failure, foreseen or not.
    At most `_ASKED_MAX` requests are without an answer; a further one is refused. A request that
    nobody waits for any more is not sent.
    """

    def __init__(self, channel: Any, path: str, metadata: Metadata = None) -> None:
        # No serializers: requests and answers are bytes.
        self.metadata = metadata
        begin = channel.stream_stream(path, None, None)
        self._call = begin() if metadata is None else begin(metadata=metadata)
        self._outgoing: deque[_Outgoing] = deque()  # not written yet
        self._has_outgoing = asyncio.Event()
        self._waiting: deque[asyncio.Future[bytes]] = deque()  # written, not answered yet
        self._error: grpc.aio.AioRpcError | None = None
        self._is_finished: asyncio.Event | None = None  # made by who waits for it
        self._tasks = [asyncio.ensure_future(self._send()), asyncio.ensure_future(self._receive())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    @property
    def is_open(self) -> bool:
        return self._error is None

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return not self._waiting and not self._outgoing

    async def finished(self) -> None:
        """Returns when no request is under way any more, or the call has ended. Nobody asks it
        for more then.
        """
        self._is_finished = self._is_finished or asyncio.Event()
        self._tell_if_idle()
        await self._is_finished.wait()

    def _tell_if_idle(self) -> None:
        if self._is_finished is not None and (self.is_idle or not self.is_open):
            self._is_finished.set()

    async def ask(self, request: bytes, timeout_s: float) -> bytes:
        """Sends `request` and returns its answer.

        A request that times out or is cancelled does not end the call: its answer is dropped when
        it comes. Raises grpc.aio.AioRpcError; its code is DEADLINE_EXCEEDED after `timeout_s`
        seconds, and RESOURCE_EXHAUSTED if too many requests have no answer yet.
        """
        if self._error is not None:
            raise self._error
        if len(self._outgoing) + len(self._waiting) >= _ASKED_MAX:
            text = f"{_ASKED_MAX} requests of this call have no answer yet"
            raise _status(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        outgoing = _Outgoing(request, answer)
        self._outgoing.append(outgoing)
        self._has_outgoing.set()
        limit = loop.call_later(timeout_s, _expire, answer, timeout_s)
        try:
            return await answer
        finally:
            limit.cancel()
            if not outgoing.is_written and self._error is None:
                self._outgoing.remove(outgoing)
                self._tell_if_idle()

    def close(self) -> None:
        """Ends the call; requests under way raise CANCELLED. Idempotent."""
        self._fail(_status(grpc.StatusCode.CANCELLED, "the exchange was closed"))

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fails the call with the error of the task that ended, if nothing else did before."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, grpc.aio.AioRpcError):
            self._fail(error)
        elif error is not None:
            logger.error("an open call failed: %r", error, exc_info=error)
            self._fail(_status(grpc.StatusCode.UNAVAILABLE, f"the call failed: {error!r}"))
        elif task is self._tasks[1] or task.cancelled():
            # Cancelled by `_fail`, or by gRPC: closing a channel cancels its calls.
            cancelled = task.cancelled()
            code = grpc.StatusCode.CANCELLED if cancelled else grpc.StatusCode.UNAVAILABLE
            text = "the call was cancelled" if cancelled else "the node ended the call"
            self._fail(_status(code, text))

    def _fail(self, error: grpc.aio.AioRpcError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._call.cancel()
        for task in self._tasks:
            task.cancel()
        for answer in [*self._waiting, *(outgoing.answer for outgoing in self._outgoing)]:
            if not answer.done():
                answer.set_exception(error)
        self._waiting.clear()
        self._outgoing.clear()
        self._tell_if_idle()

    async def _send(self) -> None:
        while True:
            while not self._outgoing:
                self._has_outgoing.clear()
                await self._has_outgoing.wait()
            outgoing = self._outgoing.popleft()
            outgoing.is_written = True
            if outgoing.answer.done():
                self._tell_if_idle()
                continue
            self._waiting.append(outgoing.answer)
            try:
                await self._call.write(outgoing.request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # the call has ended; `_receive` gets the reason

    async def _receive(self) -> None:
        while (message := await self._call.read()) is not _END:
            if not self._waiting:
                raise _status(grpc.StatusCode.UNAVAILABLE, "an answer without a request")
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(message)
            self._tell_if_idle()


class _Outgoing:
    """A request, and the future of its answer."""

    __slots__ = ("answer", "is_written", "request")

    def __init__(self, request: bytes, answer: asyncio.Future[bytes]) -> None:
        self.request = request
        self.answer = answer
        self.is_written = False


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


async def answer_until_next(
    context: Any,
    answer: Callable[[Any, asyncio.Future[Any]], Coroutine[Any, Any, bytes]],
    written: Callable[[], None] = lambda: None,
) -> None:
    """Serves one exchange one request after the other, and reads one request ahead.

    `answer` also takes a future, which is done when the next request is there or the call ends. An
    answer that waits for news need not wait any longer then. Calls `written` after each answer:
    the client's flow control had room for it.
    """
    behind = asyncio.ensure_future(context.read())
    try:
        while (request := await behind) is not _END:
            behind = asyncio.ensure_future(context.read())
            await context.write(await answer(request, behind))
            written()
    finally:
        if not behind.cancel() and not behind.cancelled():
            behind.exception()  # the call ended, which the answer may have noticed first


Answer = bytes | asyncio.Future[bytes] | Coroutine[Any, Any, bytes]


async def answer_in_order(
    context: Any, answer: Callable[[bytes], Answer], pause_s: Callable[[], float] | None = None
) -> None:
    """Serves one exchange: works on up to `_UNDER_WAY_MAX` requests at once and answers in their
    order.

    Further requests wait in gRPC's flow control. `answer` returns the answer, or an awaitable of
    it: a future, or a coroutine, which costs a task. Both are cancelled if the call ends first.
    A request is taken up when `pause_s` is 0; until then, those behind it are not read.
    """
    under_way = _UnderWay()

    async def take() -> None:
        try:
            while (request := await context.read()) is not _END:
                while pause_s is not None and (wait_s := pause_s()) > 0:  # noqa: ASYNC110
                    await asyncio.sleep(wait_s)
                under_way.add(_begun(answer, request))
                request = None  # its bytes are free while the next one is awaited
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
