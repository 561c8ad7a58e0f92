"""The guard of each server of a node: tells who calls, and whether the call may go on.

It is the one place that all calls of all services pass. A call is authenticated before any message
of it is read: by its token, or by the certificate of its connection. On a PLAINTEXT listener
everybody is anonymous. Then the rows of `quorum.access.rules` are applied to its request and
answer. `access_of_call` tells handlers the principal, for quotas and for what they check
themselves.

Without an authorizer only the services of nodes are guarded, on listeners that know their callers.
A caller of them has this node's own name, or is a super user.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextvars import ContextVar
from functools import partial
from inspect import isasyncgenfunction
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote
from uuid import UUID

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from quorum.access import rules
from quorum.access.audit import Audit
from quorum.access.authorizer import Authorizer
from quorum.access.verdicts import Judgement, judged, refused
from quorum.image import MetadataImage
from tidemark.errors import ApiError, SaslAuthenticationError
from tidemark.security import acls
from tidemark.security.acls import ANONYMOUS, CLUSTER, CLUSTER_NAME
from tidemark.wire.rpcs import Rpc, every_rpc

logger = logging.getLogger(__name__)

FORWARDED_PRINCIPAL = "tidemark-principal"
"""Metadata of a call that a node forwards: whose request it is, percent-encoded."""

Context = Any


class Images(Protocol):
    """Holder of the newest committed image."""

    @property
    def image(self) -> MetadataImage: ...


class Access(NamedTuple):
    """The principal of a call, and what it may do; with `guard` of None, everything."""

    principal: str = ANONYMOUS
    host: str = ""
    is_node: bool = False
    guard: Guard | None = None
    until_ms: int | None = None
    """When the login ends, in ms of the wall clock."""

    @property
    def user(self) -> str:
        """The name of the principal."""
        return self.principal.partition(":")[2]

    @property
    def is_checked(self) -> bool:
        """Whether `allows` may say no."""
        return self.guard is not None and self.guard.authorizer is not None

    @property
    def entries(self) -> Any:
        """The ACLs in effect: another object after each change."""
        return None if self.guard is None else self.guard.images.image.acls

    def allows(self, operation: int, resource_type: int, name: str) -> bool:
        guard = self.guard
        if guard is None or guard.authorizer is None:
            return True
        authorizer = guard.authorizer
        authorizer.follow(guard.images.image)
        asked = (self.principal, self.host)
        if authorizer.allows(*asked, operation, resource_type, name):
            return True
        # A producer needs no right of its own to be idempotent (KIP-679).
        if operation == acls.IDEMPOTENT_WRITE and authorizer.allows_any(
            *asked, acls.WRITE, acls.TOPIC
        ):
            return True
        guard.audit.denied(self.principal, self.host, operation, resource_type, name)
        return False

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of a topic by its id; None: there is none."""
        if self.guard is None or len(topic_id) != 16:
            return None
        found = self.guard.images.image.topics.by_id(UUID(bytes=topic_id))
        return None if found is None else found.name


_EVERYTHING = Access()
_ACCESS: ContextVar[Access] = ContextVar("access")


def access_of_call() -> Access:
    """The access of the call that is being served."""
    return _ACCESS.get(_EVERYTHING)


class Authenticated(NamedTuple):
    """The principal of a call, until a time in ms of the wall clock; None: until its end."""

    principal: str
    until_ms: int | None = None


Metadata = Any  # pairs of a key and a value, or None
TokenCheck = Callable[[Metadata], Awaitable[Authenticated]]
"""Tells whose call has this metadata. Raises SaslAuthenticationError for one of nobody known."""


def nobody(_: Context) -> str:
    """The principal of each call at a listener that does not know its callers."""
    return ANONYMOUS


