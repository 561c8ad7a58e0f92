"""A driver that stops at each point of a batch: the batch is repeated with the same rows.

The state of a stopped driver is its checkpoint. Spark writes a file into `offsets` before a batch
and one into `commits` after it. After a stop between two steps, a file is missing.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.fake_log import FakeLog, FakePartition, records, serving
from tidemark.spark.progress import BatchProgress, listener
from tidemark.spark.versions import limits
from tidemark.types import TopicPartition

pytestmark = pytest.mark.spark

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
Batches = list[tuple[int, list[tuple[int, int]]]]


@pytest.fixture
def fake() -> Iterator[FakeLog]:
    with serving({T0: FakePartition(), T1: FakePartition()}) as server:
        yield server


def run(spark: Any, fake: FakeLog, checkpoint: Path, **more: str | None) -> Batches:
    """Drains the topic. Number, and (partition, offset) of the rows, of each batch."""
    found: Batches = []

    def take(rows: Any, number: int) -> None:
        offsets = sorted((row["partition"], row["offset"]) for row in rows.collect())
        if offsets:
            found.append((number, offsets))

    reading = spark.readStream.format("tidemark").option("subscribe", "t")
    reading = reading.option("bootstrap.servers", fake.bootstrap_servers)
    rows = reading.options(**{k: v for k, v in more.items() if v is not None}).load()
    writing = rows.select("partition", "offset").writeStream.foreachBatch(take)
    writing = writing.option("checkpointLocation", str(checkpoint))
    writing.trigger(availableNow=True).start().awaitTermination(120)
    return found


def last(checkpoint: Path, log: str) -> int:
    return max(int(path.name) for path in (checkpoint / log).iterdir() if path.name.isdigit())


def drop_last(checkpoint: Path, *logs: str) -> None:
    number = last(checkpoint, logs[0])
    for log in logs:
        (checkpoint / log / f"{number}").unlink()
        (checkpoint / log / f".{number}.crc").unlink(missing_ok=True)


def offsets(partition: int, first: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(first, end)]


def test_a_batch_is_repeated_exactly_wherever_the_driver_stopped(
    spark: Any, fake: FakeLog, tmp_path: Path
) -> None:
    fake.partitions[T0].append(records(0, 20))
    ((first, rows),) = run(spark, fake, tmp_path)
    assert rows == offsets(0, 0, 20)

    # Before the commit: the batch has its rows again, and new ones are of the next.
    drop_last(tmp_path, "commits")
    fake.partitions[T0].append(records(20, 5))
    fake.partitions[T1].append(records(0, 3))
    repeated = run(spark, fake, tmp_path)
    if limits is None:  # the one batch of AvailableNow before Spark 4.2 was the repeated one
        repeated += run(spark, fake, tmp_path)
    again, new = repeated
    assert again == (first, rows)
    assert new[1] == offsets(0, 20, 25) + offsets(1, 0, 3)

    # Before the offsets were logged: nothing was promised, the batch may be larger now.
    for log in ("commits", "offsets"):
        while last(tmp_path, log) >= new[0]:
            drop_last(tmp_path, log)
    fake.partitions[T1].append(records(3, 2))
    (larger,) = run(spark, fake, tmp_path)
    assert larger == (new[0], offsets(0, 20, 25) + offsets(1, 0, 5))

    # After the commit: no row comes again.
    assert run(spark, fake, tmp_path) == []


def test_a_listener_is_told_the_rows_and_the_lag_of_each_batch(
    spark: Any, fake: FakeLog, tmp_path: Path
) -> None:
    fake.partitions[T0].append(records(0, 20))
    told: queue.Queue[BatchProgress] = queue.Queue()
    made = listener(told.put)
    spark.streams.addListener(made)
    try:
        run(spark, fake, tmp_path, maxOffsetsPerTrigger="15" if limits else None)
        first = told.get(timeout=60)
        assert (first.batch_id, first.rows) == ((0, 15) if limits else (0, 20))
        assert first.lag == (5 if limits else None)
        assert first.rows_per_second == pytest.approx(first.rows / first.seconds)
    finally:
        spark.streams.removeListener(made)
