"""The client's metadata cache: background refreshes cause no surprises."""

from __future__ import annotations

import asyncio
import gc
from random import Random
from typing import Any

from tidemark.client.connections import Connections
from tidemark.client.metadata import MetadataCache
from tidemark.client.retry import RetryPolicy
from tidemark.errors import NetworkError
from tidemark.types import Endpoint


class SlowToFail(Connections):
    """Connections whose calls fail on command."""

    def __init__(self) -> None:
        super().__init__()
        self.fail = asyncio.Event()

    async def call(self, *_: Any, **__: Any) -> Any:
        await self.fail.wait()
        raise NetworkError("the client is closed")


def test_a_question_that_nobody_waits_for_any_more_fails_in_silence() -> None:
    """A client is closed during a refresh: its log must not end with a traceback."""
    told: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        connections = SlowToFail()
        cache = MetadataCache(
            connections, [Endpoint("127.0.0.1", 1)], retry=RetryPolicy(), rng=Random(1)
        )
        asker = asyncio.ensure_future(cache.refresh())
        await asyncio.sleep(0)
        asker.cancel()
        await asyncio.gather(asker, return_exceptions=True)
        connections.fail.set()
        await asyncio.sleep(0.01)
        del cache, asker
        gc.collect()

    asyncio.run(main())
    assert told == []
