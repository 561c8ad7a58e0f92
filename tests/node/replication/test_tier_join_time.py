"""A follower that starts from the tier joins in the time of its local part: it waits for no long
poll of other partitions.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests import virtual_time
from tests.node.cluster import Cluster, Link
from tests.node.replication.test_tier import FakeTier
from tests.node.replication.test_tier_bootstrap import produce_segments
from tests.node.serving.test_fetch_session import noted
from tidemark.v1 import metadata_pb2 as records_pb


class SlowTier(FakeTier):
    async def fetch_aux_state(self, *args: Any, **how: Any) -> Any:
        await asyncio.sleep(0.05)
        return await super().fetch_aux_state(*args, **how)


async def with_an_idle_partition(cluster: Cluster, tier: FakeTier) -> None:
    """Broker 1 leads two partitions; broker 3 follows the second alone, which is idle."""
    cluster.start(1, 2, 3)
    cluster.create_topic(
        (1, 2), remote_storage_enable="true", local_retention_bytes="1", retention_bytes="100000000"
    )
    other = records_pb.PartitionRecord(
        partition_id=1, topic_id=cluster.topic_id.bytes, replicas=(1, 3), isr=(1, 3), leader=1
    )
    cluster.publish(records_pb.MetadataRecord(partition=other))
    await produce_segments(cluster, "v0", "v1")
    await cluster.nodes[1].produce("v2")
    tier.archive(cluster.nodes[1].hosted().log, cluster.nodes[1].clock.wall_ms())
    await asyncio.sleep(5)


def add_broker_3(cluster: Cluster) -> None:
    change = records_pb.PartitionChangeRecord(partition_id=0, topic_id=cluster.topic_id.bytes)
    change.replicas.ids.extend((1, 2, 3))
    change.adding_replicas.ids.append(3)
    cluster.publish(records_pb.MetadataRecord(partition_change=change))


def test_a_follower_from_the_tier_does_not_wait_for_the_fetch_that_is_parked() -> None:
    async def main() -> None:
        tier = SlowTier()
        cluster = Cluster(tier)
        await with_an_idle_partition(cluster, tier)
        began = asyncio.get_running_loop().time()
        add_broker_3(cluster)
        while cluster.nodes[3].hosted().log.log_end_offset < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert cluster.nodes[3].hosted().log.local_log_start_offset == 2
        assert asyncio.get_running_loop().time() - began < 0.1
        await cluster.stop()

    virtual_time.run(main())


def test_many_partitions_from_the_tier_hold_back_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may end the wait of a parked fetch, whose answer counts all the same."""
    fetch = Link.fetch

    async def slow_fetch(link: Link, *args: Any) -> Any:
        answer = await fetch(link, *args)
        await asyncio.sleep(0.1)
        return answer

    async def main() -> None:
        tier = SlowTier()
        cluster = Cluster(tier)
        await with_an_idle_partition(cluster, tier)
        monkeypatch.setattr(Link, "fetch", slow_fetch)
        _, fetcher = cluster.nodes[3].hosting._fetchers._peers[1]
        other = cluster.nodes[3].hosted(1)

        def comes_back() -> None:
            fetcher.unfollow(other.topic_partition)
            fetcher.follow(other)

        add_broker_3(cluster)
        for _ in range(300):
            await asyncio.sleep(0.01)
            comes_back()
        assert cluster.nodes[3].hosted().log.log_end_offset == 3
        await cluster.stop()

    virtual_time.run(main())


def test_a_tier_that_fails_ends_no_parked_fetch() -> None:
    """The partition is delayed, so there is nothing to fetch sooner."""

    async def main() -> None:
        tier = SlowTier()
        cluster = Cluster(tier)
        await with_an_idle_partition(cluster, tier)
        seen = noted(cluster, 1)
        tier.failing = 3
        add_broker_3(cluster)
        await asyncio.sleep(20)
        assert cluster.nodes[3].hosted().log.log_end_offset == 3
        assert len(tier.asked) == 4
        asked = [r for r in seen if r.replica_id == 3]
        named = [r for r in asked if any(p.partition == 0 for p in r.partitions)]
        assert len(named) == 6  # once a try, then from the tier, then at the end
        assert len(asked) < 2 * 20 + 2 * 4 + 4  # of which each long poll is two a second
        await cluster.stop()

    virtual_time.run(main())
