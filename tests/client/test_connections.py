"""Connections of a client: the ends of those that lead nowhere, and statuses of gRPC as errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.virtual_time import run
from tidemark import wire
from tidemark.client.connections import Connections, error_of_status
from tidemark.errors import (
    ApiError,
    BrokerNotAvailableError,
    MessageTooLargeError,
    NetworkError,
    RequestTimedOutError,
    UnknownServerError,
    UnsupportedVersionError,
)
from tidemark.surroundings import Surroundings, use
from tidemark.wire.exchange import answer_each
from tidemark.wire.network import make_server

CODE = grpc.StatusCode
NODE = "127.0.0.1:1"
ONE = "/t.T/One"


@pytest.mark.parametrize(
    ("code", "details", "error"),
    [
        # As grpcio says them of nodes that were killed while a client wrote to them.
        (CODE.UNAVAILABLE, "Stream removed (Socket closed)", NetworkError),
        (CODE.UNAVAILABLE, "Stream removed (sendmsg: Broken pipe (32))", NetworkError),
        (CODE.INTERNAL, "Internal error from Core", NetworkError),
        (CODE.INTERNAL, "Received RST_STREAM with error code 2", NetworkError),
        (CODE.INTERNAL, "RST_STREAM (Received RST_STREAM with error code 1)", NetworkError),
        (CODE.UNKNOWN, "Stream removed", NetworkError),
        (CODE.CANCELLED, "Received RST_STREAM with error code 8", NetworkError),
        (CODE.DEADLINE_EXCEEDED, "no answer in 1 s", RequestTimedOutError),
        (CODE.UNIMPLEMENTED, "Method not found!", UnsupportedVersionError),
        (CODE.RESOURCE_EXHAUSTED, "Sent message larger than max (5 vs. 4)", MessageTooLargeError),
        (CODE.RESOURCE_EXHAUSTED, "too many calls", BrokerNotAvailableError),
        # Errors of a node's handler, and of whoever else may answer there.
        (CODE.UNKNOWN, "Unexpected <class 'RuntimeError'>: no such field", UnknownServerError),
        (CODE.INTERNAL, "a proxy's own trouble", UnknownServerError),
        (CODE.INVALID_ARGUMENT, "malformed message", UnknownServerError),
    ],
)
def test_a_call_that_broke_is_a_network_error_and_a_node_that_failed_is_not(
    code: grpc.StatusCode, details: str, error: type[ApiError]
) -> None:
    found = error_of_status(code, details, "127.0.0.1:1")
    assert type(found) is error
    assert str(found) == f"127.0.0.1:1: {details}"


class FakeChannel:
    """A connection of gRPC's; `answers` is false if the network swallows what is sent."""

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.is_closed = False
        self._waiting: set[asyncio.Future[Any]] = set()

    def unary_unary(self, path: str, *_: Any) -> Callable[..., Awaitable[bytes]]:
        async def call(request: bytes, timeout: float, metadata: Any = None) -> bytes:
            answer = self.future()
            if self.answers:
                answer.set_result(b"re: " + request)
            try:
                async with asyncio.timeout(timeout):
                    return bytes(await answer)
            except TimeoutError:
                empty = grpc.aio.Metadata()
                raise grpc.aio.AioRpcError(CODE.DEADLINE_EXCEEDED, empty, empty) from None

        return call

    def stream_stream(self, path: str, *_: Any) -> Callable[[], Any]:
        return lambda: FakeStream(self)

    def future(self) -> asyncio.Future[Any]:
        found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(found)
        return found

    async def close(self, grace: float | None) -> None:
        self.is_closed = True
        for future in self._waiting:
            future.cancel()


class FakeStream:
    """A call that stays open."""

    def __init__(self, channel: FakeChannel) -> None:
        self._channel = channel
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()

    async def write(self, request: bytes) -> None:
        if self._channel.answers:
            self._answers.put_nowait(b"re: " + request)

    async def read(self) -> bytes:
        return await self._answers.get()

    def cancel(self) -> None:
        """Does nothing: the reader is cancelled as well."""


class FakeNetwork:
    """Swallows everything of the first connection, as a firewall that forgot it does."""

    def __init__(self) -> None:
        self.made: list[FakeChannel] = []

    def channel(self, address: str) -> FakeChannel:
        self.made.append(FakeChannel(answers=bool(self.made)))
        return self.made[-1]

    def server(self) -> Any:
        raise NotImplementedError


def play(scenario: Callable[[Connections, FakeNetwork], Awaitable[None]]) -> None:
    async def main() -> None:
        network = FakeNetwork()
        with use(Surroundings(network=network)):
            connections = Connections(request_timeout_ms=30_000)
            await scenario(connections, network)
            await connections.close()
            assert all(channel.is_closed for channel in network.made)

    run(main())


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_connection_whose_request_timed_out_is_closed_and_the_next_request_makes_a_new_one(
    is_stream: bool,
) -> None:
    async def scenario(connections: Connections, network: FakeNetwork) -> None:
        async def ask(text: bytes, limit_ms: float = 30_000) -> bytes:
            if is_stream:
                return await connections.exchange(
                    NODE, "/t.T/Ask", text, bytes, limit_ms, alone=ONE
                )
            return await connections.call(NODE, "/t.T/Ask", text, bytes, timeout_ms=limit_ms)

        first = asyncio.ensure_future(ask(b"1"))
        await asyncio.sleep(10)
        later = asyncio.ensure_future(ask(b"2", 60_000))
        other = asyncio.ensure_future(connections.call(NODE, "/t.T/Other", b"3", bytes))
        with pytest.raises(RequestTimedOutError):
            await first
        for waiting in (later, other):
            with pytest.raises(NetworkError):
                await waiting
        assert asyncio.get_running_loop().time() < 31, "nobody else waits for its own timeout"
        assert await ask(b"4") == b"re: 4"
        assert [channel.is_closed for channel in network.made] == [True, False]

    play(scenario)


