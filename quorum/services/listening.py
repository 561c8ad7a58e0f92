"""Binds a listener of a node, controller's or broker's, to its address."""

from __future__ import annotations

import grpc.aio

from tidemark.errors import FatalError
from tidemark.types import Endpoint

EVERY_INTERFACE = "0.0.0.0"
"""Stands for an empty host; gRPC includes IPv6 where the machine has it."""


def bind(server: grpc.aio.Server, name: str, endpoint: Endpoint) -> Endpoint:
    """Binds the listener `name`; returns its endpoint with the port, also if that was left open.

    Raises FatalError if the address is not available.
    """
    wanted = Endpoint(endpoint.host or EVERY_INTERFACE, endpoint.port)
    try:
        port = server.add_insecure_port(wanted.address)
    except RuntimeError as error:
        raise FatalError(f"listener {name}: can not listen on {wanted.address}: {error}") from error
    if port == 0:
        raise FatalError(f"listener {name}: can not listen on {wanted.address}: is it in use?")
    return wanted._replace(port=int(port))
