"""One gRPC channel per address, and unary calls whose failures are errors of the table.

Every request of a client goes through `Connections.call`, or `exchange` for the bulk methods. Both
add the deadline, and turn a gRPC status into an error such as NetworkError or RequestTimedOutError.
The retry policy therefore meets one kind of error only.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import grpc
import grpc.aio

from tidemark import wire
from tidemark.client import forks
from tidemark.client.errors import ClientClosedError
from tidemark.client.login import Login
from tidemark.config.security import ClientSecurity, client_security
from tidemark.errors import (
    ApiError,
    BrokerNotAvailableError,
    ClusterAuthorizationFailedError,
    ConfigError,
    MessageTooLargeError,
    NetworkError,
    RequestTimedOutError,
    SaslAuthenticationError,
    UnknownServerError,
    UnsupportedVersionError,
)
from tidemark.types import Endpoint
from tidemark.wire.channel import CLIENT_ID_KEY
from tidemark.wire.exchange import Exchange, Metadata
from tidemark.wire.network import Channels

T = TypeVar("T")
logger = logging.getLogger(__name__)

Security = ClientSecurity | Mapping[str, str] | None
"""How a client connects: settings such as security.protocol, by name or parsed."""

# Clients of one process share no connection: a closed one would live on in another client, and come
# back.
_CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


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
    text = f"{address}: {details or code.name}{_hint(details)}"
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return SaslAuthenticationError(text)
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return ClusterAuthorizationFailedError(text)
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


_HINT = "security.protocol"
_HUNG_UP = re.compile(r"(Socket closed|End of TCP stream|Connection reset by peer \(\d+\))$")


def _hint(details: str) -> str:
    """Tells what may be wrong with the security settings of a connection that fails so."""
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return (
            " (the listener's certificate is not trusted: beside security.protocol,"
            " ssl.truststore.location names the PEM file of its authority, and the address has to"
            " be one of the certificate's names)"
        )
    if "WRONG_VERSION_NUMBER" in details:
        return " (the listener does not speak TLS: see security.protocol)"
    if _HUNG_UP.search(details):
        return " (if the listener speaks TLS, or asks for a certificate, see security.protocol)"
    return ""


class _Connection:
    """A channel and its calls that stay open; `under_way` counts requests without an outcome."""

    __slots__ = (
        "_changing",
        "_exchanges",
        "_methods",
        "channel",
        "has_answered",
        "known_metadata",
        "login",
        "under_way",
    )

    def __init__(self, address: str, channels: Channels, metadata: Metadata) -> None:
        self.known_metadata = metadata
        self.channel = channels.open(address, _CHANNEL_OPTIONS)
        self.login = Login(channels.security, self.channel) if channels.security.uses_sasl else None
        self.under_way = 0
        self.has_answered = False
        self._changing = asyncio.Lock()
        self._methods: dict[str, Callable[..., Any]] = {}
        self._exchanges: dict[str, Exchange] = {}

    def method(self, path: str) -> Callable[..., Any]:
        found = self._methods.get(path)
        if found is None:
            # No serializers: bytes are sent as they are, and decoding happens in the caller's
            # frame, not in gRPC's callback.
            found = self._methods[path] = self.channel.unary_unary(path, None, None)
        return found

    def open(self, path: str, metadata: Metadata) -> Exchange:
        """A call that nobody else uses; it ends with the connection, or when it is closed."""
        return Exchange(self.channel, path, metadata)

    async def leave_former(self, path: str) -> None:
        """Leaves the open call for `path` of a former session, which ends soon: as soon as nothing
        is under way there. Those who wait go on in their order.
        """
        if self.login is None:
            return
        async with self._changing:
            found = self._exchanges.get(path)
            if found is not None and not self.login.is_current(found.metadata):
                await found.finished()
                found.close()

    def exchange(self, path: str, metadata: Metadata) -> Exchange:
        """The open call for `path`."""
        found = self._exchanges.get(path)
        if found is None or not found.is_open:
            found = self._exchanges[path] = Exchange(self.channel, path, metadata)
        return found

    async def close(self) -> None:
        if self.login is not None:
            self.login.close()
        for exchange in self._exchanges.values():
            exchange.close()
        await self.channel.close(None)


class Connections:
    """Connections by address, created on first use; `close()` closes all. Belongs to one event
    loop.

    A connection with a request that had no answer within request.timeout.ms is closed, as Kafka's
    NetworkClient does: a network may have lost it without notice. What else waits on it raises
    NetworkError, and the next request makes a new one. A request with a shorter limit closes it if
    no other is under way there.
    """

    def __init__(
        self,
        *,
        request_timeout_ms: int = 30_000,
        client_id: str = "",
        security: Security = None,
    ) -> None:
        """`security`: settings by Kafka's names; None: that of the process. Raises ConfigError."""
        given = client_security(security) if isinstance(security, Mapping) else security
        self._channels = Channels(given)
        self._request_timeout_ms = request_timeout_ms
        self._call_metadata: Metadata = None
        if client_id:
            self._call_metadata = ((CLIENT_ID_KEY, quote(client_id, safe=" ")),)
        self._connections: dict[str, _Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._told: set[str] = set()
        self._closed = self._is_forked = False
        forks.watch(self)

    def forked(self) -> None:
        """Makes all further use raise ClientForkedError."""
        self._is_forked = True

    def check_fork(self) -> None:
        """Raises ClientForkedError in a child of the process that made the connections."""
        if self._is_forked:
            forks.refuse()

    @property
    def request_timeout_ms(self) -> int:
        return self._request_timeout_ms

    def _to(self, address: str) -> _Connection:
        """The connection to `host:port`. Raises ClientClosedError after `close()`."""
        self.check_fork()
        if self._closed:
            raise ClientClosedError("the client is closed")
        found = self._connections.get(address)
        if found is None:
            found = self._connections[address] = _Connection(
                address, self._channels, self._call_metadata
            )
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
        connection = self._to(address)
        limit_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        metadata = await self._metadata(connection, address, limit_ms)
        limit_s = max(limit_ms, 1) / 1000
        call = connection.method(path)(payload, timeout=limit_s, metadata=metadata)
        return decode(await self._outcome(connection, address, call, limit_ms, metadata))

    async def exchange(
        self,
        address: str,
        path: str,
        request: bytes,
        decode: Callable[[bytes], T],
        timeout_ms: float,
        *,
        alone: str,
    ) -> T:
        """As `call`, over one call per address and path that stays open; for frequent requests.

        Answers come in the order of the requests. A call that breaks fails all of them. If it broke
        because one of them was too large for the node, each is sent by the unary method `alone`.
        """
        if len(request) > wire.MAX_MESSAGE_BYTES:  # it would break the call for all others
            raise MessageTooLargeError(
                f"{address}: a request of {len(request)} bytes; gRPC's limit is "
                f"{wire.MAX_MESSAGE_BYTES}"
            )
        connection = self._to(address)
        metadata = await self._metadata(connection, address, timeout_ms)
        try:
            async with asyncio.timeout(max(timeout_ms, 1) / 1000):
                await connection.leave_former(path)
        except TimeoutError:
            text = f"{address}: a call of a former login did not end in {timeout_ms:.0f} ms"
            raise RequestTimedOutError(text) from None
        self._check_open(connection, address)
        exchange = connection.exchange(path, metadata)
        call = exchange.ask(request, max(timeout_ms, 1) / 1000)
        used = exchange.metadata
        try:
            return decode(await self._outcome(connection, address, call, timeout_ms, used))
        except MessageTooLargeError:
            return await self.call(address, alone, request, decode, timeout_ms=timeout_ms)

    def open_call(self, address: str, path: str) -> OpenCall:
        """Opens a call of one owner, for requests that build on each other."""
        connection = self._to(address)

        async def begin() -> Exchange:
            limit_ms = self._request_timeout_ms
            return connection.open(path, await self._metadata(connection, address, limit_ms))

        return OpenCall(begin, partial(self._outcome, connection, address))

    async def _metadata(self, connection: _Connection, address: str, limit_ms: float) -> Metadata:
        """The metadata of a call that begins now. A login waits for others of the connection, which
        may be closed meanwhile.
        """
        found = connection.known_metadata
        if connection.login is not None:
            found = await self._logged_in(connection, connection.login, address, limit_ms)
        self._check_open(connection, address)
        return found

    def _check_open(self, connection: _Connection, address: str) -> None:
        """Raises ClientClosedError or NetworkError where it was closed during a wait for a login,
        or for calls of a former one.
        """
        if self._connections.get(address) is connection:
            return
        if self._closed:
            raise ClientClosedError("the client is closed")
        raise NetworkError(f"{address}: the connection was closed during the login")

    async def _logged_in(
        self, connection: _Connection, login: Login, address: str, limit_ms: float
    ) -> Metadata:
        try:
            async with asyncio.timeout(max(limit_ms, 1) / 1000):
                token = await _mapped(address, login.metadata())
        except TimeoutError:
            text = f"{address}: the login had no answer in {limit_ms:.0f} ms"
            raise RequestTimedOutError(text) from None
        except NetworkError as error:
            self._failed(connection, address, error)
            raise
        except ClientClosedError:
            token = ()  # the channel is closed
        return (*(connection.known_metadata or ()), *token)

    async def _outcome(
        self,
        connection: _Connection,
        address: str,
        call: Awaitable[bytes],
        limit_ms: float,
        used: Metadata,
    ) -> bytes:
        """Awaits a call that has the metadata `used`; closes its connection if it timed out."""
        connection.under_way += 1
        timed_out = False
        try:
            answer = await _mapped(address, call)
            connection.has_answered = True
            return answer
        except RequestTimedOutError:
            timed_out = True
            raise
        except SaslAuthenticationError as error:
            if connection.login is None or not connection.login.forget(used):
                raise
            raise NetworkError(f"{error}; logging in anew") from None
        except NetworkError as error:
            # A refused token may look so: gRPC loses the status where a write breaks first.
            if connection.login is not None:
                connection.login.forget(used)
            self._failed(connection, address, error)
            raise
        finally:
            connection.under_way -= 1
            is_whole = limit_ms >= self._request_timeout_ms or not connection.under_way
            # Several requests may time out together: a new connection is none of theirs.
            if timed_out and is_whole and self._connections.get(address) is connection:
                self.disconnect(address)

    def _failed(self, connection: _Connection, address: str, error: NetworkError) -> None:
        """Closes a connection with outdated keys. Tells once of one that never worked: tries go on
        for a while, and wrong settings would show at their end only.
        """
        is_current = self._connections.get(address) is connection
        if is_current and self._channels.is_outdated(connection.channel):
            self.disconnect(address)
        if not connection.has_answered and address not in self._told and _HINT in str(error):
            self._told.add(address)
            logger.warning("%s", error)

    def disconnect(self, address: str) -> None:
        """Closes the connection to a node, if there is one; requests under way raise NetworkError.

        The next request makes a new one.
        """
        connection = self._connections.pop(address, None)
        if connection is not None:
            logger.info("%s: closing the connection: the node does not answer", address)
            task = asyncio.ensure_future(connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes every connection; calls under way fail. Idempotent."""
        self._closed = True
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            await connection.close()
        await asyncio.gather(*self._closing, return_exceptions=True)


class OpenCall:
    """A call that stays open, of one owner."""

    def __init__(
        self,
        begin: Callable[[], Awaitable[Exchange]],
        outcome: Callable[[Awaitable[bytes], float, Metadata], Awaitable[bytes]],
    ) -> None:
        self._begin = begin
        self._exchange: Exchange | None = None
        self._outcome = outcome
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return not self._is_closed and (self._exchange is None or self._exchange.is_open)

    async def ask(self, request: bytes, decode: Callable[[bytes], T], timeout_ms: float) -> T:
        """Sends a request and decodes its answer; raises as `Connections.call`."""
        if self._exchange is None:
            self._exchange = await self._begin()
            if self._is_closed:
                self._exchange.close()
        call = self._exchange.ask(request, max(timeout_ms, 1) / 1000)
        return decode(await self._outcome(call, timeout_ms, self._exchange.metadata))

    def close(self) -> None:
        """Ends the call. Idempotent."""
        self._is_closed = True
        if self._exchange is not None:
            self._exchange.close()


async def _mapped(address: str, call: Awaitable[T]) -> T:
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
