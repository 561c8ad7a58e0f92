"""The stream reader against a fake broker, called as Spark 4.2 and as Spark 4.0 call it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.spark.fake_log import FakeLog, FakePartition, records, serving
from tidemark.errors import ConfigError, UnknownTopicOrPartitionError
from tidemark.spark import lookups, stream
from tidemark.spark.clients import CLIENTS
from tidemark.spark.offsets import DataLossError
from tidemark.spark.portable import portable_source
from tidemark.types import TopicPartition

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
    )
except ImportError:  # before Spark 4.2
    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = ReadMinRows = None

with_limits = pytest.mark.skipif(ReadMaxRows is None, reason="Spark 4.2 has limits")

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def fake() -> Iterator[FakeLog]:
    logs = {T0: FakePartition(), T1: FakePartition()}
    logs[T0].append(records(0, 30))
    with serving(logs) as server:
        yield server
        CLIENTS.close()


class Query:
    """A query over the portable reader, as Spark runs it: offsets pass through JSON."""

    def __init__(self, fake: FakeLog, **more: str | None) -> None:
        options = {"bootstrap.servers": fake.bootstrap_servers, "subscribe": "t"} | more
        given = {name: value for name, value in options.items() if value is not None}
        source = portable_source()(given)
        self.reader = source.streamReader(source.schema())
        self.offset: Any = json.loads(json.dumps(self.reader.initialOffset()))

    def batch(self, *arguments: Any) -> list[tuple[int, int]] | None:
        """(partition, offset) of the rows of the next batch; None if there is none."""
        end = json.loads(json.dumps(self.reader.latestOffset(*arguments)))
        if end == self.offset:
            return None
        found = self.rows(self.offset, end)
        self.offset = end
        return found

    def rows(self, start: Any, end: Any) -> list[tuple[int, int]]:
        return sorted(
            (row["partition"], row["offset"])
            for each in self.reader.partitions(start, end)
            for batch in self.reader.read(each)
            for row in batch.to_pylist()
        )

    def next(self) -> list[tuple[int, int]] | None:
        if ReadAllAvailable is None:
            return self.batch()
        return self.batch(self.offset, self.reader.getDefaultReadLimit())


@pytest.fixture
def query(fake: FakeLog) -> Iterator[Query]:
    made = Query(fake, columns="partition,offset")
    yield made
    made.reader.stop()


def of(partition: int, first: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(first, end)]


def test_batches_follow_each_other_without_gap_or_repetition(fake: FakeLog, query: Query) -> None:
    assert query.next() == of(0, 0, 30)
    assert query.next() is None
    fake.partitions[T0].append(records(30, 5))
    fake.partitions[T1].append(records(0, 3))
    assert query.next() == of(0, 30, 35) + of(1, 0, 3)
    fake.partitions[TopicPartition("t", 2)] = FakePartition()
    fake.partitions[TopicPartition("t", 2)].append(records(0, 4))
    assert query.next() == of(2, 0, 4)
    assert query.next() is None


def test_spark_4_0_names_neither_start_nor_limit(fake: FakeLog, query: Query) -> None:
    assert query.batch() == of(0, 0, 30)
    assert query.batch() is None
    fake.partitions[T0].append(records(30, 5))
    assert query.batch() == of(0, 30, 35)


def test_a_batch_that_is_repeated_after_a_restart_reads_the_same(fake: FakeLog) -> None:
    first = Query(fake)
    start = first.offset
    rows = first.next()
    end = first.offset
    fake.partitions[T0].append(records(30, 5))
    again = Query(fake)
    assert again.rows(start, end) == rows
    assert again.batch() is not None
    for each in (first, again):
        each.reader.stop()


@with_limits
def test_limits_are_those_that_spark_passes(fake: FakeLog) -> None:
    query = Query(fake, maxOffsetsPerTrigger="20")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(20)
    assert query.next() == of(0, 0, 20)
    fake.partitions[T0].append(records(30, 50))
    assert query.batch(query.offset, ReadAllAvailable()) == of(0, 20, 80)
    query.reader.stop()


@with_limits
def test_a_limit_of_bytes_is_one_of_records_of_that_size(fake: FakeLog) -> None:
    """Partition 1 has records of ten times the size of those of partition 0."""
    size = len(fake.partitions[T0].batches[0]) / 30
    wide = [replace(each, value=b"x" * int(10 * size)) for each in records(0, 30)]
    fake.partitions[T1].append(wide)
    query = Query(fake, maxBytesPerTrigger=str(int(110 * size)), columns="partition,offset")
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(int(110 * size))
    first = query.next()
    assert first is not None
    assert 8 <= sum(row[0] == 0 for row in first) <= 12
    assert 8 <= sum(row[0] == 1 for row in first) <= 12
    fake.partitions[T0].log_start_offset = 0
    found = list(first)
    while (rows := query.next()) is not None:
        found += rows
    assert sorted(found) == of(0, 0, 30) + of(1, 0, 30)
    fake.partitions[T0].append(records(30, 30))
    assert query.batch(query.offset, ReadAllAvailable()) == of(0, 30, 60)
    query.reader.stop()


@with_limits
def test_available_now_drains_what_was_there_in_limited_batches(fake: FakeLog) -> None:
    query = Query(fake, maxOffsetsPerTrigger="20")
    query.reader.prepareForTriggerAvailableNow()
    found = []
    while (rows := query.next()) is not None:
        found.append(rows)
        fake.partitions[T0].append(records(fake.partitions[T0].log_end_offset, 5))
    assert found == [of(0, 0, 20), of(0, 20, 30)]
    query.reader.stop()


@with_limits
def test_small_batches_wait(fake: FakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = [0.0]
    monkeypatch.setattr(stream, "_now_ms", lambda: now_ms[0])
    query = Query(fake, minOffsetsPerTrigger="40", maxTriggerDelay="10s")
    assert query.reader.getDefaultReadLimit() == ReadMinRows(40)
    assert query.next() is None
    now_ms[0] = 10_000.0
    assert query.next() == of(0, 0, 30)
    query.reader.stop()
    query = Query(fake, minOffsetsPerTrigger="40", maxTriggerDelay="10s")
    assert query.batch() == of(0, 0, 30), "Spark 4.0 does not say where it stands"
    query.reader.stop()


@with_limits
def test_the_first_offset_stays_although_the_log_start_moves(fake: FakeLog, query: Query) -> None:
    fake.partitions[T0].log_start_offset = 10
    assert query.reader.initialOffset() == query.offset
    with pytest.raises(DataLossError, match="t-0: offsets 0 to 9 are gone"):
        query.next()


def test_a_topic_made_anew_under_a_query_is_loss(fake: FakeLog, query: Query) -> None:
    query.next()
    fake.topic_id = type(fake.topic_id)(int=7)
    with pytest.raises(DataLossError, match="another one has its name"):
        query.next()


@with_limits
def test_topics_of_a_pattern_come_and_go(fake: FakeLog) -> None:
    """Whole names; a topic that is not listed for a moment is not read again from its start."""
    query = Query(fake, subscribePattern="t|u.*", subscribe=None, columns="partition,offset")
    assert query.next() == of(0, 0, 30)
    fake.partitions[TopicPartition("tt", 0)] = FakePartition()
    fake.partitions[TopicPartition("tt", 0)].append(records(0, 7))
    assert query.next() is None
    fake.partitions[TopicPartition("u1", 3)] = FakePartition()
    fake.partitions[TopicPartition("u1", 3)].append(records(0, 2))
    assert query.next() == of(3, 0, 2)
    fake.unlisted.add("u1")
    fake.partitions[TopicPartition("u1", 3)].append(records(2, 2))
    assert query.next() == of(3, 2, 4)
    del fake.partitions[TopicPartition("u1", 3)]
    with pytest.raises(DataLossError, match="u1-3: the topic was deleted"):
        query.next()
    query.reader.stop()


@with_limits
def test_tolerated_losses_of_whole_topics_stop_no_other_topic(
    fake: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "_UNKNOWN_MS", 200)
    made = {"subscribe": "t,u", "failOnDataLoss": "false", "columns": "partition,offset"}
    u9 = TopicPartition("u", 9)
    fake.partitions[u9] = FakePartition()
    fake.partitions[u9].append(records(0, 5))
    query = Query(fake, **made)
    assert query.next() == of(0, 0, 30) + of(9, 0, 5)
    del fake.partitions[u9]
    fake.partitions[T0].append(records(30, 5))
    assert query.next() == of(0, 30, 35)
    place = query.offset["topics"]["u"]["partitions"]["9"]["offset"]
    assert (query.next(), place) == (None, 5)
    restarted = Query(fake, **made)
    restarted.offset = query.offset
    assert restarted.next() is None
    fake.topic_id = type(fake.topic_id)(int=7)  # all topics are others now
    fake.partitions[u9] = FakePartition()
    fake.partitions[u9].append(records(0, 3))
    assert restarted.next() == of(0, 0, 35) + of(9, 0, 3)
    for each in (query, restarted):
        each.reader.stop()


@with_limits
def test_a_topic_that_never_was_is_an_error_whatever_is_tolerated(
    fake: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "_UNKNOWN_MS", 200)
    query = Query(fake, subscribe="t,typo", failOnDataLoss="false")
    with pytest.raises(UnknownTopicOrPartitionError, match="is its name right"):
        query.next()
    query.reader.stop()


def test_progress_shows_the_ends_of_the_logs(fake: FakeLog, query: Query) -> None:
    partitions = query.reader.reportLatestOffset()["topics"]["t"]["partitions"]
    assert {number: one["offset"] for number, one in partitions.items()} == {"0": 30, "1": 0}


def test_latest_is_refused_and_says_why(fake: FakeLog) -> None:
    with pytest.raises(ConfigError, match="another place whenever Spark asks"):
        Query(fake, startingOffsets="latest")


def test_a_limit_that_this_spark_does_not_obey_is_refused(
    fake: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "limits", None)
    with pytest.raises(ConfigError, match=r"maxOffsetsPerTrigger needs Spark 4\.2"):
        Query(fake, maxOffsetsPerTrigger="20")
    with pytest.raises(ConfigError, match=r"subscribePattern in a stream needs Spark 4\.2"):
        Query(fake, subscribePattern="t", subscribe=None)
