"""Tokens of calls: those of SCRAM logins at this node, and users' JWTs (OAUTHBEARER).

A login by SCRAM is two calls of SaslAuthenticate, at whose end the client gets a token. The token
is signed with a key of this process. It is valid at this node until the node stops, or the
session's time is over. A JWT comes from elsewhere, and is checked with the keys of its issuer.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import grpc
from google.protobuf.message import DecodeError

from quorum.access.audit import Audit
from quorum.access.guard import Authenticated, Context, Images, Metadata, TokenCheck, host_of
from tidemark.config.security import BEARER, SCRAM, ListenerSecurity
from tidemark.errors import (
    ApiError,
    ConfigError,
    IllegalSaslStateError,
    SaslAuthenticationError,
    UnsupportedSaslMechanismError,
    set_error,
)
from tidemark.security import scram
from tidemark.surroundings import surroundings
from tidemark.v1 import authentication_pb2 as pb
from tidemark.wire.channel import AUTHORIZATION_KEY, BEARER_SCHEME, SASL_KEY

_PREFIX = "scram."
_STEP_MS = 10_000  # for the client's next message of a login
_TOKENS_MAX = 10_000
_RECHECKED_MS = 300_000  # the key of a token may have been withdrawn
_KEYS_S = 60.0  # keys of a URL are not fetched again before
_TOKEN_BYTES_MAX = 16 << 10
_CHECKED_MAX = 256  # tokens that wait for their check; more are turned away


def token_of(metadata: Metadata) -> str:
    """The bearer token of a call. Raises SaslAuthenticationError."""
    for key, value in metadata or ():
        if key == AUTHORIZATION_KEY:
            if not str(value).startswith(BEARER_SCHEME):
                raise SaslAuthenticationError("the metadata authorization is no Bearer token")
            return str(value).removeprefix(BEARER_SCHEME)
    raise SaslAuthenticationError(
        "the call has no token: log in (security.protocol, sasl.mechanism)"
    )


class Sessions:
    """The SCRAM logins of one node.

    Between its two steps a login is nowhere kept: the client brings the state back, sealed.
    """

    def __init__(
        self,
        images: Images,
        lifetime_ms: int,
        audit: Audit | None = None,
        failure_delay_ms: int = 0,
    ) -> None:
        """`failure_delay_ms`: time until a failed login is answered."""
        self._audit = audit or Audit()
        self._images = images
        self._lifetime_ms = lifetime_ms
        self._failure_delay_s = failure_delay_ms / 1000
        self._tokens, self._states = Seal(os.urandom(32)), Seal(os.urandom(32))
        self._salts = os.urandom(32)
        self._wall_ms = surroundings().wall_ms

    def authenticate(self, token: str) -> Authenticated:
        """Tells whose token it is. Raises SaslAuthenticationError."""
        found = self._tokens.opened(token.removeprefix(_PREFIX))
        if found is None:
            raise SaslAuthenticationError("the token is none of this node: log in again")
        name, until_ms = str(found["user"]), int(found["until_ms"])
        if self._wall_ms() >= until_ms:
            raise SaslAuthenticationError("the session is over: log in again")
        if name not in self._images.image.scram_users:
            raise SaslAuthenticationError("the user was removed")
        return Authenticated(f"User:{name}", until_ms)

    def _token(self, name: str) -> str:
        until_ms = self._wall_ms() + self._lifetime_ms
        return _PREFIX + self._tokens.closed({"user": name, "until_ms": until_ms})

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serves SaslAuthenticate."""
        # As a stream, whose message gRPC reads only where it is asked for: never.
        handler = grpc.stream_stream_rpc_method_handler(
            self._serve, response_serializer=pb.SaslAuthenticateResponse.SerializeToString
        )
        methods = {"SaslAuthenticate": handler}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("tidemark.v1.Authentication", methods),)
        )

    async def _serve(self, _: Any, context: Context) -> None:
        answer = self.answered(_sasl_request(context), host_of(context.peer()))
        if answer.error_code:
            await asyncio.sleep(self._failure_delay_s)
        await context.write(answer)

    def answered(
        self, request: pb.SaslAuthenticateRequest, host: str
    ) -> pb.SaslAuthenticateResponse:
        """The answer to one step of a login from `host`."""
        name = ""
        try:
            if request.mechanism != SCRAM:
                raise UnsupportedSaslMechanismError(
                    f"{request.mechanism[:40] or 'no mechanism'}: users log in here by {SCRAM}"
                )
            users = self._images.image.scram_users
            if not request.state:
                nonce = os.urandom(18)
                begun = scram.challenge(request.auth_bytes, users.get, nonce, self._salts)
                return pb.SaslAuthenticateResponse(
                    auth_bytes=begun.server_first.encode(), state=self._state(begun)
                )
            begun = self._begun(request.state)
            name = begun.name
            last = scram.concluded(begun, request.auth_bytes, users.get(name))
        except ApiError as error:
            self._audit.rejected(host, f"{name!r}: {error}")
            answer = pb.SaslAuthenticateResponse()
            set_error(answer, error)
            return answer
        return pb.SaslAuthenticateResponse(
            auth_bytes=last, token=self._token(name), session_lifetime_ms=self._lifetime_ms
        )

    def _state(self, begun: scram.Challenge) -> bytes:
        until_ms = self._wall_ms() + _STEP_MS
        return self._states.closed({"begun": begun, "until_ms": until_ms}).encode()

    def _begun(self, state: bytes) -> scram.Challenge:
        found = self._states.opened(state.decode(errors="replace"))
        if found is None:
            raise IllegalSaslStateError("the login did not begin at this node: begin it again")
        if self._wall_ms() >= found["until_ms"]:
            raise IllegalSaslStateError("the login took too long: begin it again")
        return scram.Challenge(*found["begun"])


