"""One gRPC channel per address, and unary calls whose failures are errors of the table.

Every request of a client goes through `Connections.call`, or `exchange` for the bulk methods. Both
add the deadline, and turn a gRPC status into an error such as NetworkError or RequestTimedOutError.
The retry policy therefore meets one kind of error only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio

from tidemark import wire
from tidemark.client.errors import ClientClosedError
from tidemark.errors import (
    ApiError,
    BrokerNotAvailableError,
    ConfigError,
    MessageTooLargeError,
    NetworkError,
    RequestTimedOutError,
    UnknownServerError,
    UnsupportedVersionError,
)
from tidemark.types import Endpoint
from tidemark.wire.exchange import Exchange
from tidemark.wire.network import open_channel

T = TypeVar("T")

# A node that comes back is found soon: gRPC's own backoff grows to two minutes.
_RECONNECT_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


def parse_bootstrap_servers(bootstrap_servers: str | Sequence[str]) -> tuple[Endpoint, ...]:
    """Parses `"host:port,host:port"` or a sequence of those. Raises ConfigError."""
    texts = (
        bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
    )
    try:
        found = tuple(dict.fromkeys(Endpoint.parse(text) for text in texts if text.strip()))
    except ValueError as error:
        raise ConfigError(f"bootstrap.servers: {error}") from None
    if not found:
        raise ConfigError("bootstrap.servers is empty: name at least one host:port")
    return found


# Details of statuses that gRPC itself makes of a broken call. A write to a node that dies ends with
# the first. HTTP/2's RST_STREAM is INTERNAL for most of its codes. A handler's error is UNKNOWN
# with other details.
_BROKEN_CALL = ("Internal error from Core", "Received RST_STREAM", "RST_STREAM", "Stream removed")
_MADE_BY_TRANSPORT = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


def error_of_status(code: grpc.StatusCode, details: str, address: str) -> ApiError:
    """The error of the table for a failed call; a call that broke is a NetworkError."""
    text = f"{address}: {details or code.name}"
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED):
        return NetworkError(text)
    if code in _MADE_BY_TRANSPORT and details.startswith(_BROKEN_CALL):
        return NetworkError(text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimedOutError(text)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedVersionError(text)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # gRPC has one status for two causes: a message above the limit, and a server that sheds
        # load.
        return (
            MessageTooLargeError(text)
            if "larger than max" in details
            else BrokerNotAvailableError(text)
        )
    return UnknownServerError(text)


class Connections:
    """Channels by address, created on first use; `close()` closes all. Belongs to one event
    loop.
    """

    def __init__(self, *, request_timeout_ms: int = 30_000) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._methods: dict[tuple[str, str], Callable[..., Any]] = {}
        self._exchanges: dict[tuple[str, str], Exchange] = {}
        self._closed = False

    @property
    def request_timeout_ms(self) -> int:
        return self._request_timeout_ms

    def channel(self, address: str) -> grpc.aio.Channel:
        """The channel to `host:port`. Raises ClientClosedError after `close()`."""
        if self._closed:
            raise ClientClosedError("the client is closed")
        found = self._channels.get(address)
        if found is None:
            found = self._channels[address] = open_channel(address, _RECONNECT_OPTIONS)
        return found

    async def call(
        self,
        address: str,
        path: str,
        request: Any,
        decode: Callable[[bytes], T],
        *,
        timeout_ms: float | None = None,
    ) -> T:
        """Sends a protobuf message, or bytes as they are, and decodes the answer.

        Raises NetworkError, RequestTimedOutError after `timeout_ms` (default: request.timeout.ms),
        UnsupportedVersionError, MessageTooLargeError, BrokerNotAvailableError or
        UnknownServerError.
        """
        payload = request if isinstance(request, bytes) else request.SerializeToString()
        channel = self.channel(address)
        method = self._methods.get((address, path))
        if method is None:
            # No serializers: bytes are sent as they are, and decoding happens in this frame, not
            # in gRPC's callback.
            method = self._methods[address, path] = channel.unary_unary(path, None, None)
        limit_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        return decode(await _mapped(address, method(payload, timeout=max(limit_ms, 1) / 1000)))

    async def exchange(
        self,
        address: str,
        path: str,
        request: bytes,
        decode: Callable[[bytes], T],
        timeout_ms: float,
    ) -> T:
        """As `call`, over one call per address and path that stays open; for frequent requests.

        Answers come in the order of the requests. A call that breaks fails all of them.
        """
        if len(request) > wire.MAX_MESSAGE_BYTES:  # it would break the call for all others
            raise MessageTooLargeError(
                f"{address}: a request of {len(request)} bytes; gRPC's limit is "
                f"{wire.MAX_MESSAGE_BYTES}"
            )
        found = self._exchanges.get((address, path))
        if found is None or not found.is_open:
            found = Exchange(self.channel(address), path)
            self._exchanges[address, path] = found
        return decode(await _mapped(address, found.ask(request, max(timeout_ms, 1) / 1000)))

    async def close(self) -> None:
        """Closes every channel; calls under way fail. Idempotent."""
        self._closed = True
        for exchange in self._exchanges.values():
            exchange.close()
        self._exchanges.clear()
        channels = list(self._channels.values())
        self._channels.clear()
        self._methods.clear()
        for channel in channels:
            await channel.close(None)


async def _mapped(address: str, call: Awaitable[bytes]) -> bytes:
    """The outcome of a call, with gRPC's errors mapped to the table."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_of_status(error.code(), error.details() or "", address) from None
    except grpc.aio.UsageError as error:
        raise ClientClosedError(f"{address}: {error}") from None
    except asyncio.CancelledError:
        # Closing a channel cancels its calls; then the task itself is not being cancelled.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise NetworkError(f"{address}: the call was cancelled") from None
