"""Transactions on real nodes: committed, aborted, fenced, with offsets of a group, and while the
coordinator is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ErrorKind,
    NewTopic,
    Producer,
    TransactionInDoubtError,
    kind_of,
)
from tidemark.errors import TidemarkError
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2, group_pb2_grpc

SETTINGS = {
    "broker.session.timeout.ms": "2000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.session.timeout.ms": "6000",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("transactions")
    with LocalCluster(directory, controllers=1, brokers=3, overrides=SETTINGS) as cluster:
        cluster.wait_ready(60)
        yield cluster


def topic(cluster: LocalCluster, name: str, partitions: int = 1) -> list[TopicPartition]:
    with Admin(cluster.bootstrap_servers) as admin:
        configs = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic(name, partitions, 3, configs=configs)])
        admin.wait_until_topics_known([name])
    return [TopicPartition(name, number) for number in range(partitions)]


def seen(
    cluster: LocalCluster, partitions: list[TopicPartition], isolation: str = "read_committed"
) -> list[bytes | None]:
    """The values up to the end of each partition. A commit returns before its markers are written:
    the last stable offset may be below that end for a moment."""
    found: list[bytes | None] = []
    with Consumer(cluster.bootstrap_servers) as uncommitted:
        ends = uncommitted.end_offsets(partitions)
    with Consumer(cluster.bootstrap_servers, isolation_level=isolation) as reader:
        reader.assign(partitions)
        reader.seek_to_beginning()
        while any(reader.position(partition) < end for partition, end in ends.items()):
            found += [record.value for record in reader.poll(1_000)]
    return found


def coordinator_of(cluster: LocalCluster, transactional_id: str) -> int:
    with grpc.insecure_channel(cluster.bootstrap_servers.split(",")[-1]) as channel:
        answer = group_pb2_grpc.GroupsStub(channel).FindCoordinator(
            group_pb2.FindCoordinatorRequest(
                key_type=group_pb2.TRANSACTION, coordinator_keys=[transactional_id]
            )
        )
        return int(answer.coordinators[0].node_id)


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(cluster: LocalCluster) -> None:
    partitions = topic(cluster, "ends", 3)
    with Producer(cluster.bootstrap_servers, transactional_id="ends") as producer:
        producer.init_transactions()
        for number in range(10):
            producer.begin_transaction()
            for each in range(30):
                producer.send("ends", b"%d-%d" % (number, each), partition=each % 3)
            if number % 2:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    found = seen(cluster, partitions)
    assert len(found) == 150
    assert set(found) == {b"%d-%d" % (n, each) for n in range(0, 10, 2) for each in range(30)}
    assert len(seen(cluster, partitions, "read_uncommitted")) == 300


def test_a_second_producer_fences_the_first_and_ends_its_transaction(cluster: LocalCluster) -> None:
    partitions = topic(cluster, "fenced")
    with (
        Producer(cluster.bootstrap_servers, transactional_id="fenced") as first,
        Producer(cluster.bootstrap_servers, transactional_id="fenced") as second,
    ):
        first.init_transactions()
        first.begin_transaction()
        first.send("fenced", b"open").result(30)
        with second.transaction():
            second.send("fenced", b"second")
        late = first.send("fenced", b"late")
        with pytest.raises(TidemarkError) as told:
            first.commit_transaction()
        assert kind_of(told.value) is ErrorKind.RECOVERABLE
        assert isinstance(late.exception(), type(told.value))
        with pytest.raises(type(told.value)):
            first.begin_transaction()
        with second.transaction():
            second.send("fenced", b"again")
    assert seen(cluster, partitions) == [b"second", b"again"]


async def copy(cluster: LocalCluster, name: str, count: int) -> int:
    """Copies records by a group of one member until all are there. Returns the number of blocks
    that failed."""
    failures = 0
    source = TopicPartition(f"{name}-in", 0)
    async with (
        AsyncProducer(cluster.bootstrap_servers, transactional_id=name) as producer,
        AsyncConsumer(
            cluster.bootstrap_servers,
            group_id=name,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        consumer.subscribe([source.topic])
        copied = 0
        while copied < count:
            records = await consumer.poll(500, max_records=20)
            try:
                async with producer.transaction():
                    for record in records:
                        producer.send(f"{name}-out", record.value)
                    await producer.send_offsets_to_transaction(
                        consumer.positions(), consumer.group_metadata()
                    )
            except TransactionInDoubtError:
                failures += 1
                await producer.commit_transaction()
            except TidemarkError as error:
                if kind_of(error) is not ErrorKind.ABORTABLE:
                    raise
                failures += 1
                found = (await consumer.committed([source]))[source]
                consumer.seek(source, 0 if found is None else found.offset)
                continue
            if consumer.assignment():
                copied = await consumer.position(source)
            await asyncio.sleep(0.02)
    return failures


def test_offsets_are_committed_with_the_records(cluster: LocalCluster) -> None:
    (source,) = topic(cluster, "copy-in")
    out = topic(cluster, "copy-out", 2)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(100):
            producer.send("copy-in", b"%d" % number)
    assert asyncio.run(copy(cluster, "copy", 100)) == 0
    assert sorted(int(value or b"") for value in seen(cluster, out)) == list(range(100))
    with Consumer(cluster.bootstrap_servers, group_id="copy") as reader:
        committed = reader.committed([source])[source]
        assert committed is not None
        assert committed.offset == 100


def test_each_record_is_copied_once_while_the_coordinator_is_killed(cluster: LocalCluster) -> None:
    count = 2_000
    topic(cluster, "storm-in")
    out = topic(cluster, "storm-out", 3)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(count):
            producer.send("storm-in", b"%d" % number)

    async def kill() -> None:
        for _ in range(2):
            await asyncio.sleep(1)
            node = await asyncio.to_thread(coordinator_of, cluster, "storm")
            await asyncio.to_thread(cluster.kill, node)
            await asyncio.sleep(2)
            await asyncio.to_thread(cluster.restart, node)
            await asyncio.to_thread(cluster.wait_ready, 60)

    async def main() -> None:
        await asyncio.gather(copy(cluster, "storm", count), kill())

    asyncio.run(main())
    found = seen(cluster, out)
    assert len(found) == len(set(found)), "a record was copied twice"
    assert {int(value or b"") for value in found} == set(range(count))