def test_requests_that_time_out_together_close_one_connection_only() -> None:
    async def scenario(connections: Connections, network: FakeNetwork) -> None:
        async def ask() -> bytes:
            with contextlib.suppress(RequestTimedOutError, NetworkError):
                await connections.call(NODE, "/t.T/Ask", b"1", bytes)
            return await connections.call(NODE, "/t.T/Ask", b"2", bytes)

        assert await asyncio.gather(*(ask() for _ in range(20))) == [b"re: 2"] * 20
        assert len(network.made) == 2

    play(scenario)


def test_a_short_limit_closes_a_connection_only_if_no_other_request_is_under_way() -> None:
    async def scenario(connections: Connections, network: FakeNetwork) -> None:
        produce = asyncio.ensure_future(
            connections.exchange(NODE, "/t.T/Produce", b"1", bytes, 30_000, alone=ONE)
        )
        await asyncio.sleep(1)
        with pytest.raises(RequestTimedOutError):
            await connections.call(NODE, "/t.T/Metadata", b"2", bytes, timeout_ms=5_000)
        assert not network.made[0].is_closed
        produce.cancel()
        await asyncio.gather(produce, return_exceptions=True)
        with pytest.raises(RequestTimedOutError):
            await connections.call(NODE, "/t.T/Metadata", b"2", bytes, timeout_ms=5_000)
        assert await connections.call(NODE, "/t.T/Metadata", b"3", bytes) == b"re: 3"

    play(scenario)


class FreezingProxy:
    """A TCP proxy that swallows the bytes of connections made before `freeze`, and closes none."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._frozen: set[asyncio.StreamWriter] = set()
        self._open: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.accepted = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def freeze(self) -> None:
        self._frozen |= set(self._open)

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        for writer in self._open:
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        there_reader, there = await asyncio.open_connection("127.0.0.1", self._port)
        self._open += [writer, there]
        for source, target in ((reader, there), (there_reader, writer)):
            self._tasks.add(asyncio.ensure_future(self._pump(source, target)))

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if target not in self._frozen:
                target.write(data)


def test_over_real_sockets_a_lost_connection_is_made_anew_though_another_client_has_one() -> None:
    async def main() -> None:
        async def serve(requests: Any, context: Any) -> None:
            async def answer(request: bytes) -> bytes:
                return b"re: " + request

            await answer_each(context, answer)

        server = grpc.aio.server(options=wire.CHANNEL_OPTIONS)
        handlers = {"Ask": grpc.stream_stream_rpc_method_handler(serve)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
        proxy = FreezingProxy(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        address = await proxy.start()
        clients = [Connections(request_timeout_ms=limit) for limit in (500, 60_000)]
        try:
            for client in clients:
                assert (
                    await client.exchange(address, "/t.T/Ask", b"1", bytes, 60_000, alone=ONE)
                    == b"re: 1"
                )
            proxy.freeze()
            with pytest.raises(RequestTimedOutError):
                await clients[0].exchange(address, "/t.T/Ask", b"2", bytes, 500, alone=ONE)
            answer = await clients[0].exchange(address, "/t.T/Ask", b"3", bytes, 20_000, alone=ONE)
            assert answer == b"re: 3"
            assert proxy.accepted == 3, "one for each client, and one anew"
        finally:
            for client in clients:
                await client.close()
            await proxy.close()
            await server.stop(None)

    asyncio.run(main())


def test_of_requests_on_one_call_only_the_one_that_is_too_large_for_the_node_is_refused() -> None:
    """The node ends the call for it, so each is sent alone."""

    async def main() -> None:
        async def serve(requests: Any, context: Any) -> None:
            async def answer(request: bytes) -> bytes:
                return b"re: " + request

            await answer_each(context, answer)

        async def serve_one(request: bytes, context: Any) -> bytes:
            return b"alone: " + request

        server = make_server({"grpc.max_receive_message_length": 1 << 20})
        handlers = {
            "Ask": grpc.stream_stream_rpc_method_handler(serve),
            "One": grpc.unary_unary_rpc_method_handler(serve_one),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        client = Connections()
        try:
            requests = [b"1", bytes(2 << 20), b"3"]
            found = await asyncio.gather(
                *(
                    client.exchange(address, "/t.T/Ask", r, bytes, 20_000, alone=ONE)
                    for r in requests
                ),
                return_exceptions=True,
            )
            assert found[0] in (b"re: 1", b"alone: 1")
            assert isinstance(found[1], MessageTooLargeError)
            assert "larger than max (2097152 vs. 1048576)" in str(found[1])
            assert found[2] == b"alone: 3"
            again = await client.exchange(address, "/t.T/Ask", b"4", bytes, 20_000, alone=ONE)
            assert again == b"re: 4"
        finally:
            await client.close()
            await server.stop(None)

    asyncio.run(main())


def test_a_listener_that_hangs_up_is_told_once_and_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As one does that speaks TLS: a client goes on for its whole time, and would say nothing."""

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def story() -> None:
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connections = Connections()
        for _ in range(3):
            with pytest.raises(NetworkError):
                await connections.call(address, "/t.T/One", b"", bytes, timeout_ms=20_000)
        await connections.close()
        server.close()

    asyncio.run(story())
    [told] = [r for r in caplog.records if "security.protocol" in r.getMessage()]
    assert told.levelname == "WARNING"
