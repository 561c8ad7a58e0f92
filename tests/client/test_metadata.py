"""The client's metadata cache: background refreshes cause no surprises."""

from __future__ import annotations

import asyncio
import gc
from random import Random
from typing import Any

import pytest

from tests import virtual_time
from tidemark.client.connections import Connections
from tidemark.client.metadata import MetadataCache
from tidemark.client.retry import RetryPolicy
from tidemark.errors import NetworkError, RequestTimedOutError, SaslAuthenticationError
from tidemark.types import Endpoint
from tidemark.v1 import log_pb2


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


class Refusing(Connections):
    """Each login fails."""

    async def call(self, *_: Any, **__: Any) -> Any:
        raise SaslAuthenticationError("the login of ann failed")


def test_a_login_that_fails_is_told_at_once() -> None:
    async def main() -> None:
        where, retry = [Endpoint("127.0.0.1", 1)], RetryPolicy()
        cache = MetadataCache(Refusing(), where, retry=retry, rng=Random(1))
        with pytest.raises(SaslAuthenticationError, match="the login of ann failed"):
            await cache.topic("t")

    virtual_time.run(main())


class Answering(Connections):
    """Knows every topic; notes which ones each request names."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []

    async def call(self, address: str, path: str, request: Any, *_: Any, **__: Any) -> Any:
        self.asked.append(list(request.topics))
        answer = log_pb2.MetadataResponse()
        answer.brokers.add(node_id=1, host="127.0.0.1", port=1)
        for name in request.topics:
            topic = answer.topics.add(name=name)
            topic.partitions.add(partition_index=0, leader_id=1)
        return answer


def test_a_topic_that_was_only_looked_up_is_forgotten_when_nobody_asks_again() -> None:
    async def main() -> None:
        connections = Answering()
        cache = MetadataCache(
            connections,
            [Endpoint("127.0.0.1", 1)],
            retry=RetryPolicy(),
            rng=Random(1),
            metadata_max_age_ms=100_000,
        )
        cache.want(["read"])
        for name in ("once", "again", "read", "later read"):
            await cache.topic(name)
        cache.want(["later read"])
        before = len(connections.asked)
        for _ in range(4):  # 400 s
            await asyncio.sleep(100)
            await cache.topic("again")
        assert [sorted(asked) for asked in connections.asked[before:]] == [
            ["again", "later read", "once", "read"],
            ["again", "later read", "once", "read"],
            ["again", "later read", "read"],
            ["again", "later read", "read"],
        ]
        assert set(cache.topics()) == {"again", "later read", "read"}
        found = await cache.topic("once")
        assert found.name == "once", "it is asked for anew at once"
        cache.forget(["read", "once"])
        cache.mark_stale()
        await cache.ensure_fresh()
        assert connections.asked[-1] == ["again", "later read"]
        await cache.close()

    virtual_time.run(main())


def test_a_look_up_that_waits_longer_than_topics_stay_goes_on_asking() -> None:
    """A topic without a leader for ten minutes is in each request of its waiter."""

    class Leaderless(Answering):
        async def call(self, *arguments: Any, **named: Any) -> Any:
            answer = await super().call(*arguments, **named)
            if asyncio.get_running_loop().time() < 600:
                answer.topics[0].partitions[0].leader_id = -1
            return answer

    async def main() -> None:
        connections = Leaderless()
        cache = MetadataCache(
            connections, [Endpoint("127.0.0.1", 1)], retry=RetryPolicy(), rng=Random(1)
        )
        found = await cache.topic("t", 700_000)
        assert found.partitions[0].leader == 1
        assert all(asked == ["t"] for asked in connections.asked)

    virtual_time.run(main())


def test_a_node_that_hangs_does_not_lengthen_a_look_up() -> None:
    """The request that it holds goes on for others; this waiter has its own time."""

    class Hung(Answering):
        async def call(self, *arguments: Any, **named: Any) -> Any:
            await asyncio.sleep(named["timeout_ms"] / 1000)
            raise RequestTimedOutError("no answer")

    async def main() -> None:
        hung = [Endpoint("127.0.0.1", port) for port in (1, 2, 3)]
        cache = MetadataCache(Hung(), hung, retry=RetryPolicy(), rng=Random(1))
        loop = asyncio.get_running_loop()
        with pytest.raises(RequestTimedOutError, match="topic 't': no node answered in 7000 ms"):
            await cache.topic("t", 7_000)
        assert round(loop.time(), 3) == 7
        with pytest.raises(RequestTimedOutError, match="no answer"):
            await cache.topic("t", 20_000)  # the error of the nodes, where there is one
        assert round(loop.time(), 3) == 27
        await cache.close()

    virtual_time.run(main())
