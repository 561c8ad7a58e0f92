"""Plans and slices on whole nodes in virtual time: topics that go between planning and reading."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tidemark.client import Consumer
from tidemark.errors import UnknownTopicOrPartitionError
from tidemark.records.arrow import warm_up
from tidemark.spark import slices
from tidemark.spark.lookups import Lookups
from tidemark.spark.offsets import DataLossError, OffsetRange
from tidemark.spark.options import SourceOptions, parse_options
from tidemark.spark.planning import plan_with
from tidemark.spark.slices import slice_batches
from tidemark.testing import Cluster

SCHEMA = pa.schema([("value", pa.binary())])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Two brokers with topic t of ten records; slices have the cluster's clock."""
    warm_up()
    with Cluster(seed=3, brokers=2) as made:
        monkeypatch.setattr(slices, "_now_ms", lambda: float(made.now_ms))
        fill(made, b"old")
        yield made


def fill(cluster: Cluster, value: bytes) -> None:
    cluster.create_topic("t", 1)
    with cluster.producer(acks="all") as producer:
        for _ in range(10):
            producer.send("t", value).result()


def options_of(cluster: Cluster, **more: str) -> SourceOptions:
    return parse_options({"bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t"} | more)


def plan(cluster: Cluster, options: SourceOptions) -> list[OffsetRange]:
    life = cluster.clients.life
    assert life is not None
    with life.context.run(lambda: Lookups(options)) as lookups:
        return plan_with(lookups, options)


def values(consumer: Consumer, options: SourceOptions, offsets: OffsetRange) -> list[Any]:
    found = slice_batches(consumer, options, offsets, SCHEMA)
    return [value for batch in found for value in batch["value"].to_pylist()]


@pytest.mark.parametrize("reads_before", [False, True])
def test_a_topic_made_anew_is_not_read_in_silence(cluster: Cluster, reads_before: bool) -> None:
    """Also by a client that has read the old one, and has its metadata."""
    options = options_of(cluster)
    with cluster.consumer(auto_offset_reset="none") as consumer, cluster.admin() as admin:
        (old,) = plan(cluster, options)
        if reads_before:
            assert values(consumer, options, old) == [b"old"] * 10
        admin.delete_topics(["t"])
        fill(cluster, b"new")
        with pytest.raises(DataLossError, match="t-0: the topic was deleted, and another one"):
            values(consumer, options, old)
        (new,) = plan(cluster, options)
        assert (new.start, new.end) == (old.start, old.end) and new.topic_id != old.topic_id
        assert values(consumer, options, new) == [b"new"] * 10


def test_a_topic_that_was_deleted_is_told_in_seconds(cluster: Cluster) -> None:
    options = options_of(cluster)
    with cluster.consumer(auto_offset_reset="none") as consumer, cluster.admin() as admin:
        (old,) = plan(cluster, options)
        admin.delete_topics(["t"])
        begin_ms = cluster.now_ms
        with pytest.raises(DataLossError, match="t-0: the topic was deleted after the read"):
            values(consumer, options, old)
        assert cluster.now_ms - begin_ms < 7_000
        begin_ms = cluster.now_ms
        with pytest.raises(UnknownTopicOrPartitionError, match="is its name right"):
            plan(cluster, options)
        assert cluster.now_ms - begin_ms < 5_000


def test_a_leader_that_dies_is_no_loss(cluster: Cluster) -> None:
    options = options_of(cluster)
    with cluster.consumer(auto_offset_reset="none") as consumer:
        (offsets,) = plan(cluster, options)
        leader = cluster.leader("t")
        assert leader is not None
        cluster.kill(leader)
        cluster.restart(leader)
        assert values(consumer, options, offsets) == [b"old"] * 10
