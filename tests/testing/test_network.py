"""The simulated network carries calls as gRPC does, and its faults are those of a network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from tidemark.testing.loop import Process, SimLoop
from tidemark.testing.network import ProcessNetwork, SimNetwork, answers_of

ADDRESS, ECHO, LINES, RAISES = "server:1", "/s.S/Echo", "/s.S/Lines", "/s.S/Raises"
CALLER, SERVER = 1, 2


class Service:
    """An echo, unary and over a call that stays open; remembers what arrived."""

    def __init__(self) -> None:
        self.arrived: list[bytes] = []
        self.wait_s = 0.0
        self.cancelled = 0

    async def echo(self, request: bytes, context: Any) -> bytes:
        self.arrived.append(request)
        try:
            await asyncio.sleep(self.wait_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return request.upper()

    async def lines(self, requests: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            self.arrived.append(request)
            await context.write(request.upper())

    async def raises(self, request: bytes, context: Any) -> bytes:
        raise ValueError("a bug")

    def handlers(self) -> Any:
        methods = {
            "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
            "Lines": grpc.stream_stream_rpc_method_handler(self.lines),
            "Raises": grpc.unary_unary_rpc_method_handler(self.raises),
        }
        return grpc.method_handlers_generic_handler("s.S", methods)


class Pair:
    """A caller and a server in a simulation."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.network = SimNetwork(self.loop, random.Random(1))
        self.caller = Process(self.loop, CALLER, "caller", lambda pool: 0.001)
        self.service = Service()
        self.serve()
        self.channel: Any = ProcessNetwork(self.network, self.caller).channel(ADDRESS)

    def serve(self) -> None:
        self.server = Process(self.loop, SERVER, "server", lambda pool: 0.001)
        server = ProcessNetwork(self.network, self.server).server()
        server.add_generic_rpc_handlers((self.service.handlers(),))
        assert server.add_insecure_port(ADDRESS) == 1
        self.loop.run_until_complete(self.server.spawn(server.start()))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(self.caller.spawn(work))

    def call(self, path: str, request: bytes, timeout_s: float = 1.0) -> Any:
        async def call() -> Any:
            return await self.channel.unary_unary(path)(request, timeout=timeout_s)

        return self.run(call())

    def status_of(self, path: str, timeout_s: float = 1.0) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            self.call(path, b"a", timeout_s)
        code: grpc.StatusCode = caught.value.code()
        return code

    def advance(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def kill(self, *, silent: bool = False) -> None:
        self.server.end()
        self.network.process_ended(self.server, silent=silent)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.caller.end()
    made.server.end()
    made.loop.run_until_idle()
    made.loop.close()


def test_a_call_is_answered_after_a_while(pair: Pair) -> None:
    assert pair.call(ECHO, b"a") == b"A"
    assert pair.loop.time() > 0


def test_statuses_are_those_of_grpc(pair: Pair) -> None:
    assert pair.status_of("/s.S/Missing") is grpc.StatusCode.UNIMPLEMENTED
    assert pair.status_of(RAISES) is grpc.StatusCode.UNKNOWN
    pair.service.wait_s = 5
    assert pair.status_of(ECHO, timeout_s=0.1) is grpc.StatusCode.DEADLINE_EXCEEDED
    pair.advance(0.1)
    assert pair.service.cancelled == 1
    pair.kill()
    assert pair.status_of(ECHO) is grpc.StatusCode.UNAVAILABLE


def test_a_call_under_way_ends_when_its_server_is_killed(pair: Pair) -> None:
    pair.service.wait_s = 5
    pair.loop.call_later(0.1, pair.kill)
    assert pair.status_of(ECHO, timeout_s=9) is grpc.StatusCode.UNAVAILABLE
    assert pair.loop.time() < 1


def test_nobody_notices_a_loss_of_power(pair: Pair) -> None:
    pair.service.wait_s = 5
    pair.loop.call_later(0.1, lambda: pair.kill(silent=True))
    assert pair.status_of(ECHO, timeout_s=9) is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_request_behind_a_cut_arrives_after_the_heal_though_its_caller_gave_up(
    pair: Pair,
) -> None:
    pair.network.cut([(CALLER, SERVER)])
    assert pair.status_of(ECHO) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert pair.service.arrived == []
    pair.network.uncut([(CALLER, SERVER)])
    pair.advance(0.1)
    assert pair.service.arrived == [b"a"]


def test_a_cut_of_the_way_back_lets_requests_through(pair: Pair) -> None:
    pair.network.cut([(SERVER, CALLER)])
    assert pair.status_of(ECHO) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert pair.service.arrived == [b"a"]


def test_one_connection_of_several_can_be_cut_or_its_answers_alone(pair: Pair) -> None:
    pair.network.cut([(CALLER, SERVER)], LINES)
    assert pair.call(ECHO, b"a") == b"A"
    pair.network.cut([(SERVER, CALLER)], answers_of(ECHO))
    assert pair.status_of(ECHO) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert pair.service.arrived == [b"a", b"a"]
    pair.network.uncut([(SERVER, CALLER)], answers_of(ECHO))
    assert pair.call(ECHO, b"b") == b"B"


def test_cuts_that_overlap_are_undone_one_by_one(pair: Pair) -> None:
    way = [(CALLER, SERVER)]
    pair.network.cut(way)
    pair.network.cut(way)
    pair.network.uncut(way)
    assert pair.network.is_cut(CALLER, SERVER)
    pair.network.heal()
    assert pair.call(ECHO, b"a") == b"A"


def test_a_broken_connection_may_deliver_its_request_all_the_same(pair: Pair) -> None:
    pair.network.break_rate = 1.0
    pair.network.late_rate = 1.0
    assert pair.status_of(ECHO, timeout_s=9) is grpc.StatusCode.UNAVAILABLE
    assert pair.service.arrived == []
    pair.advance(5)
    assert pair.service.arrived == [b"a"]


def test_messages_of_one_open_call_keep_their_order(pair: Pair) -> None:
    pair.network.late_rate = 0.5

    async def exchange() -> list[bytes]:
        call = pair.channel.stream_stream(LINES)()
        for number in range(20):
            await call.write(b"a%d" % number)
        await call.done_writing()
        found = []
        while (answer := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            found.append(answer)
        return found

    assert pair.run(exchange()) == [b"A%d" % number for number in range(20)]


def test_an_open_call_does_not_survive_its_server(pair: Pair) -> None:
    async def exchange() -> None:
        call = pair.channel.stream_stream(LINES)()
        await call.write(b"a")
        assert await call.read() == b"A"
        pair.kill(silent=True)
        pair.service = Service()
        self_again = Process(pair.loop, SERVER, "server", lambda pool: 0.001)
        server = ProcessNetwork(pair.network, self_again).server()
        server.add_generic_rpc_handlers((pair.service.handlers(),))
        server.add_insecure_port(ADDRESS)
        await server.start()
        await call.write(b"b")
        await call.read()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        pair.run(exchange())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert pair.service.arrived == []


def test_closing_a_channel_cancels_its_calls(pair: Pair) -> None:
    pair.service.wait_s = 5

    async def close_while_calling() -> None:
        call = pair.channel.unary_unary(ECHO)(b"a", timeout=9)
        asyncio.get_running_loop().call_later(0.1, lambda: pair.caller.spawn(pair.channel.close()))
        await call

    with pytest.raises(asyncio.CancelledError):
        pair.run(close_while_calling())
    with pytest.raises(grpc.aio.UsageError):
        pair.call(ECHO, b"a")


def test_a_paused_process_answers_when_it_resumes(pair: Pair) -> None:
    pair.server.pause()
    pair.loop.call_later(3, pair.server.resume)
    assert pair.call(ECHO, b"a", timeout_s=9) == b"A"
    assert pair.loop.time() > 3


def test_jobs_of_one_pool_run_one_after_another(pair: Pair) -> None:
    done: list[float] = []

    async def work() -> None:
        jobs = [asyncio.to_thread(lambda: done.append(pair.loop.time())) for _ in range(3)]
        await asyncio.gather(*jobs)

    pair.run(work())
    assert [round(time_s, 3) for time_s in done] == [0.001, 0.002, 0.003]


def test_a_call_whose_beginning_met_a_dead_process_is_reset(pair: Pair) -> None:
    async def exchange() -> None:
        pair.network.cut([(CALLER, SERVER)])
        call = pair.channel.stream_stream(LINES)()
        await asyncio.sleep(0.1)
        pair.server.end()
        pair.network.heal()
        await call.read()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        pair.run(exchange())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
