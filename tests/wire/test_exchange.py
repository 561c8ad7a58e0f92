"""Requests and answers over one call: their order, their limits, and the ends of the call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.virtual_time import run
from tidemark import wire
from tidemark.wire.exchange import _ASKED_MAX, Exchange, answer_in_order, answer_until_next

Answer = Callable[[bytes], bytes | asyncio.Future[bytes] | Coroutine[Any, Any, bytes]]


def with_exchange(
    answer: Any,
    scenario: Callable[[Exchange], Awaitable[None]],
    serving: Callable[..., Awaitable[None]] = answer_in_order,
) -> None:
    """Runs `scenario` with an exchange; a real server answers it by `answer`."""

    async def main() -> None:
        async def serve(requests: Any, context: Any) -> None:
            await serving(context, answer)

        server = grpc.aio.server(options=wire.CHANNEL_OPTIONS)
        handlers = {"Ask": grpc.stream_stream_rpc_method_handler(serve)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=wire.CHANNEL_OPTIONS)
        exchange = Exchange(channel, "/t.T/Ask")
        try:
            await scenario(exchange)
        finally:
            exchange.close()
            await channel.close(None)
            await server.stop(None)

    asyncio.run(main())


def test_answers_come_in_the_order_of_the_requests_however_long_each_takes() -> None:
    first = asyncio.Event()
    done: list[bytes] = []

    async def answer(request: bytes) -> bytes:
        if request == b"0":
            await first.wait()
        elif request == b"99":
            first.set()  # all are under way, or wait for room, before the first answer
        return b"re: " + request

    async def scenario(exchange: Exchange) -> None:
        async def ask(number: int) -> None:
            text = str(number).encode()
            assert await exchange.ask(text, 30) == b"re: " + text
            done.append(text)

        waiting = [asyncio.ensure_future(ask(number)) for number in range(50)]
        await asyncio.sleep(0)
        waiting.append(asyncio.ensure_future(ask(99)))
        await asyncio.gather(*waiting)

    with_exchange(answer, scenario)
    assert done == [str(number).encode() for number in [*range(50), 99]]


def test_an_answer_learns_of_the_request_behind_it_and_of_the_end_of_the_call() -> None:
    answered: list[bytes] = []
    begun, ended = asyncio.Event(), asyncio.Event()

    async def answer(request: bytes, behind: asyncio.Future[Any]) -> bytes:
        if request == b"last":
            begun.set()
            try:
                await asyncio.wait((behind,))
            finally:
                ended.set()
        elif request == b"parked":
            await asyncio.wait((behind,))
        answered.append(request)
        return request

    async def scenario(exchange: Exchange) -> None:
        parked = asyncio.ensure_future(exchange.ask(b"parked", 30))
        await asyncio.sleep(0)
        assert await exchange.ask(b"next", 30) == b"next"
        assert parked.done()
        assert answered == [b"parked", b"next"], "one after the other"
        parked = asyncio.ensure_future(exchange.ask(b"last", 30))
        await begun.wait()
        exchange.close()
        await asyncio.wait_for(ended.wait(), 5)
        await asyncio.wait((parked,))
        assert isinstance(parked.exception(), grpc.aio.AioRpcError)

    with_exchange(answer, scenario, answer_until_next)


def test_more_requests_than_may_be_worked_on_at_once_wait_and_are_answered() -> None:
    at_once = most = 0

    async def answer(request: bytes) -> bytes:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return request

    async def scenario(exchange: Exchange) -> None:
        asked = [str(number).encode() for number in range(300)]
        assert await asyncio.gather(*(exchange.ask(text, 30) for text in asked)) == asked

    with_exchange(answer, scenario)
    assert most <= 64


def test_a_request_that_gets_no_answer_in_time_leaves_the_others_theirs() -> None:
    go = asyncio.Event()

    async def answer(request: bytes) -> bytes:
        await go.wait()
        return request

    async def scenario(exchange: Exchange) -> None:
        hasty = asyncio.ensure_future(exchange.ask(b"hasty", 0.01))
        patient = asyncio.ensure_future(exchange.ask(b"patient", 30))
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await hasty
        assert found.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        go.set()
        assert await patient == b"patient"
        assert await exchange.ask(b"next", 30) == b"next"

    with_exchange(answer, scenario)


def test_a_closed_exchange_fails_what_is_under_way_and_what_comes_later() -> None:
    async def answer(request: bytes) -> bytes:
        await asyncio.Event().wait()
        return request

    async def scenario(exchange: Exchange) -> None:
        waiting = asyncio.ensure_future(exchange.ask(b"x", 30))
        await asyncio.sleep(0)
        exchange.close()
        for asked in (waiting, exchange.ask(b"late", 30)):
            with pytest.raises(grpc.aio.AioRpcError) as found:
                await asked
            assert found.value.code() is grpc.StatusCode.CANCELLED
        assert not exchange.is_open

    with_exchange(answer, scenario)


def test_whoever_stops_waiting_leaves_the_others_their_answers() -> None:
    go = asyncio.Event()

    async def answer(request: bytes) -> bytes:
        await go.wait()
        return request

    async def scenario(exchange: Exchange) -> None:
        leaver = asyncio.ensure_future(exchange.ask(b"leaver", 30))
        stayer = asyncio.ensure_future(exchange.ask(b"stayer", 30))
        await asyncio.sleep(0)
        leaver.cancel()
        await asyncio.wait((leaver,))
        go.set()
        assert await stayer == b"stayer"
        assert exchange.is_open

    with_exchange(answer, scenario)


def test_a_request_that_fails_ends_the_call_with_its_status() -> None:
    async def answer(request: bytes) -> bytes:
        raise ValueError("broken")

    async def scenario(exchange: Exchange) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await exchange.ask(b"x", 30)
        assert found.value.code() is grpc.StatusCode.UNKNOWN
        assert not exchange.is_open

    with_exchange(answer, scenario)


@pytest.mark.parametrize("together", [1, 300])
def test_answers_given_at_once_and_later_ones_come_in_the_order_of_the_requests(
    together: int,
) -> None:
    def answer(request: bytes) -> Any:
        kind = int(request) % 3
        if kind == 0:
            return request
        loop = asyncio.get_running_loop()
        if kind == 1:
            future = loop.create_future()
            loop.call_later(0.001, lambda: future.done() or future.set_result(request))
            return future
        return asyncio.sleep(0, request)

    async def scenario(exchange: Exchange) -> None:
        asked = [str(number).encode() for number in range(300)]
        for begin in range(0, len(asked), together):
            part = asked[begin : begin + together]
            assert await asyncio.gather(*(exchange.ask(text, 30) for text in part)) == part

    with_exchange(answer, scenario)


def test_an_error_at_once_ends_the_call_after_the_answers_before() -> None:
    async def before(request: bytes) -> bytes:
        await asyncio.sleep(0.01)
        return request

    def answer(request: bytes) -> Any:
        if request == b"bad":
            raise ValueError("broken")
        return before(request)

    async def scenario(exchange: Exchange) -> None:
        good, bad = (asyncio.ensure_future(exchange.ask(text, 30)) for text in (b"good", b"bad"))
        assert await good == b"good"
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await bad
        assert found.value.code() is grpc.StatusCode.UNKNOWN

    with_exchange(answer, scenario)


def test_nobody_listens() -> None:
    async def main() -> None:
        channel = grpc.aio.insecure_channel("127.0.0.1:1", options=wire.CHANNEL_OPTIONS)
        exchange = Exchange(channel, "/t.T/Ask")
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await exchange.ask(b"x", 30)
        assert found.value.code() is grpc.StatusCode.UNAVAILABLE
        await channel.close(None)

    asyncio.run(main())


class FakeCall:
    """A call in this process; it is its own channel."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.answers: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.write_error: BaseException | None = None
        self.is_cancelled = False

    def stream_stream(self, *_: Any) -> Callable[[], FakeCall]:
        return lambda: self

    async def write(self, message: bytes) -> None:
        await self.may_write.wait()
        if self.write_error is not None:
            raise self.write_error
        self.written.append(message)

    async def read(self) -> bytes:
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self) -> None:
        self.is_cancelled = True


