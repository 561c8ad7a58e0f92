"""Keys, certificates and trust of a connection: PEM files, read again when they change.

Those of a channel are fixed when it is made; `stamp_of` tells when another one is due. Those of a
listener are in `quorum.access.keys`. Importing this module imports gRPC.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import grpc

from tidemark.config.security import Ssl
from tidemark.errors import ConfigError

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)


class Pems(NamedTuple):
    """Key and certificates of one end, and those it trusts, as PEM; empty: none."""

    key: bytes
    chain: bytes
    roots: bytes


Stamp = tuple[tuple[str, int, int, int], ...]
"""Of each file its path, mtime, size and inode: another value, other contents."""


def read_pems(ssl: Ssl) -> Pems:
    """Reads and sorts keys and certificates. Raises ConfigError, which says what is missing."""
    own = [*_texts("ssl.keystore.location", ssl.ssl_keystore_location)]
    own += [ssl.ssl_keystore_key, ssl.ssl_keystore_certificate_chain]
    trusted = [*_texts("ssl.truststore.location", ssl.ssl_truststore_location)]
    trusted.append(ssl.ssl_truststore_certificates)
    blocks = [(m[1], m[0]) for text in own for m in _BLOCK.finditer(text)]
    keys = [text for kind, text in blocks if kind.endswith("PRIVATE KEY")]
    chain = [text for kind, text in blocks if kind == "CERTIFICATE"]
    roots = [m[0] for text in trusted for m in _BLOCK.finditer(text) if m[1] == "CERTIFICATE"]
    if (keys or chain or ssl.has_key) and (len(keys) != 1 or not chain):
        raise ConfigError(
            f"ssl.keystore.location has {len(keys)} private keys and {len(chain)} certificates: it"
            " names PEM files with one key, and the chain of its certificates, the own one first"
        )
    if ssl.has_trust and not roots:
        raise ConfigError("ssl.truststore.location has no certificate: it names PEM files")
    key = _decrypted(keys[0], ssl.ssl_key_password) if keys else ""
    return Pems(key.encode(), "\n".join(chain).encode(), "\n".join(roots).encode())


def _texts(setting: str, paths: tuple[str, ...]) -> list[str]:
    try:
        return [Path(path).read_text(encoding="utf-8") for path in paths]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{setting}: {error}") from None


def _decrypted(key: str, password: str) -> str:
    if "ENCRYPTED" not in key:
        return key
    if not password:
        raise ConfigError("the private key is encrypted: set ssl.key.password")
    try:  # nodes have it, clients may
        forms = import_module("cryptography.hazmat.primitives.serialization")
    except ImportError:
        raise ConfigError("an encrypted private key needs `pip install cryptography`") from None
    try:
        private = forms.load_pem_private_key(key.encode(), password.encode())
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the private key can not be decrypted: {error}") from None
    plain = private.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )
    text: str = plain.decode()
    return text


def stamp_of(ssl: Ssl) -> Stamp:
    """The state of the files; one that can not be looked at has zeros."""
    found = []
    for path in (*ssl.ssl_keystore_location, *ssl.ssl_truststore_location):
        try:
            status = Path(path).stat()
            found.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append((path, 0, 0, 0))
    return tuple(found)


def channel_credentials(ssl: Ssl) -> grpc.ChannelCredentials:
    """Credentials of a client: without trusted authorities, those of the system. Raises
    ConfigError.
    """
    pems = read_pems(ssl)
    return grpc.ssl_channel_credentials(
        pems.roots or _system_roots(), pems.key or None, pems.chain or None
    )


def _system_roots() -> bytes | None:
    """The authorities that the machine trusts; None: those that gRPC has."""
    import ssl as system

    path = system.get_default_verify_paths().cafile
    return Path(path).read_bytes() if path and Path(path).is_file() else None
