"""Members of groups on whole brokers in virtual time."""

from __future__ import annotations

import asyncio

from tidemark.client import AsyncConsumer
from tidemark.testing import Cluster

SETTINGS = {
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "1",
}


def test_a_member_that_only_sends_heartbeats_finds_a_coordinator_that_moved_while_both_live() -> (
    None
):
    """An answer that names another coordinator is no broken connection: the member hears of it from
    its heartbeats alone."""

    async def story(cluster: Cluster) -> None:
        consumer = cluster.asyncio.consumer(group_id="g", enable_auto_commit=False)
        consumer.subscribe(["t"])
        await _until_assigned(consumer)
        before = cluster.leader("__consumer_offsets")
        assert before is not None
        for other in cluster.nodes:  # its clients still reach it
            if other != before:
                cluster.cut(before, other)
        await asyncio.sleep(10)
        cluster.heal()
        assert cluster.leader("__consumer_offsets") != before
        await asyncio.sleep(10)
        member = consumer._member
        assert member is not None
        assert await member._calls.address() == f"node-{cluster.leader('__consumer_offsets')}:9092"
        await consumer.close()

    with Cluster(seed=1, brokers=3, settings=SETTINGS) as cluster:
        cluster.create_topic("t", 1)
        cluster.run(story(cluster))


async def _until_assigned(consumer: AsyncConsumer) -> None:
    async with asyncio.timeout(20):
        while not consumer.assignment():
            await consumer.poll(100)
