"""The event loop does not wait for a disk, however slow its fsyncs are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests import virtual_time
from tests.node.cluster import TOPIC, Cluster
from tests.node.slow_disk import FSYNC_S, POOL, SlowDiskLoop
from tidemark.types import TopicPartition, random_uuid
from tidemark.v1 import metadata_pb2 as records_pb

PARTITIONS = 100


def slow(test: Callable[[Cluster, SlowDiskLoop], Awaitable[None]]) -> None:
    async def main() -> None:
        cluster = Cluster(pool=POOL)
        cluster.start(1, 2)
        await asyncio.sleep(1)
        for disk in cluster.disks.values():
            loop.slow_down(disk.disk)
        loop.longest_turn_s = 0.0
        await test(cluster, loop)
        await asyncio.sleep(1)  # the last turn counts, too
        assert loop.longest_turn_s < FSYNC_S
        running = list(cluster.nodes.values())
        await cluster.stop(clean=False)
        assert [node.fatal for node in running] == [[] for _ in running]

    loop = SlowDiskLoop()
    virtual_time.run(main(), loop)


def create(cluster: Cluster, count: int = PARTITIONS) -> None:
    records = [
        records_pb.MetadataRecord(
            topic=records_pb.TopicRecord(name=TOPIC, topic_id=cluster.topic_id.bytes)
        )
    ]
    for index in range(count):
        partition = records_pb.PartitionRecord(
            partition_id=index,
            topic_id=cluster.topic_id.bytes,
            replicas=(1, 2),
            isr=(1, 2),
            leader=1,
        )
        records.append(records_pb.MetadataRecord(partition=partition))
    cluster.publish(*records)


async def hosted_everywhere(cluster: Cluster, count: int) -> None:
    for _ in range(10_000):
        if all(len(node.partitions) == count for node in cluster.nodes.values()):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("not all partitions are hosted")


def test_no_turn_waits_for_the_fsyncs_of_a_hundred_new_partitions() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster)
        await hosted_everywhere(cluster, PARTITIONS)
        assert (await cluster.nodes[1].produce("a")).base_offset == 0

    slow(test)


def test_no_turn_waits_for_the_fsyncs_of_a_hundred_deleted_partitions() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster)
        await hosted_everywhere(cluster, PARTITIONS)
        cluster.delete_topic()
        await hosted_everywhere(cluster, 0)
        assert not cluster.nodes[1].logs.logs()

    slow(test)


def test_a_new_log_takes_no_record_before_a_checkpoint_names_it() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 1)
        await asyncio.sleep(FSYNC_S)
        assert cluster.nodes[1].logs.get(TopicPartition(TOPIC, 0)) is not None
        assert cluster.nodes[1].partitions.find(TopicPartition(TOPIC, 0)) is None
        await hosted_everywhere(cluster, 1)
        assert cluster.disks[1].read("replication-offset-checkpoint") == (
            f"0\n1\n{TOPIC} 0 0\n".encode()
        )

    slow(test)


def test_a_topic_deleted_and_made_anew_while_its_log_is_made_durable_has_the_new_log() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 2)
        await asyncio.sleep(FSYNC_S)
        cluster.delete_topic()
        cluster.topic_id = random_uuid()
        create(cluster, 1)
        await hosted_everywhere(cluster, 1)
        for node in cluster.nodes.values():
            assert [log.topic_id for log in node.logs.logs()] == [cluster.topic_id]
        assert (await cluster.nodes[1].produce("a")).base_offset == 0

    slow(test)


def test_a_topic_deleted_while_its_log_is_made_durable_leaves_no_log() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create(cluster, 2)
        await asyncio.sleep(FSYNC_S)
        cluster.delete_topic()
        await asyncio.sleep(5)
        for node in cluster.nodes.values():
            assert node.logs.logs() == []
            assert len(node.partitions) == 0

    slow(test)
