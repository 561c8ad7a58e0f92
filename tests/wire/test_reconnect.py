"""A channel finds a node that comes back at another address of its name."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import grpc.aio

from tidemark.wire.network import Channels, make_server

METHOD = "/test.Echo/Echo"
LIMIT_S = 25  # gRPC by itself asks for an address every 30 s at most


class NameServer(asyncio.DatagramProtocol):
    """Answers every question for an IPv4 address with the present one, and others with nothing."""

    def __init__(self) -> None:
        self.address = "127.0.0.1"
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, source: tuple[str, int]) -> None:
        end = data.index(b"\0", 12) + 5  # behind the name, its type and its class
        question = data[12:end]
        is_ipv4 = question[-4:-2] == b"\0\1"
        header = data[:2] + struct.pack("!HHHHH", 0x8580, 1, is_ipv4, 0, 0)
        answer = struct.pack("!HHHIH", 0xC00C, 1, 1, 0, 4)
        answer += bytes(map(int, self.address.split(".")))
        self.transport.sendto(header + question + (answer if is_ipv4 else b""), source)


async def served(address: str) -> tuple[grpc.aio.Server, int]:
    """A server that answers with its address, and its port."""

    async def echo(_: bytes, __: Any) -> bytes:
        return address.encode()

    server = make_server()
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = server.add_insecure_port(address)
    await server.start()
    return server, port


def test_a_node_with_a_new_address_is_found_within_seconds() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        transport, names = await loop.create_datagram_endpoint(
            NameServer, local_addr=("127.0.0.1", 0)
        )
        port_of_names = transport.get_extra_info("sockname")[1]
        first, port = await served("127.0.0.1:0")
        channel = Channels().open(f"dns://127.0.0.1:{port_of_names}/broker.example:{port}")
        try:
            ask = channel.unary_unary(METHOD)
            assert await ask(b"", timeout=LIMIT_S, wait_for_ready=True) == b"127.0.0.1:0"
            await first.stop(None)
            second, _ = await served(f"127.0.0.2:{port}")
            names.address = "127.0.0.2"
            answer = await ask(b"", timeout=LIMIT_S, wait_for_ready=True)
            assert answer == f"127.0.0.2:{port}".encode()
            await second.stop(None)
        finally:
            await channel.close(None)
            transport.close()

    asyncio.run(story())
