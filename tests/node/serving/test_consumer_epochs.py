"""Fetches of consumers that name epochs and topic ids (KIP-320, KIP-516).

The leader's answers, and a reader of real logs that follows elections and a topic made anew.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.client.consuming.harness import RETRY, FakeLeaders
from tests.node.cluster import TOPIC, Cluster
from tests.node.replication.test_replication import scenario
from tidemark.client.consuming.assignment import Taken
from tidemark.client.consuming.core import FetchCore
from tidemark.client.consuming.damage import examine
from tidemark.client.consuming.partition import Position
from tidemark.client.consuming.requests import FetchSettings
from tidemark.client.errors import LogTruncationError, TopicRecreatedError
from tidemark.errors import ErrorCode, TidemarkError
from tidemark.types import TopicPartition
from tidemark.wire import FetchPartitionData, FetchResponse

ONE = TopicPartition(TOPIC, 0)


async def unclean_election(cluster: Cluster) -> None:
    """Node 1 dies with c and d, which it alone has; node 2 leads in epoch 1, with a and b."""
    cluster.create_topic((1, 2), min_insync_replicas="1")
    await cluster.nodes[1].produce("a", "b")
    await cluster.settle()
    cluster.cut |= {(2, 1)}
    cluster.change(isr=(1,))
    await asyncio.sleep(31)  # beyond replica.lag.time.max.ms: node 1 waits for node 2 no longer
    await cluster.nodes[1].produce("c", "d")
    await cluster.stop(1, clean=False)
    cluster.change(leader=2, isr=(2,))


def test_a_consumers_epoch_of_another_leadership_is_refused_by_name() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic((1, 2), min_insync_replicas="1")
        await cluster.nodes[1].produce("a")
        cluster.change(leader=2)
        await cluster.settle()
        older = await cluster.nodes[2].fetch(0, current_leader_epoch=0)
        newer = await cluster.nodes[2].fetch(0, current_leader_epoch=2)
        same = await cluster.nodes[2].fetch(0, current_leader_epoch=1)
        assert older.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert older.current_leader == (2, 1)
        assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (same.error_code, same.diverging_epoch) == (ErrorCode.NONE, None)

    scenario(test, nodes=(1, 2))


def test_a_consumer_hears_where_its_records_part_from_the_log() -> None:
    async def test(cluster: Cluster) -> None:
        await unclean_election(cluster)
        leader = cluster.nodes[2]
        await leader.produce("e", "f", "g")
        assert (await leader.fetch(4, last_fetched_epoch=0)).diverging_epoch == (0, 2)
        assert (await leader.fetch(2, last_fetched_epoch=0)).diverging_epoch is None
        assert (await leader.fetch(4, last_fetched_epoch=1)).diverging_epoch is None
        assert (await leader.fetch(4)).diverging_epoch is None, "no epoch, no check"
        unknown = await leader.fetch(4, last_fetched_epoch=7)
        assert unknown.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    scenario(test, nodes=(1, 2))


class RealReader:
    """The consumer's core, with the answers of real partitions."""

    def __init__(self, cluster: Cluster, reset: str) -> None:
        self.cluster = cluster
        self.leaders = FakeLeaders()
        self.core = FetchCore(FetchSettings(RETRY, reset), self.leaders, Random(1))
        self.now_ms = 0.0
        self.learn()
        self.core.assign([ONE], 0)
        self.core.seek(self.core.assignment.partitions[ONE], Position(0))

    def learn(self) -> None:
        """Takes the cluster's metadata."""
        partition = self.cluster.partition
        self.leaders.leaders[ONE] = partition.leader
        self.leaders.epochs[ONE] = partition.leader_epoch
        self.leaders.ids[TOPIC] = self.cluster.topic_id.bytes
        self.leaders.is_stale = False
        self.core.leaders_changed(self.now_ms)

    async def read(self) -> list[str]:
        """Steps six times, which is enough to get to the end; returns the records."""
        found: list[str] = []
        for _ in range(6):
            self.now_ms += 1_000
            effects = self.core.step(self.now_ms)
            if effects.refresh_metadata:
                self.learn()
                self.core.refreshed(None, self.now_ms)
            for request in effects.requests:
                if not request.is_fetch:
                    self.core.found(request.request_id, {ONE: None}, self.now_ms)
                    continue
                ask = request.asked[ONE]
                assert isinstance(ask.target, Position)
                answer = await self.cluster.nodes[request.node].fetch(
                    ask.target.offset,
                    current_leader_epoch=ask.leader_epoch,
                    last_fetched_epoch=None if ask.target.epoch < 0 else ask.target.epoch,
                    topic_id=ask.topic_id,
                )
                whole = FetchPartitionData(
                    answer.topic,
                    answer.partition_index,
                    answer.error_code,
                    answer.high_watermark,
                    records=answer.payload,
                    diverging_epoch=answer.diverging_epoch,
                    current_leader=answer.current_leader,
                )
                self.core.answered(request.request_id, FetchResponse([whole]), self.now_ms)
            found += self.take()
            self.core.validate()
        return found

    def take(self) -> list[str]:
        found: list[str] = []
        for partition, items in self.core.assignment.waiting():
            for item in items:
                rows = examine(item.raw, decodes=True, check_crcs=True).rows
                self.core.assignment.examined(partition, item, rows)
                found += [value.decode() for value in rows.column("value").to_pylist()]
                self.core.assignment.handed_over([Taken(partition, item)])
        return found

    def error(self) -> TidemarkError | None:
        return self.core.assignment.error_due(self.now_ms, got_nothing=True)


