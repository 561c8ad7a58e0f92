"""The pure parts of jobs that write to topics: counts, offset maps, new files, command lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidemark.errors import ConfigError
from tidemark.spark.jobs import session as sessions
from tidemark.spark.jobs.batches import Tally
from tidemark.spark.jobs.copying import Copy, offset_map, translated, unequal
from tidemark.spark.jobs.importing import FileBatch, new_files
from tidemark.spark.jobs.reading import Source
from tidemark.spark.jobs.target import Target
from tidemark.types import TopicPartition


def tally(records: int, first: int, last: int) -> Tally:
    return Tally(records, 0, first, last)


def of(topic: str, *tallies: Tally) -> dict[TopicPartition, Tally]:
    return {TopicPartition(topic, number): each for number, each in enumerate(tallies)}


def test_counts_differ_by_partition_or_in_all() -> None:
    read, moved = of("a", tally(5, 0, 4), tally(3, 0, 2)), of("b", tally(4, 9, 12), tally(4, 0, 3))
    assert unequal(read, moved, by_partition=False) == []
    assert unequal(read, moved, by_partition=True) == [
        "partition 0: 5 records were read, and 4 are in the target",
        "partition 1: 3 records were read, and 4 are in the target",
    ]
    assert unequal(read, {}, by_partition=False) == [
        "all partitions: 8 records were read, and 0 are in the target"
    ]


def test_offsets_are_translated_exactly_in_dense_batches_and_else_to_their_begin() -> None:
    results: list[dict[str, Any]] = [
        {"map": offset_map(of("a", tally(5, 10, 14)), of("b", tally(5, 0, 4)))},
        {"map": offset_map(of("a", tally(3, 15, 19)), of("b", tally(3, 6, 8)))},
        {},
        {"map": offset_map(of("a", tally(2, 30, 31)), of("b", tally(2, 12, 13)))},
    ]
    assert [translated(results, 0, at) for at in (9, 10, 12, 14)] == [
        *(None, (0, True), (2, True), (4, True))
    ]
    assert [translated(results, 0, at) for at in (15, 17, 19)] == [
        *((6, True), (6, False), (6, False))
    ]
    assert [translated(results, 0, at) for at in (20, 29, 30, 31, 32)] == [
        *((9, True), (9, True), (12, True), (13, True), (14, True))
    ]
    assert translated(results, 1, 10) is None


def test_a_batch_that_keys_spread_has_no_offset_map() -> None:
    assert offset_map(of("a", tally(5, 0, 4)), of("b", tally(4, 0, 3), tally(1, 0, 0))) == {}


def test_files_are_imported_once_by_their_names() -> None:
    plans = [FileBatch(0, ("a", "b")), FileBatch(1, ("d",))]
    assert new_files(["a", "b", "c", "d", "e"], plans) == ["c", "e"]


@pytest.mark.parametrize(
    ("topics", "options", "says"),
    [
        (("a", "b"), {}, "copies one topic"),
        (("a",), {"minPartitions": "4"}, "copies stay in order"),
        (("a",), {"direct": "true"}, "copies stay in order"),
    ],
)
def test_copies_keep_the_order(topics: tuple[str, ...], options: dict[str, str], says: str) -> None:
    source = Source("h:1", topics, options=options)
    with pytest.raises(ConfigError, match=says):
        Copy("mirror", source, Target("h:2", "a"), True, 100)


def test_a_rate_bounds_the_batches() -> None:
    source, target = Source("h:1", ("a",)), Target("h:1", "b")
    assert Copy("replay", source, target, True, 1_000_000, rate=500).limit() == 5_000
    assert Copy("replay", source, target, True, 1_000).limit() == 1_000
    with pytest.raises(ConfigError, match="the job sets that itself"):
        Target("h:1", "b", {"sinkId": "mine"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03", "[PATH_NOT_FOUND] Path"),
        (
            "An error occurred while calling o85.getFileSystem.\n: org.apache.hadoop.fs."
            'UnsupportedFileSystemException: No FileSystem for scheme "foo"\n\tat org.apache.X',
            "org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for",
        ),
        (
            "\n  An exception was thrown from the Python worker.\nTraceback (most recent call last)"
            ':\n  File "x.py", line 1\ntidemark.spark.offsets.DataLossError: t-0: offsets are gone',
            "tidemark.spark.offsets.DataLossError: t-0: offsets are gone",
        ),
        ("", "Spark failed"),
    ],
)
def test_an_error_of_spark_is_one_line_that_tells_the_reason(text: str, says: str) -> None:
    from py4j.protocol import Py4JError

    with pytest.raises(sessions.SparkFailedError) as raised, sessions.in_one_line():
        raise Py4JError(text)
    assert str(raised.value).startswith(says)
    assert "\n" not in str(raised.value)
    with pytest.raises(KeyError), sessions.in_one_line():
        raise KeyError("a bug of ours")


def test_other_masters_than_local_ones_go_through_spark_submit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver's program says that it was submitted: its environment may be another one."""
    said: dict[str, Any] = {}

    class Done:
        returncode = 3

    def run(command: list[str], *, env: dict[str, str], check: bool) -> Done:
        program = Path(command[-3]).read_text(encoding="utf-8")
        said.update(command=command, env=env, program=program)
        return Done()

    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    monkeypatch.setenv("TIDEMARK_SPARK_SUBMITTED", "")
    monkeypatch.setattr(sessions.subprocess, "run", run)
    assert not sessions.needs_submit("local[4]") and sessions.needs_submit("spark://h:7077")
    settings = {"spark.executor.memory": "4g"}
    assert sessions.submit("spark://h:7077", settings, ["spark", "run"]) == 3
    command = said["command"]
    assert command[:3] == ["/opt/spark/bin/spark-submit", "--master", "spark://h:7077"]
    assert command[3:5] == ["--deploy-mode", "client"]
    assert command[5:7] == ["--conf", "spark.executor.memory=4g"]
    assert command[8:] == ["spark", "run"]
    with pytest.raises(ConfigError, match="the driver of a job runs here"):
        sessions.submit("yarn", {"spark.submit.deployMode": "cluster"}, [])
    program = said["program"].replace("run()", "")
    assert program != said["program"]
    exec(program)
    assert not sessions.needs_submit("spark://h:7077")
