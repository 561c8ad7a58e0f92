"""Tiering of a topic is switched off (KIP-950): what the logs of its replicas do."""

from __future__ import annotations

import asyncio

from tests import virtual_time
from tests.node.cluster import TOPIC, Cluster
from tests.node.replication.test_tier import FakeTier, tiered
from tidemark.errors import ErrorCode
from tidemark.v1 import metadata_pb2 as records_pb

OFF, ON = ("remote.storage.enable", "false"), ("remote.storage.enable", "true")


def configure(cluster: Cluster, *settings: tuple[str, str]) -> None:
    """Publishes settings in one update."""
    cluster.publish(
        *(
            records_pb.MetadataRecord(
                config=records_pb.ConfigRecord(
                    resource_type=2, resource_name=TOPIC, name=name, value=value
                )
            )
            for name, value in settings
        )
    )


def switch_off(cluster: Cluster) -> None:
    configure(cluster, ("remote.log.delete.on.disable", "true"), OFF)


def starts(cluster: Cluster) -> dict[int, tuple[int, int]]:
    """Log start and local log start of each node."""
    logs = {number: node.hosted().log for number, node in cluster.nodes.items()}
    return {n: (log.log_start_offset, log.local_log_start_offset) for n, log in logs.items()}


def test_every_log_begins_on_its_disk_and_offsets_below_are_out_of_range() -> None:
    async def main() -> None:
        tier = FakeTier()
        cluster = Cluster(tier)
        cluster.start(1, 2)
        await tiered(cluster, tier)
        await cluster.settle()
        assert starts(cluster)[1] == (0, 5)
        waiting = asyncio.ensure_future(cluster.nodes[1].fetch(6, max_wait_ms=60_000))
        await asyncio.sleep(0.1)
        switches = tier.switches
        switch_off(cluster)
        assert starts(cluster)[1] == (5, 5)
        assert tier.switches > switches, "the tier's pass begins at once"
        assert cluster.nodes[1].hosted().log.highest_remote_offset == -1
        below = await cluster.nodes[1].fetch(3)
        assert below.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert below.log_start_offset == 5
        assert (await cluster.nodes[1].fetch(5)).error_code == ErrorCode.NONE
        await asyncio.sleep(1)
        own_start, local_start = starts(cluster)[2]
        assert own_start == local_start
        waiting.cancel()
        await cluster.stop()

    virtual_time.run(main())


def test_a_broker_that_was_down_meanwhile_begins_on_its_disk_and_deletes_for_its_partitions() -> (
    None
):
    async def main() -> None:
        tier = FakeTier()
        cluster = Cluster(tier)
        cluster.start(1, 2)
        await tiered(cluster, tier)
        await cluster.settle()
        await cluster.stop(1, clean=False)
        cluster.change(leader=2, isr=(2,))
        switch_off(cluster)
        cluster.start(1)
        await asyncio.sleep(2)
        cluster.change(leader=1, isr=(1, 2))
        start, local = starts(cluster)[1]
        assert start == local
        identity = cluster.nodes[1].hosted().core.identity
        assert tier.leaders[identity] == cluster.partition.leader_epoch, (
            "it deletes what the tier still has"
        )
        await cluster.stop()

    virtual_time.run(main())


def test_switched_on_again_nothing_is_taken_for_copied() -> None:
    """The earlier copies may be deleted now: local retention waits for new ones."""

    async def main() -> None:
        tier = FakeTier()
        cluster = Cluster(tier)
        cluster.start(1, 2)
        await tiered(cluster, tier)
        switch_off(cluster)
        log = cluster.nodes[1].hosted().log
        log.highest_remote_offset = 4  # a copy that was under way has ended
        configure(cluster, ON)
        assert log.highest_remote_offset == -1
        await cluster.stop()

    virtual_time.run(main())


def test_off_and_on_again_in_one_update_are_noticed() -> None:
    """The leader may have had them in two, and have deleted in between."""

    async def main() -> None:
        tier = FakeTier()
        cluster = Cluster(tier)
        cluster.start(1, 2)
        await tiered(cluster, tier)
        log = cluster.nodes[1].hosted().log
        assert (log.highest_remote_offset, log.log_start_offset) == (4, 0)
        switches = tier.switches
        configure(cluster, ("remote.log.delete.on.disable", "true"), OFF, ON)
        assert (log.highest_remote_offset, log.log_start_offset) == (-1, 0)
        assert tier.switches > switches
        await cluster.stop()

    virtual_time.run(main())