class GuardedCall(NamedTuple):
    """A call before its first message: the method, its row, and the login that its token proves."""

    path: str
    row: rules.Row | None
    login: Authenticated | None


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # it is not generic
    """Of one listener; all listeners of a node share the authorizer and the audit log."""

    def __init__(
        self,
        images: Images,
        authorizer: Authorizer | None,
        audit: Audit,
        nodes: Collection[str],
        *,
        tokens: TokenCheck | None = None,
        principal_of: Callable[[Context], str] = nobody,
    ) -> None:
        """`nodes` are the principals of nodes. Callers prove themselves by `tokens`; without it,
        `principal_of` tells who they are.
        """
        self.images = images
        self.authorizer = authorizer
        self.audit = audit
        self._tokens = tokens
        self._principal_of = principal_of
        self._nodes = frozenset(nodes)
        self._knows_callers = tokens is not None or principal_of is not nobody
        self._rpcs = {rpc.path: rpc for rpc in every_rpc()}
        self._guards = self._knows_callers or authorizer is not None

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """Wraps the method's handler; gRPC calls it for each call."""
        handler = await continuation(details)
        if handler is None:
            return None
        return _decoding(await self._guarded(handler, details) if self._guards else handler)

    async def _guarded(self, handler: Any, details: Any) -> Any:
        path: str = details.method
        row = rules.row_of(path)
        if row is not None and row.is_public:
            return handler
        login: Authenticated | None = None
        if self._tokens is not None:
            try:
                login = await self._tokens(details.invocation_metadata)
            except SaslAuthenticationError as error:
                return self._turned_away(error)
        asked = GuardedCall(path, row, login)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                partial(self._unary, handler.unary_unary, asked),
                handler.request_deserializer,
                handler.response_serializer,
            )
        wrapped = self._generate if isasyncgenfunction(handler.stream_stream) else self._stream
        return grpc.stream_stream_rpc_method_handler(
            partial(wrapped, handler.stream_stream, asked),
            handler.request_deserializer,
            handler.response_serializer,
        )

    def _turned_away(self, error: SaslAuthenticationError) -> Any:
        """A handler that reads nothing: only that of a stream is called before a message is there,
        and on the wire both are the same.
        """

        async def turn_away(_: Any, context: Context) -> None:
            self.audit.rejected(host_of(context.peer()), str(error))
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))

        return grpc.stream_stream_rpc_method_handler(turn_away)

    async def _unary(self, serve: Any, asked: GuardedCall, request: Any, context: Context) -> Any:
        access = await self._admitted(asked, context)
        _ACCESS.set(access)
        row = asked.row
        if row is None or not access.is_checked or not (row.rules or row.changes):
            return await serve(request, context)
        rpc = self._rpcs[asked.path]
        try:
            message = rpc.request.FromString(request) if isinstance(request, bytes) else request
        except DecodeError:
            return await serve(request, context)  # which refuses it
        verdict = self._judged(access, row, rpc, message)
        if verdict.request is None:
            return verdict.answered(rpc.response())
        allowed: Any = request
        if verdict.request is not message:
            left = verdict.request
            allowed = left.SerializeToString() if isinstance(request, bytes) else left
        if row.changes:
            self.audit.changed(access.principal, access.host, rpc.name, message)
        return verdict.answered(await serve(allowed, context))

    def _judged(self, access: Access, row: rules.Row, rpc: Rpc, message: Message) -> Judgement:
        if _is_forwarded(access):
            return Judgement(message)
        try:
            asked = rules.CheckedRequest(message, access.topic_name)
            return judged(row.rules, asked, access)
        except ApiError as error:
            return refused(error)

    async def _stream(
        self, serve: Any, asked: GuardedCall, requests: Any, context: Context
    ) -> None:
        access = await self._admitted(asked, context)
        _ACCESS.set(access)
        left_s = None if access.until_ms is None else access.until_ms / 1000 - time.time()
        try:
            async with asyncio.timeout(left_s) as session:
                await serve(requests, context)
        except TimeoutError:
            if not session.expired():
                raise
            text = "the session is over: log in again"  # KIP-368
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)

    async def _generate(
        self, serve: Any, asked: GuardedCall, requests: Any, context: Context
    ) -> AsyncIterator[Any]:
        _ACCESS.set(await self._admitted(asked, context))
        async for answer in serve(requests, context):
            yield answer

    async def _admitted(self, asked: GuardedCall, context: Context) -> Access:
        """The access of a call; turns away who may not call this method at all."""
        host = host_of(context.peer())
        path, row = asked.path, asked.row
        login = asked.login or Authenticated(self._principal_of(context))
        principal = login.principal
        access = Access(principal, host, self._is_node(principal, host), self, login.until_ms)
        if row is None or (row.is_for_nodes and not access.is_node):
            self.audit.turned_away(principal, host, path)
            text = (
                f"{principal} is no node of this cluster: {path.rpartition('/')[0][1:]} is theirs"
            )
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        return self._forwarded(access, context) if access.is_node else access

    def _is_node(self, principal: str, host: str) -> bool:
        if not self._knows_callers and self.authorizer is None:
            return True
        if principal in self._nodes:
            return True
        if self.authorizer is None:
            return False
        self.authorizer.follow(self.images.image)
        return self.authorizer.allows(principal, host, acls.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)

    def _forwarded(self, access: Access, context: Context) -> Access:
        """The access of whose request a node forwards; it was checked there."""
        for key, value in context.invocation_metadata() or ():
            if key == FORWARDED_PRINCIPAL:
                return access._replace(principal=unquote(value), host=_FORWARDED)
        return access


def _decoding(handler: Any) -> Any:
    """The handler, for which a request that can not be decoded is a status and no exception."""
    decode = handler.request_deserializer
    answer = handler.unary_unary or handler.unary_stream or handler.stream_stream
    if decode is None or answer is None or isasyncgenfunction(answer):
        return handler
    if handler.stream_stream is not None:

        async def converse(requests: Any, context: Context) -> None:
            try:
                await handler.stream_stream(requests, context)
            except DecodeError as error:  # of its reads
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

        return grpc.stream_stream_rpc_method_handler(converse, decode, handler.response_serializer)

    async def serve(payload: bytes, context: Context) -> Any:
        try:
            request = decode(payload)
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return await answer(request, context)

    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(serve, None, handler.response_serializer)
    return grpc.unary_stream_rpc_method_handler(serve, None, handler.response_serializer)


_FORWARDED = "(forwarded)"


def _is_forwarded(access: Access) -> bool:
    return access.is_node and access.host == _FORWARDED


def host_of(peer: str) -> str:
    """The address in gRPC's name of a peer, e.g. `ipv4:10.0.0.7:4711`."""
    address = unquote(peer.partition(":")[2]).rpartition(":")[0]
    return address.strip("[]") or peer
