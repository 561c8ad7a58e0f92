"""A failed log directory takes only its own partitions offline (KIP-112, KIP-858).

Brokers and the controller core are real, on virtual time; disks are in memory and fail on demand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from quorum.image.types import LOST_DIRECTORY
from tests.node.cluster import TOPIC
from tests.node.jbod import JbodCluster, jbod
from tidemark.errors import ErrorCode, StorageError
from tidemark.types import uuid_to_text

PARTITIONS = range(4)
BY_FIRST = [(1, 2, 3), (2, 3, 1), (1, 3, 2), (3, 1, 2)]


async def three_brokers(cluster: JbodCluster, **settings: str) -> None:
    """Four partitions of RF 3; two of each broker's replicas in each of its directories."""
    await cluster.boot(1, 2, 3, **settings)
    cluster.create(*BY_FIRST, min_insync_replicas="2", flush_messages="1")
    await cluster.until(lambda: all(assigned(cluster, n) for n in (1, 2, 3)))


def assigned(cluster: JbodCluster, node_id: int) -> bool:
    """Whether the controller has the directories of this broker's replicas."""
    node = cluster.nodes[node_id]
    topic = cluster.image.topics.get(TOPIC)
    assert topic is not None
    return all(
        found.directory_of(node_id)
        == cluster.directory_ids.get((node_id, node.home_of(index) or ""))
        for index, found in topic.partitions.items()
        if node_id in found.replicas
    )


def in_directory(cluster: JbodCluster, node_id: int, name: str) -> list[int]:
    return [p for p in PARTITIONS if cluster.nodes[node_id].home_of(p) == name]


FAULTS: dict[str, Callable[[MemoryDirectory], None]] = {
    "write": MemoryDirectory.fail_writes,
    "fsync": MemoryDirectory.fail_fsync,
    "full": lambda disk: disk.set_capacity(disk.disk.used_bytes + 100),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_directory_under_load_loses_nothing_and_stops_nothing_else(fault: str) -> None:
    async def test(cluster: JbodCluster) -> None:
        await three_brokers(cluster)
        lost, kept = in_directory(cluster, 1, "a"), in_directory(cluster, 1, "b")
        assert len(lost) == len(kept) == 2
        epochs = {p: cluster.of(p).leader_epoch for p in kept}
        load = [asyncio.ensure_future(cluster.load(p, 60)) for p in PARTITIONS]
        await asyncio.sleep(0.3)
        FAULTS[fault](cluster.disk(1, "a"))
        await asyncio.gather(*load)
        written = cluster.disk(1, "a").disk.used_bytes
        await asyncio.gather(*(cluster.load(p, 10) for p in PARTITIONS))
        assert cluster.disk(1, "a").disk.used_bytes == written, "it is not written to any more"
        for p in lost:
            assert cluster.of(p).leader in (2, 3)
            assert set(cluster.of(p).isr) == {2, 3}
            assert await cluster.produce_to(1, p, "x") == ErrorCode.KAFKA_STORAGE_ERROR
        for p in kept:
            assert (cluster.of(p).leader_epoch, len(cluster.of(p).isr)) == (epochs[p], 3)
            assert cluster.refused[p] == []
        await cluster.nothing_acknowledged_is_lost(*PARTITIONS)

    jbod(test)


def test_a_read_that_fails_takes_the_directory_offline() -> None:
    async def test(cluster: JbodCluster) -> None:
        await three_brokers(cluster)
        await asyncio.gather(*(cluster.load(p, 5) for p in PARTITIONS))
        led = next(p for p in in_directory(cluster, 1, "a") if cluster.of(p).leader == 1)
        cluster.disk(1, "a").fail_reads()
        answer = await cluster.fetch_from(1, led, 0)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await cluster.until(lambda: cluster.of(led).leader != 1)
        await cluster.nothing_acknowledged_is_lost(*PARTITIONS)

    jbod(test)


@pytest.mark.parametrize("what", ["recovery points", "log starts", "high watermarks", "roll"])
def test_what_fails_in_the_background_takes_the_directory_offline_too(what: str) -> None:
    async def test(cluster: JbodCluster) -> None:
        await three_brokers(cluster)
        await asyncio.gather(*(cluster.load(p, 5) for p in PARTITIONS))
        node = cluster.nodes[1]
        cluster.disk(1, "a").fail_writes("*.tmp" if what != "roll" else "*")
        if what == "recovery points":
            node.logs.checkpoint_recovery_points()
        elif what == "log starts":
            hosted = node.hosted(in_directory(cluster, 1, "a")[0])
            hosted.log.increment_log_start_offset(hosted.log.high_watermark)
            node.logs.checkpoint_log_start_offsets()
        elif what == "high watermarks":
            node.logs.checkpoint_high_watermarks()
        else:
            with pytest.raises(StorageError, match="offline"):
                node.hosted(in_directory(cluster, 1, "a")[0]).log.roll(node.clock.wall_ms())
        assert [d.is_online for d in node.logs.directories] == [False, True]
        await cluster.until(lambda: all(len(cluster.of(p).isr) == 2 for p in (0, 2)))
        await cluster.nothing_acknowledged_is_lost(*PARTITIONS)

    jbod(test)


def test_who_waits_for_a_failed_directory_hears_of_it_at_once() -> None:
    async def test(cluster: JbodCluster) -> None:
        await three_brokers(cluster)
        led = next(p for p in in_directory(cluster, 1, "a") if cluster.of(p).leader == 1)
        cluster.cut |= {(2, 1), (3, 1)}
        produce = asyncio.ensure_future(cluster.produce_to(1, led, "x", timeout_ms=30_000))
        fetch = asyncio.ensure_future(cluster.fetch_from(1, led, 0, max_wait_ms=30_000))
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        cluster.nodes[1].logs.directories[0].state.fail("pulled out")
        assert await produce == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await fetch).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert asyncio.get_running_loop().time() - began < 1
        assert cluster.nodes[1].logs.get(cluster.name(led)) is None

    jbod(test)


