"""The guard of a listener: who may call which method at all, and whose word about others counts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from node.runtime.health import Health
from quorum.access.audit import Audit
from quorum.access.guard import (
    FORWARDED_PRINCIPAL,
    Access,
    Authenticated,
    Guard,
    access_of_call,
)
from quorum.access.logins import Sessions, by_tokens
from quorum.image import EMPTY_IMAGE
from tidemark.config.security import ListenerSecurity
from tidemark.errors import SaslAuthenticationError
from tidemark.v1 import authentication_pb2 as pb
from tidemark.wire.network import Channels, make_server

VOTE, TOPICS = "/tidemark.v1.Raft/Vote", "/tidemark.v1.Admin/ListTopics"
HEALTH = "/grpc.health.v1.Health/Check"
METADATA = (("authorization", "Bearer token"),)


class Call:
    """The context of a call with some metadata."""

    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        return self._metadata

    def peer(self) -> str:
        return "ipv4:10.0.0.7:4711"

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise PermissionError(code.name, details)


def called(path: str, principal: str | None, *metadata: tuple[str, str]) -> Access:
    """The access with which a call reaches its handler. Raises PermissionError if it does not."""

    async def tokens(metadata: Any) -> Authenticated:
        assert metadata is METADATA
        if principal is None:
            raise SaslAuthenticationError("no token")
        return Authenticated(principal)

    async def serve(_: Any, __: Any) -> Access:
        return access_of_call()

    async def story() -> Access:
        images = SimpleNamespace(image=EMPTY_IMAGE)
        guard = Guard(images, None, Audit(), ["User:node"], tokens=tokens)
        handler = grpc.unary_unary_rpc_method_handler(serve)

        async def found(_: Any) -> Any:
            return handler

        details = SimpleNamespace(method=path, invocation_metadata=METADATA)
        guarded = await guard.intercept_service(found, details)
        call = Call(*metadata)
        if guarded.unary_unary is None:  # which would wait for the message
            await guarded.stream_stream(None, call)
        access: Access = await guarded.unary_unary(b"", call)
        return access

    return asyncio.run(story())


def test_methods_of_nodes_are_for_nodes() -> None:
    assert called(VOTE, "User:node").is_node
    with pytest.raises(PermissionError, match="PERMISSION_DENIED"):
        called(VOTE, "User:ann")


def test_a_method_that_declares_nothing_is_for_nobody() -> None:
    for who in ("User:node", "User:ann"):
        with pytest.raises(PermissionError, match="PERMISSION_DENIED"):
            called("/some.Service/Method", who)


def test_whoever_is_not_known_reaches_public_methods_alone() -> None:
    called(HEALTH, None)
    for path in (VOTE, TOPICS):
        with pytest.raises(PermissionError, match="UNAUTHENTICATED"):
            called(path, None)


def test_only_a_node_says_for_whom_it_calls() -> None:
    forwarded = (FORWARDED_PRINCIPAL, "User%3Aroot")
    assert called(TOPICS, "User:node", forwarded).principal == "User:root"
    assert called(TOPICS, "User:ann", forwarded).principal == "User:ann"
    assert called(TOPICS, "User:ann").host == "10.0.0.7"


def test_no_message_of_a_stranger_is_read() -> None:
    """Calls that never send one are answered; what is not asked for waits in flow control."""
    topics, log_in = "/tidemark.v1.Admin/ListTopics", "/tidemark.v1.Authentication/SaslAuthenticate"

    async def serve(_: Any, __: Any) -> bytes:
        raise AssertionError

    async def story() -> None:
        images: Any = SimpleNamespace(image=SimpleNamespace(scram_users={}))
        sessions = Sessions(images, 1_000)
        tokens = by_tokens(ListenerSecurity(), sessions)
        server = make_server({}, [Guard(images, None, Audit(), [], tokens=tokens)])
        handler = grpc.unary_unary_rpc_method_handler(serve)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("tidemark.v1.Admin", {"ListTopics": handler}),)
        )
        sessions.add_to(server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            async with Channels().open(address) as channel, asyncio.timeout(30):
                silent = channel.stream_stream(topics, None, None)()
                assert await silent.code() is grpc.StatusCode.UNAUTHENTICATED
                answer = await channel.stream_stream(log_in, None, None)().read()
                assert pb.SaslAuthenticateResponse.FromString(answer).error_code
                huge = channel.unary_unary(topics, None, None)(bytes(64 << 20))
                assert await huge.code() is grpc.StatusCode.UNAUTHENTICATED
        finally:
            await server.stop(None)

    asyncio.run(story())


@pytest.mark.parametrize("knows_callers", [False, True])
def test_health_is_watched_through_the_guard(knows_callers: bool) -> None:
    """Watch answers one message with a stream: gRPC's clients and proxies balance load by it."""

    async def tokens(_: Any) -> Authenticated:
        raise SaslAuthenticationError("no token")

    async def story() -> None:
        images, more = SimpleNamespace(image=EMPTY_IMAGE), {"tokens": tokens}
        guard = Guard(images, None, Audit(), [], **(more if knows_callers else {}))
        server = grpc.aio.server(interceptors=[guard])
        health = Health(())
        health.add_to(server)
        await health.set(False)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
                assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
                await health.set(True)
                assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
                watch.cancel()
                broken = channel.unary_stream("/grpc.health.v1.Health/Watch", None, None)
                with pytest.raises(grpc.aio.AioRpcError) as told:
                    await broken(b"\xff", timeout=20).read()
                assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        finally:
            await server.stop(None)

    asyncio.run(story())


def test_a_message_of_a_stream_that_can_not_be_decoded_is_a_status() -> None:
    async def converse(_: Any, context: Any) -> None:
        await context.read()

    async def story() -> None:
        images: Any = SimpleNamespace(image=EMPTY_IMAGE)
        server = make_server({}, [Guard(images, None, Audit(), [])])
        decode = pb.SaslAuthenticateRequest.FromString
        handler = grpc.stream_stream_rpc_method_handler(converse, decode, None)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("tidemark.v1.Raft", {"FetchStream": handler}),)
        )
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            async with Channels().open(address) as channel, asyncio.timeout(30):
                call = channel.stream_stream("/tidemark.v1.Raft/FetchStream", None, None)()
                await call.write(b"\xff")
                assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        finally:
            await server.stop(None)

    asyncio.run(story())
