"""Random histories of transactions on whole brokers, read through each way that a client has.

All ways give the committed records and those of no transaction, in order, and stop at the first
open transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.node.histories import Read, TransactionHistory
from tidemark.cli import session
from tidemark.cli.main import app
from tidemark.client import sync
from tidemark.client.models import OffsetSpec
from tidemark.client.records import RawBatches, decode
from tidemark.client.sync import Consumer
from tidemark.records.arrow import warm_up
from tidemark.spark.lookups import Lookups
from tidemark.spark.offsets import OffsetRange
from tidemark.spark.options import SourceOptions, parse_options
from tidemark.spark.planning import plan_with
from tidemark.spark.slices import slice_batches
from tidemark.testing import Cluster
from tidemark.testing.node import EPOCH_MS
from tidemark.types import TopicPartition

SEEDS = range(4)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)


class World:
    """A cluster with a topic per seed, and its histories."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.histories = {seed: self._make(seed) for seed in SEEDS}

    def _make(self, seed: int) -> TransactionHistory:
        cluster, partition = self.cluster, TopicPartition(f"t{seed}", 0)
        cluster.create_topic(partition.topic, 1)

        def hosted() -> Any:
            leader = cluster.leader(*partition)
            server: Any = None if leader is None else cluster.nodes[leader].server
            return server.broker.partitions.find(partition)

        history = TransactionHistory(hosted, seed, lambda: EPOCH_MS + cluster.now_ms)
        history.fill(80, leaves_open=True)
        cluster.advance(2)  # followers have it, too
        return history

    def consumer(self, **settings: Any) -> Consumer:
        chosen: dict[str, Any] = {"isolation_level": "read_committed"} | settings
        return self.cluster.consumer(**chosen)

    def lookups(self, options: SourceOptions) -> Lookups:
        life = self.cluster.clients.life
        assert life is not None
        return life.context.run(lambda: Lookups(options))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    warm_up()
    settings = {"replica.selector.class": "RackAwareReplicaSelector"}
    with Cluster(seed=5, brokers=3, settings=settings, racks=("a", "b", "c")) as cluster:
        yield World(cluster)


def begins(history: TransactionHistory) -> list[int]:
    return [0, *sorted(history.rng.sample(range(history.stable), 6)), history.stable]


def by_poll(consumer: Consumer, history: TransactionHistory) -> Read:
    found: Read = []
    while len(records := consumer.poll(1_000, history.rng.randint(1, 7))):
        found += [(record.offset, (record.value or b"").decode()) for record in records]
    return found


def by_arrow(consumer: Consumer, history: TransactionHistory) -> Read:
    found: Read = []
    while batches := consumer.poll_arrow(1_000):
        (batch,) = batches.values()
        found += rows_of(batch)
    return found


def rows_of(batch: Any) -> Read:
    values = [value.decode() for value in batch.column("value").to_pylist()]
    return list(zip(batch.column("offset").to_pylist(), values, strict=True))


@pytest.mark.parametrize("rack", ["", "a", "b"])
@pytest.mark.parametrize("read", [by_poll, by_arrow])
@pytest.mark.parametrize("seed", SEEDS)
def test_polls_give_the_committed_records_from_anywhere(
    world: World, seed: int, read: Callable[[Consumer, TransactionHistory], Read], rack: str
) -> None:
    history, partition = world.histories[seed], TopicPartition(f"t{seed}", 0)
    for begin in begins(history):
        size = history.rng.choice((1, 300, 1 << 20))
        with world.consumer(max_partition_fetch_bytes=size, client_rack=rack) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, begin)
            assert read(consumer, history) == history.expected(begin), (begin, size)
            assert consumer.position(partition) == history.stable
            assert consumer.end_offsets([partition])[partition] == history.stable
            consumer.seek_to_end()
            assert consumer.position(partition) == history.stable