def test_a_directory_that_is_still_bad_after_a_restart_is_left_out() -> None:
    """Its replicas are not recreated elsewhere. The others get in sync again, and new ones go to
    the working directory."""

    async def test(cluster: JbodCluster) -> None:
        await three_brokers(cluster)
        await asyncio.gather(*(cluster.load(p, 5) for p in PARTITIONS))
        lost = in_directory(cluster, 1, "a")
        await cluster.stop_node(1)
        cluster.unusable[1, "a"] = "not mounted"
        await cluster.boot(1)
        kept = [p for p in PARTITIONS if p not in lost]
        await cluster.until(lambda: all(len(cluster.of(p).isr) == 3 for p in kept))
        await asyncio.gather(*(cluster.load(p, 5) for p in PARTITIONS))
        node = cluster.nodes[1]
        for p in lost:
            assert set(cluster.of(p).isr) == {2, 3}
            assert cluster.disk(1, "b").exists(f"flights-{p}") is False
            assert "not mounted" in node.partitions.offline[cluster.name(p)]
        assert cluster.scenario.image.brokers[1].log_dirs == (cluster.directory_ids[1, "b"],)
        await cluster.nothing_acknowledged_is_lost(*PARTITIONS)
        cluster.delete()
        cluster.create((1, 2, 3), (1, 3, 2))
        await cluster.until(lambda: len(node.partitions) == 2)
        assert [node.home_of(p) for p in (0, 1)] == ["b", "b"]

    jbod(test)


def test_a_replaced_disk_is_filled_by_its_leaders_and_leads_nothing_before() -> None:
    async def test(cluster: JbodCluster) -> None:
        await three_brokers(cluster)
        await asyncio.gather(*(cluster.load(p, 10) for p in PARTITIONS))
        lost = in_directory(cluster, 1, "a")
        await cluster.stop_node(1)
        cluster.replace_disk(1, "a")
        cluster.cut |= {(1, 2), (1, 3)}  # it cannot catch up yet
        await cluster.boot(1)
        await asyncio.sleep(5)
        for p in lost:
            assert 1 not in cluster.of(p).isr
            assert cluster.nodes[1].hosted(p).log.log_end_offset == 0
        await cluster.stop_node(2, clean=False)
        await cluster.stop_node(3, clean=False)
        await asyncio.sleep(30)
        for p in lost:
            assert cluster.of(p).leader is None, "nobody with the records is there"
        cluster.cut.clear()
        await cluster.boot(2, 3)
        await cluster.until(lambda: all(len(cluster.of(p).isr) == 3 for p in PARTITIONS))
        assert assigned(cluster, 1)
        await asyncio.gather(*(cluster.load(p, 5) for p in PARTITIONS))
        await cluster.nothing_acknowledged_is_lost(*PARTITIONS)

    jbod(test)


