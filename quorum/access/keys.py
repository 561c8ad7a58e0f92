"""The key and certificate of a listener, which are read again when their files change.

gRPC asks for them at each handshake, so a new certificate holds from the next connection on. Files
that can not be read later are told once, and the last ones stay in use.
"""

from __future__ import annotations

import logging
from typing import Any

import grpc

from tidemark.config.security import Ssl
from tidemark.errors import ConfigError
from tidemark.wire.credentials import Pems, read_pems, stamp_of

logger = logging.getLogger(__name__)


def _checked(pems: Pems) -> Pems:
    """The same. Raises ConfigError where key and certificate do not belong together: gRPC would
    find that at each handshake alone.
    """
    # A tenth of a second of CPU, which a node without TLS need not spend.
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
        except Exception as error:  # of libraries, too: handshakes go on
            logger.error("listener %s keeps its former certificate: %s", self._listener, error)
            return None
        logger.info("listener %s has a new certificate", self._listener)
        return self._configuration()
