"""Consumer groups on real nodes: members come and go, and coordinators are killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    CommitFailedError,
    Consumer,
    ConsumerRecord,
    NewTopic,
    OffsetAndMetadata,
    Producer,
)
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2 as pb

SETTINGS = {
    "broker.session.timeout.ms": "2000",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.session.timeout.ms": "6000",
    "offsets.topic.num.partitions": "5",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("groups")
    with LocalCluster(directory, controllers=1, brokers=3, overrides=SETTINGS) as cluster:
        cluster.wait_ready(60)
        yield cluster


def topic(cluster: LocalCluster, name: str, partitions: int) -> list[TopicPartition]:
    with Admin(cluster.bootstrap_servers) as admin:
        configs = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic(name, partitions, 3, configs=configs)])
        admin.wait_until_topics_known([name])
    return [TopicPartition(name, number) for number in range(partitions)]


class Told:
    """A listener that notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("assigned", list(partitions)))

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await asyncio.sleep(0)
        self.calls.append(("revoked", list(partitions)))


def consumer(cluster: LocalCluster, group: str, **settings: object) -> AsyncConsumer:
    return AsyncConsumer(
        cluster.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        **settings,  # type: ignore[arg-type]
    )


def test_two_members_share_the_partitions_and_the_one_that_stays_takes_over(
    cluster: LocalCluster,
) -> None:
    partitions = topic(cluster, "shared", 4)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(400):
            producer.send("shared", b"%d" % number, partition=number % 4)
        producer.flush()

    async def main() -> None:
        told = Told()
        first, second = consumer(cluster, "two"), consumer(cluster, "two")
        first.subscribe(["shared"], listener=told)
        found: list[ConsumerRecord] = []
        while len(found) < 400:
            found += await first.poll(1_000)
        assert len({record.value for record in found}) == 400
        second.subscribe(pattern="shared|other")
        while len(first.assignment()) != 2 or len(second.assignment()) != 2:
            assert not len(await first.poll(100)), "what was processed is committed"
            assert not len(await second.poll(100)), "it begins behind what was processed"
        assert told.calls[0] == ("assigned", partitions)
        assert told.calls[1][0] == "revoked"
        assert set(first.assignment()) | set(second.assignment()) == set(partitions)
        await second.close()
        while len(first.assignment()) != 4:
            assert not len(await first.poll(100))
        await first.commit()
        found = (await first.committed(partitions)).values()
        assert [one and one.offset for one in found] == [100] * 4
        await first.unsubscribe()
        assert first.assignment() == []
        assert told.calls[-1] == ("revoked", partitions)
        with pytest.raises(ValueError, match="pattern"):
            first.subscribe()
        await first.close()

    asyncio.run(main())


def test_an_iteration_commits_no_record_that_it_did_not_reach(cluster: LocalCluster) -> None:
    (partition,) = topic(cluster, "slowly", 1)

    async def main() -> None:
        async with AsyncProducer(cluster.bootstrap_servers) as producer:
            for number in range(20):
                await producer.send("slowly", b"%d" % number)
        first = consumer(cluster, "one by one", enable_auto_commit=False)
        first.subscribe(["slowly"])
        async for record in first:
            if record.offset == 7:
                break
        await first.commit()
        found = (await first.committed([partition]))[partition]
        assert found is not None
        assert found.offset == 7, "the record with offset 7 is being processed"
        async for record in first:
            assert record.offset == 8
            break
        first.seek(partition, 3)
        async for record in first:
            assert record.offset == 3
            break
        (record,) = await first.poll(5_000, max_records=1)
        assert record.offset == 4, "polling goes on there"
        await first.close()
        second = consumer(cluster, "one by one")
        second.subscribe(["slowly"])
        rows = 0
        async for batch in second.arrow():
            rows += batch.num_rows
            if rows == 13:
                break
        await second.close()

    asyncio.run(main())


