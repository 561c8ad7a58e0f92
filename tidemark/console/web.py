"""An HTTP server for GET requests, which other pages in the user's browser can not misuse.

Each connection has one request. A name of the host other than loopback is refused, because a
hostile page may have its own name resolve to this address (DNS rebinding). Requests of pages of
other origins are refused as well. Answers forbid scripts but the console's own.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tidemark.config.console import is_loopback
from tidemark.errors import FatalError
from tidemark.types import Endpoint

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX = 16 << 10
CONNECTIONS_MAX = 32
_HEAD_S_MAX = 10.0
_SEND_S_MAX = 30.0
_LINGER_S_MAX = 1.0
_PARAMETERS_MAX = 20

_SAFE_HEADERS = (
    "Cache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Connection: close\r\n"
)


@dataclass(frozen=True, slots=True)
class WebRequest:
    """A GET: its path, the parameters of its query, and its headers by lower-case name."""

    path: str
    parameters: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WebAnswer:
    """An answer to a GET; `asks_login` has the browser ask for a name and a password."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    asks_login: bool = False


def of_json(value: Any, status: HTTPStatus = HTTPStatus.OK, asks_login: bool = False) -> WebAnswer:
    """An answer that scripts read."""
    body = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
    return WebAnswer(status, body, "application/json", asks_login)


def refusal(status: HTTPStatus, error: str, message: str) -> WebAnswer:
    """An answer that says why there is none."""
    return of_json(
        {"error": error, "message": message}, status, asks_login=status == HTTPStatus.UNAUTHORIZED
    )


def parsed(head: bytes) -> WebRequest | WebAnswer:
    """The request of a head that ends with an empty line, or the answer that refuses it."""
    first, *rest = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        return refusal(HTTPStatus.BAD_REQUEST, "BAD_REQUEST", "no request of HTTP/1.1")
    method, target, _ = parts
    if method != "GET":
        return refusal(HTTPStatus.METHOD_NOT_ALLOWED, "ONLY_GET", "the console only reads: GET")
    headers = {}
    for line in rest:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if not _names_loopback(headers.get("host", "")):
        return refusal(
            HTTPStatus.MISDIRECTED_REQUEST,
            "WRONG_HOST",
            "open the console as http://127.0.0.1:PORT or http://localhost:PORT",
        )
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and (
        headers.get("sec-fetch-mode") != "navigate"
    ):
        return refusal(
            HTTPStatus.FORBIDDEN, "OTHER_ORIGIN", "pages of other origins may not ask the console"
        )
    try:
        url = urlsplit(target)
        query = parse_qsl(url.query, keep_blank_values=True, max_num_fields=_PARAMETERS_MAX)
    except ValueError:
        return refusal(HTTPStatus.BAD_REQUEST, "BAD_REQUEST", "the query can not be read")
    return WebRequest(unquote(url.path), dict(query), headers)


def _names_loopback(host: str) -> bool:
    """Whether a Host header names this machine; the port may be that of a tunnel."""
    end = host.find("]") + 1 if host.startswith("[") else host.find(":")
    name, rest = (host, "") if end < 0 else (host[:end], host[end:])
    return rest[:1] in ("", ":") and is_loopback(name.strip("[]").lower())


Handler = Callable[[WebRequest], Awaitable[WebAnswer]]


class WebServer:
    """Answers GET requests on the event loop; what is too long, too slow or too much is refused."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._connections: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, wanted: Endpoint) -> Endpoint:
        """Listens; returns the endpoint with its port. Raises FatalError if it can not."""
        try:
            self._server = await asyncio.start_server(
                self._serve, wanted.host, wanted.port, limit=HEAD_BYTES_MAX
            )
        except (OSError, OverflowError) as error:
            raise FatalError(
                f"console.listener: can not listen on {wanted.address}: {error}"
            ) from error
        return wanted._replace(port=self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Closes the listener and ends the answers under way. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        under_way = list(self._connections)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > CONNECTIONS_MAX:
                return
            async with asyncio.timeout(_HEAD_S_MAX):
                answer = await self._head(reader)
            if isinstance(answer, WebRequest):
                answer = await self._answer(answer)
            async with asyncio.timeout(_SEND_S_MAX):
                writer.write(encoded(answer))
                await writer.drain()
                writer.write_eof()
                # The rest of the request is read: a reset would overtake the answer.
                async with asyncio.timeout(_LINGER_S_MAX):
                    while await reader.read(HEAD_BYTES_MAX):
                        continue
        except asyncio.CancelledError:
            pass  # of `stop`; asyncio's own callback would log it
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            logger.debug("a connection of the console was cut off")
        finally:
            self._connections.discard(task)
            writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> WebRequest | WebAnswer:
        try:
            return parsed(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            return refusal(status, "TOO_LONG", "the head of the request is too long")

    async def _answer(self, request: WebRequest) -> WebAnswer:
        try:
            return await self._handler(request)
        except Exception:
            logger.exception("the console's answer to GET %s failed", request.path)
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            return refusal(status, "UNKNOWN_SERVER_ERROR", "see the log of the console's process")


def encoded(answer: WebAnswer) -> bytes:
    """The bytes of an answer."""
    login = 'WWW-Authenticate: Basic realm="Tidemark", charset="UTF-8"\r\n'
    allow = "Allow: GET\r\n" if answer.status == HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        f"{login if answer.asks_login else ''}{allow}{_SAFE_HEADERS}\r\n"
    )
    return head.encode("latin-1") + answer.body
