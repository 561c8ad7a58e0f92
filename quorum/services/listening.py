"""Binds a listener of a node, controller's or broker's, to its address."""

from __future__ import annotations

import grpc.aio

from tidemark.errors import FatalError
from tidemark.types import Endpoint

EVERY_INTERFACE = "0.0.0.0"
"""What an empty host stands for; gRPC takes it for IPv6 as well where the machine has that."""


def bind(server: grpc.aio.Server, name: str, endpoint: Endpoint) -> Endpoint:
    """Where the listener `name` answers: with the port it got where `endpoint` leaves that open.

    FatalError when the address can not be had.
    """
    wanted = Endpoint(endpoint.host or EVERY_INTERFACE, endpoint.port)
    try:
        port = server.add_insecure_port(wanted.address)
    except RuntimeError as error:
        raise FatalError(f"listener {name}: can not listen on {wanted.address}: {error}") from error
    if port == 0:
        raise FatalError(f"listener {name}: can not listen on {wanted.address}: is it in use?")
    return wanted._replace(port=int(port))
