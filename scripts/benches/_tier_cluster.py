"""A large tiered partition in real processes: cold reads through a consumer, what they cost hot
producers, and a follower that joins.

The partition has one percent of its bytes locally. Readers run in a process of
their own. The ceiling of the follower is one of a partition without a tier, as large as the local
part. A hot producer is compared with itself without readers, and beside readers of local records.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client_paths import chunk

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import AsyncAdmin, AsyncConsumer, AsyncProducer, NewTopic
from tidemark.types import TopicPartition

if TYPE_CHECKING:
    from tests.minio_fixture import MinioServer

TOTAL_BYTES = 2 << 30
LOCAL_SHARE = 0.01
READERS = 4
READER_BYTES_PER_S = 10e6
HOT_S = 6.0


def settings_of(store: MinioServer, prefix: str) -> dict[str, str]:
    """Settings of nodes whose tier is in the store, under this prefix."""
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.metadata.topic.num.partitions": "1",
        "remote.log.manager.task.interval.ms": "500",
        "log.retention.check.interval.ms": "500",
        **{f"rsm.config.{name}": value for name, value in store.rsm_config(prefix).items()},
    }


def run(scale: float) -> list[dict[str, Any]]:
    from tests.minio_fixture import MinioServer

    total = int(TOTAL_BYTES * scale)
    with MinioServer() as store, tempfile.TemporaryDirectory(prefix="bench-tier-") as path:
        settings = settings_of(store, "cold/")
        with LocalCluster(Path(path), controllers=1, brokers=2, overrides=settings) as cluster:
            cluster.wait_ready(60)
            return asyncio.run(_rows(cluster, store, total))


async def _rows(cluster: LocalCluster, store: Any, total: int) -> list[dict[str, Any]]:
    servers, (leader, follower) = cluster.bootstrap_servers, cluster.broker_ids
    local = int(total * LOCAL_SHARE)
    tiered = {
        "remote.storage.enable": "true",
        "segment.bytes": str(max(8 << 20, local // 2)),
        "local.retention.bytes": str(local),
        "retention.ms": "-1",
    }
    async with AsyncAdmin(servers) as admin:
        topics = {"cold": tiered, "local": {}, "hot": {}}
        await admin.create_topics(
            [NewTopic(name, configs=c, assignments={0: (leader,)}) for name, c in topics.items()]
        )
        await _produce(servers, "cold", total)
        rows = [await _drained(admin, total)]
        kept = await _replica(admin, "cold")
        await _produce(servers, "local", max(kept.size_bytes, 6 << 20))
        rows += await _cold_read(servers, store, total)
        rows += await _hot_rows(servers)
        plain_s = await _join(admin, "local", [leader, follower])
        cold_s = await _join(admin, "cold", [leader, follower])
    name = f"tier: follower of {total >> 20} MiB, {kept.size_bytes >> 20} MiB local, joins"
    return [*rows, _row(f"{name} (ceiling: the local part alone)", cold_s, "s", plain_s)]


async def _produce(servers: str, topic: str, total: int, seconds: float | None = None) -> float:
    """Produces whole batches until so many bytes, or so long; returns bytes/s."""
    data, sent = chunk(1000), 0
    async with AsyncProducer(servers, acks="all") as producer:
        await producer.send_arrow(topic, data)
        begun, deliveries = time.perf_counter(), []
        while sent < total and (seconds is None or time.perf_counter() - begun < seconds):
            delivery = producer.send_arrow(topic, data)
            await delivery.accepted()
            deliveries.append(delivery)
            sent += data.num_rows * 1000
            if len(deliveries) > 8:
                await deliveries.pop(0)
        for delivery in deliveries:
            await delivery
        return sent / (time.perf_counter() - begun)


async def _replica(admin: AsyncAdmin, topic: str) -> Any:
    """The leader's replica of the topic's only partition."""
    described = await admin.describe_log_dirs(topics=[topic])
    found = [r for dirs in described.values() for d in dirs for r in d.replicas]
    return next(replica for replica in found if replica.is_leader)


async def _drained(admin: AsyncAdmin, total: int) -> dict[str, Any]:
    """Waits until all is in the tier and the rest is deleted locally; the wait is a row."""
    begun = time.perf_counter()
    async with asyncio.timeout(240):
        while True:
            replica = await _replica(admin, "cold")
            is_short = replica.size_bytes <= 3 * total * LOCAL_SHARE + (8 << 20)
            if not replica.remote_copy_lag_segments and is_short:
                break
            await asyncio.sleep(0.1)
    wait_s = time.perf_counter() - begun
    return _row("tier: copied and deleted locally, after the last produce", wait_s, "s", None)


async def _cold_read(servers: str, store: Any, total: int) -> list[dict[str, Any]]:
    """One consumer from the beginning of the tier, beside raw gets of the same objects."""
    from tier import RawStore, raw_gets

    wanted = total // 2
    rate = await _read_rate(servers, "cold", wanted)
    await _produce(servers, "hot", wanted)
    hot = await _read_rate(servers, "hot", wanted)
    objects, taken = {}, 0
    for name, size in RawStore(store).names(".log").items():
        if taken < wanted:
            objects[name] = size
            taken += size
    get_s = await asyncio.to_thread(raw_gets, RawStore(store), objects)
    return [
        _row(
            "tier: cold read by one consumer beside raw get",
            rate / 1e6,
            "MB/s",
            taken / get_s / 1e6,
        ),
        _row("tier: cold read by one consumer beside local", rate / 1e6, "MB/s", hot / 1e6),
        _row("tier: cold read by one consumer (ceiling: Kafka's)", rate / 1e9, "GB/s", 0.3),
    ]


async def _read_rate(servers: str, topic: str, wanted: int) -> float:
    """Bytes/s of one consumer that reads so many from the beginning."""
    begun, read = time.perf_counter(), 0
    async with AsyncConsumer(servers) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        while read < wanted:
            for raw in await consumer.fetch_batches(10_000):
                read += len(raw.buffer)
    return read / (time.perf_counter() - begun)


async def _hot_rows(servers: str) -> list[dict[str, Any]]:
    """An unpaced hot producer alone, beside readers of local records, and beside cold readers."""
    await _produce(servers, "hot", 1 << 40, 2)
    alone = await _produce(servers, "hot", 1 << 40, HOT_S)
    rates = {}
    for topic in ("local", "cold"):
        with _readers(servers, topic):
            rates[topic] = await _produce(servers, "hot", 1 << 40, HOT_S)
    name = f"tier: hot produce beside {READERS} cold readers of 10 MB/s"
    cold = rates["cold"] / 1e6
    return [
        _row(f"{name} (ceiling: alone)", cold, "MB/s", alone / 1e6),
        _row(f"{name} (ceiling: as many local readers)", cold, "MB/s", rates["local"] / 1e6),
    ]


@contextmanager
def _readers(servers: str, topic: str) -> Iterator[None]:
    """Readers at an even pace in a process of their own; they begin anew at the end."""
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    process = context.Process(target=_read_on, args=(servers, topic, started), daemon=True)
    process.start()
    try:
        assert started.wait(60)
        yield
    finally:
        process.terminate()
        process.join()


def _read_on(servers: str, topic: str, started: Any) -> None:
    async def reader(number: int) -> None:
        partition, loop = TopicPartition(topic, 0), asyncio.get_running_loop()
        async with AsyncConsumer(servers, buffer_bytes=4 << 20) as consumer:
            end = (await consumer.end_offsets([partition]))[partition]
            consumer.assign([partition])
            consumer.seek(partition, end * number // (2 * READERS))
            begun, read = loop.time(), 0
            while True:
                for raw in await consumer.fetch_batches(10_000):
                    read += len(raw.buffer)
                    if raw.next_offset >= end * 9 // 10:
                        consumer.seek(partition, 0)
                started.set()
                await asyncio.sleep(max(0.0, begun + read / READER_BYTES_PER_S - loop.time()))

    async def all_of_them() -> None:
        await asyncio.gather(*(reader(number) for number in range(READERS)))

    asyncio.run(all_of_them())


async def _join(admin: AsyncAdmin, topic: str, brokers: list[int]) -> float:
    """Seconds until a new follower is in the ISR."""
    begun = time.perf_counter()
    await admin.alter_partition_reassignments({TopicPartition(topic, 0): brokers})
    async with asyncio.timeout(120):
        while True:
            (partition,) = (await admin.describe_topics([topic]))[topic].partitions
            if set(partition.isr) == set(brokers):
                return time.perf_counter() - begun
            await asyncio.sleep(0.02)


def _row(name: str, value: float, unit: str, ceiling: float | None) -> dict[str, Any]:
    ratio = None if not ceiling else round(value / ceiling, 3)
    return {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}
