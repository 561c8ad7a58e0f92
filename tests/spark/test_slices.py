"""Planning and reading of slices through the real client, over gRPC, against a fake broker."""

from __future__ import annotations

import datetime
import os
import pickle
import socket
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from tests.spark.fake_log import FakeLog, FakePartition, records, serving
from tidemark.errors import ConfigError, RequestTimedOutError, UnknownTopicOrPartitionError
from tidemark.records import Record, decode_arrow, read_header
from tidemark.spark import columns as columns_module
from tidemark.spark import lookups, slices, worker
from tidemark.spark.clients import CLIENTS
from tidemark.spark.offsets import DataLossError, OffsetRange
from tidemark.spark.options import parse_options
from tidemark.spark.planning import plan
from tidemark.spark.slices import ahead, read_slice
from tidemark.spark.source import SlicePartition, TidemarkDataSource, source_schema
from tidemark.spark.versions import arrow_schema
from tidemark.types import TopicPartition

TP = TopicPartition("t", 0)


@pytest.fixture
def fake() -> Iterator[FakeLog]:
    """Topic t: partition 0 has offsets 0 to 99 in batches of 10, partition 1 has none."""
    log = FakePartition()
    for first in range(0, 100, 10):
        log.append(records(first, 10))
    with serving({TP: log, TopicPartition("t", 1): FakePartition()}) as server:
        yield server
        CLIENTS.close()


def options_of(fake: FakeLog, **more: str) -> dict[str, str]:
    return {"bootstrap.servers": fake.bootstrap_servers, "subscribe": "t"} | more


def planned(start: int, end: int) -> OffsetRange:
    """A slice as a plan of the fake's topic makes it, in leader epoch 0."""
    return OffsetRange("t", 0, start, end, UUID(bytes=b"\x01" * 16), 0)


def rows_of(fake: FakeLog, start: int, end: int, **more: str) -> pa.Table:
    options = parse_options(options_of(fake, **more))
    schema = arrow_schema(source_schema(options.columns))
    batches = list(read_slice(options, planned(start, end), schema))
    return pa.Table.from_batches(batches, schema)


def test_a_slice_reads_exactly_its_offsets(fake: FakeLog) -> None:
    rows = rows_of(fake, 13, 47)
    assert rows["offset"].to_pylist() == list(range(13, 47))
    assert rows["value"].to_pylist() == [f"v{o}".encode() for o in range(13, 47)]


def test_columns_are_those_of_sparks_kafka_source(fake: FakeLog) -> None:
    row = rows_of(fake, 15, 17, includeHeaders="true").to_pylist()
    at = datetime.datetime.fromtimestamp(1.015, datetime.UTC)
    assert row[0] == {
        "key": None,
        "value": b"v15",
        "topic": "t",
        "partition": 0,
        "offset": 15,
        "timestamp": at,
        "timestampType": 0,
        "headers": [{"key": "n", "value": b"15"}, {"key": "none", "value": None}],
    }
    assert row[1]["key"] == b"k16"


def test_the_brokers_clock_shows_as_timestamp_type(fake: FakeLog) -> None:
    fake.partitions[TP].append(
        records(100, 3), timestamp_type="LogAppendTime", max_timestamp_ms=5_000
    )
    rows = rows_of(fake, 98, 103)
    assert rows["timestampType"].to_pylist() == [0, 0, 1, 1, 1]
    assert rows["offset"].to_pylist() == [98, 99, 100, 101, 102]


def test_a_hole_at_the_end_of_a_slice_does_not_make_it_wait(fake: FakeLog) -> None:
    fake.partitions[TP].append(records(150, 5))
    assert rows_of(fake, 95, 120)["offset"].to_pylist() == [95, 96, 97, 98, 99]