@pytest.mark.parametrize("seed", SEEDS)
def test_a_read_uncommitted_reader_gets_all_records_and_no_marker(world: World, seed: int) -> None:
    history, partition = world.histories[seed], TopicPartition(f"t{seed}", 0)
    with world.consumer(isolation_level="read_uncommitted") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end = consumer.end_offsets([partition])[partition]
        assert end > history.stable
        assert by_poll(consumer, history) == history.expected(0, end, committed=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_raw_batches_name_the_aborted_transactions_in_them(world: World, seed: int) -> None:
    history, partition = world.histories[seed], TopicPartition(f"t{seed}", 0)
    with world.consumer(max_partition_fetch_bytes=300) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found: list[RawBatches] = []
        while raws := consumer.fetch_batches(1_000):
            found += raws
    assert [row for raw in found for row in rows_of(decode(raw))] == history.expected()
    assert found[-1].next_offset == history.stable


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("option", ["isolation.level", "kafka.isolation.level"])
def test_spark_plans_to_the_last_stable_offset_and_reads_slices_of_any_cut(
    world: World, option: str, level: str
) -> None:
    is_committed = level == "read_committed"
    for seed, history in world.histories.items():
        options = parse_options(
            {
                "bootstrap.servers": world.cluster.bootstrap_servers,
                "subscribe": f"t{seed}",
                option: level,
                "minPartitions": "7",
            }
        )
        with (
            world.consumer(isolation_level=options.isolation_level) as consumer,
            world.lookups(options) as lookups,
        ):
            ranges = plan_with(lookups, options)
            last = ranges[-1].end
            assert ranges[0].start == 0 and len(ranges) == 7
            assert (last == history.stable) == is_committed
            found = [row for each in ranges for row in read_slice(consumer, options, each, SCHEMA)]
            assert found == history.expected(0, last, committed=is_committed)


def read_slice(consumer: Consumer, options: Any, offsets: OffsetRange, schema: Any) -> Read:
    return [
        row for batch in slice_batches(consumer, options, offsets, schema) for row in rows_of(batch)
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_command_line_reads_what_is_committed(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, history = world.cluster, world.histories[seed]
    monkeypatch.setattr(sync, "Consumer", lambda _, **settings: cluster.consumer(**settings))
    monkeypatch.setattr(session, "check_reachable", lambda _: None)
    expected = history.expected()
    options = ["--isolation-level", "read_committed", "--from-beginning", "--json"]
    count = ["--max-messages", str(len(expected))]
    result = CliRunner().invoke(app, ["consume", f"t{seed}", *options, *count])
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.output.splitlines()]
    assert [(row["offset"], row["value"]) for row in found] == expected
    wrong = CliRunner().invoke(app, ["consume", "t0", "--isolation-level", "serializable"])
    assert wrong.exit_code == 1 and "isolation.level='serializable' is none of" in wrong.output


@pytest.mark.parametrize("seed", SEEDS)
def test_an_administrator_finds_both_ends(world: World, seed: int) -> None:
    history, partition = world.histories[seed], TopicPartition(f"t{seed}", 0)
    with world.cluster.admin() as admin:
        latest = {partition: OffsetSpec.LATEST}
        stable = admin.list_offsets(latest, read_committed=True)[partition]
        end = admin.list_offsets(latest)[partition]
    assert stable is not None and stable.offset == history.stable
    assert end is not None and end.offset > history.stable


def test_readers_that_wait_at_an_open_transaction_go_on_when_it_ends(world: World) -> None:
    """Comes last: it goes on with one of the histories."""
    history, partition = world.histories[0], TopicPartition("t0", 0)
    stable = history.stable
    with world.consumer() as one, world.consumer(client_rack="b") as other:
        for consumer in (one, other):
            consumer.assign([partition])
            consumer.seek(partition, stable)
            assert len(consumer.poll(2_000)) == 0
        history.fill(60, leaves_open=True)
        assert history.stable > stable
        for consumer in (one, other):
            assert by_poll(consumer, history) == history.expected(stable)
