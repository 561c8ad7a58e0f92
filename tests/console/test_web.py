"""The console's HTTP server against hostile pages, and requests that are wrong, long and many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.console import web
from tidemark.console.web import WebAnswer, WebRequest, WebServer, encoded, parsed, refusal
from tidemark.errors import FatalError
from tidemark.types import Endpoint

Ask = Callable[[bytes], Awaitable[bytes]]
LOCAL = b"Host: 127.0.0.1:9088\r\n"


async def handler(request: WebRequest) -> WebAnswer:
    if request.path == "/fails":
        raise ZeroDivisionError
    return WebAnswer(HTTPStatus.OK, f"{request.path} {dict(request.parameters)}".encode())


def served(story: Callable[[Endpoint, Ask, WebServer], Awaitable[None]]) -> None:
    async def main() -> None:
        server = WebServer(handler)
        bound = await server.start(Endpoint("127.0.0.1", 0))

        async def ask(request: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(bound.host, bound.port)
            writer.write(request)
            try:
                return await reader.read()
            finally:
                writer.close()

        try:
            await story(bound, ask, server)
        finally:
            await server.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /here?a=b%20c&a=d HTTP/1.1\r\n" + LOCAL + b"\r\n", b"200 OK"),
        (b"GET /he%72e HTTP/1.0\r\nhOST: [::1]:80\r\n\r\n", b"200 OK"),
        (b"GET /here HTTP/1.1\r\nHost: LocalHost\r\n\r\n", b"200 OK"),
        (b"POST /here HTTP/1.1\r\n" + LOCAL + b"\r\n", b"405 Method Not Allowed"),
        (b"HEAD /here HTTP/1.1\r\n" + LOCAL + b"\r\n", b"405 Method Not Allowed"),
        (b"GET /here HTTP/1.1\r\n\r\n", b"421 "),
        (b"GET /here HTTP/1.1\r\nHost: evil.example:9088\r\n\r\n", b"421 "),
        (b"GET /here HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n", b"421 "),
        (b"GET /here HTTP/1.1\r\nHost: [::1\r\n\r\n", b"421 "),
        (b"GET /here HTTP/1.1\r\nHost: [::1].evil.example\r\n\r\n", b"421 "),
        (b"GET /here HTTP/1.1\r\n" + LOCAL + b"Sec-Fetch-Site: cross-site\r\n\r\n", b"403 "),
        (b"GET /here HTTP/1.1\r\n" + LOCAL + b"Sec-Fetch-Site: same-site\r\n\r\n", b"403 "),
        (b"GET /here HTTP/1.1\r\n" + LOCAL + b"Sec-Fetch-Site: same-origin\r\n\r\n", b"200 OK"),
        (b"GET /fails HTTP/1.1\r\n" + LOCAL + b"\r\n", b"500 Internal Server Error"),
        (b"GET /?" + b"&a=b" * 30 + b" HTTP/1.1\r\n" + LOCAL + b"\r\n", b"400 Bad Request"),
        (b"GET //[/ HTTP/1.1\r\n" + LOCAL + b"\r\n", b"400 Bad Request"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400 Bad Request"),
        (b"GET /" + b"x" * 20_000, b"431 "),
    ],
)
def test_each_request_has_its_status(request_: bytes, status: bytes) -> None:
    async def story(_: Endpoint, ask: Ask, server: WebServer) -> None:
        answer = await ask(request_)
        assert answer.startswith(b"HTTP/1.1 " + status), answer

    served(story)


def test_a_link_on_another_page_opens_the_console() -> None:
    head = b"GET / HTTP/1.1\r\n" + LOCAL + b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate"
    assert isinstance(parsed(head + b"\r\n\r\n"), WebRequest)


def test_every_answer_forbids_scripts_but_the_consoles_own() -> None:
    for answer in (WebAnswer(HTTPStatus.OK, b""), refusal(HTTPStatus.FORBIDDEN, "E", "m")):
        head = encoded(answer).partition(b"\r\n\r\n")[0].decode()
        policy = next(line for line in head.split("\r\n") if "Security-Policy" in line)
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert "X-Content-Type-Options: nosniff" in head and "no-store" in head


def test_a_login_is_asked_for_by_one_status_alone() -> None:
    asking = encoded(refusal(HTTPStatus.UNAUTHORIZED, "E", "m"))
    assert b"WWW-Authenticate: Basic" in asking
    assert b"WWW-Authenticate" not in encoded(refusal(HTTPStatus.FORBIDDEN, "E", "m"))


@given(st.text(max_size=200))
def test_hostile_texts_leave_as_ascii_json_without_markup_of_http(text: str) -> None:
    answer = refusal(HTTPStatus.NOT_FOUND, "E", text)
    assert answer.body.isascii() and b"\n" not in answer.body
    head, _, body = encoded(answer).partition(b"\r\n\r\n")
    assert body == answer.body and head.count(b"Content-Length") == 1


@given(st.binary(max_size=300))
def test_no_head_is_too_strange(head: bytes) -> None:
    assert isinstance(parsed(head), WebAnswer | WebRequest)


def test_a_client_that_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_HEAD_S_MAX", 0.01)

    async def story(_: Endpoint, ask: Ask, server: WebServer) -> None:
        assert await ask(b"GET /he") == b""

    served(story)


def test_a_connection_too_many_is_closed_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "CONNECTIONS_MAX", 2)

    async def story(bound: Endpoint, ask: Ask, server: WebServer) -> None:
        held = [await asyncio.open_connection(bound.host, bound.port) for _ in range(2)]
        request = b"GET /here HTTP/1.1\r\n" + LOCAL + b"\r\n"
        with suppress(ConnectionResetError):
            assert await ask(request) == b""
        for _, writer in held:
            writer.write(request)
        for reader, writer in held:
            assert (await reader.read()).endswith(b"/here {}")
            writer.close()
        assert (await ask(request)).endswith(b"/here {}")

    served(story)


def test_a_stop_ends_answers_under_way() -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def hangs(_: WebRequest) -> WebAnswer:
            begun.set()
            return await asyncio.get_running_loop().create_future()

        server = WebServer(hangs)
        bound = await server.start(Endpoint("127.0.0.1", 0))
        reader, writer = await asyncio.open_connection(bound.host, bound.port)
        writer.write(b"GET /hangs HTTP/1.1\r\n" + LOCAL + b"\r\n")
        await begun.wait()
        await server.stop()
        assert await reader.read() == b""
        writer.close()
        await server.stop()

    asyncio.run(main())


def test_a_port_in_use_is_a_clear_error() -> None:
    async def story(bound: Endpoint, _: Ask, server: WebServer) -> None:
        with pytest.raises(FatalError, match=r"console\.listener: can not listen on"):
            await WebServer(handler).start(bound)

    served(story)
