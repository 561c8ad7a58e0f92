"""Logins of a client: what ends with a session goes on in the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from quorum.access.logins import Sessions
from tidemark.client import login
from tidemark.client.connections import Connections
from tidemark.client.errors import ClientClosedError
from tidemark.errors import (
    ConfigError,
    NetworkError,
    RequestTimedOutError,
    SaslAuthenticationError,
)
from tidemark.security.scram import ITERATIONS_MIN, credential_of, salted

STREAM, ONE = "/t.T/Stream", "/t.T/One"
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
SCRAM = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "ann",
    "sasl.password": "secret",
}
BY_JWT = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
TOKEN_FILE = "sasl.oauthbearer.token.location"


class Images:
    """Of a cluster whose one user is ann."""

    def __init__(self) -> None:
        keys = credential_of(salted("secret", b"salt", ITERATIONS_MIN), b"salt", ITERATIONS_MIN)
        self.image: Any = self
        self.scram_users = {"ann": keys}


class Node:
    """Knows the tokens of its calls; `serve` is its answer to a stream."""

    def __init__(self, serve: Callable[[Any], Awaitable[None]], *, logs_in: bool = True) -> None:
        self.tokens: list[str] = []
        self._serve = serve
        self._server = grpc.aio.server()
        methods = {
            "Stream": grpc.stream_stream_rpc_method_handler(self._stream),
            "One": grpc.unary_unary_rpc_method_handler(self._one),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("t.T", methods),)
        )
        if logs_in:
            Sessions(Images(), 3_600_000).add_to(self._server)
        else:
            never = {"SaslAuthenticate": grpc.stream_stream_rpc_method_handler(self._never)}
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler("tidemark.v1.Authentication", never),)
            )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    async def __aenter__(self) -> Node:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    def _told(self, context: Any) -> None:
        self.tokens += [v for k, v in context.invocation_metadata() if k == "authorization"]

    async def _stream(self, _: Any, context: Any) -> None:
        self._told(context)
        await self._serve(context)

    async def _one(self, payload: bytes, context: Any) -> bytes:
        self._told(context)
        return payload

    async def _never(self, _: Any, __: Any) -> None:
        await asyncio.Event().wait()


def asked(connections: Connections, node: Node, path: str = STREAM) -> Awaitable[bytes]:
    if path == ONE:
        return connections.call(node.address, ONE, b"x", bytes)
    return connections.exchange(node.address, STREAM, b"x", bytes, 10_000, alone=ONE)


def test_all_that_was_under_way_when_a_session_ended_is_sent_again() -> None:
    async def ends(context: Any) -> None:
        for _ in range(3):
            await context.read()
        await context.abort(UNAUTHENTICATED, "the session is over")

    async def story() -> None:
        async with Node(ends) as node:
            connections = Connections(security=SCRAM)
            three = [asked(connections, node) for _ in range(3)]
            found = await asyncio.gather(*three, return_exceptions=True)
            assert [type(error) for error in found] == [NetworkError] * 3
            assert await asked(connections, node, ONE) == b"x"
            assert len({*node.tokens}) == 2
            await connections.close()

    asyncio.run(story())


def test_a_call_of_a_former_jwt_goes_on_with_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    values = BY_JWT | {TOKEN_FILE: str(file)}

    async def once(context: Any) -> None:
        await context.write(await context.read())
        await context.read()
        (tmp_path / "next").write_text("two")
        (tmp_path / "next").replace(file)
        await context.abort(UNAUTHENTICATED, "the session is over")

    async def story() -> None:
        async with Node(once) as node:
            connections = Connections(security=values)
            assert await asked(connections, node) == b"x"
            for error in (NetworkError, SaslAuthenticationError):
                [found] = await asyncio.gather(asked(connections, node), return_exceptions=True)
                assert type(found) is error
                assert await asked(connections, node, ONE) == b"x"
                assert node.tokens[-1] == "Bearer two"
                if error is NetworkError:
                    assert await asked(connections, node) == b"x"
            await connections.close()

    asyncio.run(story())


def test_calls_that_wait_for_one_login_end_within_their_own_time() -> None:
    async def story() -> None:
        async with Node(lambda _: asyncio.sleep(0), logs_in=False) as node:
            connections = Connections(security=SCRAM)
            calls = [
                connections.call(node.address, ONE, b"x", bytes, timeout_ms=200) for _ in range(3)
            ]
            async with asyncio.timeout(10):
                found = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(error) for error in found] == [RequestTimedOutError] * 3
            await connections.close()

    asyncio.run(story())


def test_a_connection_that_is_closed_during_the_login_is_a_network_error() -> None:
    async def story() -> None:
        async with Node(lambda _: asyncio.sleep(0), logs_in=False) as node:
            connections = Connections(security=SCRAM)
            calls = [asyncio.ensure_future(asked(connections, node, p)) for p in (ONE, STREAM)]
            for _ in range(10):
                await asyncio.sleep(0)
            connections.disconnect(node.address)
            async with asyncio.timeout(10):
                found = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(error) for error in found] == [NetworkError] * 2
            await connections.close()

    asyncio.run(story())


def test_a_session_that_nears_its_end_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: Any) -> None:
        raise AssertionError

    async def story() -> None:
        async with Node(never) as node:
            connections = Connections(security=SCRAM)
            for _ in range(3):
                await asked(connections, node, ONE)
            assert len({*node.tokens}) == 1
            connections.disconnect(node.address)
            monkeypatch.setattr(login, "_RENEWED_AT", 0.0)
            async with asyncio.timeout(30):
                while len({*node.tokens}) < 4:  # each call renews for those behind it
                    await asked(connections, node, ONE)
            await connections.close()

    asyncio.run(story())


def test_an_open_call_of_a_former_session_is_left_when_nothing_is_under_way(tmp_path: Path) -> None:
    """Requests that are under way end there, and later ones wait for them."""
    (file := tmp_path / "token").write_text("one")
    may_answer, served = asyncio.Event(), list[bytes]()

    async def answers(context: Any) -> None:
        while request := await context.read():
            if request == b"slow":
                await may_answer.wait()
            served.append(request)
            await context.write(request)

    async def story() -> None:
        async with Node(answers) as node, asyncio.timeout(30):
            connections = Connections(security=BY_JWT | {TOKEN_FILE: str(file)})

            def ask(request: bytes) -> Awaitable[bytes]:
                address = node.address
                call = connections.exchange(address, STREAM, request, bytes, 10_000, alone=ONE)
                return asyncio.ensure_future(call)

            assert await ask(b"first") == b"first"
            slow = ask(b"slow")
            await asyncio.sleep(0)
            file.write_text("other")
            later = [ask(b"a"), ask(b"b")]
            assert await connections.call(node.address, ONE, b"x", bytes) == b"x"
            assert served == [b"first"]
            may_answer.set()
            assert await slow == b"slow"
            assert await asyncio.gather(*later) == [b"a", b"b"]
            assert served == [b"first", b"slow", b"a", b"b"]
            assert node.tokens == ["Bearer one", "Bearer other", "Bearer other"]
            await connections.close()

    asyncio.run(story())


def test_a_node_that_never_answers_on_a_former_call_is_left_in_time(tmp_path: Path) -> None:
    (file := tmp_path / "token").write_text("one")

    async def never(context: Any) -> None:
        while await context.read():
            pass

    async def story() -> None:
        async with Node(never) as node, asyncio.timeout(30):
            security = BY_JWT | {TOKEN_FILE: str(file)}
            connections = Connections(security=security, request_timeout_ms=20_000)
            call = connections.exchange(node.address, STREAM, b"x", bytes, 20_000, alone=ONE)
            stuck = asyncio.ensure_future(call)
            await asyncio.sleep(0)
            await connections.call(node.address, ONE, b"x", bytes)
            file.write_text("other")
            with pytest.raises(RequestTimedOutError, match="former login"):
                await connections.exchange(node.address, STREAM, b"y", bytes, 100, alone=ONE)
            await connections.close()
            with pytest.raises(NetworkError):
                await stuck

    asyncio.run(story())


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_connection_that_is_closed_while_a_request_waits_for_a_former_call(
    tmp_path: Path, is_closed: bool
) -> None:
    (file := tmp_path / "token").write_text("one")
    asked_once = asyncio.Event()

    async def never(context: Any) -> None:
        await context.read()
        asked_once.set()
        await asyncio.Event().wait()

    async def story() -> None:
        async with Node(never) as node, asyncio.timeout(30):
            connections = Connections(security=BY_JWT | {TOKEN_FILE: str(file)})
            first = asyncio.ensure_future(asked(connections, node))
            await asked_once.wait()
            file.write_text("other")
            later = asyncio.ensure_future(asked(connections, node))
            for _ in range(10):
                await asyncio.sleep(0)
            if is_closed:
                await connections.close()
            else:
                connections.disconnect(node.address)
            found = await asyncio.gather(first, later, return_exceptions=True)
            waited = ClientClosedError if is_closed else NetworkError
            assert [type(error) for error in found] == [NetworkError, waited]
            await connections.close()

    asyncio.run(story())


def test_a_token_counts_while_its_file_is_being_replaced(tmp_path: Path) -> None:
    (file := tmp_path / "token").write_text("one")

    async def never(_: Any) -> None:
        raise AssertionError

    async def story() -> None:
        async with Node(never) as node:
            connections = Connections(security=BY_JWT | {TOKEN_FILE: str(file)})
            await asked(connections, node, ONE)
            file.unlink()
            await asked(connections, node, ONE)
            assert node.tokens == ["Bearer one"] * 2
            await connections.close()
            connections = Connections(security=BY_JWT | {TOKEN_FILE: str(file)})
            with pytest.raises(ConfigError, match=TOKEN_FILE.replace(".", r"\.")):
                await asked(connections, node, ONE)
            await connections.close()

    asyncio.run(story())


def test_a_renewal_that_hangs_holds_nothing_up_and_one_that_fails_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(_: Any) -> None:
        raise AssertionError

    async def story() -> None:
        async with Node(never) as node, asyncio.timeout(30):
            connections = Connections(security=SCRAM)
            monkeypatch.setattr(login, "_RENEWED_AT", 0.0)
            monkeypatch.setattr(login, "_RENEWAL_RETRY_S", 0.0)
            await asked(connections, node, ONE)
            session = connections._connections[node.address].login
            assert session is not None
            log_in, hangs, tries = session._log_in, asyncio.Event(), 0

            async def stuck() -> None:
                nonlocal tries
                tries += 1
                await hangs.wait()
                raise NetworkError("the node is not there")

            monkeypatch.setattr(session, "_log_in", stuck)
            for _ in range(3):
                await asked(connections, node, ONE)
            assert (tries, len({*node.tokens})) == (1, 1)
            hangs.set()
            for _ in range(3):
                await asked(connections, node, ONE)
            assert tries > 1
            monkeypatch.setattr(session, "_log_in", log_in)
            while len({*node.tokens}) < 2:
                await asked(connections, node, ONE)
            await session._begin()
            session._end_s = 0.0  # of a session that was not renewed in time, a call waits
            monkeypatch.setattr(session, "_log_in", stuck)
            with pytest.raises(NetworkError, match="not there"):
                await asked(connections, node, ONE)
            await connections.close()

    asyncio.run(story())
