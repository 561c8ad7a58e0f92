"""Records are copied exactly once while brokers and workers are killed, and workers hang.

The numbers in the output tell what is missing, twice or out of order. `TIDEMARK_CHAOS_SEED` chooses
the moments and the order of the faults.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.e2e.copy_faults import BROKER_FAULTS, INPUTS, WORKER_FAULTS, Faults, Feed, Workers
from tests.e2e.copy_worker import INPUT, OUTPUT, OUTPUTS
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, Consumer, NewTopic, Producer
from tidemark.types import TopicPartition

NAMES = ["copier-0", "copier-1", "copier-2"]
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "3",
    "min.insync.replicas": "2",
}
_BATCH_BYTES = 16 << 10


def read_output(servers: str) -> dict[int, np.ndarray[Any, np.dtype[np.int64]]]:
    """The committed numbers of each partition of the output, in its order."""
    wanted = [TopicPartition(OUTPUT, number) for number in range(OUTPUTS)]
    found: dict[int, list[Any]] = {number: [] for number in range(OUTPUTS)}
    with Consumer(servers, isolation_level="read_committed") as consumer:
        consumer.assign(wanted)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(wanted)
        while any(consumer.position(p) < ends[p] for p in wanted):
            for partition, rows in consumer.poll_arrow(timeout_ms=20_000).items():
                numbers = rows.column("value").cast(pa.string()).cast(pa.int64())
                found[partition.partition].append(numbers.to_numpy())
    return {number: np.concatenate(parts) for number, parts in found.items()}


def check_copies(servers: str, count: int) -> None:
    """Asserts that the output has each record once, and those of a partition in their order."""
    numbers = read_output(servers)
    whole = np.concatenate(list(numbers.values()))
    times = np.bincount(whole, minlength=count)
    missing, twice = np.flatnonzero(times == 0), np.flatnonzero(times > 1)
    assert not missing.size and not twice.size, f"missing {missing[:10]}, twice {twice[:10]}"
    assert len(whole) == count
    for partition in range(INPUTS):
        copied = numbers[partition % OUTPUTS]
        copied = copied[copied % INPUTS == partition]
        assert np.array_equal(copied, np.arange(partition, count, INPUTS)), partition


def open_transactions(admin: Admin, servers: str) -> list[str]:
    """Open transactions, and partitions whose committed end is not their end."""
    partitions = [TopicPartition(OUTPUT, number) for number in range(OUTPUTS)]
    partitions.append(TopicPartition("__consumer_offsets", 0))
    found = [
        f"{partition}: {producer}"
        for partition, producers in admin.transactions.describe_producers(partitions).items()
        for producer in producers
        if producer.txn_start_offset is not None
    ]
    found += map(str, admin.transactions.find_hanging(partitions, 0))
    ends = []
    for level in ("read_committed", "read_uncommitted"):
        with Consumer(servers, isolation_level=level) as consumer:
            ends.append(consumer.end_offsets(partitions))
    if ends[0] != ends[1]:
        found.append(f"last stable offsets {ends[0]}, high watermarks {ends[1]}")
    return found


def copy_under_faults(path: Path, seed: int, count: int, faults: Sequence[str]) -> None:
    rng = random.Random(seed)
    with LocalCluster(path / "cluster", controllers=1, brokers=3, overrides=SETTINGS) as cluster:
        cluster.wait_ready(60)
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topics([NewTopic(INPUT, INPUTS, 3), NewTopic(OUTPUT, OUTPUTS, 3)])
            admin.wait_until_topics_known([INPUT, OUTPUT])
            producing = Producer(servers, batch_size=_BATCH_BYTES, delivery_timeout_ms=60_000)
            with producing as producer, Workers(path, servers, NAMES) as workers:
                feed = Feed(producer)
                carried = Faults(cluster, workers, admin, feed, rng)
                carried.run(list(faults), count)
                workers.stop()
            cluster.wait_ready(60)
            carried.until(lambda: not open_transactions(admin, servers), "all transactions ended")
            check_copies(servers, feed.written)
            print(*carried.story, f"{workers.restarts} restarts", sep="\n")
        nodes = [cluster.node(n).process for n in (*cluster.controller_ids, *cluster.broker_ids)]
    assert all(node is not None and node.poll() == 0 for node in nodes)


def shuffled(seed: int, faults: Sequence[str]) -> list[str]:
    return random.Random(f"faults {seed}").sample(faults, len(faults))


def test_a_million_records_are_copied_exactly_once_while_processes_are_killed(
    tmp_path: Path,
) -> None:
    seed = int(os.environ.get("TIDEMARK_CHAOS_SEED", "1"))
    faults = [*BROKER_FAULTS, "kill_worker", "zombie"]
    copy_under_faults(tmp_path, seed, 1_000_000, shuffled(seed, faults))


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        (2, ["transaction_coordinator", "succeeded_zombie", "kill_worker"]),
        (3, ["leader", "zombie", "group_coordinator"]),
    ],
)
def test_records_are_copied_exactly_once_with_other_faults(
    seed: int, faults: list[str], tmp_path: Path
) -> None:
    copy_under_faults(tmp_path, seed, 400_000, shuffled(seed, faults))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif("TIDEMARK_SOAK" not in os.environ, reason="scripts/soak runs it")
@pytest.mark.parametrize("seed", range(11, 16))
def test_the_same_for_longer(seed: int, tmp_path: Path) -> None:
    faults = [*BROKER_FAULTS, *WORKER_FAULTS] * 3
    copy_under_faults(tmp_path, seed, 3_000_000, shuffled(seed, faults))