def test_a_log_that_moved_on_after_planning_is_loss(fake: FakeLog) -> None:
    fake.partitions[TP].log_start_offset = 30
    with pytest.raises(
        DataLossError, match="offset 10 of 10 to 49 is not in the log, which has 30"
    ):
        rows_of(fake, 10, 50)
    rest = rows_of(fake, 10, 50, failOnDataLoss="false")
    assert rest["offset"].to_pylist() == list(range(30, 50))


def test_a_log_that_ends_before_the_slice_is_loss(fake: FakeLog) -> None:
    log = fake.partitions[TP]
    log.batches, log.log_end_offset = log.batches[:5], 50
    with pytest.raises(DataLossError, match="offset 60"):
        rows_of(fake, 60, 80)
    assert rows_of(fake, 60, 80, failOnDataLoss="false").num_rows == 0


def test_a_log_that_was_truncated_below_what_was_read_is_loss(fake: FakeLog) -> None:
    """The offsets are there, but of other records: they are not mixed with those read before."""
    fake.partitions[TP].diverging = (0, 35)
    with pytest.raises(DataLossError, match="truncated"):
        rows_of(fake, 10, 90)


def test_a_topic_made_anew_after_planning_is_loss(fake: FakeLog) -> None:
    """It has the same offsets, with other records."""
    fake.topic_id = UUID(int=2)
    with pytest.raises(DataLossError, match="t-0: the topic was deleted, and another one has its"):
        rows_of(fake, 10, 50)
    assert rows_of(fake, 10, 50, failOnDataLoss="false").num_rows == 0


def test_a_topic_deleted_after_planning_is_told_in_seconds(
    fake: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "_POLL_MS", 20)
    monkeypatch.setattr(slices, "_SILENT_MS", 10)
    monkeypatch.setattr(slices, "_GONE_MS", 200)
    fake.partitions.clear()
    with pytest.raises(DataLossError, match="t-0: the topic was deleted after the read was"):
        rows_of(fake, 10, 50)
    assert rows_of(fake, 10, 50, failOnDataLoss="false").num_rows == 0


def test_a_log_that_was_truncated_and_written_again_is_loss(fake: FakeLog) -> None:
    """The slice begins above the cut: only the epoch tells these records from the planned ones."""
    log = fake.partitions[TP]
    del log.batches[3:]
    log.log_end_offset, fake.leader_epoch = 30, 1
    for first in range(30, 120, 10):
        log.append(records(first, 10), partition_leader_epoch=1)
    assert rows_of(fake, 10, 30).num_rows == 20
    with pytest.raises(DataLossError, match="offset 50 is of leader epoch 1, and the read was"):
        rows_of(fake, 50, 80)
    assert rows_of(fake, 50, 80, failOnDataLoss="false").num_rows == 30


def test_records_written_after_planning_may_share_the_last_answer(fake: FakeLog) -> None:
    fake.leader_epoch, log = 1, fake.partitions[TP]
    log.append(records(100, 5), partition_leader_epoch=1)
    log.batches[-2:] = [b"".join(log.batches[-2:])]
    assert rows_of(fake, 95, 100).num_rows == 5


def test_a_partition_that_stays_silent_times_out(fake: FakeLog) -> None:
    with pytest.raises(RequestTimedOutError, match="nothing came at offset 100"):
        rows_of(fake, 90, 101, **{"kafkaConsumer.pollTimeoutMs": "1"})


def test_planning_gives_one_slice_per_partition_with_records(fake: FakeLog) -> None:
    assert plan(parse_options(options_of(fake))) == [planned(0, 100)]


def test_planning_splits_and_limits(fake: FakeLog) -> None:
    said = options_of(fake, startingOffsets='{"t":{"0":20,"1":-2}}', maxRecordsPerPartition="50")
    slices = plan(parse_options(said))
    assert slices == [planned(20, 60), planned(60, 100)]


def test_an_unknown_topic_is_told_before_the_deadline(
    fake: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "_UNKNOWN_MS", 200)
    said = options_of(fake) | {"subscribe": "tt"}
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'tt' is unknown .*is its name right"):
        plan(parse_options(said))


