"""Fetches of several partitions: how they share the limit of a response, what ends a long poll, and
what a fetch leaves behind."""

from __future__ import annotations

import asyncio

from node.partition.hosted import HostedPartition
from node.serving.fetch_session import (
    FetchContext,
    FetchingReplica,
    FetchPartition,
    FetchSession,
    SessionlessFetch,
)
from node.serving.fetching import FetchParams
from tests.node.cluster import TOPIC, Cluster, batch, values_of
from tests.node.replication.test_replication import scenario
from tidemark.records.header import HEADER_BYTES
from tidemark.v1 import log_pb2
from tidemark.v1 import metadata_pb2 as records_pb
from tidemark.wire import FetchPartitionData, PartitionProduceData, decode_fetch_response

SIZE = len(batch("a"))
LARGE = 1 << 20


def create(cluster: Cluster, partitions: int) -> None:
    """A topic whose partitions are led by node 1 and followed by node 2, which can not fetch."""
    cluster.cut |= {(2, 1)}
    topic_id = cluster.topic_id.bytes
    cluster.publish(
        records_pb.MetadataRecord(topic=records_pb.TopicRecord(name=TOPIC, topic_id=topic_id)),
        *(
            records_pb.MetadataRecord(
                partition=records_pb.PartitionRecord(
                    partition_id=number, topic_id=topic_id, replicas=(1, 2), isr=(1, 2), leader=1
                )
            )
            for number in range(partitions)
        ),
    )


async def append(cluster: Cluster, partition: int, *values: str) -> None:
    data = PartitionProduceData(TOPIC, partition, batch(*values))
    (result,) = await cluster.nodes[1].handlers.produce.produce(1, 1_000, [data])
    assert result.error_code == 0


def follower(cluster: Cluster) -> FetchingReplica:
    return FetchingReplica(2, cluster.nodes[2].broker_epoch)


async def fetch(
    cluster: Cluster, context: FetchContext, max_bytes: int = LARGE, min_bytes: int = 0
) -> list[FetchPartitionData]:
    """As the follower."""
    params = FetchParams(100, min_bytes, max_bytes, follower(cluster))
    return await cluster.nodes[1].handlers.fetch.fetch(params, context)


def of(*partitions: int, offset: int = 0) -> list[FetchPartition]:
    return [FetchPartition(TOPIC, number, offset, LARGE) for number in partitions]


def sizes(answers: list[FetchPartitionData]) -> list[int]:
    return [len(answer.payload) for answer in answers]


def test_only_the_first_partition_with_data_may_exceed_the_limit() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 3)
        for partition in (1, 2):
            await append(cluster, partition, "a")
            await append(cluster, partition, "b")
        wanted = of(0, 1, 2)
        assert sizes(await fetch(cluster, SessionlessFetch(wanted), 0)) == [0, SIZE, 0]
        assert sizes(await fetch(cluster, SessionlessFetch(wanted), 1)) == [0, SIZE, 0]
        first, second = 2 * SIZE, HEADER_BYTES // 2
        found = sizes(await fetch(cluster, SessionlessFetch(wanted), first + second))
        assert found[:2] == [0, first]
        assert found[2] <= second
        assert sizes(await fetch(cluster, SessionlessFetch(wanted))) == [0, first, first]

    scenario(test, nodes=(1, 2))


def test_a_session_answers_with_the_next_request_what_had_no_room() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 2)
        for partition in (0, 1):
            await append(cluster, partition, "a")
        session = FetchSession()
        session.begin(follower(cluster), 0, of(0, 1), ())
        assert sizes(await fetch(cluster, session, SIZE)) == [SIZE, 0]
        session.begin(follower(cluster), session.id, of(0, offset=1), ())
        found = await fetch(cluster, session, SIZE)
        assert {a.partition_index: len(a.payload) for a in found}[1] == SIZE
        session.close()

    scenario(test, nodes=(1, 2))


def test_a_consumer_reads_up_to_the_high_watermark_and_a_follower_to_the_end() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 1)
        await append(cluster, 0, "a")
        await fetch(cluster, SessionlessFetch(of(0, offset=1)))
        await append(cluster, 0, "b")
        assert values_of((await cluster.nodes[1].fetch(0)).payload) == ["a"]
        (found,) = await fetch(cluster, SessionlessFetch(of(0)))
        assert values_of(found.payload) == ["a", "b"]

    scenario(test, nodes=(1, 2))


