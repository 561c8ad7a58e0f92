"""Replicas that catch up keep to the throttled rate, and those in sync are not slowed (KIP-73)."""

from __future__ import annotations

import asyncio

import pytest

from quorum.image.records import config_record
from tests.node.cluster import Cluster
from tests.node.replication.test_replication import scenario
from tidemark.config import validate_topic_configs
from tidemark.errors import ErrorCode, InvalidConfigError

BATCHES, SIZE = 20, 5_000
UNLIMITED = 2**63 - 1


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def a_follower_that_is_behind(cluster: Cluster, **configs: str) -> None:
    """Node 3 lacks the records of 20 batches, and is no longer in the ISR."""
    cluster.create_topic(**configs)
    await cluster.settle()
    cluster.cut |= {(3, 1)}
    await cluster.nodes[1].produce("a", acks=1)
    await asyncio.sleep(32)
    cluster.nodes[1].isr.shrink()
    await asyncio.sleep(1)
    assert set(cluster.partition.isr) == {1, 2}
    for _ in range(BATCHES):
        await cluster.nodes[1].produce("x" * SIZE)
    cluster.cut.clear()


async def seconds_until_in_sync(cluster: Cluster) -> float:
    begun = now_s()
    while set(cluster.partition.isr) != {1, 2, 3}:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return now_s() - begun


def set_rates(cluster: Cluster, side: str, rate: int) -> None:
    cluster.publish(config_record(4, "", f"{side}.replication.throttled.rate", str(rate)))


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("replicas", ["0:1,0:3", "*"])
def test_a_throttled_replica_catches_up_at_the_rate(side: str, replicas: str) -> None:
    async def test(cluster: Cluster) -> None:
        rate = BATCHES * SIZE // 20
        set_rates(cluster, side, rate)
        await a_follower_that_is_behind(
            cluster,
            **{f"{side}_replication_throttled_replicas": replicas, "max_message_bytes": "9999"},
        )
        assert 17 < await seconds_until_in_sync(cluster) < 24
        for _ in range(5):
            begun = now_s()
            result = await cluster.nodes[1].produce("x" * SIZE)
            assert result.error_code == ErrorCode.NONE
            assert now_s() - begun < 0.1, "all three are in sync, and wait for no rate"

    scenario(test, replica_fetch_max_bytes=str(SIZE), replica_fetch_response_max_bytes=str(SIZE))


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_replicas_that_no_topic_names_are_not_throttled(side: str) -> None:
    async def test(cluster: Cluster) -> None:
        set_rates(cluster, side, 1)
        await a_follower_that_is_behind(
            cluster, **{f"{side}_replication_throttled_replicas": "1:1,1:3,0:2"}
        )
        assert await seconds_until_in_sync(cluster) < 3

    scenario(test)


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_rate_that_is_raised_ends_the_wait(side: str) -> None:
    async def test(cluster: Cluster) -> None:
        set_rates(cluster, side, SIZE)
        await a_follower_that_is_behind(cluster, **{f"{side}_replication_throttled_replicas": "*"})
        await asyncio.sleep(4)
        assert set(cluster.partition.isr) == {1, 2}
        set_rates(cluster, side, UNLIMITED)
        assert await seconds_until_in_sync(cluster) < 4

    scenario(test, replica_fetch_max_bytes=str(SIZE), replica_fetch_response_max_bytes=str(SIZE))


def test_producers_get_their_acks_while_a_replica_is_throttled() -> None:
    async def test(cluster: Cluster) -> None:
        set_rates(cluster, "leader", 100)
        await a_follower_that_is_behind(cluster, leader_replication_throttled_replicas="*")
        await asyncio.sleep(1)
        begun = now_s()
        for _ in range(10):
            assert (await cluster.nodes[1].produce("x")).error_code == ErrorCode.NONE
        assert now_s() - begun < 1
        assert set(cluster.partition.isr) == {1, 2}

    scenario(test, replica_fetch_max_bytes=str(SIZE), replica_fetch_response_max_bytes=str(SIZE))


@pytest.mark.parametrize("wrong", ["0", "0:", "a:1", "0:1;1:1", "-1:2", "0:1,0:1"])
def test_a_list_of_replicas_that_can_not_be_read_is_refused(wrong: str) -> None:
    for side in ("leader", "follower"):
        with pytest.raises(InvalidConfigError):
            validate_topic_configs({f"{side}.replication.throttled.replicas": wrong})
