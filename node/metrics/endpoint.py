"""An HTTP server for GET requests that is small and bounded: for scrapes and probes alone.

It reads a request line and headers, answers, and closes the connection. What is too long or too
slow is cut off, and no more than a few connections are served at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple

from tidemark.errors import FatalError
from tidemark.types import Endpoint

logger = logging.getLogger(__name__)

_HEAD_BYTES_MAX = 16 << 10
_TIME_S_MAX = 10.0
_LINGER_S_MAX = 1.0
_CONNECTIONS_MAX = 32


class Answer(NamedTuple):
    """The answer to a GET."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class HttpEndpoint:
    """Answers GET requests by path, on the event loop."""

    def __init__(
        self,
        handler: Callable[[str], Awaitable[Answer | None]],
        local_handler: Callable[[str], Awaitable[Answer | None]] | None = None,
    ) -> None:
        """`local_handler` has the paths below `/debug/`, for clients on this host alone."""
        self._handler = handler
        self._local_handler = local_handler
        self._connections = 0
        self._server: asyncio.Server | None = None

    async def start(self, wanted: Endpoint) -> Endpoint:
        """Listens; returns the endpoint with its port. Raises FatalError if it can not."""
        try:
            self._server = await asyncio.start_server(
                self._serve, wanted.host or None, wanted.port, limit=_HEAD_BYTES_MAX
            )
        except (OSError, OverflowError) as error:
            raise FatalError(
                f"prometheus.listener: can not listen on {wanted.address}: {error}"
            ) from error
        return wanted._replace(port=self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Closes the listener; answers under way are cut off."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= _CONNECTIONS_MAX:
                async with asyncio.timeout(_TIME_S_MAX):
                    writer.write(_encoded(await self._answer(reader, _is_local(writer))))
                    writer.write_eof()
                    # The rest of the request is read: a reset would overtake the answer.
                    async with asyncio.timeout(_LINGER_S_MAX):
                        while await reader.read(_HEAD_BYTES_MAX):
                            continue
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            logger.debug("a connection for metrics was cut off")
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, is_local: bool) -> Answer:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"too long\n")
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return Answer(HTTPStatus.BAD_REQUEST, b"no request of HTTP/1.1\n")
        method, target, _ = parts
        if method != "GET":
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n")
        handler = self._handler
        if self._local_handler is not None and target.startswith("/debug/"):
            if not is_local:
                return Answer(HTTPStatus.FORBIDDEN, b"ask on the node's own host\n")
            handler = self._local_handler
        try:
            answer = await handler(target.partition("?")[0])
        except Exception:
            logger.exception("the answer to GET %s failed", target)
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the log\n")
        return answer or Answer(HTTPStatus.NOT_FOUND, b"no such path\n")


def _is_local(writer: asyncio.StreamWriter) -> bool:
    """Whether the client came by a loopback address; the host of a container is no such one."""
    peer = writer.get_extra_info("peername")
    try:
        return bool(peer) and ipaddress.ip_address(peer[0].partition("%")[0]).is_loopback
    except ValueError:
        return False


def _encoded(answer: Answer) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + answer.body
