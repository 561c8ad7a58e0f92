"""The bound on requests in flight: order, back-pressure, retriable errors, no lost bytes."""

from __future__ import annotations

import asyncio

import pytest

from node.serving.request_memory import RequestMemory
from tests import virtual_time
from tidemark.errors import ThrottlingQuotaExceededError


def test_requests_wait_in_order_for_room() -> None:
    async def main() -> None:
        memory = RequestMemory(100)
        order: list[str] = []

        async def request(name: str, size: int) -> None:
            taken = await memory.acquire(size, 10_000)
            order.append(name)
            await asyncio.sleep(1)
            memory.release(taken)

        await asyncio.gather(request("a", 80), request("b", 60), request("c", 10))
        assert order == ["a", "b", "c"]  # c would fit beside a, but b was first
        assert (memory.used_bytes, memory.waiting_bytes) == (0, 0)

    virtual_time.run(main())


def test_a_wait_that_lasts_too_long_is_a_retriable_error() -> None:
    async def main() -> None:
        memory = RequestMemory(100)
        taken = await memory.acquire(100, 1)
        with pytest.raises(ThrottlingQuotaExceededError) as caught:
            await memory.acquire(1, 500)
        assert caught.value.retriable
        assert memory.waiting_bytes == 0
        memory.release(taken)
        assert await memory.acquire(100, 1) == 100

    virtual_time.run(main())


def test_what_waits_is_bounded_too() -> None:
    async def main() -> None:
        memory = RequestMemory(100)
        await memory.acquire(100, 1)
        waiting = asyncio.ensure_future(memory.acquire(90, 10_000))
        await asyncio.sleep(0)
        with pytest.raises(ThrottlingQuotaExceededError):
            await memory.acquire(20, 10_000)
        memory.release(100)
        assert await waiting == 90

    virtual_time.run(main())


def test_a_request_larger_than_the_limit_is_let_in_alone() -> None:
    async def main() -> None:
        memory = RequestMemory(100)
        taken = await memory.acquire(5_000, 1)
        assert taken == 100
        memory.release(taken)
        assert memory.used_bytes == 0

    virtual_time.run(main())


def test_a_cancelled_waiter_leaves_its_place() -> None:
    async def main() -> None:
        memory = RequestMemory(100)
        await memory.acquire(100, 1)
        first = asyncio.ensure_future(memory.acquire(40, 10_000))
        second = asyncio.ensure_future(memory.acquire(60, 10_000))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        memory.release(100)
        assert await second == 60
        assert (memory.used_bytes, memory.waiting_bytes) == (60, 0)

    virtual_time.run(main())
