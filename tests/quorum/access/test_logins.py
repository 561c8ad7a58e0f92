"""Tokens that strangers make up are refused, and cost little."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import rsa

from quorum.access import logins
from quorum.access.audit import AUDIT, Audit
from quorum.access.authorizer import Authorizer
from quorum.access.guard import Authenticated
from quorum.access.listeners import AccessControl
from quorum.access.logins import JwtVerifier, Sessions
from quorum.image import EMPTY_IMAGE
from tidemark.config import parse_server_config
from tidemark.config.security import ListenerSecurity, NodeSecurity
from tidemark.errors import SaslAuthenticationError
from tidemark.security import acls, scram
from tidemark.surroundings import surroundings, use
from tidemark.v1 import authentication_pb2 as pb


class Images:
    image = EMPTY_IMAGE


@pytest.fixture(scope="module")
def jwks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = rsa.generate_private_key(65_537, 2_048).public_key()
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key)) | {"kid": "1", "use": "sig"}
    path = tmp_path_factory.mktemp("keys") / "jwks.json"
    path.write_text(json.dumps({"keys": [public]}))
    return path


def verifier_of(jwks: Path) -> JwtVerifier:
    return JwtVerifier(ListenerSecurity(sasl_oauthbearer_jwks_endpoint_url=jwks.as_uri()))


def forged(header: bytes, claims: bytes = b'{"sub":"a","exp":9999999999}') -> str:
    parts = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (header, claims)]
    return ".".join((*parts, "AAAA"))


@pytest.mark.parametrize(
    "token",
    [
        forged(b'{"alg":"ES256","kid":"1"}'),
        forged(b'{"alg":"EdDSA","kid":"1"}'),
        forged(b'{"alg":"none","kid":"1"}'),
        forged(b'{"alg":"RS256","kid":"1"}'),
        forged(b'{"alg":"RS256","kid":"1"}', b"[" * 9_000),
        forged(b'{"alg":["RS256"],"kid":{}}'),
        forged(b"[" * 9_000),
        forged(b"{}"),
        "a",
        "",
        "..",
        "\u00e4.\u00e4.\u00e4",
    ],
)
def test_a_forged_token_is_refused_and_never_an_error_of_the_node(jwks: Path, token: str) -> None:
    with pytest.raises(SaslAuthenticationError):
        asyncio.run(verifier_of(jwks).authenticate(token))
    with pytest.raises(SaslAuthenticationError):
        Sessions(Images(), 1_000).authenticate(f"scram.{token}")


def test_tokens_that_wait_for_their_check_are_few_and_hold_no_thread_of_others(
    jwks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "_CHECKED_MAX", 40)
    verifier, may_end = verifier_of(jwks), threading.Event()

    def fetch(_: str) -> Any:
        may_end.wait(20)
        raise OSError("the issuer does not answer")

    monkeypatch.setattr(verifier, "_key_of", fetch)

    async def flood() -> list[Any]:
        calls = [asyncio.ensure_future(verifier.authenticate(str(n))) for n in range(41)]
        await asyncio.wait_for(asyncio.to_thread(may_end.set), 10)
        return await asyncio.gather(*calls, return_exceptions=True)

    told = [str(error) for error in asyncio.run(flood())]
    assert [("too many" in text) for text in told] == [False] * 40 + [True]


def test_a_user_with_the_name_of_a_node_is_no_node(tmp_path: Path) -> None:
    authority, path = trustme.CA(), tmp_path / "node.pem"
    issued = authority.issue_cert("127.0.0.1", common_name="node")
    issued.private_key_and_cert_chain_pem.write_to_path(str(path))
    values = {
        "process.roles": "broker",
        "node.id": "1",
        "listeners": "INTERNAL://127.0.0.1:0,USERS://127.0.0.1:0",
        "inter.broker.listener.name": "INTERNAL",
        "controller.quorum.voters": "2@127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:SSL,INTERNAL:SSL,USERS:SASL_SSL",
        "ssl.keystore.location": str(path),
        "ssl.truststore.location": str(path),
        "listener.name.internal.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+),.*$/$1/",
        "super.users": "User:root",
    }
    access = AccessControl(parse_server_config(values), Images())
    told = {
        (listener, user): access.guard_of(listener)._is_node(f"User:{user}", "h")
        for listener in ("INTERNAL", "USERS")
        for user in ("node", "root", "ann")
    }
    assert {asked for asked, is_node in told.items() if is_node} == {
        ("INTERNAL", "node"),
        ("INTERNAL", "root"),
        ("USERS", "root"),
    }


def step(message: bytes, **more: Any) -> pb.SaslAuthenticateRequest:
    return pb.SaslAuthenticateRequest(
        **({"mechanism": "SCRAM-SHA-512", "auth_bytes": message} | more)
    )


def test_the_audit_log_tells_of_logins_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    sessions = Sessions(Images(), 1_000)
    begun = sessions.answered(step(b"n,,n=ann,r=abc"), "10.0.0.7")
    assert not begun.error_code
    assert begun.state
    for request in (
        step(b"p=", state=begun.state),
        step(b"n=ann"),
        step(b"", mechanism="x" * 1_000_000),
    ):
        answer = sessions.answered(request, "10.0.0.7")
        assert answer.error_code
        assert not answer.token
        assert len(answer.error_message) < 200
    told = [record.getMessage() for record in caplog.records if record.name == AUDIT]
    assert [line.startswith("login failed: from 10.0.0.7: ") for line in told] == [True] * 3
    assert "'ann'" in told[0]


def test_the_state_of_a_login_is_of_its_node_and_of_its_time() -> None:
    now = [1_000]
    keys = scram.credential_of(scram.salted("p", b"salt", 4_096), b"salt", 4_096)
    images: Any = SimpleNamespace(image=SimpleNamespace(scram_users={"ann": keys}))
    with use(replace(surroundings(), wall_ms=lambda: now[0])):
        sessions, others = Sessions(images, 500_000), Sessions(images, 500_000)
    client = scram.ClientLogin("ann", "p", b"c" * 18)
    begun = sessions.answered(step(client.first()), "h")
    last = step(client.final(begun.auth_bytes), state=begun.state)

    def told(request: pb.SaslAuthenticateRequest, node: Sessions = sessions) -> str:
        answer = node.answered(request, "h")
        assert bool(answer.token) != bool(answer.error_code)
        return answer.error_message

    assert "did not begin at this node" in told(last, others)
    token = sessions._token("ann").removeprefix("scram.").encode()
    for state in (b"\xff.\xff", begun.state[:-1], b"e30=." + begun.state[-64:], token):
        assert "did not begin at this node" in told(step(last.auth_bytes, state=state))
    with pytest.raises(SaslAuthenticationError):  # nor is a state a token
        sessions.authenticate("scram." + begun.state.decode())
    now[0] += 9_999
    assert told(last) == ""
    now[0] += 1
    assert "took too long" in told(last)


def test_names_forge_no_line_of_the_audit_log_and_fill_no_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, AUDIT)
    audit = Audit()
    audit.denied("User:a\nUser:b", "h", acls.READ, acls.TOPIC, "x" * 1_000_000)
    audit.rejected("h", "no\r\nlogin failed: from elsewhere")
    for record in caplog.records:
        assert record.getMessage().isprintable()
        assert len(record.getMessage()) < 600
    authorizer = Authorizer(NodeSecurity())
    assert not authorizer.allows("User:a", "h", acls.READ, acls.TOPIC, "x" * 1_000_000)
    assert not authorizer.allows("User:a", "h", acls.READ, acls.TOPIC, "x")
    assert len(authorizer._verdicts) == 1


def test_a_session_ends_in_time_with_its_user_and_at_its_node() -> None:
    now = [1_000]
    images: Any = type("Of", (), {"image": type("Users", (), {"scram_users": {"ann": 1}})})()
    with use(replace(surroundings(), wall_ms=lambda: now[0])):
        sessions, others = Sessions(images, 500), Sessions(images, 500)
        token = sessions._token("ann")
        assert sessions.authenticate(token) == ("User:ann", 1_500)
        with pytest.raises(SaslAuthenticationError, match="none of this node"):
            others.authenticate(token)
        images.image.scram_users.clear()
        with pytest.raises(SaslAuthenticationError, match="removed"):
            sessions.authenticate(token)
        images.image.scram_users["ann"] = 1
        now[0] = 1_500
        with pytest.raises(SaslAuthenticationError, match="session is over"):
            sessions.authenticate(token)


def test_a_failed_login_is_answered_late_and_a_right_one_at_once() -> None:
    keys = scram.credential_of(scram.salted("p", b"salt", 4_096), b"salt", 4_096)
    images: Any = SimpleNamespace(image=SimpleNamespace(scram_users={"ann": keys}))
    sessions = Sessions(images, 1_000, failure_delay_ms=100_000)
    answers: list[pb.SaslAuthenticateResponse] = []

    def call(request: pb.SaslAuthenticateRequest) -> Any:
        metadata = (("tidemark-sasl-bin", request.SerializeToString()),)

        async def write(answer: pb.SaslAuthenticateResponse) -> None:
            answers.append(answer)

        return SimpleNamespace(
            invocation_metadata=lambda: metadata, peer=lambda: "ipv4:10.0.0.7:1", write=write
        )

    async def story() -> None:
        client = scram.ClientLogin("ann", "p", b"c" * 18)
        await sessions._serve(None, call(step(client.first())))
        last = step(client.final(answers[0].auth_bytes), state=answers[0].state)
        await sessions._serve(None, call(last))
        assert answers.pop().token
        last.auth_bytes += b"="
        guess = asyncio.ensure_future(sessions._serve(None, call(last)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(answers) == 1
        guess.cancel()

    asyncio.run(story())


def test_a_jwt_that_is_known_already_ends_in_time_and_a_huge_one_is_not_looked_at(
    tmp_path: Path,
) -> None:
    key = rsa.generate_private_key(65_537, 2_048)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())) | {"kid": "1"}
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [public]}))
    ends_s = int(time.time()) + 600
    token = jwt.encode({"sub": "a", "exp": ends_s}, key, "RS256", {"kid": "1"})
    now = [0]
    with use(replace(surroundings(), wall_ms=lambda: now[0])):
        verifier = verifier_of(tmp_path / "jwks.json")
        others = verifier_of(tmp_path / "jwks.json")
    assert asyncio.run(verifier.authenticate(token)).principal == "User:a"
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": []}))  # the key is withdrawn
    (tmp_path / "jwks.json").rename(tmp_path / "away")  # which is not known as long as it is away
    now[0] += 300_000
    assert asyncio.run(verifier.authenticate(token)).principal == "User:a"
    with pytest.raises(SaslAuthenticationError, match="can not be had"):
        asyncio.run(verifier.authenticate(token + "A"))
    (tmp_path / "away").rename(tmp_path / "jwks.json")
    now[0] += 299_999
    assert asyncio.run(verifier.authenticate(token)).principal == "User:a"
    now[0] += 1
    for _ in range(2):
        with pytest.raises(SaslAuthenticationError, match="is not accepted"):
            asyncio.run(verifier.authenticate(token))
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [public]}))
    verifier = others
    now[0] = (ends_s - 60) * 1_000
    assert asyncio.run(verifier.authenticate(token)).principal == "User:a"
    now[0] = (ends_s + 31) * 1_000
    with pytest.raises(SaslAuthenticationError, match="has expired"):
        asyncio.run(verifier.authenticate(token))
    with pytest.raises(SaslAuthenticationError, match="a token of"):
        asyncio.run(verifier.authenticate("x" * 20_000))


def test_a_known_jwt_counts_while_its_check_waits_for_keys(
    jwks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an issuer that hangs nor a flood of forged tokens turns known users away."""
    now, begun, may_end = [0], threading.Event(), threading.Event()
    checks = list[str]()
    with use(replace(surroundings(), wall_ms=lambda: now[0])):
        verifier = verifier_of(jwks)

    def fetch(token: str) -> Any:
        checks.append(token)
        if now[0]:
            begun.set()
        if now[0] and not may_end.wait(20):
            raise AssertionError
        if now[0]:
            raise logins.KeysUnavailableError("the issuer does not answer")
        return Authenticated("User:a")

    monkeypatch.setattr(verifier, "_verified", fetch)

    async def story() -> None:
        await verifier.authenticate("known")
        now[0] = 300_000
        cancelled = asyncio.ensure_future(verifier.authenticate("known"))
        assert await asyncio.to_thread(begun.wait, 10)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        first = asyncio.ensure_future(verifier.authenticate("known"))
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert (await verifier.authenticate("known")).principal == "User:a"
        may_end.set()
        assert (await first).principal == "User:a"
        now[0] += 300_000
        monkeypatch.setattr(logins, "_CHECKED_MAX", 0)
        with pytest.raises(SaslAuthenticationError, match="too many"):
            await verifier.authenticate("forged")
        assert (await verifier.authenticate("known")).principal == "User:a"

    asyncio.run(story())
    assert checks.count("known") == 3  # the cancelled call's check is made again by the next one


def test_a_withdrawn_key_of_a_url_counts_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    key = rsa.generate_private_key(65_537, 2_048)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())) | {"kid": "1"}
    token = jwt.encode({"sub": "a", "exp": int(time.time()) + 6_000}, key, "RS256", {"kid": "1"})
    url, now, told = "https://issuer/keys", [0], {"keys": [public]}
    with use(replace(surroundings(), wall_ms=lambda: now[0])):
        verifier = JwtVerifier(ListenerSecurity(sasl_oauthbearer_jwks_endpoint_url=url))
    monkeypatch.setattr(verifier._jwks, "fetch_data", lambda: told)
    monkeypatch.setattr("jwt.jwk_set_cache.time.monotonic", lambda: now[0] / 1_000)
    assert asyncio.run(verifier.authenticate(token)).principal == "User:a"
    told = {"keys": [public | {"kid": "2"}]}
    now[0] = 299_999
    assert asyncio.run(verifier.authenticate(token)).principal == "User:a"
    now[0] = 300_000
    with pytest.raises(SaslAuthenticationError, match="is not accepted"):
        asyncio.run(verifier.authenticate(token))
