"""A leader without a log is restored from the tier: its pauses, its end, and what it tells."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from tests import virtual_time
from tests.node.cluster import Cluster
from tests.node.replication.test_tier import FakeTier
from tests.node.replication.test_tier_bootstrap import elect_uncleanly
from tidemark.errors import ErrorCode, StorageError
from tidemark.surroundings import surroundings, use
from tidemark.types import TopicIdPartition


class TroubledTier(FakeTier):
    """Has no answer, and notes when it was asked for a history."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble: Exception | None = StorageError("the store is on fire")
        self.asked_at: list[float] = []

    async def latest_history(self, partition: TopicIdPartition) -> Any:
        self.asked_at.append(asyncio.get_running_loop().time())
        if self.trouble is not None:
            raise self.trouble
        return await super().latest_history(partition)


def scenario(
    test: Callable[[Cluster, TroubledTier], Coroutine[None, None, None]], seed: int = 1
) -> TroubledTier:
    tier = TroubledTier()

    async def main() -> None:
        cluster = Cluster(tier)
        with use(replace(surroundings(), make_rng=lambda: random.Random(seed))):
            cluster.start(1, 2, 3)
        cluster.create_topic(remote_storage_enable="true", retention_bytes="100000000")
        elect_uncleanly(cluster, 2)
        await test(cluster, tier)
        running = list(cluster.nodes.values())
        await cluster.stop()
        assert [node.fatal for node in running] == [[] for _ in running]

    virtual_time.run(main())
    return tier


async def for_a_while(cluster: Cluster, tier: TroubledTier) -> None:
    await asyncio.sleep(200)


def test_restores_wait_longer_and_longer_and_not_in_step_with_each_other() -> None:
    def pauses(seed: int) -> list[float]:
        asked = scenario(for_a_while, seed).asked_at
        return [later - one for one, later in itertools.pairwise(asked)]

    ours, others = pauses(1), pauses(2)
    assert ours != others
    assert ours == pauses(1)
    for found in (ours, others):
        for number, pause_s in enumerate(found):
            base_s = min(0.5 * 2**number, 30)
            assert 0.8 * base_s <= pause_s <= 1.2 * base_s + 0.01
        assert len(found) > 8


def test_a_node_that_stops_asks_no_more() -> None:
    async def test(cluster: Cluster, tier: TroubledTier) -> None:
        await asyncio.sleep(20)
        asked = len(tier.asked_at)
        began = asyncio.get_running_loop().time()
        await cluster.stop(2)
        assert asyncio.get_running_loop().time() - began < 1
        await asyncio.sleep(100)
        assert len(tier.asked_at) == asked

    scenario(test)


def test_a_node_that_stops_does_not_wait_for_a_store_that_hangs() -> None:
    class HangingTier(TroubledTier):
        async def latest_history(self, partition: TopicIdPartition) -> Any:
            await asyncio.sleep(1 << 20)

    async def main() -> None:
        cluster = Cluster(HangingTier())
        cluster.start(1, 2, 3)
        cluster.create_topic(remote_storage_enable="true", retention_bytes="100000000")
        elect_uncleanly(cluster, 2)
        await asyncio.sleep(5)
        began = asyncio.get_running_loop().time()
        await cluster.stop()
        assert asyncio.get_running_loop().time() - began < 1

    virtual_time.run(main())


def test_a_client_is_told_why_the_log_is_not_there_yet() -> None:
    async def test(cluster: Cluster, tier: TroubledTier) -> None:
        await asyncio.sleep(1)
        answer = await cluster.nodes[2].produce("too early", acks=1)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert "restored from the tier" in answer.error_message
        assert "the store is on fire" in answer.error_message
        tier.trouble = None
        await asyncio.sleep(5)
        assert (await cluster.nodes[2].produce("first", acks=1)).base_offset == 0

    scenario(test)