def test_a_dead_bootstrap_server_is_told_at_the_deadline() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        servers = f"127.0.0.1:{nobody.getsockname()[1]}"
        said = {"bootstrap.servers": servers, "subscribe": "t", "lookupTimeoutMs": "300"}
        with pytest.raises(RequestTimedOutError, match=f"the cluster at {servers} did not answer"):
            plan(parse_options(said))


def test_a_node_that_hangs_does_not_move_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hung:
        servers = f"127.0.0.1:{hung.getsockname()[1]}"
        said = {"bootstrap.servers": servers, "subscribe": "t", "lookupTimeoutMs": "300"}
        begin = time.monotonic()
        with pytest.raises(RequestTimedOutError, match="did not answer in"):
            plan(parse_options(said))
        assert time.monotonic() - begin < 4  # a request alone may take 5 s


def test_assigned_partitions_must_exist(fake: FakeLog) -> None:
    said = {"bootstrap.servers": fake.bootstrap_servers, "assign": '{"t":[0,2]}'}
    with pytest.raises(ConfigError, match="assign names t-2, but the topic has 2 partitions"):
        plan(parse_options(said))


def test_planning_by_timestamp(fake: FakeLog) -> None:
    said = options_of(fake, startingTimestamp="1015", endingTimestamp="1041")
    with pytest.raises(ConfigError, match="t-1 has no record at or after 1015 ms"):
        plan(parse_options(said))
    said["startingOffsetsByTimestampStrategy"] = "latest"
    assert plan(parse_options(said)) == [planned(10, 40)]


def test_planning_tells_loss_before_any_task_runs(fake: FakeLog) -> None:
    fake.partitions[TP].log_start_offset = 30
    said = options_of(fake, startingOffsets='{"t":{"0":20,"1":0}}')
    with pytest.raises(DataLossError, match="offsets 20 to 29 are gone"):
        plan(parse_options(said))


def test_source_and_slices_pickle(fake: FakeLog) -> None:
    source = pickle.loads(pickle.dumps(TidemarkDataSource(options_of(fake))))
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
    (partition,) = reader.partitions()
    batches = list(reader.read(pickle.loads(pickle.dumps(partition))))
    assert sum(b.num_rows for b in batches) == 100


def test_an_empty_plan_reads_nothing(fake: FakeLog) -> None:
    reader = TidemarkDataSource(options_of(fake)).reader(source_schema())
    assert list(reader.read(InputPartition(None))) == []
    assert list(reader.read(None)) == []
    assert isinstance(SlicePartition(OffsetRange("t", 0, 0, 1)), InputPartition)


def test_a_schema_of_some_columns_is_read_as_it_is(fake: FakeLog) -> None:
    source = TidemarkDataSource(options_of(fake))
    schema = StructType().add("offset", LongType(), False).add("value", BinaryType())
    (batch,) = pa.Table.from_batches(
        source.reader(schema).read(SlicePartition(planned(7, 9)))
    ).to_batches()
    assert batch.schema == arrow_schema(schema)
    assert batch.to_pylist() == [{"offset": 7, "value": b"v7"}, {"offset": 8, "value": b"v8"}]


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        (StructType().add("valeu", BinaryType()), "schema: 'valeu' is none of key, value"),
        (StructType().add("value", StringType()), "value is of type binary, not string: cast"),
        (StructType(), "schema names at least one column"),
    ],
)
def test_a_schema_of_other_columns_is_refused(
    fake: FakeLog, schema: StructType, answer: str
) -> None:
    with pytest.raises(ConfigError, match=answer):
        TidemarkDataSource(options_of(fake)).reader(schema)