def test_an_append_ends_the_long_poll_of_a_follower_without_a_session() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 1)
        request = log_pb2.ReplicaFetchRequest(
            replica_id=2,
            replica_epoch=cluster.nodes[2].broker_epoch,
            max_wait_ms=20_000,
            min_bytes=1,
            max_bytes=LARGE,
        )
        request.partitions.add(
            topic=TOPIC,
            current_leader_epoch=-1,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=LARGE,
        )
        waiting = asyncio.ensure_future(cluster.nodes[1].service.replica_fetch(request, None))
        await asyncio.sleep(1)
        assert not waiting.done()
        await append(cluster, 0, "a")
        async with asyncio.timeout(1):
            (found,) = decode_fetch_response(await waiting).responses
        assert values_of(found.payload) == ["a"]

    scenario(test, nodes=(1, 2))


def waiters(hosted: HostedPartition) -> int:
    return len(hosted.data_waiters) + len(hosted.commit_waiters)


def test_a_fetch_that_ends_or_is_cancelled_leaves_no_waiter() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 2)
        leader = cluster.nodes[1]
        both = [leader.hosted(0), leader.hosted(1)]
        for replica in (None, follower(cluster)):
            for cancelled in (True, False):
                context = SessionlessFetch(of(0, 1), from_replica=replica is not None)
                params = FetchParams(1_000, 1, LARGE, replica)
                waiting = asyncio.ensure_future(leader.handlers.fetch.fetch(params, context))
                await asyncio.sleep(0.5)
                assert [waiters(hosted) for hosted in both] == [1, 1]
                if cancelled:
                    waiting.cancel()
                await asyncio.wait((waiting,))
                assert [waiters(hosted) for hosted in both] == [0, 0]
        session = FetchSession()
        session.begin(follower(cluster), 0, of(0, 1), ())
        waiting = asyncio.ensure_future(fetch(cluster, session, min_bytes=1))
        await asyncio.sleep(0.05)
        assert [waiters(hosted) for hosted in both] == [2, 2]
        waiting.cancel()
        await asyncio.wait((waiting,))
        session.close()
        assert [waiters(hosted) for hosted in both] == [0, 0]
        assert both[0].core.remotes[2].pulse is None

    scenario(test, nodes=(1, 2))


def test_a_fetch_waits_only_for_what_its_latest_look_watched() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 2)
        first, second = (cluster.nodes[1].hosted(number) for number in (0, 1))
        context = SessionlessFetch(of(0, 1))
        for watched in ((first, second), (second,)):
            for item, hosted in zip(context.take(), watched, strict=False):
                context.watch(item, hosted)
        waiting = asyncio.ensure_future(context.wait(asyncio.get_running_loop().time() + 9))
        await asyncio.sleep(0.1)
        assert (waiters(first), waiters(second)) == (0, 1)
        second.committed()
        async with asyncio.timeout(1):
            await waiting

    scenario(test, nodes=(1, 2))


def test_what_a_session_looks_at_again_comes_with_the_next_look_and_wakes_nobody() -> None:
    async def test(cluster: Cluster) -> None:
        session, loop = FetchSession(), asyncio.get_running_loop()
        session.begin(FetchingReplica(2, 1), 0, of(0, 1), ())
        (first, _) = session.take()
        session.look_again(first)
        assert session.take() == [first], "as when a disk was waited for"
        session.look_again(first)
        before = loop.time()
        await session.wait(before + 9)
        assert loop.time() >= before + 9
        assert session.take() == [first]
        assert session.take() == []
        await session.wait(loop.time() + 9)
        assert session.take() == [], "once"

    scenario(test, nodes=(1, 2))


def test_a_session_closed_amid_a_fetch_begins_anew_without_what_was_under_way() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 2)
        cluster.change(isr=(1,))  # a follower outside of the ISR is looked at again
        session = FetchSession()
        session.begin(follower(cluster), 0, of(0, 1), ())
        waiting = asyncio.ensure_future(fetch(cluster, session, min_bytes=1))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait((waiting,))
        session.close()
        session.begin(follower(cluster), 0, of(0, 1), ())
        assert [item.partition for item in session.take()] == [0, 1]
        assert session.answers() == []
        assert session.take() == [], "nothing of the earlier fetch is looked at again"
        session.close()

    scenario(test, nodes=(1, 2))
