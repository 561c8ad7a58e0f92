"""A broker that returns without the logs that the cluster counts on leads none of them.

Brokers and the controller core are real, on virtual time; disks are in memory. The partition stays
offline until the log is back, and then has every acknowledged record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from uuid import UUID

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from node.membership.lifecycle import LifecycleState
from node.replication.follower_log import truncate
from quorum.image.image import ELR_VERSION
from quorum.image.types import LOST_DIRECTORY
from tests.node.cluster import TOPIC, Cluster
from tests.node.jbod import JbodCluster, jbod
from tests.node.replication.test_replication import scenario
from tidemark.v1 import admin_pb2

ONE, TWO = ("a",), ("a", "b")
LOG = f"{TOPIC}-0"


def both(
    test: Callable[[JbodCluster], Coroutine[None, None, None]], elr: bool, *, dirs: int = 1
) -> None:
    """Runs a scenario with or without ELR, on brokers with `dirs` directories."""

    async def prepared(cluster: JbodCluster) -> None:
        if elr:
            assert cluster.scenario.set_feature(ELR_VERSION, 1) == 0, cluster.scenario.message
        await test(cluster)

    jbod(prepared, directories=TWO[:dirs])


async def only_broker_1_has_the_records(cluster: JbodCluster) -> None:
    """Three replicas. 50 records are acknowledged by all, 100 by broker 1 alone; then it is
    killed."""
    await cluster.boot(1, 2, 3)
    cluster.create((1, 2, 3), min_insync_replicas="1", flush_messages="1")
    await cluster.load(0, 50)
    for node_id in (2, 3):
        await cluster.stop_node(node_id)
    await cluster.load(0, 100)
    assert cluster.of(0).isr == (1,)
    await cluster.stop_node(1, clean=False)


def take_disk(cluster: JbodCluster, name: str) -> tuple[MemoryDirectory, UUID]:
    """Replaces a disk of broker 1; returns the one that was there."""
    found = cluster.disk(1, name), cluster.directory_ids[1, name]
    cluster.replace_disk(1, name)
    return found


def put_disk(cluster: JbodCluster, name: str, disk: tuple[MemoryDirectory, UUID]) -> None:
    cluster.log_disks[1, name], cluster.directory_ids[1, name] = disk


def why_offline(cluster: JbodCluster) -> str:
    return cluster.nodes[1].partitions.offline.get(cluster.name(0), "")


async def stays_offline(cluster: JbodCluster) -> None:
    for _ in range(60):
        await asyncio.sleep(1)
        assert cluster.of(0).leader is None
    assert cluster.nodes[1].partitions.find(cluster.name(0)) is None


async def serves_again(cluster: JbodCluster) -> None:
    await cluster.until(lambda: cluster.of(0).leader == 1)
    await cluster.nothing_acknowledged_is_lost(0)
    await cluster.load(0, 5)
    await cluster.until(lambda: len(cluster.of(0).isr) == 3)
    await cluster.nothing_acknowledged_is_lost(0)


@pytest.mark.parametrize("elr", [False, True])
@pytest.mark.parametrize("dirs", [1, 2])
def test_a_broker_with_a_replaced_disk_leads_nothing_until_its_disk_is_back(
    elr: bool, dirs: int
) -> None:
    async def test(cluster: JbodCluster) -> None:
        await only_broker_1_has_the_records(cluster)
        old = take_disk(cluster, "a")
        await cluster.boot(1, 2, 3)
        await stays_offline(cluster)
        assert "which this node does not have any more. Give the" in why_offline(cluster)
        assert "elect-leaders --election-type unclean" in why_offline(cluster)
        await cluster.stop_node(1)
        put_disk(cluster, "a", old)
        await cluster.boot(1)
        await serves_again(cluster)

    both(test, elr, dirs=dirs)


@pytest.mark.parametrize("elr", [False, True])
@pytest.mark.parametrize("dirs", [1, 2])
def test_a_log_that_is_missing_in_its_directory_is_not_made_anew(elr: bool, dirs: int) -> None:
    """No registration tells it: the broker does, and the log may come back."""

    async def test(cluster: JbodCluster) -> None:
        await only_broker_1_has_the_records(cluster)
        disk = cluster.disk(1, "a")
        assert disk.exists(LOG)
        disk.rename(LOG, "kept")
        await cluster.boot(1, 2, 3)
        await stays_offline(cluster)
        assert not disk.exists(LOG)
        assert "its log is in no log directory of this node. Give the" in why_offline(cluster)
        assert cluster.of(0).directory_of(1) == LOST_DIRECTORY
        await cluster.stop_node(1)
        disk.rename("kept", LOG)
        await cluster.boot(1)
        await serves_again(cluster)

    both(test, elr, dirs=dirs)


def test_an_eligible_replica_without_its_log_is_filled_by_the_leader() -> None:
    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2, 3)
        cluster.create((1, 2), min_insync_replicas="2", flush_messages="1")
        await cluster.load(0, 20)
        await cluster.stop_node(1)
        await cluster.until(lambda: cluster.of(0).elr == (1,))
        cluster.disk(1, "a").remove_tree(LOG)
        await cluster.boot(1)
        await cluster.until(lambda: set(cluster.of(0).isr) == {1, 2})
        assert cluster.nodes[1].hosted(0).log.log_end_offset == 20
        await cluster.load(0, 5)
        await cluster.nothing_acknowledged_is_lost(0)

    both(test, elr=True)


@pytest.mark.parametrize("elr", [False, True])
def test_an_old_disk_does_not_stand_in_for_the_one_that_has_the_records(elr: bool) -> None:
    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2)
        cluster.create((1, 2), min_insync_replicas="1", flush_messages="1")
        await cluster.load(0, 20)
        await cluster.stop_node(1)
        old = take_disk(cluster, "a")
        await cluster.boot(1)
        await cluster.until(lambda: set(cluster.of(0).isr) == {1, 2})
        await cluster.stop_node(2)
        await cluster.load(0, 20)
        await cluster.stop_node(1)
        new = take_disk(cluster, "a")
        put_disk(cluster, "a", old)
        await cluster.boot(1, 2)
        await asyncio.sleep(60)
        assert cluster.of(0).leader is None
        assert "which this node does not have any more" in why_offline(cluster)
        await cluster.stop_node(1)
        put_disk(cluster, "a", new)
        await cluster.boot(1)
        await cluster.until(lambda: set(cluster.of(0).isr) == {1, 2})
        await cluster.nothing_acknowledged_is_lost(0)

    both(test, elr)


def test_another_replica_is_elected_uncleanly_and_fills_the_replaced_disk() -> None:
    async def test(cluster: JbodCluster) -> None:
        await only_broker_1_has_the_records(cluster)
        take_disk(cluster, "a")
        await cluster.boot(1, 2, 3)
        await stays_offline(cluster)
        request = admin_pb2.ElectLeadersRequest(election_type="UNCLEAN")
        request.partitions.add(topic=TOPIC, partition_index=0)
        cluster.scenario.ask(request)
        await cluster.until(lambda: len(cluster.of(0).isr) == 3)
        assert len(await cluster.consume(0)) == 50, "those that the elected replica had"
        assert cluster.nodes[1].hosted(0).log.log_end_offset == 50

    both(test, elr=False)


def test_a_partition_that_is_new_is_made_on_every_broker_in_service() -> None:
    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2)
        cluster.create((1,), (2,))
        await asyncio.gather(*(cluster.load(p, 3) for p in range(2)))

    both(test, elr=False)


def test_a_truncation_below_the_high_watermark_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.nodes[1].produce("a", "b", "c")
        await cluster.settle()
        hosted = cluster.nodes[2].hosted()
        assert hosted.core.high_watermark == 3
        with caplog.at_level(logging.ERROR):
            truncate(hosted, 3, 0)
            assert caplog.messages == []
            truncate(hosted, 1, 0)
        (message,) = caplog.messages
        assert "truncating to 1, below the high watermark 3" in message

    scenario(test)


def test_a_broker_that_may_stop_takes_no_place_any_more() -> None:
    """A late heartbeat after the answer must not have it unfenced."""

    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2)
        life = cluster.nodes[1].life
        await life.begin_controlled_shutdown()
        assert life.state is LifecycleState.SHUTTING_DOWN
        await asyncio.sleep(2)
        assert cluster.image.brokers[1].fenced

    both(test, elr=False)
