"""All disks of all replicas are lost: which election there is, and what comes back from the tier.

The controller's metadata is left. A disk is replaced by a formatted one with another directory id.
Or it was emptied but for its meta.properties, so it has its old id.
"""

from __future__ import annotations

import asyncio

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from quorum.image.image import ELR_VERSION
from tests.node.jbod import JbodCluster, jbod
from tests.node.replication.test_tier import FakeTier
from tests.quorum.controller.test_elect_leaders import Request, elect
from tidemark.errors import ErrorCode

RECORDS, COPIED = 8, 6
TIERED = {
    "remote_storage_enable": "true",
    "local_retention_bytes": "1",
    "retention_bytes": "100000000",
    "min_insync_replicas": "1",
}


async def fill(cluster: JbodCluster, tier: FakeTier, replicas: tuple[int, ...]) -> None:
    """Puts eight records into the topic, of which six are in the tier."""
    cluster.tier = tier
    await cluster.boot(1, 2, 3)
    cluster.create(replicas, **TIERED)
    await cluster.load(0, COPIED)
    node = cluster.nodes[cluster.of(0).leader or 0]
    node.hosted().log.roll(node.clock.wall_ms())
    await cluster.load(0, RECORDS - COPIED)
    tier.archive(node.hosted().log, node.clock.wall_ms())


async def lose(cluster: JbodCluster, *, same_id: bool) -> None:
    for node_id in (1, 2, 3):
        await cluster.stop_node(node_id, clean=False)
    for node_id in (1, 2, 3):
        for name in cluster.directories:
            if same_id:
                cluster.log_disks[node_id, name] = MemoryDirectory(f"node-{node_id}/{name}")
            else:
                cluster.replace_disk(node_id, name)
    await cluster.boot(1, 2, 3)


async def comes_back(cluster: JbodCluster) -> None:
    """Asserts that the tier's records are there, and that the next one follows them."""
    leader = cluster.of(0).leader
    assert leader is not None
    await cluster.until(lambda: not cluster.nodes[leader].hosted().core.restoring)
    log = cluster.nodes[leader].hosted().log
    assert (log.log_start_offset, log.log_end_offset) == (0, COPIED)
    del cluster.acked[0][COPIED:]
    await cluster.load(0, 3)
    assert await cluster.nodes[leader].read_all() == cluster.acked[0]
    assert log.log_end_offset == COPIED + 3
    replicas = set(cluster.of(0).replicas)
    await cluster.until(lambda: set(cluster.of(0).isr) == replicas)
    for node_id in replicas:
        assert cluster.nodes[node_id].hosted().log.log_end_offset == COPIED + 3


def run(
    elr: bool, unclean: bool, same_id: bool, directories: tuple[str, ...], replicas: tuple[int, ...]
) -> None:
    tier = FakeTier()

    async def test(cluster: JbodCluster) -> None:
        if elr:
            assert cluster.scenario.set_feature(ELR_VERSION, 1) == 0
        await fill(cluster, tier, replicas)
        await lose(cluster, same_id=same_id)
        await asyncio.sleep(20)
        if cluster.of(0).leader is None:
            assert await cluster.try_produce(0, "x") == ErrorCode.LEADER_NOT_AVAILABLE
            for node_id in replicas:
                assert cluster.nodes[node_id].partitions.find(cluster.name(0)) is None or (
                    not cluster.nodes[node_id].hosted().is_leader
                )
            assert elect(cluster.scenario, Request.UNCLEAN, "flights") == {"flights": 0}
            cluster._deliver()
        await comes_back(cluster)

    settings = {
        "unclean_leader_election_enable": str(unclean).lower(),
        "remote_log_storage_system_enable": "true",
    }
    jbod(test, directories=directories, **settings)


@pytest.mark.parametrize("elr", [False, True])
@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("same_id", [False, True])
@pytest.mark.parametrize("directories", [("a",), ("a", "b")])
@pytest.mark.parametrize("replicas", [(1, 2, 3), (2,)])
def test_what_is_in_the_tier_comes_back(
    elr: bool, unclean: bool, same_id: bool, directories: tuple[str, ...], replicas: tuple[int, ...]
) -> None:
    run(elr, unclean, same_id, directories, replicas)