def test_only_the_columns_asked_for_are_decoded(
    fake: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[tuple[str, ...]] = []

    def noting(*buffer: Any, columns: tuple[str, ...], **named: Any) -> Any:
        decoded.append(columns)
        return decode_arrow(*buffer, columns=columns, **named)

    monkeypatch.setattr(columns_module, "decode_arrow", noting)
    assert rows_of(fake, 10, 20, columns="value,partition").column_names == ["value", "partition"]
    assert set(decoded) == {("value",)}


@pytest.mark.parametrize("columns", ["partition", "offset", "topic,offset,timestampType"])
def test_what_headers_of_batches_say_is_not_decoded(
    fake: FakeLog, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """But the batches at both borders: headers do not say which of their records are within."""
    log = fake.partitions[TP]
    log.append([r for r in records(100, 10) if r.offset not in (103, 107)], keep_offsets=True)
    log.append([Record(110, 5, b"\0\0\0\0", b"")], control=True)
    log.append(records(111, 4), timestamp_type="LogAppendTime", max_timestamp_ms=9)
    whole = rows_of(fake, 13, 113)
    decoded = []

    def noting(buffer: memoryview, **named: Any) -> Any:
        decoded.append(read_header(buffer).base_offset)
        return decode_arrow(buffer, **named)

    monkeypatch.setattr(columns_module, "decode_arrow", noting)
    found = rows_of(fake, 13, 113, columns=columns)
    assert found.num_rows == 87 + 8 + 2
    assert found.equals(whole.select(columns.split(",")))
    assert sorted(set(decoded)) == ([10, 100, 111] if "offset" in columns else [10, 111])


def test_a_time_beyond_sparks_is_told(fake: FakeLog) -> None:
    fake.partitions[TP].append(records(100, 1, timestamp_ms=2**60))
    with pytest.raises(ConfigError, match=r"t-0: a record's timestamp.*leave the column out"):
        rows_of(fake, 95, 101)
    assert rows_of(fake, 95, 101, columns="value").num_rows == 6


def test_slices_of_a_worker_share_a_client(fake: FakeLog) -> None:
    rows_of(fake, 0, 10)
    with CLIENTS.borrowed(parse_options(options_of(fake))) as first:
        assert first.assignment() == [], "nothing is fetched while it is idle"
    assert rows_of(fake, 50, 60)["offset"].to_pylist() == list(range(50, 60))
    with CLIENTS.borrowed(parse_options(options_of(fake))) as second:
        assert second is first


def test_errors_are_one_line_in_a_worker_of_spark(
    fake: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    source = TidemarkDataSource(options_of(fake, column="value"))
    with pytest.raises(ConfigError):
        source.schema()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ, "a program keeps its tracebacks"
    monkeypatch.setattr(worker, "_is_worker", lambda: True)
    with pytest.raises(ConfigError, match="did you mean 'columns'") as raised:
        source.schema()
    assert os.environ["SPARK_HIDE_TRACEBACK"] and raised.value.__suppress_context__


def test_reading_ahead_keeps_order_and_gives_errors_where_they_happened() -> None:
    def batches() -> Iterator[int]:
        yield from range(5)
        raise DataLossError("gone")

    taken = []
    with pytest.raises(DataLossError, match="gone"):
        taken.extend(ahead(batches()))  # type: ignore[arg-type]
    stream = ahead(iter(range(1000)))  # type: ignore[arg-type]
    assert [next(stream), next(stream)] == [0, 1]
    stream.close()  # the reader stops early: the thread ends, nothing hangs


def test_a_worker_keeps_its_memory_and_a_program_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        def __init__(self) -> None:
            self.said: dict[int, int] = {}

        def mallopt(self, name: int, value: int) -> int:
            self.said[name] = value
            return 1

    libc = Libc()
    monkeypatch.setattr(worker.ctypes, "CDLL", lambda _: libc)
    worker.keep_memory.__wrapped__()
    assert libc.said == {}
    monkeypatch.setattr(worker, "_is_worker", lambda: True)
    worker.keep_memory.__wrapped__()
    assert libc.said == {-1: 64 << 20, -2: 16 << 20, -3: 32 << 20}
