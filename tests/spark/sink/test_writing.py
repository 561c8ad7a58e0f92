"""Options, columns and rows of a write."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidemark.errors import ConfigError, InvalidRecordError
from tidemark.spark.sink import columns
from tidemark.spark.sink.columns import tables
from tidemark.spark.sink.options import parse_sink_options
from tidemark.spark.sink.rows import arrow_batches
from tidemark.spark.sink.writers import checked_columns
from tidemark.spark.source import TidemarkDataSource, source_schema

SERVERS = {"bootstrap.servers": "h:1"}


def parse(is_stream: bool = True, /, **more: str) -> Any:
    return parse_sink_options(
        SERVERS | {key.replace("_", "."): value for key, value in more.items()},
        is_stream=is_stream,
    )


def test_settings_of_the_producer_may_have_kafkas_prefix() -> None:
    found = parse(kafka_acks="all", linger_ms="0", kafka_Compression_Type="zstd", queryName="q")
    assert dict(found.producer) == {"acks": "all", "linger_ms": 0.0, "compression_type": "zstd"}
    assert found.exactly_once and found.transaction_timeout_ms == 600_000


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"topik": "t"}, "unknown option 'topik' of a write; did you mean 'topic'"),
        ({"delivery_guarantee": "twice"}, "is none of exactly-once, at-least-once"),
        ({"acks": "1"}, "exactly-once needs acks=all"),
        ({"acks": "1", "kafka_acks": "0"}, "acks and kafka.acks differ"),
        ({"batchId": "3"}, "batchId is an option of batch jobs"),
        ({"sinkId": "a/b"}, "sinkId="),
        ({"sinkId": "s", "delivery_guarantee": "at-least-once"}, "sinkId has no effect"),
        ({"linger_ms": "soon"}, "linger.ms='soon' is not a number"),
        ({"transaction_timeout_ms": "-1"}, "is below zero"),
        ({"transaction_timeout_ms": "0"}, "transaction.timeout.ms=0: 1 to"),
        ({"topic": ""}, "topic is empty"),
        ({"bootstrap_servers": ""}, "bootstrap.servers is required"),
    ],
)
def test_an_option_that_misleads_is_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(**given)


def test_a_batch_job_names_both_of_its_ids_or_none() -> None:
    assert parse(False, sinkId="s", batchId="4").batch_id == 4
    with pytest.raises(ConfigError, match="batchId=9223372036854775807: 0 to"):
        parse(False, sinkId="s", batchId=str(2**63 - 1))
    for one in ({"sinkId": "s"}, {"batchId": "4"}):
        with pytest.raises(ConfigError, match="belong together"):
            parse(False, **one)


def schema(**types: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (schema(key=StringType()), "no column value"),
        (schema(value=IntegerType()), "value is of type int, not binary or string: cast it"),
        (schema(value=StringType(), partition=LongType()), "partition is of type bigint"),
        (schema(value=StringType(), carrier=StringType()), "'carrier' can not be written"),
        (schema(value=StringType()), "give the option topic"),
    ],
)
def test_rows_that_can_not_be_written_are_refused_at_planning(
    given: StructType, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        checked_columns(given, None)


def test_rows_of_the_source_can_be_written_as_they_are() -> None:
    checked_columns(source_schema(), None)


def test_a_topic_is_not_overwritten() -> None:
    source = TidemarkDataSource(SERVERS | {"topic": "t"})
    with pytest.raises(ConfigError, match="append"):
        source.writer(schema(value=StringType()), True)
    assert source.streamWriter(schema(value=StringType()), True).run


def batch(*topics: str | None) -> pa.RecordBatch:
    numbers = [str(n) for n in range(len(topics))]
    return pa.record_batch({"topic": pa.array(topics, pa.string()), "value": numbers})


def test_rows_go_to_the_topic_of_their_column_in_their_order() -> None:
    found = list(tables([batch("b", "a", "b"), batch("a", "c")], None))
    assert [(topic, table["value"].to_pylist()) for topic, table in found] == [
        ("b", ["0", "2"]),
        ("a", ["1", "0"]),
        ("c", ["1"]),
    ]
    assert all(table.schema.names == ["value"] for _, table in found)
    assert [topic for topic, _ in tables([batch("b", "b")], None)] == ["b"]
    assert [topic for topic, _ in tables([batch("b", None)], "x")] == ["x"]
    assert list(tables([batch()], None)) == []
    with pytest.raises(InvalidRecordError, match="1 rows have no topic"):
        list(tables([batch("b", None)], None))


def test_batches_of_spark_are_gathered_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    one = batch("t", "t")
    monkeypatch.setattr(columns, "_TABLE_BYTES", 3 * one.nbytes)
    assert [table.num_rows for _, table in tables([one] * 7, "t")] == [6, 6, 2]


def test_rows_of_spark_4_0_become_arrow() -> None:
    wanted = schema(value=StringType(), timestamp=TimestampType(), headers=source_headers())
    moment = datetime(2026, 1, 2, 3, 4, 5, 6_000)  # local, as Spark gives it
    rows = [Row("a", moment, [Row("h", bytearray(b"x"))]), Row(None, None, None)] * 6_000
    found = list(arrow_batches(rows, wanted))
    assert [each.num_rows for each in found] == [10_000, 2_000]
    first = found[0].slice(0, 2).to_pylist()
    assert first[0]["timestamp"].astimezone(UTC) == moment.astimezone(UTC)
    assert first[0]["headers"] == [{"key": "h", "value": b"x"}]
    assert first[1] == {"value": None, "timestamp": None, "headers": None}


def source_headers() -> Any:
    return source_schema(["headers"])["headers"].dataType
