"""The console's server: its look at the quorum goes on after failures, and ends with it."""

from __future__ import annotations

import asyncio
import json

import pytest

from tidemark.console.server import ConsoleServer
from tidemark.console.timeline import QuorumSight
from tidemark.errors import FatalError, NetworkError
from tidemark.types import Endpoint

LOOPBACK = Endpoint("127.0.0.1", 0)


def test_a_look_that_fails_is_left_out_and_the_next_one_counts() -> None:
    async def main() -> None:
        seen = asyncio.Event()
        looks: list[QuorumSight | Exception | None] = [
            NetworkError("no node"),
            ZeroDivisionError(),
            None,
            QuorumSight(1, 3, 0, (1,)),
        ]

        async def look() -> QuorumSight | None:
            if not looks:
                seen.set()
                return None
            found = looks.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

        server = ConsoleServer("127.0.0.1:1", look=look, look_s=0)
        await server.start(LOOPBACK)
        await seen.wait()
        assert [c["epoch"] for c in server._timeline.view()["changes"]] == [3]
        await server.stop()
        await server.stop()

    asyncio.run(main())


def test_a_console_of_a_cluster_that_is_down_says_so() -> None:
    async def main() -> None:
        async def look() -> None:
            return None

        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
        server = ConsoleServer("127.0.0.1:1", login=login, look=look)
        bound = await server.start(LOOPBACK)
        with pytest.raises(FatalError):
            await ConsoleServer("127.0.0.1:1", login=login, look=look).start(bound)
        reader, writer = await asyncio.open_connection(bound.host, bound.port)
        writer.write(b"GET /api/brokers HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 401 ")
        assert json.loads(body)["error"] == "SASL_AUTHENTICATION_FAILED"
        await server.stop()

    asyncio.run(main())
