"""Users of the console: their logins, and how many are served at once. Time is set by the test."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from tests.console.facts import ToldAdmin
from tidemark.config.security import NO_SECURITY, SCRAM, ClientSecurity
from tidemark.console.visitors import (
    IDLE_MS_MAX,
    VISITORS_MAX,
    Visitors,
    credentials_of,
)
from tidemark.errors import SaslAuthenticationError, ThrottlingQuotaExceededError

LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": SCRAM}


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Clients:
    """Makes admin clients, and keeps them with their security."""

    def __init__(self, login: dict[str, str] | None = LOGIN) -> None:
        self.made: list[tuple[ClientSecurity, ToldAdmin]] = []
        self.now_ms = 0
        self.visitors = Visitors("b:1", login, lambda: self.now_ms, make=self._make)

    def _make(self, bootstrap: str, security: ClientSecurity) -> Any:
        assert bootstrap == "b:1"
        self.made.append((security, ToldAdmin()))
        return self.made[-1][1]

    async def visit(self, authorization: str) -> ToldAdmin:
        async with self.visitors.visitor(authorization) as visitor:
            found: Any = visitor.admin
            return found


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (basic("ann", "pass:word"), ("ann", "pass:word")),
        ("bAsIc " + base64.b64encode("ö:ß".encode()).decode(), ("ö", "ß")),
        ("", None),
        ("Bearer x", None),
        ("Basic ???", None),
        ("Basic " + base64.b64encode(b"nocolon").decode(), None),
        ("Basic " + base64.b64encode(b"\xff:\xff").decode(), None),
        (basic("", "x"), None),
        (basic("x", ""), None),
    ],
)
def test_credentials_are_read_or_are_none(header: str, found: tuple[str, str] | None) -> None:
    assert credentials_of(header) == found


def test_each_user_has_one_client_with_that_users_login() -> None:
    async def story() -> None:
        clients = Clients()
        first = await clients.visit(basic("ann", "a"))
        assert await clients.visit(basic("ann", "a")) is first
        assert await clients.visit(basic("ann", "b")) is not first
        assert await clients.visit(basic("bob", "a")) is not first
        names = [(s.sasl_username, s.sasl_password) for s, _ in clients.made]
        assert names == [("ann", "a"), ("ann", "b"), ("bob", "a")]
        assert {s.security_protocol for s, _ in clients.made} == {"SASL_SSL"}
        await clients.visitors.close()
        assert all(admin.is_closed for _, admin in clients.made)
        await clients.visitors.close()

    asyncio.run(story())


def test_nobody_is_served_without_a_login_where_one_is_asked_for() -> None:
    async def story() -> None:
        clients = Clients()
        for header in ("", "Basic ???"):
            with pytest.raises(SaslAuthenticationError):
                await clients.visit(header)
        assert not clients.made

    asyncio.run(story())


def test_without_logins_all_share_a_client_whatever_they_send() -> None:
    async def story() -> None:
        clients = Clients(login=None)
        first = await clients.visit("")
        assert await clients.visit(basic("ann", "a")) is first
        assert [security for security, _ in clients.made] == [NO_SECURITY]

    asyncio.run(story())


def test_a_client_whose_login_failed_is_closed() -> None:
    async def story() -> None:
        clients = Clients()
        with pytest.raises(SaslAuthenticationError):
            async with clients.visitors.visitor(basic("ann", "wrong")):
                raise SaslAuthenticationError("no")
        assert clients.made[0][1].is_closed and len(clients.visitors) == 0

    asyncio.run(story())


def test_the_client_used_longest_ago_makes_room() -> None:
    async def story() -> None:
        clients = Clients()
        for number in range(VISITORS_MAX):
            clients.now_ms += 1
            await clients.visit(basic(f"u{number}", "p"))
        clients.now_ms += 1
        await clients.visit(basic("u0", "p"))
        await clients.visit(basic("new", "p"))
        closed = [s.sasl_username for s, admin in clients.made if admin.is_closed]
        assert closed == ["u1"] and len(clients.visitors) == VISITORS_MAX

    asyncio.run(story())


def test_a_client_in_use_is_not_closed_and_one_too_many_is_refused() -> None:
    async def story() -> None:
        clients = Clients()
        held = [
            clients.visitors.visitor(basic(f"u{number}", "p")) for number in range(VISITORS_MAX)
        ]
        for each in held:
            await each.__aenter__()
        clients.now_ms += 2 * IDLE_MS_MAX
        with pytest.raises(ThrottlingQuotaExceededError):
            await clients.visit(basic("new", "p"))
        assert not any(admin.is_closed for _, admin in clients.made)
        for each in held:
            await each.__aexit__(None, None, None)
        await clients.visit(basic("new", "p"))

    asyncio.run(story())


def test_a_new_user_is_not_sent_away_while_another_one_leaves() -> None:
    async def story() -> None:
        clients = Clients()
        for number in range(VISITORS_MAX):
            clients.now_ms += 1
            await clients.visit(basic(f"u{number}", "p"))
        going = asyncio.get_running_loop().create_future()

        async def close() -> None:
            await going

        clients.made[0][1].close = close  # type: ignore[method-assign]
        first = asyncio.ensure_future(clients.visit(basic("new", "p")))
        await asyncio.sleep(0)
        await clients.visit(basic("newer", "p"))
        going.set_result(None)
        assert not (await first).is_closed

    asyncio.run(story())


def test_an_idle_client_is_closed_by_the_next_request() -> None:
    async def story() -> None:
        clients = Clients()
        first = await clients.visit(basic("ann", "a"))
        clients.now_ms += IDLE_MS_MAX
        assert await clients.visit(basic("ann", "a")) is first
        clients.now_ms += IDLE_MS_MAX + 1
        await clients.visit(basic("bob", "b"))
        assert first.is_closed and len(clients.visitors) == 1

    asyncio.run(story())


def test_clients_that_leave_are_closed_where_the_request_is_cancelled() -> None:
    """One that hangs while it is closed holds up no other that leaves with it."""

    async def story() -> None:
        clients = Clients()
        for user in ("ann", "bob"):
            await clients.visit(basic(user, "p"))
        hangs = asyncio.Event()

        async def close() -> None:
            await hangs.wait()

        clients.made[0][1].close = close  # type: ignore[method-assign]
        clients.now_ms += IDLE_MS_MAX + 1
        request = asyncio.ensure_future(clients.visit(basic("eve", "p")))
        for _ in range(5):
            await asyncio.sleep(0)
        assert clients.made[1][1].is_closed
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        hangs.set()

    asyncio.run(story())
