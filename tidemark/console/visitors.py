"""The clients of the console's users: one admin client each, while the user comes back.

Where the cluster asks for logins, a name and a password come with each request (HTTP Basic). They
are passed on as a SCRAM login, so ACLs and the audit log see the user. There are at most
`VISITORS_MAX` such clients; the one used longest ago makes room, unless all are in use.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from tidemark.config.security import NO_SECURITY, ClientSecurity, client_security
from tidemark.errors import ConfigError, SaslAuthenticationError, ThrottlingQuotaExceededError

if TYPE_CHECKING:
    from tidemark.client.admin import AsyncAdmin
    from tidemark.client.consumer import AsyncConsumer

VISITORS_MAX = 8
IDLE_MS_MAX = 600_000
REQUEST_MS = 5_000
CALL_MS = 8_000
FETCH_BYTES_MAX = 1 << 20


def credentials_of(authorization: str) -> tuple[str, str] | None:
    """Name and password of a header (RFC 7617); None if there are none."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    name, colon, password = text.partition(":")
    return (name, password) if colon and name and password else None


class Visitor:
    """The clients of one user."""

    def __init__(self, bootstrap: str, security: ClientSecurity, admin: AsyncAdmin) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self.admin = admin
        self.requests = 0
        self.used_ms = 0

    def consumer(self, isolation_level: str) -> AsyncConsumer:
        """A consumer of this user, which holds little memory; the caller closes it."""
        from tidemark.client.consumer import AsyncConsumer

        return AsyncConsumer(
            self._bootstrap,
            auto_offset_reset="none",
            isolation_level=isolation_level,
            fetch_max_bytes=FETCH_BYTES_MAX,
            max_partition_fetch_bytes=FETCH_BYTES_MAX,
            buffer_bytes=2 * FETCH_BYTES_MAX,
            request_timeout_ms=REQUEST_MS,
            default_api_timeout_ms=CALL_MS,
            client_id="tidemark-console",
            security=self._security,
        )


MakeAdmin = Callable[[str, ClientSecurity], Any]


def make_admin(bootstrap: str, security: ClientSecurity) -> AsyncAdmin:
    """An admin client that gives up soon: somebody waits before a page."""
    from tidemark.client.admin import AsyncAdmin

    return AsyncAdmin(
        bootstrap,
        request_timeout_ms=REQUEST_MS,
        default_api_timeout_ms=CALL_MS,
        security=security,
    )


class Visitors:
    """The users' clients by their credentials. Belongs to one event loop.

    `login` has the settings of a client that lack a name and a password; None: nobody logs in, and
    all share the client of `security`.
    """

    def __init__(
        self,
        bootstrap: str,
        login: Mapping[str, str] | None,
        now_ms: Callable[[], int],
        security: ClientSecurity = NO_SECURITY,
        make: MakeAdmin = make_admin,
    ) -> None:
        self._bootstrap = bootstrap
        self._login = login
        self._security = security
        self._now_ms = now_ms
        self._make = make
        self._found: dict[bytes, Visitor] = {}
        self._closing: set[asyncio.Future[None]] = set()

    @property
    def ask_login(self) -> bool:
        """Whether users have to log in."""
        return self._login is not None

    def __len__(self) -> int:
        return len(self._found)

    @contextlib.asynccontextmanager
    async def visitor(self, authorization: str) -> AsyncIterator[Visitor]:
        """The clients of the user that a request names; they stay open for the next one.

        Raises SaslAuthenticationError without a name and a password where they are asked for, and
        ThrottlingQuotaExceededError where too many users are served.
        """
        key, security = self._who(authorization)
        leaving = self._idle()
        visitor = self._found.get(key) or self._admitted(key, security, leaving)
        visitor.requests += 1  # before anything is awaited: it must not leave
        closing = [asyncio.ensure_future(each.admin.close()) for each in leaving]
        self._closing.update(closing)
        try:
            if closing:
                await asyncio.wait(closing)  # they go on closing where this request is cancelled
            yield visitor
        except SaslAuthenticationError:
            if self._found.get(key) is visitor:  # a wrong password keeps nobody out
                del self._found[key]
                await visitor.admin.close()
            raise
        finally:
            self._closing -= {each for each in self._closing if each.done()}
            visitor.requests -= 1
            visitor.used_ms = self._now_ms()

    def _who(self, authorization: str) -> tuple[bytes, ClientSecurity]:
        if self._login is None:
            return b"", self._security
        given = credentials_of(authorization)
        if given is None:
            raise SaslAuthenticationError("log in with a name and a password of the cluster")
        name, password = given
        values = {**self._login, "sasl.username": name, "sasl.password": password}
        try:
            security = client_security(values)
        except ConfigError as error:
            raise SaslAuthenticationError(str(error)) from None
        return hashlib.sha256(f"{name}\0{password}".encode()).digest(), security

    def _admitted(self, key: bytes, security: ClientSecurity, leaving: list[Visitor]) -> Visitor:
        """A new visitor; the one that makes room is added to `leaving`."""
        if len(self._found) >= VISITORS_MAX:
            idle = [each for each, visitor in self._found.items() if not visitor.requests]
            if not idle:
                raise ThrottlingQuotaExceededError(
                    f"{VISITORS_MAX} users are being served: ask again in a moment"
                )
            oldest = min(idle, key=lambda each: self._found[each].used_ms)
            leaving.append(self._found.pop(oldest))
        admin = self._make(self._bootstrap, security)
        visitor = self._found[key] = Visitor(self._bootstrap, security, admin)
        return visitor

    def _idle(self) -> list[Visitor]:
        """Takes out those that did not come back."""
        since_ms = self._now_ms() - IDLE_MS_MAX
        gone = [k for k, v in self._found.items() if not v.requests and v.used_ms < since_ms]
        return [self._found.pop(key) for key in gone]

    async def close(self) -> None:
        """Closes all clients. Idempotent."""
        leaving, self._found = list(self._found.values()), {}
        for visitor in leaving:
            await visitor.admin.close()
