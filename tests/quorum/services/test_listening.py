"""Binding of listeners, and the errors if an address is not available."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from quorum.services.listening import bind
from tidemark.errors import FatalError
from tidemark.types import Endpoint


def on_a_server(*endpoints: Endpoint) -> list[Endpoint]:
    """Binds on one server each, so that none shares its ports."""

    async def main() -> list[Endpoint]:
        servers = [grpc.aio.server(options=[("grpc.so_reuseport", 0)]) for _ in endpoints]
        bound: list[Endpoint] = []
        try:
            for server, endpoint in zip(servers, endpoints, strict=True):
                port = endpoint.port or (bound[-1].port if bound else 0)
                bound.append(bind(server, "PLAINTEXT", endpoint._replace(port=port)))
            return bound
        finally:
            for server in servers:
                await server.stop(None)

    return asyncio.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "", "0.0.0.0", "::"])
def test_a_listener_gets_a_port_on_one_interface_or_on_all(host):
    [bound] = on_a_server(Endpoint(host, 0))
    assert bound.port > 0
    assert bound.host == (host or "0.0.0.0")


def test_an_address_that_is_taken_ends_the_start_with_its_name():
    with pytest.raises(FatalError, match=r"listener PLAINTEXT: can not listen on 127.0.0.1:\d+"):
        on_a_server(Endpoint("127.0.0.1", 0), Endpoint("127.0.0.1", 0))


def test_an_address_that_is_not_ours_ends_the_start():
    with pytest.raises(FatalError, match="can not listen on"):
        on_a_server(Endpoint("192.0.2.1", 0))