class Seal:
    """Signs JSON, so that strangers may carry it and not change it."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def closed(self, content: Any) -> str:
        payload = base64.urlsafe_b64encode(json.dumps(content).encode()).decode()
        return f"{payload}.{self._signature(payload)}"

    def opened(self, text: str) -> Any:
        """The content; None: it is none of this seal."""
        payload, _, signature = text.partition(".")
        if not hmac.compare_digest(self._signature(payload).encode(), signature.encode()):
            return None
        return json.loads(base64.urlsafe_b64decode(payload))

    def _signature(self, payload: str) -> str:
        return hmac.new(self._key, payload.encode(), hashlib.sha256).hexdigest()


def _sasl_request(context: Context) -> pb.SaslAuthenticateRequest:
    """The request in the metadata of a call; an empty one where there is none."""
    for key, value in context.invocation_metadata() or ():
        if key == SASL_KEY and isinstance(value, bytes):
            try:
                return pb.SaslAuthenticateRequest.FromString(value)
            except DecodeError:
                break
    return pb.SaslAuthenticateRequest()


class KeysUnavailableError(SaslAuthenticationError):
    """A token can not be checked now: its issuer's keys can not be read, or too many wait."""


class JwtVerifier:
    """Checks users' JWTs with the keys of sasl.oauthbearer.jwks.endpoint.url."""

    def __init__(self, security: ListenerSecurity) -> None:
        """Raises ConfigError."""
        import jwt

        url = security.sasl_oauthbearer_jwks_endpoint_url
        if not url.startswith(("https://", "file://", "http://localhost:", "http://127.0.0.1:")):
            raise ConfigError(
                "sasl.enabled.mechanisms=OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url, an"
                f" https:// or file:// URL, which is {url!r}"
            )
        self._security = security
        self._path = Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None
        # Not by `cache_keys`: that keeps a key until the process ends, also a withdrawn one.
        self._jwks = None if self._path else jwt.PyJWKClient(url, lifespan=_KEYS_S, timeout=10)
        self._known: dict[bytes, tuple[Authenticated, int]] = {}  # and when it was checked
        # Its own thread: forged tokens must not hold those that logs and plug-ins wait for.
        self._thread = ThreadPoolExecutor(1, "tidemark-tokens")
        self._checked = 0
        self._wall_ms = surroundings().wall_ms

    async def authenticate(self, token: str) -> Authenticated:
        """Tells whose token it is. Raises SaslAuthenticationError."""
        if len(token) > _TOKEN_BYTES_MAX:
            raise SaslAuthenticationError(f"a token of {len(token)} bytes")
        digest = hashlib.sha256(token.encode()).digest()
        known, checked_ms = self._known.get(digest, (None, 0))
        if known is None or self._wall_ms() - checked_ms >= _RECHECKED_MS:
            known = await self._rechecked(token, digest)
        if known.until_ms is not None and self._wall_ms() >= known.until_ms:
            raise SaslAuthenticationError("the token has expired: get a new one")
        return known

    async def _rechecked(self, token: str, digest: bytes) -> Authenticated:
        """Checks a token, and remembers it.

        A known one counts as before while it is checked, and while its check is not possible.
        """
        before = self._known.get(digest)
        if before is not None:  # for calls that come meanwhile: keys may take a while
            self._known[digest] = before[0], self._wall_ms()
        try:
            found = await self._checks(token)
        except KeysUnavailableError:
            if before is None:
                raise
            found = before[0]
        except SaslAuthenticationError:
            self._known.pop(digest, None)
            raise
        except BaseException:  # the call was cancelled: the next one checks
            if before is not None:
                self._known[digest] = before
            raise
        if len(self._known) >= _TOKENS_MAX and digest not in self._known:
            self._known.clear()
        self._known[digest] = found, self._wall_ms()
        return found

    async def _checks(self, token: str) -> Authenticated:
        """In a thread: keys may have to be fetched, and signatures take a moment."""
        if self._checked >= _CHECKED_MAX:
            raise KeysUnavailableError("too many tokens wait for their check: try again")
        self._checked += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._verified, token)
        finally:
            self._checked -= 1

    def _key_of(self, token: str) -> Any:
        """The key that signed a token. A file is read again for each new token."""
        import jwt

        if self._jwks is not None:
            return self._jwks.get_signing_key_from_jwt(token)
        assert self._path is not None, "the URL is either of a file or not"
        keys = jwt.PyJWKSet.from_json(self._path.read_text(encoding="utf-8"))
        kid = jwt.get_unverified_header(token).get("kid")
        if kid is None and len(keys.keys) == 1:
            return keys.keys[0]
        return keys[str(kid)]

    def _verified(self, token: str) -> Authenticated:
        import jwt

        secured = self._security
        audience = list(secured.sasl_oauthbearer_expected_audience) or None
        try:
            key = self._key_of(token)
        except (OSError, jwt.PyJWKClientConnectionError) as error:
            raise KeysUnavailableError(f"the keys of tokens can not be had: {error}") from None
        except Exception as error:
            raise SaslAuthenticationError(f"the token is not accepted: {error}") from None
        try:
            claims = jwt.decode(
                token,
                key.key,
                algorithms=["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"],
                audience=audience,
                issuer=secured.sasl_oauthbearer_expected_issuer or None,
                leeway=secured.sasl_oauthbearer_clock_skew_seconds,
                options={"require": ["exp"], "verify_aud": audience is not None},
            )
        except Exception as error:
            # The library raises TypeError, too: for a key that is not of the header's algorithm.
            raise SaslAuthenticationError(f"the token is not accepted: {error}") from None
        name = claims.get(secured.sasl_oauthbearer_sub_claim_name)
        if not isinstance(name, str) or not name:
            raise SaslAuthenticationError(
                f"the token has no claim {secured.sasl_oauthbearer_sub_claim_name}"
            )
        leeway_ms = secured.sasl_oauthbearer_clock_skew_seconds * 1_000
        return Authenticated(f"User:{name}", int(claims["exp"]) * 1_000 + leeway_ms)


def by_tokens(security: ListenerSecurity, sessions: Sessions) -> TokenCheck:
    """Authenticates calls by their tokens. Raises ConfigError."""
    mechanisms = security.sasl_enabled_mechanisms
    verifier = JwtVerifier(security) if BEARER in mechanisms else None

    async def authenticate(metadata: Metadata) -> Authenticated:
        token = token_of(metadata)
        if token.startswith(_PREFIX):
            if SCRAM not in mechanisms:
                raise SaslAuthenticationError(f"{SCRAM} is not enabled on this listener")
            return sessions.authenticate(token)
        if verifier is None:
            raise SaslAuthenticationError(f"{BEARER} is not enabled on this listener")
        return await verifier.authenticate(token)

    return authenticate