def test_the_only_copy_on_a_failed_directory_waits_for_its_disk() -> None:
    """It is offline, not recreated on another or an empty disk; with the disk back it serves."""

    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2)
        cluster.create((1,), (1,), (2,), flush_messages="1")
        await cluster.until(lambda: assigned(cluster, 1) and assigned(cluster, 2))
        await asyncio.gather(*(cluster.load(p, 5) for p in range(3)))
        (lost,) = [p for p in (0, 1) if cluster.nodes[1].home_of(p) == "a"]
        cluster.disk(1, "a").fail_writes()
        assert await cluster.produce_to(1, lost, "x") == ErrorCode.KAFKA_STORAGE_ERROR
        await cluster.until(lambda: cluster.of(lost).leader is None)
        assert cluster.of(lost).isr == (1,)
        await asyncio.gather(*(cluster.load(p, 5) for p in range(3) if p != lost))

        await cluster.stop_node(1)
        good, known = cluster.disk(1, "a"), cluster.directory_ids[1, "a"]
        cluster.replace_disk(1, "a")
        await cluster.boot(1)
        await asyncio.sleep(5)
        assert cluster.of(lost).leader is None
        assert cluster.nodes[1].partitions.find(cluster.name(lost)) is None
        offline = cluster.nodes[1].partitions.offline[cluster.name(lost)]
        assert f"log directory {uuid_to_text(known)}, which this node does not have" in offline

        await cluster.stop_node(1)
        good.crash()  # heals it; what was acknowledged was synced
        cluster.log_disks[1, "a"], cluster.directory_ids[1, "a"] = good, known
        await cluster.boot(1)
        await cluster.until(lambda: cluster.of(lost).leader == 1)
        await cluster.load(lost, 5)
        await cluster.nothing_acknowledged_is_lost(0, 1, 2)

    jbod(test)


def test_a_replica_that_the_controller_did_not_place_yet_is_told_to_be_lost() -> None:
    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2)
        answer = cluster.controller.handlers.pop("AssignReplicasToDirs")
        cluster.create((1, 2), (1, 2), flush_messages="1")
        await cluster.until(lambda: len(cluster.nodes[1].partitions) == 2)
        (lost,) = in_directory(cluster, 1, "a")[:1]
        assert cluster.of(lost).directory_of(1) is None
        cluster.nodes[1].logs.directories[0].state.fail("pulled out")
        await asyncio.sleep(2)
        assert cluster.of(lost).leader == 1, "nobody knows that its log was in there"
        cluster.controller.handlers["AssignReplicasToDirs"] = answer
        await cluster.until(lambda: cluster.of(lost).leader == 2)
        assert cluster.of(lost).isr == (2,)
        assert cluster.of(lost).directory_of(1) == LOST_DIRECTORY
        other = next(p for p in (0, 1) if p != lost)
        assert cluster.of(other).leader == 1
        await cluster.load(lost, 3)

    jbod(test)


def test_a_topic_made_anew_while_a_directory_is_offline_and_the_log_that_comes_back() -> None:
    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1, 2)
        cluster.create((1, 2), (1, 2), flush_messages="1")
        await cluster.until(lambda: assigned(cluster, 1))
        await cluster.load(0, 5)
        home = cluster.nodes[1].home_of(0)
        assert home == "a"
        cluster.nodes[1].logs.directories[0].state.fail("pulled out")
        await cluster.until(lambda: cluster.of(0).leader == 2)
        cluster.delete()
        cluster.acked.clear()
        cluster.create((1, 2), (1, 2), flush_messages="1")
        await cluster.until(lambda: assigned(cluster, 1))
        assert cluster.nodes[1].home_of(0) == "b"
        await cluster.load(0, 3)
        await cluster.stop_node(1)
        await cluster.boot(1)
        assert cluster.nodes[1].home_of(0) == "b"
        assert [n for n in cluster.disk(1, "a").list() if n.endswith("-stray")]
        await cluster.until(lambda: len(cluster.of(0).isr) == 2)
        await cluster.nothing_acknowledged_is_lost(0)

    jbod(test)


def test_a_directory_that_fails_in_recovery_is_left_out() -> None:
    async def test(cluster: JbodCluster) -> None:
        await three_brokers(cluster)
        await asyncio.gather(*(cluster.load(p, 5) for p in PARTITIONS))
        lost = in_directory(cluster, 1, "a")
        await cluster.stop_node(1, clean=False)
        cluster.disk(1, "a").fail_reads("*.log")
        await cluster.boot(1)
        for p in lost:
            assert "offline" in cluster.nodes[1].partitions.offline[cluster.name(p)]
        kept = [p for p in PARTITIONS if p not in lost]
        await cluster.until(lambda: all(len(cluster.of(p).isr) == 3 for p in kept))
        await cluster.nothing_acknowledged_is_lost(*PARTITIONS)

    jbod(test)


