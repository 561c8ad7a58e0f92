"""The HTTP endpoint against requests that are none, too long, too slow and too many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus

import pytest

from node.metrics import endpoint
from node.metrics.endpoint import Answer, HttpEndpoint
from tidemark.errors import FatalError
from tidemark.types import Endpoint

Ask = Callable[[bytes], Awaitable[bytes]]
LOOPBACK = Endpoint("127.0.0.1", 0)


async def handler(path: str) -> Answer | None:
    if path == "/fails":
        raise ZeroDivisionError
    return Answer(HTTPStatus.OK, b"here\n") if path == "/here" else None


def served(story: Callable[[Endpoint, Ask], Awaitable[None]]) -> None:
    async def main() -> None:
        server = HttpEndpoint(handler)
        bound = await server.start(LOOPBACK)

        async def ask(request: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(bound.host, bound.port)
            writer.write(request)
            try:
                return await reader.read()
            finally:
                writer.close()

        try:
            await story(bound, ask)
        finally:
            await server.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /here HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK"),
        (b"GET /here?a=b HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET /nowhere HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /here HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET /fails HTTP/1.1\r\n\r\n", b"500 Internal Server Error"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400 Bad Request"),
        (b"GET /" + b"x" * 20_000, b"431 "),
    ],
)
def test_each_request_has_its_status(request_: bytes, status: bytes) -> None:
    async def story(_: Endpoint, ask: Ask) -> None:
        answer = await ask(request_)
        assert answer.startswith(b"HTTP/1.1 " + status), answer

    served(story)


def test_a_client_that_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_TIME_S_MAX", 0.01)

    async def story(_: Endpoint, ask: Ask) -> None:
        assert await ask(b"GET /he") == b""

    served(story)


def test_a_connection_too_many_is_closed_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_CONNECTIONS_MAX", 2)

    async def story(bound: Endpoint, ask: Ask) -> None:
        held = [await asyncio.open_connection(bound.host, bound.port) for _ in range(2)]
        request = b"GET /here HTTP/1.1\r\n\r\n"
        with suppress(ConnectionResetError):
            assert await ask(request) == b""
        for _, writer in held:
            writer.write(request)
        for reader, writer in held:
            assert (await reader.read()).endswith(b"here\n")
            writer.close()
        assert (await ask(request)).endswith(b"here\n")

    served(story)


def test_a_port_in_use_is_a_clear_error() -> None:
    async def story(bound: Endpoint, _: Ask) -> None:
        with pytest.raises(FatalError, match=r"prometheus\.listener: can not listen on"):
            await HttpEndpoint(handler).start(bound)

    served(story)
