"""The tier in a real cluster: processes, gRPC, the metadata topic. A broker that was killed finds
everything again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.minio_fixture import ObjectStore
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import AsyncAdmin, AsyncConsumer, AsyncProducer, NewTopic
from tidemark.types import TopicPartition

TIERED = TopicPartition("tiered", 0)
VALUES = [b"%0100d" % number for number in range(1500)]
WAIT_S = 45


def settings(storage: dict[str, str]) -> dict[str, str]:
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.metadata.topic.num.partitions": "2",
        "remote.log.metadata.topic.replication.factor": "1",
        "remote.log.metadata.topic.min.isr": "1",
        "remote.log.manager.task.interval.ms": "500",
        **storage,
    }


async def fill(bootstrap: str, broker: int | None = None) -> None:
    """Produces to a topic, on `broker` if given, whose rolled segments leave the local disk."""
    async with AsyncAdmin(bootstrap) as admin:
        configs = {
            "segment.bytes": "32768",
            "retention.ms": "-1",
            "remote.storage.enable": "true",
            "local.retention.bytes": "1",
        }
        if broker is None:
            topic = NewTopic(TIERED.topic, 1, 1, configs)
        else:
            topic = NewTopic(TIERED.topic, configs=configs, assignments={0: (broker,)})
        await admin.create_topics([topic])
    async with AsyncProducer(bootstrap) as producer:
        for start in range(0, len(VALUES), 50):
            for value in VALUES[start : start + 50]:
                delivery = producer.send(TIERED.topic, value, partition=0)
            await delivery


async def local_start(bootstrap: str) -> int:
    """Waits until the rolled segments are in the tier and deleted locally; returns the
    local start.
    """
    async with AsyncAdmin(bootstrap) as admin, asyncio.timeout(WAIT_S):
        while True:
            replicas = [
                replica
                for directories in (await admin.describe_log_dirs()).values()
                for directory in directories
                for replica in directory.replicas
                if replica.topic_partition == TIERED
            ]
            if replicas and replicas[0].remote_copy_lag_segments == 0:
                start = replicas[0].local_log_start_offset
                if start > len(VALUES) // 2:
                    return int(start)
            await asyncio.sleep(0.1)


async def read_back(bootstrap: str) -> list[bytes]:
    found: list[bytes] = []
    async with AsyncConsumer(bootstrap) as consumer, asyncio.timeout(WAIT_S):
        consumer.assign([TIERED])
        consumer.seek(TIERED, 0)
        while len(found) < len(VALUES):
            found += [bytes(record.value or b"") for record in await consumer.poll(1000)]
    return found


def run(path: Path, storage: dict[str, str]) -> None:
    with LocalCluster(path, controllers=1, brokers=1, overrides=settings(storage)) as cluster:
        cluster.wait_ready()
        asyncio.run(fill(cluster.bootstrap_servers))
        before = asyncio.run(local_start(cluster.bootstrap_servers))
        assert asyncio.run(read_back(cluster.bootstrap_servers)) == VALUES
        (broker,) = cluster.broker_ids
        cluster.kill(broker)
        cluster.restart(broker)
        cluster.wait_ready()
        assert asyncio.run(read_back(cluster.bootstrap_servers)) == VALUES
        assert asyncio.run(local_start(cluster.bootstrap_servers)) >= before


def test_a_cluster_tiers_to_a_directory_and_reads_back_after_a_kill(tmp_path: Path) -> None:
    run(
        tmp_path / "data",
        {
            "remote.log.storage.manager.class.name": "directory",
            "rsm.config.dir": str(tmp_path / "tier"),
        },
    )
    assert list((tmp_path / "tier").rglob("*.sidecar"))


async def replica_on(bootstrap: str, broker: int) -> tuple[int, int, int]:
    """Returns log start, local start and local bytes of the partition's replica on a broker."""
    async with AsyncAdmin(bootstrap) as admin:
        for directory in (await admin.describe_log_dirs())[broker]:
            for replica in directory.replicas:
                if replica.topic_partition == TIERED:
                    return (
                        replica.log_start_offset,
                        replica.local_log_start_offset,
                        replica.size_bytes,
                    )
    raise AssertionError(f"broker {broker} has no replica")


async def move(bootstrap: str, broker: int) -> None:
    """Moves the partition to a broker that has nothing of it, which then leads it."""
    async with AsyncAdmin(bootstrap) as admin, asyncio.timeout(WAIT_S):
        await admin.alter_partition_reassignments({TIERED: [broker]})
        await admin.wait_until_reassigned({TIERED: [broker]})


def test_a_new_follower_copies_the_local_part_alone_then_leads_and_serves_everything(
    tmp_path: Path,
) -> None:
    storage = {
        "remote.log.storage.manager.class.name": "directory",
        "rsm.config.dir": str(tmp_path / "tier"),
    }
    overrides = settings(storage)
    with LocalCluster(tmp_path / "data", controllers=1, brokers=2, overrides=overrides) as cluster:
        cluster.wait_ready()
        one, other = sorted(cluster.broker_ids)
        asyncio.run(fill(cluster.bootstrap_servers, one))
        before = asyncio.run(local_start(cluster.bootstrap_servers))
        asyncio.run(move(cluster.bootstrap_servers, other))
        log_start, first, size = asyncio.run(replica_on(cluster.bootstrap_servers, other))
        assert log_start == 0
        assert first >= before
        assert size < len(VALUES) * 100 // 4
        assert asyncio.run(read_back(cluster.bootstrap_servers)) == VALUES


@pytest.mark.minio
def test_a_cluster_tiers_to_an_object_store_and_reads_back_after_a_kill(
    tmp_path: Path, object_store: ObjectStore
) -> None:
    prefix = f"cluster/{tmp_path.name}/"
    config = {f"rsm.config.{k}": v for k, v in object_store.rsm_config(prefix).items()}
    run(tmp_path / "data", {"remote.log.storage.manager.class.name": "s3", **config})
    client = object_store.client()
    names = [one.object_name for one in client.list_objects(object_store.bucket, prefix, True)]
    assert any(name.endswith(".log") for name in names)
