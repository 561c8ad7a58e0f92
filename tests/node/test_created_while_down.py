"""A topic that is created while all its brokers are down is made by the first that may lead it.

The brokers are not fenced yet, so all are in its ISR; each returns after an unclean stop. None of
them had the log. A replica that was there, or may have been, is not made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from quorum.image.image import ELR_VERSION
from quorum.image.types import LOST_DIRECTORY
from tests.node.cluster import TOPIC
from tests.node.jbod import JbodCluster, jbod

LOG = f"{TOPIC}-0"
Test = Callable[[JbodCluster], Coroutine[None, None, None]]


def run(test: Test, *directories: str, elr: bool) -> None:
    async def prepared(cluster: JbodCluster) -> None:
        if elr:
            assert cluster.scenario.set_feature(ELR_VERSION, 1) == 0, cluster.scenario.message
        await test(cluster)

    jbod(prepared, directories=directories)


async def created_while_down(cluster: JbodCluster) -> None:
    await cluster.boot(1, 2, 3)
    for node_id in (1, 2, 3):
        await cluster.stop_node(node_id, clean=False)
    cluster.create((1, 2, 3), min_insync_replicas="2")
    assert cluster.of(0).isr == (1, 2, 3)
    assert cluster.of(0).leader == 1


@pytest.mark.parametrize("directories", [("a",), ("a", "b")])
@pytest.mark.parametrize("elr", [False, True])
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_a_topic_created_while_its_brokers_were_down_gets_a_leader(
    order: tuple[int, ...], elr: bool, directories: tuple[str, ...]
) -> None:
    async def test(cluster: JbodCluster) -> None:
        await created_while_down(cluster)
        for node_id in order:
            await cluster.boot(node_id)
        await cluster.until(lambda: set(cluster.of(0).isr) == {1, 2, 3})
        await cluster.load(0, 5)
        await cluster.nothing_acknowledged_is_lost(0)

    run(test, *directories, elr=elr)


@pytest.mark.parametrize("elr", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_topic_made_anew_while_its_brokers_were_down_gets_a_leader(
    known: bool, elr: bool
) -> None:
    """Each has a log of the deleted topic, under the same name. `known` is as much as a checkpoint
    of it; the log itself stays as a stray.
    """

    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2, 3)
        cluster.create((1, 2, 3), min_insync_replicas="2")
        await cluster.load(0, 5)
        for node_id in (1, 2, 3):
            if known:
                cluster.nodes[node_id].logs.checkpoint_high_watermarks()
            await cluster.stop_node(node_id, clean=False)
        cluster.delete()
        cluster.acked.clear()
        cluster.create((1, 2, 3), min_insync_replicas="2")
        for node_id in (1, 2, 3):
            await cluster.boot(node_id)
        await cluster.until(lambda: set(cluster.of(0).isr) == {1, 2, 3})
        await cluster.load(0, 5)
        assert await cluster.consume(0) == cluster.acked[0]
        for node_id in (1, 2, 3):
            assert any(n.endswith("-stray") for n in cluster.disk(node_id, "a").list())

    run(test, "a", elr=elr)


def test_a_topic_deleted_before_its_brokers_went_down_may_be_made_anew_meanwhile() -> None:
    """Checkpoint entries of the deleted log do not count for the new one."""

    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2)
        cluster.create((1, 2), min_insync_replicas="2")
        await cluster.load(0, 5)
        for node_id in (1, 2):
            cluster.nodes[node_id].logs.checkpoint_high_watermarks()
        cluster.delete()
        cluster.acked.clear()
        for node_id in (1, 2):
            await cluster.stop_node(node_id, clean=False)
        cluster.create((1, 2), min_insync_replicas="2")
        await cluster.boot(1, 2)
        await cluster.until(lambda: set(cluster.of(0).isr) == {1, 2})
        await cluster.load(0, 5)

    run(test, "a", elr=False)


@pytest.mark.parametrize("elr", [False, True])
def test_a_log_in_no_directory_that_was_assigned_waits_for_a_directory_that_is_offline(
    elr: bool,
) -> None:
    """The log may be in it. Later an empty disk in its place does not stand in for it."""

    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1)
        answer = cluster.controller.handlers.pop("AssignReplicasToDirs")
        cluster.create((1,), (1,), flush_messages="1")
        await asyncio.gather(*(cluster.load(p, 3) for p in (0, 1)))
        (lost,) = [p for p in (0, 1) if cluster.nodes[1].home_of(p) == "b"]
        assert cluster.of(lost).directory_of(1) is None
        await cluster.stop_node(1, clean=False)
        cluster.controller.handlers["AssignReplicasToDirs"] = answer
        cluster.unusable[1, "b"] = "pulled out"
        await cluster.boot(1)
        await cluster.until(lambda: cluster.of(lost).directory_of(1) == LOST_DIRECTORY)
        assert cluster.of(lost).leader is None
        await cluster.stop_node(1, clean=False)
        del cluster.unusable[1, "b"]
        good, known = cluster.disk(1, "b"), cluster.directory_ids[1, "b"]
        cluster.replace_disk(1, "b")
        await cluster.boot(1)
        await asyncio.sleep(20)
        assert cluster.of(lost).leader is None
        assert not cluster.disk(1, "b").exists(f"{TOPIC}-{lost}")
        await cluster.stop_node(1)
        cluster.log_disks[1, "b"], cluster.directory_ids[1, "b"] = good, known
        await cluster.boot(1)
        await cluster.until(lambda: cluster.of(lost).leader == 1)
        await cluster.nothing_acknowledged_is_lost(0, 1)

    run(test, "a", "b", elr=elr)


@pytest.mark.parametrize("starts", [1, 2])
def test_a_log_that_a_checkpoint_names_is_not_made_anew(starts: int) -> None:
    """It was never placed, and somebody removed it. No start forgets that it was there."""

    async def test(cluster: JbodCluster) -> None:
        disk = await never_placed(cluster)
        cluster.nodes[1].logs.checkpoint_high_watermarks()
        await cluster.stop_node(1, clean=False)
        disk.rename(LOG, "kept")
        disk.fsync()
        answer = cluster.controller.handlers.pop("AssignReplicasToDirs")
        for _ in range(starts - 1):
            await cluster.boot(1)
            cluster.nodes[1].logs.checkpoint_high_watermarks()
            await cluster.stop_node(1, clean=False)
        cluster.controller.handlers["AssignReplicasToDirs"] = answer
        await is_lost_until_it_is_back(cluster, disk)

    run(test, "a", elr=False)


def test_no_log_is_made_anew_where_an_unreadable_checkpoint_may_have_named_it() -> None:
    async def test(cluster: JbodCluster) -> None:
        disk = await never_placed(cluster)
        await cluster.stop_node(1, clean=False)
        disk.rename(LOG, "kept")
        disk.write_atomic("replication-offset-checkpoint", b"0\n1\n")
        await is_lost_until_it_is_back(cluster, disk)

    run(test, "a", elr=False)


def test_an_emptied_disk_under_its_old_id_does_not_pass_for_one_without_the_log() -> None:
    """Somebody removed all of it but meta.properties. The replica in sync would lead with nothing,
    and the others would cut their logs.
    """

    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2)
        cluster.create((1, 2), min_insync_replicas="1", flush_messages="1")
        await cluster.stop_node(2)
        await cluster.until(lambda: cluster.of(0).isr == (1,))
        await cluster.load(0, 5)
        await cluster.stop_node(1, clean=False)
        full = cluster.disk(1, "a")
        cluster.log_disks[1, "a"] = MemoryDirectory("node-1/a")
        for _ in range(2):
            await cluster.boot(1)
            await asyncio.sleep(20)
            assert cluster.of(0).leader is None
            await cluster.stop_node(1, clean=False)
        cluster.log_disks[1, "a"] = full
        await cluster.boot(1, 2)
        await cluster.until(lambda: set(cluster.of(0).isr) == {1, 2})
        await cluster.nothing_acknowledged_is_lost(0)

    run(test, "a", elr=False)


async def never_placed(cluster: JbodCluster) -> MemoryDirectory:
    await cluster.boot(1)
    cluster.create((1,), flush_messages="1")
    await cluster.load(0, 3)
    assert cluster.of(0).directory_of(1) is None
    return cluster.disk(1, "a")


async def is_lost_until_it_is_back(cluster: JbodCluster, disk: MemoryDirectory) -> None:
    await cluster.boot(1)
    await cluster.until(lambda: cluster.of(0).directory_of(1) == LOST_DIRECTORY)
    assert cluster.of(0).leader is None
    assert not disk.exists(LOG)
    await cluster.stop_node(1)
    disk.rename("kept", LOG)
    await cluster.boot(1)
    await cluster.until(lambda: cluster.of(0).leader == 1)
    await cluster.nothing_acknowledged_is_lost(0)


def test_a_crashed_leader_that_starts_again_at_once_is_in_service_before_its_session_ends() -> None:
    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2)
        cluster.create((1, 2), min_insync_replicas="1")
        await cluster.load(0, 5)
        now = asyncio.get_running_loop().time
        stopped_at = now()
        await cluster.stop_node(1, clean=False)
        await cluster.boot(1)
        await cluster.until(lambda: set(cluster.of(0).isr) == {1, 2})
        assert now() - stopped_at < cluster.scenario.config.broker_session_timeout_ms / 1000 / 2
        await cluster.nothing_acknowledged_is_lost(0)

    run(test, "a", elr=False)
