"""Keys, certificates and trust of a connection: PEM files, read again when they change.

gRPC asks a server's configuration at each handshake, so a new certificate holds from the next
connection on. A client's are fixed when its channel is made; `KeyFiles.stamp` tells when another
channel is due. Files that can not be read later are told once, and the last ones stay in use.
Importing this module imports gRPC.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from tidemark.config.security import Ssl
from tidemark.errors import ConfigError

logger = logging.getLogger(__name__)

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
    try:
        from cryptography.hazmat.primitives import serialization as forms
    except ImportError:
        raise ConfigError("an encrypted private key needs `pip install cryptography`") from None
    try:
        private = forms.load_pem_private_key(key.encode(), password.encode())
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the private key can not be decrypted: {error}") from None
    plain = private.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )
    return plain.decode()


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


def _checked(pems: Pems) -> Pems:
    """The same. Raises ConfigError where key and certificate do not belong together: gRPC would
    find that at each handshake alone.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization as forms

    try:
        key = forms.load_pem_private_key(pems.key, None).public_key()
        certificate = x509.load_pem_x509_certificates(pems.chain)[0].public_key()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"ssl.keystore.location can not be read: {error}") from None
    form = (forms.Encoding.DER, forms.PublicFormat.SubjectPublicKeyInfo)
    if key.public_bytes(*form) != certificate.public_bytes(*form):
        raise ConfigError(
            "ssl.keystore.location: the first certificate is not that of the private key"
        )
    return pems


class ServerKeys:
    """The key and certificate of a listener, for each handshake anew."""

    def __init__(self, listener: str, ssl: Ssl, *, asks_clients: bool) -> None:
        """Raises ConfigError for files that are not usable."""
        self._listener = listener
        self._ssl = ssl
        self._asks_clients = asks_clients
        self._stamp = stamp_of(ssl)
        self.pems = _checked(read_pems(ssl))

    def credentials(self) -> grpc.ServerCredentials:
        """For `grpc.aio.Server.add_secure_port`."""
        changed: Any = self._changed  # the stubs do not know that it may answer None
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), changed, self._asks_clients
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        roots = self.pems.roots if self._asks_clients else None
        return grpc.ssl_server_certificate_configuration([(self.pems.key, self.pems.chain)], roots)

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Answers gRPC before a handshake: None as long as the files are the same."""
        stamp = stamp_of(self._ssl)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            self.pems = _checked(read_pems(self._ssl))
        except ConfigError as error:
            logger.error("listener %s keeps its former certificate: %s", self._listener, error)
            return None
        logger.info("listener %s has a new certificate", self._listener)
        return self._configuration()
