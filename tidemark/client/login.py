"""Logging in: the token that each call of a client carries on a listener that speaks SASL.

A JWT is taken from the settings, or from a file that is read again when it changes. By SCRAM the
client logs in at each node it connects to, and again before its session ends there (KIP-368).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tidemark.config.security import BEARER, SCRAM, ClientSecurity
from tidemark.errors import ConfigError, NetworkError, SaslAuthenticationError, raise_for
from tidemark.security.scram import ClientLogin
from tidemark.surroundings import surroundings
from tidemark.v1 import authentication_pb2 as pb
from tidemark.wire.channel import AUTHORIZATION_KEY, BEARER_SCHEME

_PATH = "/tidemark.v1.Authentication/SaslAuthenticate"
_RENEWED_AT = 0.8  # of a session's time
_LOGIN_S = 20.0

TokenMetadata = tuple[tuple[str, str], ...]


class Login:
    """The login of one connection. Belongs to one event loop."""

    def __init__(self, security: ClientSecurity, channel: grpc.aio.Channel) -> None:
        self._security = security
        self._channel = channel
        self._token = ""
        self._renew_s = 0.0
        self._lock = asyncio.Lock()
        self._stamp: tuple[int, int] | None = None
        self._under_way: asyncio.Task[None] | None = None
        self._is_closed = False

    async def metadata(self) -> TokenMetadata:
        """The metadata of a call; logs in if that is due.

        Raises SaslAuthenticationError, ConfigError for a token that can not be read, NetworkError
        after `close`, and gRPC's errors.
        """
        if self._security.sasl_mechanism == BEARER:
            return _carried(self._bearer())
        async with self._lock:
            if self._is_closed:
                raise NetworkError("the connection was closed during the login")
            if not self._token or time.monotonic() >= self._renew_s:
                # A task: gRPC does not end a write to a node that is not connected yet.
                self._under_way = asyncio.ensure_future(self._log_in())
                await self._under_way
        return _carried(self._token)

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
            raise ConfigError(f"sasl.oauthbearer.token.location: {error}") from None
        return self._token

    async def _log_in(self) -> None:
        nonce = surroundings().random_bytes(18)
        security = self._security
        login = ClientLogin(security.sasl_username, security.sasl_password, nonce)
        begin: Any = self._channel.stream_stream(
            _PATH,
            request_serializer=pb.SaslAuthenticateRequest.SerializeToString,
            response_deserializer=pb.SaslAuthenticateResponse.FromString,
        )
        call = begin(timeout=_LOGIN_S)
        try:
            first = pb.SaslAuthenticateRequest(mechanism=SCRAM, auth_bytes=login.first())
            challenge = await _asked(call, first)
            # 4,096 rounds of SHA-512 take some ms.
            proof = await asyncio.to_thread(login.final, challenge.auth_bytes)
            last = await _asked(call, pb.SaslAuthenticateRequest(auth_bytes=proof))
            login.check(last.auth_bytes)
        finally:
            call.cancel()
        self._token = last.token
        self._renew_s = time.monotonic() + _RENEWED_AT * last.session_lifetime_ms / 1000


async def _asked(call: Any, request: pb.SaslAuthenticateRequest) -> pb.SaslAuthenticateResponse:
    """Sends one message of a login; raises the error of its answer."""
    await call.write(request)
    answer = await call.read()
    if not isinstance(answer, pb.SaslAuthenticateResponse):
        raise SaslAuthenticationError("the node ended the login without an answer")
    raise_for(answer.error_code, answer.error_message)
    return answer


def _carried(token: str) -> TokenMetadata:
    return ((AUTHORIZATION_KEY, BEARER_SCHEME + token),)
