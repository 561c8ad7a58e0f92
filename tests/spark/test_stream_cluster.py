"""A stream on whole nodes in virtual time: topics that grow, leaders that die, topics made anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tidemark.client import Consumer, OffsetAndMetadata
from tidemark.records.arrow import warm_up
from tidemark.spark import slices, stream
from tidemark.spark.lookups import Lookups
from tidemark.spark.offsets import DataLossError
from tidemark.spark.options import SourceOptions, parse_options
from tidemark.spark.reporting import GroupReport
from tidemark.spark.slices import slice_batches
from tidemark.spark.source import source_schema
from tidemark.spark.stream import TidemarkStreamReader
from tidemark.testing import Cluster
from tidemark.types import TopicPartition

SCHEMA = pa.schema([("partition", pa.int32()), ("value", pa.binary())])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A controller and two brokers; the reader and its slices have the cluster's clock and loop."""
    warm_up()
    with Cluster(seed=5, brokers=2, controllers=1) as made:
        life = made.clients.life
        assert life is not None

        def within(options: SourceOptions) -> Lookups:
            return life.context.run(lambda: Lookups(options))

        monkeypatch.setattr(stream, "Lookups", within)
        for module in (slices, stream):
            monkeypatch.setattr(module, "_now_ms", lambda: float(made.now_ms))
        yield made


class Query:
    """A query as Spark 4.2 runs it, whose tasks read with one consumer."""

    def __init__(self, cluster: Cluster, consumer: Consumer, **more: str) -> None:
        self.consumer = consumer
        given = {"bootstrap.servers": cluster.bootstrap_servers} | more
        self.options = parse_options(given, is_stream=True)
        self.reader = TidemarkStreamReader(self.options, source_schema())
        self.offset: Any = self.reader.initialOffset()

    def next(self) -> list[tuple[int, bytes]]:
        """Partition and value of the rows of the next batch."""
        end = self.reader.latestOffset(self.offset, None)
        planned, self.offset = self.reader.partitions(self.offset, end), end
        return [
            (row["partition"], row["value"])
            for each in planned
            for batch in slice_batches(self.consumer, self.options, each.offsets, SCHEMA)
            for row in batch.to_pylist()
        ]


def send(cluster: Cluster, topic: str, partition: int, *values: bytes) -> None:
    with cluster.producer(acks="all") as producer:
        for value in values:
            producer.send(topic, value, partition=partition).result()


def test_new_partitions_and_topics_are_read_from_their_first_record(cluster: Cluster) -> None:
    cluster.create_topic("flights-a", 1)
    cluster.create_topic("other", 1)
    send(cluster, "flights-a", 0, b"a")
    with cluster.consumer(auto_offset_reset="none") as consumer, cluster.admin() as admin:
        query = Query(cluster, consumer, subscribePattern="flights-.*")
        assert query.next() == [(0, b"a")]
        admin.create_partitions({"flights-a": 3})
        send(cluster, "flights-a", 2, b"b", b"c")
        cluster.create_topic("flights-b", 1)
        send(cluster, "flights-b", 0, b"d")
        send(cluster, "other", 0, b"no")
        assert query.next() == [(2, b"b"), (2, b"c"), (0, b"d")]
        assert query.next() == []
        query.reader.stop()


def test_the_group_of_a_stream_has_the_offsets_of_the_batches_that_are_done(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("t", 1)
    send(cluster, "t", 0, b"a", b"b")
    reported: list[Any] = []
    monkeypatch.setattr(GroupReport, "report", lambda self, offsets: reported.append(offsets))
    with cluster.consumer(auto_offset_reset="none") as consumer, cluster.admin() as admin:
        query = Query(cluster, consumer, subscribe="t", commitGroupId="watched")
        query.next()
        send(cluster, "t", 0, b"c")
        query.next()
        query.reader.commit(query.offset)
        tp = TopicPartition("t", 0)
        assert reported == [{tp: 0}, {tp: 2}, {tp: 3}]
        found = {tp: OffsetAndMetadata(offset) for tp, offset in reported[-1].items()}
        admin.groups.alter_offsets("watched", found)
        assert admin.groups.offsets("watched")[tp].offset == 3
        query.reader.stop()


def test_a_stream_reads_on_after_each_leader_has_died(cluster: Cluster) -> None:
    """Also if it dies between the plan of a batch and its tasks."""
    cluster.create_topic("t", 1, replication_factor=2)
    with cluster.consumer(auto_offset_reset="none") as consumer:
        query = Query(cluster, consumer, subscribe="t")
        found, sent = [], []
        for number in range(4):
            sent.append((0, b"%d" % number))
            send(cluster, "t", 0, b"%d" % number)
            start, end = query.offset, query.reader.latestOffset(query.offset, None)
            leader = cluster.leader("t")
            assert leader is not None
            cluster.kill(leader)
            rows = [
                value
                for each in query.reader.partitions(start, end)
                for batch in slice_batches(consumer, query.options, each.offsets, SCHEMA)
                for value in batch["value"].to_pylist()
            ]
            query.offset = end
            found += [(0, value) for value in rows]
            cluster.restart(leader)
            cluster.wait_until_ready()
        found += query.next()
        assert found == sent
        query.reader.stop()


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_made_anew_under_a_stream_is_loss_or_read_whole(
    cluster: Cluster, fails: str
) -> None:
    cluster.create_topic("t", 1)
    send(cluster, "t", 0, b"old", b"older")
    with cluster.consumer(auto_offset_reset="none") as consumer, cluster.admin() as admin:
        query = Query(cluster, consumer, subscribe="t", failOnDataLoss=fails)
        assert query.next() == [(0, b"old"), (0, b"older")]
        admin.delete_topics(["t"])
        if fails == "true":
            with pytest.raises(DataLossError, match="t-0: the topic was deleted"):
                query.next()
        else:
            assert query.next() == []
        cluster.create_topic("t", 1)
        send(cluster, "t", 0, b"new")
        if fails == "true":
            with pytest.raises(DataLossError, match="another one has its name"):
                query.next()
        else:
            assert query.next() == [(0, b"new")]
        query.reader.stop()