def test_who_assigns_itself_uses_the_groups_offsets(cluster: LocalCluster) -> None:
    (partition,) = topic(cluster, "alone", 1)
    with (
        Producer(cluster.bootstrap_servers) as producer,
        Consumer(cluster.bootstrap_servers, group_id="alone", auto_offset_reset="none") as reader,
    ):
        for number in range(10):
            producer.send("alone", b"%d" % number)
        producer.flush()
        reader.commit({partition: OffsetAndMetadata(4, None, "four")})
        reader.assign([partition])
        assert next(iter(reader.poll(10_000))).offset == 4
        assert reader.committed([partition]) == {partition: OffsetAndMetadata(4, None, "four")}
        reader.commit()
        found = reader.committed([partition])[partition]
        assert found is not None
        assert found.offset == 10
        reader.subscribe(["alone"])
        with pytest.raises(ValueError, match="unsubscribe first"):
            reader.assign([partition])
    with Consumer(cluster.bootstrap_servers) as reader, pytest.raises(ValueError, match="group_id"):
        reader.commit()


def test_a_member_that_was_removed_can_not_commit_and_joins_again(cluster: LocalCluster) -> None:
    partitions = topic(cluster, "removed", 1)

    async def main() -> None:
        told = Told()
        first = consumer(cluster, "removed", max_poll_interval_ms=1_000)
        first.subscribe(["removed"], listener=told)
        while first.assignment() != partitions:
            await first.poll(100)
        await asyncio.sleep(2.5)
        with pytest.raises(CommitFailedError, match="poll to join again"):
            await first.commit({partitions[0]: 0})
        while [what for what, _ in told.calls] != ["assigned", "revoked", "assigned"]:
            await first.poll(100)
        await first.commit({partitions[0]: 0})
        await first.close()

    asyncio.run(main())


def coordinator_of(cluster: LocalCluster, group: str) -> int:
    import grpc

    from tidemark.v1 import group_pb2_grpc

    with grpc.insecure_channel(cluster.bootstrap_servers.split(",")[-1]) as channel:
        stub = group_pb2_grpc.GroupsStub(channel)
        answer = stub.FindCoordinator(pb.FindCoordinatorRequest(coordinator_keys=[group]))
        return int(answer.coordinators[0].node_id)


def test_no_record_is_skipped_while_members_and_coordinators_are_killed(
    cluster: LocalCluster,
) -> None:
    partitions = topic(cluster, "storm", 6)
    count = 6_000

    async def main() -> None:
        seen: Counter[bytes] = Counter()

        async def work(name: str, until: int) -> None:
            reader = consumer(cluster, "storm", client_id=name, auto_commit_interval_ms=200)
            reader.subscribe(["storm"])
            while sum(seen.values()) < until and len(seen) < count:
                for record in await reader.poll(200, max_records=50):
                    seen[record.value or b""] += 1
                await asyncio.sleep(0.01)
            if until < 10**9:
                await reader._connections.close()  # it is killed: nobody leaves
                assert reader._member is not None
                assert reader._member._beat is not None
                reader._member._beat.cancel()
                await work(name + "'", 10**9)
            else:
                await reader.close()

        async def produce() -> None:
            async with AsyncProducer(cluster.bootstrap_servers) as producer:
                for number in range(count):
                    producer.send("storm", b"%d" % number, partition=number % 6)
                    if number % 100 == 0:
                        await asyncio.sleep(0.05)
                await producer.flush()

        async def kill() -> None:
            await asyncio.sleep(1.5)
            node = await asyncio.to_thread(coordinator_of, cluster, "storm")
            await asyncio.to_thread(cluster.kill, node)
            await asyncio.sleep(3)
            await asyncio.to_thread(cluster.restart, node)

        await asyncio.gather(
            produce(), kill(), work("a", 10**9), work("b", 1_500), work("c", 10**9)
        )
        assert len(seen) == count, "a record was skipped"
        last = consumer(cluster, "storm")
        last.subscribe(["storm"])
        while len(last.assignment()) < 6:
            await last.poll(100)
        found = await last.committed(partitions)
        assert [one and one.offset for one in found.values()] == [count // 6] * 6
        await last.close()

    asyncio.run(main())
