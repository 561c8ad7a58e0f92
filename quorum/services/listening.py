"""Binds a listener of a node, controller's or broker's, to its address."""

from __future__ import annotations

import grpc.aio

from quorum.access.keys import ServerKeys
from tidemark.config import ServerConfig
from tidemark.config.security import uses_ssl
from tidemark.errors import FatalError
from tidemark.types import Endpoint

EVERY_INTERFACE = "0.0.0.0"
"""Stands for an empty host; gRPC includes IPv6 where the machine has it."""


def keys_of(config: ServerConfig, listener: str) -> ServerKeys | None:
    """The key and certificate of a listener; None: it speaks without TLS. Raises ConfigError."""
    if not uses_ssl(config.security.protocol_of(listener)):
        return None
    secured = config.security_of(listener)
    asks = secured.ssl_client_auth == "required"
    return ServerKeys(listener, secured.ssl, asks_clients=asks)


def bind(
    server: grpc.aio.Server, name: str, endpoint: Endpoint, keys: ServerKeys | None = None
) -> Endpoint:
    """Binds the listener `name`; returns its endpoint with the port, also if that was left open.

    With `keys` it speaks TLS. Raises FatalError if the address is not available.
    """
    wanted = Endpoint(endpoint.host or EVERY_INTERFACE, endpoint.port)
    try:
        if keys is None:
            port = server.add_insecure_port(wanted.address)
        else:
            port = server.add_secure_port(wanted.address, keys.credentials())
    except RuntimeError as error:
        raise FatalError(f"listener {name}: can not listen on {wanted.address}: {error}") from error
    if port == 0:
        raise FatalError(f"listener {name}: can not listen on {wanted.address}: is it in use?")
    return wanted._replace(port=int(port))