@pytest.mark.parametrize("reset", ["none", "earliest"])
def test_a_reader_notices_that_an_unclean_election_replaced_what_it_read(reset: str) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic((1, 2), min_insync_replicas="1")
        reader = RealReader(cluster, reset)
        await cluster.nodes[1].produce("a", "b")
        await cluster.settle()
        assert await reader.read() == ["a", "b"]
        cluster.cut |= {(2, 1)}
        cluster.change(isr=(1,))
        await asyncio.sleep(31)
        await cluster.nodes[1].produce("c", "d")
        assert await reader.read() == ["c", "d"]
        await cluster.stop(1, clean=False)
        cluster.change(leader=2, isr=(2,))
        await cluster.nodes[2].produce("e", "f", "g")
        reader.learn()
        found = await reader.read()
        if reset == "earliest":
            assert found == ["e", "f", "g"], "from where the log parts from what was read"
            return
        error = reader.error()
        assert isinstance(error, LogTruncationError)
        assert (error.offset, error.diverging_offset, error.diverging_epoch) == (4, 2, 0)

    scenario(test, nodes=(1, 2))


def test_a_reader_crosses_clean_elections_unnoticed() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic((1, 2), min_insync_replicas="1")
        reader = RealReader(cluster, "none")
        found = []
        for number in range(6):
            leader = cluster.partition.leader
            await cluster.nodes[leader].produce(f"{number}")
            if number % 2:
                found += await reader.read()
            await cluster.settle()
            cluster.change(leader=3 - leader)
            await cluster.settle()
            found += await reader.read()
            assert reader.error() is None
        assert found == [f"{number}" for number in range(6)]

    scenario(test, nodes=(1, 2))


def test_a_reader_of_a_topic_made_anew_is_told() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic((1, 2), min_insync_replicas="1")
        reader = RealReader(cluster, "none")
        await cluster.nodes[1].produce("a", "b")
        assert await reader.read() == ["a", "b"]
        cluster.delete_topic()
        cluster.create_topic((1, 2), min_insync_replicas="1")
        await cluster.settle()
        await cluster.nodes[1].produce("c", "d", "e")
        assert await reader.read() == [], "not from the old offset in the new topic"
        assert isinstance(reader.error(), TopicRecreatedError)
        reader.core.seek(reader.core.assignment.partitions[ONE], Position(0))
        assert await reader.read() == ["c", "d", "e"]

    scenario(test, nodes=(1, 2))
