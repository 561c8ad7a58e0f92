"""A follower starts from the tier while its log moves to another directory (KIP-113)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.node.jbod import JbodCluster, jbod
from tests.node.replication.test_all_disks_lost import TIERED
from tests.node.replication.test_tier import FakeTier
from tests.node.upkeep.test_directory_moves import Moving


class SlowTier(FakeTier):
    """Answers a follower after 5 s, or when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()

    async def fetch_aux_state(self, *args: Any, **how: Any) -> Any:
        await self.answers.wait()
        return await super().fetch_aux_state(*args, **how)


async def behind(cluster: JbodCluster, tier: SlowTier) -> Moving:
    """Broker 3 has four records; the leader has only the last two of twelve on its disk."""
    cluster.tier = tier
    moves = Moving(cluster)
    await cluster.boot(1, 2, 3)
    for node in cluster.nodes.values():
        moves.attach(node)
    cluster.create((1, 2, 3), **TIERED)
    await cluster.load(0, 4)
    cluster.cut |= {(3, 1), (3, 2)}
    leader = cluster.nodes[1]
    await leader.produce("not fetched by broker 3", acks=1)
    await asyncio.sleep(35)  # beyond replica.lag.time.max.ms
    leader.isr.shrink()
    await cluster.until(lambda: set(cluster.of(0).isr) == {1, 2})
    await cluster.load(0, 5)
    leader.hosted().log.roll(leader.clock.wall_ms())
    await cluster.load(0, 2)
    tier.archive(leader.hosted().log, leader.clock.wall_ms())
    assert leader.hosted().log.local_log_start_offset == 10
    return moves


async def is_whole(cluster: JbodCluster) -> None:
    leader, follower = cluster.nodes[1].hosted().log, cluster.nodes[3].hosted().log
    await cluster.until(lambda: set(cluster.of(0).isr) == {1, 2, 3})
    await cluster.load(0, 3)
    await cluster.until(lambda: follower.log_end_offset == leader.log_end_offset)
    assert (follower.log_start_offset, follower.local_log_start_offset) == (0, 10)
    assert follower.epochs.entries() == leader.epochs.entries()
    follower.validate()


@pytest.mark.parametrize("first", ["tier", "move"])
def test_a_move_and_a_start_from_the_tier_leave_one_whole_log(first: str) -> None:
    async def test(cluster: JbodCluster) -> None:
        tier = SlowTier()
        moves = await behind(cluster, tier)
        moves.gate.clear()
        other = moves.elsewhere(3, 0)
        moves.alter(3, 0, other)
        cluster.cut.clear()
        await asyncio.sleep(3)  # the copy of the old files is under way, and the tier is asked
        assert moves.future(3, 0) is not None
        if first == "tier":
            tier.answers.set()
            await is_whole(cluster)
            moves.gate.set()
        else:
            moves.gate.set()
            await asyncio.sleep(3)
            tier.answers.set()
        await cluster.until(lambda: moves.is_known_in(3, 0, other))
        await is_whole(cluster)
        await cluster.stop_node(3, clean=False)
        await cluster.boot(3)
        assert cluster.nodes[3].home_of(0) == other
        await is_whole(cluster)

    jbod(test, remote_log_storage_system_enable="true")


def test_a_follower_whose_epochs_file_is_lost_after_its_start_from_the_tier_gets_on() -> None:
    """Its leader's file is whole. What it serves as leader later, its tier's history completes."""

    async def test(cluster: JbodCluster) -> None:
        tier = SlowTier()
        tier.answers.set()
        await behind(cluster, tier)
        cluster.cut.clear()
        await is_whole(cluster)
        await cluster.stop_node(3)
        home = cluster.disk(3, next(d for d in "ab" if cluster.disk(3, d).exists("flights-0")))
        home.subdirectory("flights-0").remove("leader-epoch-checkpoint")
        await cluster.boot(3)
        log = cluster.nodes[3].hosted().log
        assert (log.log_start_offset, log.local_log_start_offset) == (0, 10)
        await cluster.until(lambda: set(cluster.of(0).isr) == {1, 2, 3})
        await cluster.load(0, 3)
        leader = cluster.nodes[1].hosted().log
        await cluster.until(lambda: log.log_end_offset == leader.log_end_offset)
        first = leader.local_log_start_offset
        assert log.read(first, 1 << 20).records == leader.read(first, 1 << 20).records
        assert log.epochs.latest_epoch == leader.epochs.latest_epoch

    jbod(test, remote_log_storage_system_enable="true")
