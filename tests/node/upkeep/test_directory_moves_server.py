"""A real broker with two log directories and a tier: partitions move to and fro under load.

A producer with acks=all writes meanwhile. A consumer gets each record once, also after a restart.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from node.runtime.storage import format_storage
from node.server import Server
from tests.node.fakes import CLUSTER_ID
from tests.node.test_server import combined_config
from tidemark.cli.main import app
from tidemark.client import (
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    NewTopic,
    TopicPartition,
    TopicPartitionReplica,
)
from tidemark.config import ServerConfig
from tidemark.errors import LogDirNotFoundError, ReplicaNotAvailableError

ROUNDS = 3
COUNT = 1_200
TOPICS = {
    "plain": {"segment.bytes": "20000"},
    "compacted": {
        "segment.bytes": "20000",
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
    },
    "tiered": {
        "segment.bytes": "20000",
        "remote.storage.enable": "true",
        "local.retention.bytes": "30000",
    },
}


def node_config(path: Path) -> ServerConfig:
    tier = {
        "remote.log.storage.system.enable": "true",
        "remote.log.metadata.topic.num.partitions": "1",
        "remote.log.metadata.topic.replication.factor": "1",
        "remote.log.metadata.topic.min.isr": "1",
        "remote.log.manager.task.interval.ms": "100",
        "rsm.config.dir": str(path / "tier"),
        "log.retention.check.interval.ms": "100",
        "log.cleaner.backoff.ms": "50",
        "log.cleaner.dedupe.buffer.size": "65536",
    }
    return combined_config(path, **{"log.dirs": f"{path / 'a'},{path / 'b'}"}, **tier)


async def homes(admin: AsyncAdmin) -> tuple[dict[str, str], bool]:
    """The directory of each topic's partition, and whether one is moving."""
    found: dict[str, str] = {}
    moving = False
    for directory in (await admin.describe_log_dirs([1], list(TOPICS)))[1]:
        for replica in directory.replicas:
            moving |= replica.is_future
            if not replica.is_future:
                found[replica.topic_partition.topic] = directory.log_dir
    return found, moving


async def move_all(admin: AsyncAdmin, config: ServerConfig) -> None:
    """Moves every partition to the other directory; returns when they are there."""
    before, _ = await homes(admin)
    first, second = config.log_dirs
    wanted = {topic: second if home == first else first for topic, home in before.items()}
    answers = await admin.alter_replica_log_dirs(
        {TopicPartitionReplica(TopicPartition(t, 0), 1): path for t, path in wanted.items()}
    )
    assert set(answers.values()) == {None}
    async with asyncio.timeout(30):
        while await homes(admin) != (wanted, False):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def move_by_hand(bootstrap: str, home: str, config: ServerConfig) -> None:
    to = next(path for path in config.log_dirs if path != home)
    command = ["log-dirs", "move", "--broker", "1", "--topic-partition", "plain-0", "--to", to]
    command += ["--bootstrap-server", bootstrap]
    done = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[1].split("\t") == ["plain-0", "1", to, "complete"]


async def produce(bootstrap: str, topic: str) -> None:
    async with AsyncProducer(bootstrap, acks="all", linger_ms=1) as producer:
        for start in range(0, COUNT, 20):
            sent = [
                producer.send(topic, b"%0100d" % n, key=b"%d" % n, partition=0)
                for n in range(start, start + 20)
            ]
            for delivery in sent:
                await delivery
            await asyncio.sleep(0.002)


async def consume(bootstrap: str, topic: str) -> list[int]:
    found: list[int] = []
    async with AsyncConsumer(bootstrap) as consumer, asyncio.timeout(60):
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        while len(found) < COUNT:
            found += [int(record.value or b"") for record in await consumer.poll(1000)]
    return found


async def run(config: ServerConfig, *, first: bool) -> None:
    server = Server(config)
    await server.start()
    try:
        await server.wait_until_ready()
        bootstrap = next(iter(config.broker_listeners().values())).address
        async with AsyncAdmin(bootstrap) as admin:
            if first:
                await admin.create_topics([NewTopic(t, 1, 1, c) for t, c in TOPICS.items()])
                load = [asyncio.ensure_future(produce(bootstrap, topic)) for topic in TOPICS]
                for _ in range(ROUNDS):
                    await move_all(admin, config)
                await asyncio.gather(*load)
            await move_all(admin, config)
            await move_by_hand(bootstrap, (await homes(admin))[0]["plain"], config)
            elsewhere = {
                TopicPartitionReplica(TopicPartition("plain", 0), 1): "/nowhere",
                TopicPartitionReplica(TopicPartition("plain", 9), 1): config.log_dirs[0],
            }
            refused = await admin.alter_replica_log_dirs(elsewhere)
            assert list(map(type, refused.values())) == [
                LogDirNotFoundError,
                ReplicaNotAvailableError,
            ]
        for topic in TOPICS:
            assert await consume(bootstrap, topic) == list(range(COUNT)), topic
    finally:
        await server.stop()


@pytest.mark.timeout(120)
def test_records_are_there_once_after_moves_to_and_fro_and_a_restart(tmp_path: Path) -> None:
    config = node_config(tmp_path)
    format_storage(config, CLUSTER_ID)
    asyncio.run(run(config, first=True))
    left = [p.name for d in config.log_dirs for p in Path(d).iterdir() if "-future" in p.name]
    assert left == []
    asyncio.run(run(config, first=False))