@pytest.mark.parametrize("where", ["write", "read", "answer that nobody asked for"])
def test_an_end_that_nobody_foresaw_closes_the_call_and_fails_what_waits(where: str) -> None:
    async def main() -> None:
        call = FakeCall()
        exchange = Exchange(call, "/t.T/Ask")
        if where == "write":
            call.write_error = RuntimeError("no memory")
        waiting = [asyncio.ensure_future(exchange.ask(b"%d" % n, 60)) for n in range(3)]
        await asyncio.sleep(0)
        if where == "read":
            call.answers.put_nowait(RuntimeError("not a message"))
        elif where.startswith("answer"):
            for _ in range(4):
                call.answers.put_nowait(b"a")
        results = await asyncio.gather(*waiting, return_exceptions=True)
        if where.startswith("answer"):
            assert results == [b"a"] * 3
            await asyncio.sleep(0)
        else:
            codes = [error.code() for error in results]  # type: ignore[union-attr]
            assert codes == [grpc.StatusCode.UNAVAILABLE] * 3
        assert not exchange.is_open
        assert call.is_cancelled
        with pytest.raises(grpc.aio.AioRpcError):
            await exchange.ask(b"later", 60)
        assert asyncio.get_running_loop().time() < 1, "before the requests' own time is up"

    run(main())


def test_requests_that_no_longer_wait_are_not_sent_and_keep_no_memory() -> None:
    async def main() -> None:
        call = FakeCall()
        call.may_write.clear()  # the node hangs: it takes nothing
        exchange = Exchange(call, "/t.T/Ask")
        for _ in range(3 * _ASKED_MAX):
            with pytest.raises(grpc.aio.AioRpcError) as found:
                await exchange.ask(b"stale", 1)
            assert found.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert len(exchange._outgoing) + len(exchange._waiting) == 1, "the one that is being sent"
        call.may_write.set()
        fresh = asyncio.ensure_future(exchange.ask(b"fresh", 1))
        await asyncio.sleep(0.1)
        assert call.written == [b"stale", b"fresh"]
        call.answers.put_nowait(b"of the stale one")
        call.answers.put_nowait(b"of the fresh one")
        assert await fresh == b"of the fresh one"
        exchange.close()

    run(main())


def test_requests_beyond_the_limit_are_refused_at_once() -> None:
    async def main() -> None:
        call = FakeCall()
        exchange = Exchange(call, "/t.T/Ask")
        waiting = [asyncio.ensure_future(exchange.ask(b"x", 60)) for _ in range(_ASKED_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await exchange.ask(b"one more", 60)
        assert found.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        call.answers.put_nowait(b"a")
        assert await waiting[0] == b"a"
        assert exchange.is_open
        exchange.close()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(main())
