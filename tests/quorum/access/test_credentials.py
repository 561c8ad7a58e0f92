"""Keys and certificates: wrong ones are told, and new ones hold from the next handshake."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from cryptography.hazmat.primitives import serialization as forms

from quorum.access.keys import ServerKeys
from tidemark.config.security import ClientSecurity, Ssl
from tidemark.errors import ConfigError
from tidemark.wire.credentials import read_pems, stamp_of
from tidemark.wire.network import Channels, make_server

AUTHORITY = trustme.CA()
NODE = AUTHORITY.issue_cert("127.0.0.1", common_name="node")
OTHER = AUTHORITY.issue_cert("127.0.0.1", common_name="other")


def pem(certificate: trustme.LeafCert) -> str:
    return certificate.private_key_and_cert_chain_pem.bytes().decode()


def written(path: Path, text: str) -> tuple[str, ...]:
    path.write_text(text, encoding="utf-8")
    return (str(path),)


def test_key_and_chain_come_from_one_file_or_several_or_from_text(tmp_path: Path) -> None:
    key = NODE.private_key_pem.bytes().decode()
    chain = "".join(p.bytes().decode() for p in NODE.cert_chain_pems)
    (tmp_path / "tls.crt").write_text(chain)
    (tmp_path / "tls.key").write_text(key)
    two = (str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    one = written(tmp_path / "both.pem", pem(NODE))
    ways = (
        Ssl(ssl_keystore_location=two),
        Ssl(ssl_keystore_location=one),
        Ssl(ssl_keystore_key=key, ssl_keystore_certificate_chain=chain),
    )
    assert len({read_pems(way)._replace(roots=b"") for way in ways}) == 1


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    key: Any = forms.load_pem_private_key(NODE.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.BestAvailableEncryption(b"secret")
    ).decode()
    chain = NODE.cert_chain_pems[0].bytes().decode()
    path = written(tmp_path / "locked.pem", locked + chain)
    with pytest.raises(ConfigError, match=r"set ssl\.key\.password"):
        read_pems(Ssl(ssl_keystore_location=path))
    with pytest.raises(ConfigError, match="can not be decrypted"):
        read_pems(Ssl(ssl_keystore_location=path, ssl_key_password="wrong"))
    opened = read_pems(Ssl(ssl_keystore_location=path, ssl_key_password="secret"))
    assert b"ENCRYPTED" not in opened.key


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "0 private keys and 0 certificates"),
        (pem(NODE) + pem(OTHER), "2 private keys"),
        (NODE.private_key_pem.bytes().decode(), "1 private keys and 0 certificates"),
        (
            NODE.private_key_pem.bytes().decode() + OTHER.cert_chain_pems[0].bytes().decode(),
            "not that of the private key",
        ),
        (
            pem(NODE).replace("BEGIN CERTIFICATE-----\nM", "BEGIN CERTIFICATE-----\n!"),
            "can not be read",
        ),
    ],
)
def test_a_wrong_key_file_is_told_before_anybody_connects(
    tmp_path: Path, text: str, complaint: str
) -> None:
    ssl = Ssl(ssl_keystore_location=written(tmp_path / "node.pem", text))
    with pytest.raises(ConfigError, match=complaint):
        ServerKeys("SSL", ssl, asks_clients=False)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.location.*nowhere"):
        read_pems(Ssl(ssl_keystore_location=(str(tmp_path / "nowhere"),)))
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location has no certificate"):
        read_pems(Ssl(ssl_truststore_location=written(tmp_path / "ca.pem", "nothing")))


def test_a_new_certificate_holds_from_the_next_connection_and_a_broken_one_never(
    tmp_path: Path,
) -> None:
    path, ca = tmp_path / "node.pem", tmp_path / "ca.pem"
    written(path, pem(NODE))
    written(ca, AUTHORITY.cert_pem.bytes().decode())
    ssl = Ssl(ssl_keystore_location=(str(path),), ssl_truststore_location=(str(ca),))
    client = written(tmp_path / "client.pem", pem(OTHER))
    caller = ClientSecurity(
        security_protocol="SSL",
        ssl=Ssl(ssl_keystore_location=client, ssl_truststore_location=(str(ca),)),
    )

    async def who(_: bytes, context: Any) -> bytes:
        (shown,) = context.auth_context()["x509_common_name"]
        return bytes(shown)

    async def story() -> None:
        server = make_server()
        methods = {"Who": grpc.unary_unary_rpc_method_handler(who)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", methods),))
        keys = ServerKeys("SSL", ssl, asks_clients=True)
        port = server.add_secure_port("127.0.0.1:0", keys.credentials())
        await server.start()
        channels = Channels(caller)
        options = (("grpc.use_local_subchannel_pool", 1),)

        async def ask() -> bytes:
            channel = channels.open(f"127.0.0.1:{port}", options)
            try:
                return bytes(await channel.unary_unary("/t.T/Who")(b"", timeout=10))
            finally:
                await channel.close(None)

        assert await ask() == b"other"
        first = keys.pems
        written(path, pem(NODE)[:100])
        assert await ask() == b"other"
        assert keys.pems == first, "a broken file does not replace a good one"
        written(path, pem(OTHER))
        assert await ask() == b"other"
        assert keys.pems != first
        channel = channels.open(f"127.0.0.1:{port}", options)
        assert not channels.is_outdated(channel)
        written(Path(client[0]), pem(NODE))
        assert channels.is_outdated(channel)
        await channel.close(None)
        assert await ask() == b"node"
        await server.stop(None)

    asyncio.run(story())


def test_files_that_are_replaced_have_another_stamp(tmp_path: Path) -> None:
    path = tmp_path / "a.pem"
    ssl = Ssl(ssl_keystore_location=written(path, "one"))
    before = stamp_of(ssl)
    assert stamp_of(ssl) == before
    written(tmp_path / "b.pem", "two")
    (tmp_path / "b.pem").replace(path)
    assert stamp_of(ssl) != before
