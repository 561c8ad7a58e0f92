"""The options of the source, and the errors for wrong ones."""

from __future__ import annotations

import pytest

from tidemark.errors import ConfigError
from tidemark.spark.offsets import EARLIEST, LATEST
from tidemark.spark.options import COLUMNS, parse_columns, parse_options
from tidemark.types import TopicPartition

PLAIN = {"bootstrap.servers": "h:1", "subscribe": "a, b,a"}


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    options = parse_options(PLAIN)
    assert options.topics == ("a", "b")
    assert (options.starting.offset, options.ending.offset) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss is True
    assert options.columns == COLUMNS[:-1]
    assert options.poll_timeout_ms == 120_000
    assert options.isolation_level == "read_uncommitted"


def test_names_are_case_insensitive_as_spark_gives_them() -> None:
    said = PLAIN | {"failondataloss": "FALSE", "minpartitions": "7", "includeheaders": "true"}
    options = parse_options(said)
    assert (options.fail_on_data_loss, options.slices_min) == (False, 7)
    assert options.columns == COLUMNS


def test_columns_are_read_as_named() -> None:
    assert parse_options(PLAIN | {"columns": "value, headers,offset"}).columns == (
        "value",
        "headers",
        "offset",
    )


def test_kafkas_own_prefix_is_an_alias() -> None:
    assert parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "a"}).topics == ("a",)
    with pytest.raises(ConfigError, match="differ"):
        parse_options(PLAIN | {"kafka.bootstrap.servers": "other:1"})


def test_offsets_and_timestamps_partition_by_partition() -> None:
    options = parse_options(
        PLAIN
        | {
            "startingOffsets": '{"a":{"0":5}}',
            "endingOffsetsByTimestamp": '{"a":{"0":99}}',
        }
    )
    assert options.starting.offsets == ((TopicPartition("a", 0), 5),)
    assert options.ending.timestamps_ms == ((TopicPartition("a", 0), 99),)


def test_a_timestamp_goes_before_offsets() -> None:
    options = parse_options(PLAIN | {"startingTimestamp": "7", "startingOffsets": "earliest"})
    assert options.starting.timestamp_ms == 7 and options.starting.offset is None


def test_assign_names_partitions() -> None:
    options = parse_options({"bootstrap.servers": "h:1", "assign": '{"a":[2,0,2]}'})
    assert options.partitions == (TopicPartition("a", 0), TopicPartition("a", 2))


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"startingoffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"subscribePattern": "a.*"}, "exactly one of the options subscribe, subscribePattern"),
        ({"subscribePattern": "a(", "subscribe": None}, "no regular expression of Python"),
        ({"subscribePattern": "", "subscribe": None}, "matches no topic"),
        ({"fetchOffset.numRetries": "9"}, "tries have a time here, lookupTimeoutMs"),
        ({"columns": "value,ofset"}, "columns: 'ofset' is none of key, value, topic"),
        ({"columns": ","}, "columns names at least one column, and none twice"),
        ({"columns": "key,key"}, "and none twice"),
        ({"maxOffsetsPerTrigger": "5"}, "no effect in a batch query: it is an option of streams"),
        ({"path": "x"}, "unknown option 'path'"),
        ({"startingOffsets": "latest"}, "can not be latest in a batch query"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "can not be latest in a batch query"),
        ({"endingOffsets": "earliest"}, "can not be earliest"),
        ({"endingOffsets": '{"a":{"0":-3}}'}, "-3 is no offset"),
        ({"failOnDataLoss": "yes"}, "not true or false"),
        ({"minPartitions": "0"}, "below 1"),
        ({"leaseMs": "9" * 19}, "no number of 64 bits"),
        ({"maxRecordsPerPartition": "many"}, "not a whole number"),
        ({"isolation.level": "dirty"}, "is none of read_uncommitted"),
        ({"assign": '{"a":[0]}'}, "exactly one of the options subscribe"),
        ({"subscribe": " , "}, "names no topic"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "is none of error, latest"),
    ],
)
def test_a_wrong_option_is_answered_with_what_to_do(
    said: dict[str, str | None], answer: str
) -> None:
    given = {name: value for name, value in {**PLAIN, **said}.items() if value is not None}
    with pytest.raises(ConfigError, match=answer):
        parse_options(given)


def test_servers_are_required() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap.servers is required"):
        parse_options({"subscribe": "a"})


@pytest.mark.parametrize("text", ["a", "[]", '{"a":0}', '{"a":["0"]}', '{"a":[-1]}', "{}"])
def test_broken_assign_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not JSON like"):
        parse_options({"bootstrap.servers": "h:1", "assign": text})


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"startingOffsets": "latest"}, "another place whenever Spark asks.*startingTimestamp"),
        ({"endingOffsets": "latest"}, "no effect in a stream: it is an option of batches"),
        ({"maxTriggerDelay": "soon"}, "is no time like 500ms"),
        ({"maxOffsetsPerTrigger": "0"}, "below 1"),
    ],
)
def test_a_wrong_option_of_a_stream_is_answered(said: dict[str, str], answer: str) -> None:
    with pytest.raises(ConfigError, match=answer):
        parse_options(PLAIN | said, is_stream=True)


def test_a_stream_reads_what_is_committed_and_has_limits() -> None:
    said = {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "3", "maxTriggerDelay": "2m"}
    options = parse_options(PLAIN | said, is_stream=True)
    assert options.isolation_level == "read_committed"
    assert (options.triggers.offsets_max, options.triggers.offsets_min) == (5, 3)
    assert options.triggers.delay_max_ms == 120_000


@pytest.mark.parametrize("said", [{"startingOffsets": "latest"}, {"maxOffsetsPerTrigger": "5"}])
def test_columns_are_known_before_it_shows_whether_it_is_a_stream(said: dict[str, str]) -> None:
    assert parse_columns(PLAIN | {"columns": "value"} | said) == ("value",)
