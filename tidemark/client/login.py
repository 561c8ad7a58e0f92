"""Logging in: the token that each call of a client carries on a listener that speaks SASL.

A JWT is taken from the settings, or from a file that is read again when it changes. By SCRAM the
client logs in at each node it connects to, and again before its session ends there (KIP-368).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tidemark.config.security import BEARER, SCRAM, ClientSecurity
from tidemark.errors import ConfigError, NetworkError, raise_for
from tidemark.security.scram import ClientLogin
from tidemark.surroundings import surroundings
from tidemark.v1 import authentication_pb2 as pb
from tidemark.wire.channel import AUTHORIZATION_KEY, BEARER_SCHEME, SASL_KEY

logger = logging.getLogger(__name__)

_PATH = "/tidemark.v1.Authentication/SaslAuthenticate"
_RENEWED_AT, _USED_TO = 0.8, 0.98  # of a session's time
_RENEWAL_RETRY_S = 1.0
_LOGIN_S = 20.0

TokenMetadata = tuple[tuple[str, str], ...]


class Login:
    """The login of one connection. Belongs to one event loop."""

    def __init__(self, security: ClientSecurity, channel: grpc.aio.Channel) -> None:
        self._security = security
        self._channel = channel
        self._token = ""
        self._renew_s = self._end_s = 0.0
        self._lock = asyncio.Lock()
        self._stamp: tuple[int, int] | None = None
        self._under_way: asyncio.Task[None] | None = None
        self._is_closed = False

    async def metadata(self) -> TokenMetadata:
        """The metadata of a call; waits for a login only where no token is valid.

        Raises SaslAuthenticationError, ConfigError for a token that can not be read, NetworkError
        after `close`, and gRPC's errors.
        """
        if self._security.sasl_mechanism == BEARER:
            return _carried(self._bearer())
        if self._is_valid():
            if time.monotonic() >= self._renew_s:
                self._begin().add_done_callback(self._renewed)
            return _carried(self._token)
        async with self._lock:
            if self._is_closed:
                raise NetworkError("the connection was closed during the login")
            if not self._is_valid():
                await self._begin()
        return _carried(self._token)

    def _is_valid(self) -> bool:
        return bool(self._token) and not self._is_closed and time.monotonic() < self._end_s

    def _begin(self) -> asyncio.Task[None]:
        """The login that is under way, or a new one: a task, which `close` can end."""
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.ensure_future(self._log_in())
            self._renew_s = time.monotonic() + _RENEWAL_RETRY_S
        return self._under_way

    def _renewed(self, login: asyncio.Task[None]) -> None:
        """A renewal that fails is tried again, as long as the token of before is valid."""
        if not login.cancelled() and (error := login.exception()) is not None:
            logger.debug("a session was not renewed yet: %r", error)

    def close(self) -> None:
        """Ends a login under way, and those that wait. Idempotent."""
        self._is_closed = True
        if self._under_way is not None:
            self._under_way.cancel()

    def forget(self, used: Sequence[tuple[str, str]] | None) -> bool:
        """Tells that the node did not accept the token of a call with the metadata `used`.

        Returns whether the next call has another. A node that was restarted knows no token of
        before, and a call that stays open may have begun with a former one. Raises ConfigError.
        """
        if self._security.sasl_mechanism == BEARER:
            return _carried(self._bearer())[0] not in (used or ())
        if _carried(self._token)[0] in (used or ()):
            self._token = ""
        return True

    def is_current(self, used: Sequence[tuple[str, str]] | None) -> bool:
        """Whether a call with the metadata `used` has the newest token. Raises ConfigError."""
        token = self._bearer() if self._security.sasl_mechanism == BEARER else self._token
        return not token or _carried(token)[0] in (used or ())

    def _bearer(self) -> str:
        path = self._security.sasl_oauthbearer_token_location
        if not path:
            return self._security.sasl_oauthbearer_token
        try:
            status = Path(path).stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp != self._stamp:
                self._token, self._stamp = Path(path).read_text(encoding="utf-8").strip(), stamp
        except (OSError, UnicodeDecodeError) as error:
            if not self._token:
                raise ConfigError(f"sasl.oauthbearer.token.location: {error}") from None
            # It is being replaced: the token that is known counts until the node refuses it.
        return self._token

    async def _log_in(self) -> None:
        nonce = surroundings().random_bytes(18)
        security = self._security
        login = ClientLogin(security.sasl_username, security.sasl_password, nonce)
        challenge = await self._asked(login.first())
        # 4,096 rounds of SHA-512 take some ms.
        proof = await asyncio.to_thread(login.final, challenge.auth_bytes)
        last = await self._asked(proof, challenge.state)
        login.check(last.auth_bytes)
        self._token = last.token
        now_s, lifetime_s = time.monotonic(), last.session_lifetime_ms / 1000
        self._renew_s, self._end_s = now_s + _RENEWED_AT * lifetime_s, now_s + _USED_TO * lifetime_s

    async def _asked(self, message: bytes, state: bytes = b"") -> pb.SaslAuthenticateResponse:
        """Sends one message of a login; raises the error of its answer."""
        request = pb.SaslAuthenticateRequest(mechanism=SCRAM, auth_bytes=message, state=state)
        step: Any = self._channel.unary_unary(_PATH, None, pb.SaslAuthenticateResponse.FromString)
        carried = ((SASL_KEY, request.SerializeToString()),)
        answer: pb.SaslAuthenticateResponse = await step(b"", timeout=_LOGIN_S, metadata=carried)
        raise_for(answer.error_code, answer.error_message)
        return answer


def _carried(token: str) -> TokenMetadata:
    return ((AUTHORIZATION_KEY, BEARER_SCHEME + token),)
