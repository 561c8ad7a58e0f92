"""Transactions on whole brokers in virtual time, with stubs alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.node.coordination.stubs import SETTINGS, Stubs, Transactions
from tidemark.errors import (
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from tidemark.testing import Cluster

Story = Callable[[Stubs], Coroutine[Any, Any, None]]


def told(story: Story, seed: int = 1, **settings: str) -> None:
    """Runs a story on three brokers with the topics a and b, of two partitions each."""
    with Cluster(seed=seed, brokers=3, settings=SETTINGS | settings) as cluster:
        for topic in ("a", "b"):
            cluster.create_topic(topic, 2, min_insync_replicas="2")
        cluster.run(story(Stubs(cluster)))


def test_records_of_many_partitions_are_seen_together_or_never() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        await one.send("a", 0, "kept")
        await one.send("b", 1, "kept")
        assert await stubs.read("a") == []
        assert await stubs.read("a", committed=False) == ["kept"]
        await one.end(committed=True)
        await one.until("CompleteCommit")
        await one.send("a", 0, "dropped")
        await one.send("b", 1, "dropped")
        await one.end(committed=False)
        await one.until("CompleteAbort")
        await one.send("a", 0, "kept, too")
        await one.end(committed=True)
        await one.until("CompleteCommit")
        assert await stubs.read("a") == ["kept", "kept, too"]
        assert await stubs.read("b", 1) == ["kept"]
        assert await stubs.read("b", 1, committed=False) == ["kept", "dropped"]

    told(story)


def test_a_new_producer_fences_the_one_before_and_aborts_what_it_left_open() -> None:
    async def story(stubs: Stubs) -> None:
        old = await Transactions(stubs, "one").init()
        await old.send("a", 0, "of the old one")
        new = await Transactions(stubs, "one").init()
        assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 2)
        await new.send("a", 0, "of the new one")
        with pytest.raises(ProducerFencedError):
            await old.send("a", 0, "late")
        with pytest.raises(ProducerFencedError):
            await old.send("b", 0, "late")
        with pytest.raises(ProducerFencedError):
            await old.end(committed=True)
        await new.end(committed=True)
        await new.until("CompleteCommit")
        assert await stubs.read("a") == ["of the new one"]
        assert await stubs.read("b", committed=False) == []

    told(story)


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one", timeout_ms=5_000).init()
        await one.send("a", 0, "too slow")
        await asyncio.sleep(6)
        await one.until("CompleteAbort")
        with pytest.raises(InvalidTxnStateError, match="was aborted"):
            await one.end(committed=True)
        await one.end(committed=False)  # it may go on with the next epoch
        await one.send("a", 0, "in time")
        await one.end(committed=True)
        await one.until("CompleteCommit")
        assert await stubs.read("a") == ["in time"]

    told(story)


def test_a_batch_of_no_transaction_is_refused() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        one.producer_id += 1_000
        with pytest.raises(InvalidProducerIdMappingError):
            await one.send("a", 0, "x")
        assert await stubs.read("a", committed=False) == []

    told(story)
