"""Leases while their store hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tidemark.types import TopicIdPartition
from tiering.errors import RemoteReadBusyError
from tiering.tasks.leases import Leases, parse_leases

PARTITION = TopicIdPartition(UUID(int=1), "t", 0)


class Store:
    """A store that keeps what is written, once it does not hang."""

    def __init__(self) -> None:
        self.content = b""
        self.goes_on = asyncio.Event()

    def locate(self, metadata: Any, expires_s: int) -> str:
        return "file:///"

    def read_leases(self, partition: TopicIdPartition) -> bytes:
        return self.content

    def write_leases(self, partition: TopicIdPartition, content: bytes) -> None:
        self.content = content

    async def run(self, call: Callable[[], Any]) -> Any:
        await self.goes_on.wait()
        return call()


def test_callers_that_give_up_on_a_store_that_hangs_do_not_pile_up() -> None:
    async def scenario() -> None:
        store = Store()
        leases = Leases(store, store.run, lambda: 0, 1_000)  # type: ignore[arg-type]
        for number in range(64):
            waiting = asyncio.ensure_future(leases.hold(PARTITION, f"job-{number}", 0, 9, 500))
            await asyncio.sleep(0)
            waiting.cancel()
        with pytest.raises(RemoteReadBusyError, match="64 leases of the partition wait"):
            await leases.hold(PARTITION, "one more", 0, 9, 500)
        store.goes_on.set()
        for _ in range(500):
            await asyncio.sleep(0)
        assert len(parse_leases(store.content)) == 64
        assert await leases.hold(PARTITION, "job-7", 0, 9, 0) == 0
        assert len(parse_leases(store.content)) == 63

    asyncio.run(scenario())
