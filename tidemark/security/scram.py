"""SCRAM-SHA-512 (RFC 5802, RFC 7677): both sides of a login, as pure steps from message to message.

The server keeps a salt, a stored key and a server key of each user, from which the password can not
be told. Names and passwords are compared as UTF-8; they are not normalised, as in Kafka.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from typing import NamedTuple

from tidemark.errors import IllegalSaslStateError, SaslAuthenticationError

MECHANISM = "SCRAM-SHA-512"
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384
_HASH = "sha512"
_NO_BINDING = "n,,"
_MESSAGE_BYTES_MAX = 4_096


class Credential(NamedTuple):
    """The keys that a server keeps of a user."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def salted(password: str, salt: bytes, iterations: int) -> bytes:
    """The salted password: what a client sends when it sets a password, and never otherwise."""
    return hashlib.pbkdf2_hmac(_HASH, password.encode(), salt, iterations)


def credential_of(salted_password: bytes, salt: bytes, iterations: int) -> Credential:
    """The keys that a server keeps, made from a salted password."""
    client_key = _hmac(salted_password, b"Client Key")
    stored_key = hashlib.new(_HASH, client_key).digest()
    return Credential(salt, stored_key, _hmac(salted_password, b"Server Key"), iterations)


class ClientLogin:
    """The client's side: `first`, then `final` with the server's first message, then `check`."""

    def __init__(self, name: str, password: str, nonce: bytes) -> None:
        """`nonce` is random, at least 16 bytes."""
        self._password = password
        self._nonce = base64.b64encode(nonce).decode()
        self._bare = f"n={_escaped(name)},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return (_NO_BINDING + self._bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """Raises SaslAuthenticationError for a message that no honest server sends."""
        text = _text(server_first)
        fields = _fields(text)
        nonce, iterations = fields.get("r", ""), fields.get("i", "")
        if not nonce.startswith(self._nonce) or not iterations.isdigit():
            raise SaslAuthenticationError("the server's message is not that of this login")
        count = int(iterations)
        if not ITERATIONS_MIN <= count <= 10 * ITERATIONS_MAX:
            raise SaslAuthenticationError(f"the server asks for {count} iterations")
        salted_password = salted(self._password, _unbase64(fields.get("s", "")), count)
        bare = f"c={base64.b64encode(_NO_BINDING.encode()).decode()},r={nonce}"
        message = ",".join((self._bare, text, bare)).encode()
        client_key = _hmac(salted_password, b"Client Key")
        stored_key = hashlib.new(_HASH, client_key).digest()
        proof = _xor(client_key, _hmac(stored_key, message))
        self._signature = _hmac(_hmac(salted_password, b"Server Key"), message)
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Raises SaslAuthenticationError where the server does not know the password itself."""
        signature = _unbase64(_fields(_text(server_final)).get("v", ""))
        if not hmac.compare_digest(signature, self._signature):
            raise SaslAuthenticationError("the server does not know the password of this user")


class Challenge(NamedTuple):
    """The server's side after its first message: what it has to know for the last one."""

    name: str
    nonce: str
    client_first: str
    """Without the header."""
    server_first: str


def challenge(
    client_first: bytes,
    lookup: Callable[[str], Credential | None],
    nonce: bytes,
    secret: bytes,
) -> Challenge:
    """Answers the client's first message.

    `lookup` gives the credential of a name, None for an unknown one. An unknown name gets a salt,
    too: one server, by its `secret`, always has the same for it. `nonce` is random.
    Raises IllegalSaslStateError for a malformed message.
    """
    text = _text(client_first)
    if not text.startswith(_NO_BINDING):
        raise IllegalSaslStateError("a login begins with n,, and without an authorization id")
    bare = text.removeprefix(_NO_BINDING)
    fields = _fields(bare)
    escaped, begun = fields.get("n", ""), fields.get("r", "")
    if not escaped or not begun:
        raise IllegalSaslStateError("the first message of a login has n= and r=")
    name = escaped.replace("=2C", ",").replace("=3D", "=")
    known = lookup(name)
    salt, iterations = _hmac(secret, name.encode())[:16], ITERATIONS_MIN
    if known is not None:
        salt, iterations = known.salt, known.iterations
    whole = begun + base64.b64encode(nonce).decode()
    answer = f"r={whole},s={base64.b64encode(salt).decode()},i={iterations}"
    return Challenge(name, whole, bare, answer)


def concluded(begun: Challenge, client_final: bytes, credential: Credential | None) -> bytes:
    """The last message of a login that succeeds.

    Raises SaslAuthenticationError for a wrong name or password, in the same words.
    """
    text = _text(client_final)
    bare, _, proof_text = text.rpartition(",p=")
    fields = _fields(bare)
    binding = base64.b64encode(_NO_BINDING.encode()).decode()
    if fields.get("c") != binding or fields.get("r") != begun.nonce:
        raise SaslAuthenticationError("the last message is not that of this login")
    message = ",".join((begun.client_first, begun.server_first, bare)).encode()
    known = credential or Credential(b"", bytes(64), bytes(64), ITERATIONS_MIN)
    client_key = _xor(_unbase64(proof_text), _hmac(known.stored_key, message))
    matches = hmac.compare_digest(hashlib.new(_HASH, client_key).digest(), known.stored_key)
    if credential is None or not matches:
        raise SaslAuthenticationError("the name or the password is wrong")
    signature = _hmac(known.server_key, message)
    return f"v={base64.b64encode(signature).decode()}".encode()


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, _HASH).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    if len(one) != len(other):
        raise SaslAuthenticationError("the proof has a wrong length")
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _text(message: bytes) -> str:
    if len(message) > _MESSAGE_BYTES_MAX:
        raise IllegalSaslStateError(f"a message of a login has {len(message)} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise IllegalSaslStateError("a message of a login is not UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SaslAuthenticationError("a message of the login has no valid base64") from None
