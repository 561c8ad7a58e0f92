"""Direct reads with real processes: nodes, MinIO, retention, and nodes that are killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from tests.minio_fixture import ObjectStore
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, AsyncAdmin, NewTopic, Producer
from tidemark.spark.clients import CLIENTS
from tidemark.spark.direct.plans import renew_lease
from tidemark.spark.offsets import DataLossError, OffsetRange
from tidemark.spark.options import SourceOptions, parse_options
from tidemark.spark.planning import plan
from tidemark.spark.slices import read_slice
from tidemark.spark.source import source_schema
from tidemark.types import TopicPartition

pytestmark = pytest.mark.minio

SCHEMA = to_arrow_schema(source_schema(("offset", "value")), timezone="UTC")
VALUE_BYTES = 1_000
CHUNK = 1_000
ROWS = 100_000
WAIT_S = 60


class Tiered:
    """A cluster, and the objects of its topics."""

    def __init__(self, cluster: LocalCluster, store: ObjectStore, prefix: str) -> None:
        self.cluster = cluster
        self._store = store
        self._prefix = prefix

    @property
    def servers(self) -> str:
        return self.cluster.bootstrap_servers

    def options(self, topic: str, **more: str) -> SourceOptions:
        return parse_options({"bootstrap.servers": self.servers, "subscribe": topic, **more})

    def logs(self, topic: str) -> list[str]:
        """The names of the topic's log objects."""
        found = self._store.client().list_objects(self._store.bucket, self._prefix, True)
        names = [one.object_name.split("/") for one in found]
        return sorted(
            n[-1] for n in names if n[-2].startswith(f"{topic}-0-") and n[-1].endswith(".log")
        )

    def fill(self, topic: str, rows: int, segment_bytes: int) -> None:
        """Produces rows, the first of them in a transaction that is aborted. Waits until all
        but the active segment are in the tier and nowhere else.
        """
        configs = {
            "segment.bytes": str(segment_bytes),
            "remote.storage.enable": "true",
            "local.retention.bytes": "1",
        }
        with Admin(self.servers) as admin:
            admin.create_topics([NewTopic(topic, 1, 1, configs)])
        data = pa.array([b"%0*d" % (VALUE_BYTES, n) for n in range(CHUNK)], pa.binary())
        batch = pa.RecordBatch.from_arrays([data], names=["value"])
        with Producer(self.servers, transactional_id=f"tx-{topic}") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send_arrow(topic, batch, partition=0).result(WAIT_S)
            producer.abort_transaction()
        with Producer(self.servers) as producer:
            sent = [
                producer.send_arrow(topic, batch, partition=0) for _ in range(rows // CHUNK - 1)
            ]
            for each in sent:
                each.result(WAIT_S)
        asyncio.run(self._until_cold(topic, rows))

    async def _until_cold(self, topic: str, rows: int) -> None:
        tp = TopicPartition(topic, 0)
        async with AsyncAdmin(self.servers) as admin, asyncio.timeout(WAIT_S):
            while True:
                described = await admin.describe_log_dirs(topics=[topic])
                found = [r for dirs in described.values() for d in dirs for r in d.replicas]
                replica = next((one for one in found if one.topic_partition == tp), None)
                is_copied = replica is not None and replica.remote_copy_lag_segments == 0
                if is_copied and replica.local_log_start_offset > rows * 3 // 4:
                    return
                await asyncio.sleep(0.1)

    def wait_for_logs(self, topic: str, count: int) -> list[str]:
        """Waits until there are so many."""
        until_s = time.monotonic() + WAIT_S
        while len(found := self.logs(topic)) != count:
            assert time.monotonic() < until_s, found
            time.sleep(0.2)  # a foreign process deletes them
        return found


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory, object_store: ObjectStore) -> Iterator[Tiered]:
    path: Path = tmp_path_factory.mktemp("direct")
    prefix = f"direct/{path.name}/"
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.metadata.topic.num.partitions": "1",
        "remote.log.manager.task.interval.ms": "300",
        "log.retention.check.interval.ms": "300",
        **{f"rsm.config.{k}": v for k, v in object_store.rsm_config(prefix).items()},
    }
    with LocalCluster(path / "data", controllers=1, brokers=1, overrides=settings) as cluster:
        cluster.wait_ready(60)
        try:
            yield Tiered(cluster, object_store, prefix)
        finally:
            CLIENTS.close()


def rows_of(options: SourceOptions, slices: list[OffsetRange]) -> pa.Table:
    batches = [batch for each in slices for batch in read_slice(options, each, SCHEMA)]
    return pa.Table.from_batches(batches, SCHEMA)


def check(rows: pa.Table, offsets: Any) -> None:
    """The rows are exactly those of the offsets, each with its value."""
    found = rows["offset"].combine_chunks()
    assert found.equals(pa.array(offsets, pa.int64()))
    assert pc.all(pc.equal(pc.binary_length(rows["value"]), VALUE_BYTES)).as_py()


def test_a_cold_topic_is_read_while_no_node_runs(tiered: Tiered) -> None:
    """100 MB in segments of 8 MiB: slices by bytes, the committed rows, and nothing of nodes."""
    tiered.fill("cold", ROWS, 8 << 20)
    committed = {"splitBytes": str(16 << 20), "isolation.level": "read_committed"}
    options = tiered.options("cold", direct="true", **committed)
    slices = plan(options)
    cold = [each for each in slices if each.direct is not None]
    assert len(cold) > 4 and cold[-1].end > ROWS * 3 // 4
    through_brokers = tiered.options("cold", direct="false", **committed)
    head = rows_of(through_brokers, [OffsetRange("cold", 0, 0, 3_000)])
    (broker,) = tiered.cluster.broker_ids
    CLIENTS.close()
    tiered.cluster.kill(broker)
    try:
        rows = rows_of(options, cold)
    finally:
        tiered.cluster.restart(broker)
        tiered.cluster.wait_ready(60)
    check(rows, range(CHUNK + 1, cold[-1].end))  # 1,000 aborted rows and their marker come before
    assert rows.slice(0, head.num_rows).equals(head)


def test_a_lease_holds_objects_against_retention_and_without_it_the_loss_is_exact(
    tiered: Tiered,
) -> None:
    tiered.fill("held", 10_000, 1 << 20)
    limits = {"startingOffsets": '{"held":{"0":5000}}', "endingOffsets": '{"held":{"0":7000}}'}
    options = tiered.options("held", direct="true", **limits)
    (slice_,) = plan(options)
    assert slice_.direct is not None and slice_.direct.lease is not None
    before = tiered.logs("held")
    below = [name for name in before if int(name[:20]) < slice_.start][:-1]
    with Admin(tiered.servers) as admin:
        admin.delete_records({TopicPartition("held", 0): 8_000})
    assert tiered.wait_for_logs("held", len(before) - len(below)) == before[len(below) :]
    check(rows_of(options, [slice_]), range(5_000, 7_000))
    renew_lease(options, slice_, slice_.direct.lease._replace(lease_ms=0))
    kept = [name for name in before if int(name[:20]) >= 8_000]
    tiered.wait_for_logs("held", len(kept) + 1)
    with pytest.raises(DataLossError, match="held-0: offset 5000 of 5000 to 6999 is not in the"):
        rows_of(options, [slice_])
    tolerant = tiered.options("held", failOnDataLoss="false", **limits)
    assert rows_of(tolerant, [slice_]).num_rows == 0