def test_a_log_that_can_not_be_opened_is_set_aside_and_copied_anew_from_its_leader() -> None:
    """Damage, not a disk error: the directory stays online with all its other logs."""

    async def test(cluster: JbodCluster) -> None:
        await three_brokers(cluster)
        await asyncio.gather(*(cluster.load(p, 5) for p in PARTITIONS))
        damaged, other = in_directory(cluster, 1, "a")
        await cluster.stop_node(2)
        await cluster.stop_node(3)
        await cluster.stop_node(1)
        home = cluster.disk(1, "a").subdirectory(f"flights-{damaged}")
        home.write_atomic("partition.metadata", b"not this")
        await cluster.boot(1, 2, 3)
        node = cluster.nodes[1]
        assert all(d.is_online for d in node.logs.directories)
        await cluster.until(lambda: len(cluster.of(other).isr) == 3)
        await cluster.until(lambda: len(cluster.of(damaged).isr) == 3)
        assert cluster.of(damaged).leader in (2, 3)
        (aside,) = [n for n in cluster.disk(1, "a").list() if n.endswith("-stray")]
        assert cluster.disk(1, "a").subdirectory(aside).read("partition.metadata") == b"not this"
        await asyncio.gather(*(cluster.load(p, 5) for p in PARTITIONS))
        await cluster.nothing_acknowledged_is_lost(*PARTITIONS)

    jbod(test)


@pytest.mark.parametrize("damage", ["malformed", "another id", "no tail"])
def test_the_last_copy_that_can_not_be_opened_is_reported_lost_and_kept(damage: str) -> None:
    """It leads nothing and is not made anew; with the files repaired it serves again."""

    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1)
        cluster.create((1,), (1,))
        await cluster.load(0, 5)
        node = cluster.nodes[1]
        disk = cluster.disk(1, str(node.home_of(0)))
        await cluster.stop_node(1)
        home = disk.subdirectory("flights-0")
        name = f"{0:020d}.log" if damage == "no tail" else "partition.metadata"
        content = home.read(name)
        broken = {
            "malformed": b"not this",
            "another id": content[:-2] + bytes((content[-2] ^ 1,)) + content[-1:],
            "no tail": content[: len(content) // 2],
        }
        home.write_atomic(name, broken[damage])
        for _ in range(2):
            await cluster.boot(1)
            await cluster.until(lambda: cluster.of(0).directory_of(1) == LOST_DIRECTORY)
            await asyncio.sleep(5)
            assert cluster.of(0).leader is None
            assert "0" in cluster.nodes[1].partitions.offline[cluster.name(0)]
            assert home.read(name) == broken[damage]
            assert not [n for n in disk.list() if n.endswith("-stray")]
            await cluster.stop_node(1)
        home.write_atomic(name, content)
        await cluster.boot(1)
        await cluster.until(lambda: cluster.of(0).leader == 1)
        await cluster.load(0, 5)
        await cluster.nothing_acknowledged_is_lost(0)

    jbod(test)


def test_a_directory_that_fails_while_its_logs_are_deleted() -> None:
    async def test(cluster: JbodCluster) -> None:
        await three_brokers(cluster)
        disk = cluster.disk(1, "a")
        disk.fail_fsync()
        cluster.delete()
        assert not cluster.nodes[1].logs.directories[0].is_online
        assert len(cluster.nodes[1].partitions) == 0
        cluster.acked.clear()
        cluster.create((1, 2, 3), flush_messages="1")
        await cluster.until(lambda: assigned(cluster, 1))
        assert cluster.nodes[1].home_of(0) == "b"
        await cluster.load(0, 3)

    jbod(test)


def test_a_full_disk_does_not_fail_the_last_directory() -> None:
    async def test(cluster: JbodCluster) -> None:
        await cluster.boot(1)
        cluster.create((1,), (1,))
        node = cluster.nodes[1]
        await cluster.load(0, 3)
        node.logs.directories[1].state.fail("pulled out")
        disk = cluster.disk(1, "a")
        disk.set_capacity(disk.disk.used_bytes)
        assert await cluster.produce_to(1, 0, "x") == ErrorCode.KAFKA_STORAGE_ERROR
        assert node.logs.directories[0].is_online
        disk.set_capacity(1 << 40)
        await cluster.load(0, 3)
        disk.fail_writes()
        assert await cluster.produce_to(1, 0, "x") == ErrorCode.KAFKA_STORAGE_ERROR
        assert node.logs.has_failed, "the process has to go"

    jbod(test)
