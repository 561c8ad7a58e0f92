"""SCRAM-SHA-512: a login succeeds by the password alone, and both sides prove that they know it."""

from __future__ import annotations

import base64
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.errors import IllegalSaslStateError, SaslAuthenticationError
from tidemark.security.scram import (
    ClientLogin,
    challenge,
    concluded,
    credential_of,
    salted,
)

SALT = b"0123456789abcdef"
TEXTS = st.text(min_size=1, max_size=20).filter(lambda t: t.isprintable())


def log_in(name: str, password: str, users: dict[str, str]) -> None:
    """One whole login. Raises the error of the side that refuses it."""
    known = {u: credential_of(salted(p, SALT, 4096), SALT, 4096) for u, p in users.items()}
    client = ClientLogin(name, password, b"c" * 18)
    begun = challenge(client.first(), known.get, b"s" * 18, b"secret of the node")
    proof = client.final(begun.server_first.encode())
    client.check(concluded(begun, proof, known.get(begun.name)))
    assert begun.name == name


@settings(max_examples=30, deadline=None)
@given(TEXTS, TEXTS)
def test_whoever_knows_the_password_logs_in(name: str, password: str) -> None:
    log_in(name, password, {name: password})


@pytest.mark.parametrize(("name", "password"), [("a", "wrong"), ("b", "right"), ("b", "")])
def test_a_wrong_name_and_a_wrong_password_are_refused_in_the_same_words(
    name: str, password: str
) -> None:
    with pytest.raises(SaslAuthenticationError, match="the name or the password is wrong"):
        log_in(name, password, {"a": "right"})


def test_an_unknown_name_has_a_salt_that_stays_the_same() -> None:
    def first(secret: bytes) -> str:
        message = ClientLogin("nobody", "x", b"c" * 18).first()
        return challenge(message, {}.get, b"s" * 18, secret).server_first

    assert first(b"secret of the node") == first(b"secret of the node")
    assert first(b"secret of the node") != first(b"that of another")


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    client = ClientLogin("a", "right", b"c" * 18)
    known = credential_of(salted("right", SALT, 4096), SALT, 4096)
    forged = known._replace(server_key=bytes(64))
    begun = challenge(client.first(), {"a": forged}.get, b"s" * 18, b"secret")
    final = concluded(begun, client.final(begun.server_first.encode()), forged)
    with pytest.raises(SaslAuthenticationError, match="the server does not know"):
        client.check(final)


def test_a_login_of_another_is_not_replayed() -> None:
    known = credential_of(salted("right", SALT, 4096), SALT, 4096)
    client = ClientLogin("a", "right", b"c" * 18)
    begun = challenge(client.first(), {"a": known}.get, b"s" * 18, b"x")
    heard = client.final(begun.server_first.encode())
    later = challenge(client.first(), {"a": known}.get, b"t" * 18, b"x")
    with pytest.raises(SaslAuthenticationError):
        concluded(later, heard, known)


def test_a_login_ends_by_the_credential_of_its_end() -> None:
    client = ClientLogin("a", "right", b"c" * 18)
    known = credential_of(salted("right", SALT, 4096), SALT, 4096)
    begun = challenge(client.first(), {"a": known}.get, b"s" * 18, b"x")
    proof = client.final(begun.server_first.encode())
    changed = credential_of(salted("new", SALT, 4096), SALT, 4096)
    for credential in (changed, None):  # it was changed or removed between the two steps
        with pytest.raises(SaslAuthenticationError, match="name or the password"):
            concluded(begun, proof, credential)


@pytest.mark.parametrize("message", [b"", b"n,,", b"y,,n=a,r=b", b"n,,n=a", b"\xff", b"n" * 5000])
def test_a_malformed_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(IllegalSaslStateError):
        challenge(message, {}.get, b"s", b"x")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_no_last_message_ends_otherwise_than_with_an_error(message: bytes) -> None:
    known = credential_of(salted("right", SALT, 4096), SALT, 4096)
    begun = challenge(b"n,,n=a,r=b", {"a": known}.get, b"s", b"x")
    with pytest.raises((IllegalSaslStateError, SaslAuthenticationError)):
        concluded(begun, message, known)


def test_a_client_refuses_a_server_that_asks_for_few_or_for_endless_rounds() -> None:
    for count in (1, 4095, 10**9):
        client = ClientLogin("a", "p", b"c" * 18)
        nonce = client.first().decode().rpartition("r=")[2]
        with pytest.raises(SaslAuthenticationError, match="iterations"):
            client.final(f"r={nonce}x,s=MDEy,i={count}".encode())


def test_a_message_with_the_nonce_of_another_login_is_refused_by_both_sides() -> None:
    client = ClientLogin("a", "right", b"c" * 18)
    with pytest.raises(SaslAuthenticationError, match="not that of this login"):
        client.final(b"r=of another,s=MDEy,i=4096")
    known = credential_of(salted("right", SALT, 4096), SALT, 4096)
    begun = challenge(client.first(), {"a": known}.get, b"s" * 18, b"x")
    first, bare = client.first().decode().removeprefix("n,,"), "c=biws,r=of another"
    message = ",".join((first, begun.server_first, bare)).encode()
    key = hmac.digest(salted("right", SALT, 4096), b"Client Key", "sha512")
    signature = hmac.digest(known.stored_key, message, "sha512")
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    with pytest.raises(SaslAuthenticationError, match="not that of this login"):
        concluded(begun, f"{bare},p={base64.b64encode(proof).decode()}".encode(), known)
