"""Export and statistics in a real Spark session, over a broker that is a dict of batches."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.fake_log import FakeLog, FakePartition, records, serving
from tidemark.spark.jobs import export as job
from tidemark.spark.jobs import stats
from tidemark.spark.jobs.export import CountMismatchError, Exported, export
from tidemark.spark.jobs.files import HadoopFiles
from tidemark.spark.jobs.reading import Source
from tidemark.spark.jobs.running import Progress
from tidemark.spark.offsets import DataLossError
from tidemark.types import TopicPartition

pytestmark = pytest.mark.spark

LOGS = {TopicPartition("x", p): (p + 1) * 20 for p in range(3)}


class Killed(BaseException):
    """The end of the driver, in the middle of a run."""


@pytest.fixture
def fake() -> Iterator[FakeLog]:
    """Topic x of three partitions with 20, 40 and 60 records."""
    logs = {tp: FakePartition() for tp in LOGS}
    for tp, count in LOGS.items():
        for first in range(0, count, 20):
            logs[tp].append(records(first, 20))
    with serving(logs) as server:
        yield server


def run(spark: Any, fake: FakeLog, directory: Path, **more: Any) -> tuple[Exported, list[Any]]:
    said: list[Progress] = []
    options: dict[str, Any] = {"batch_records": 70, "dry_run": False, "report": said.append} | more
    done = export(spark, Source(fake.bootstrap_servers, ("x",)), str(directory), **options)
    return done, [(each.number, each.records, each.left) for each in said]


def exported(spark: Any, directory: Path) -> list[tuple[int, int]]:
    rows = spark.read.parquet(str(directory)).select("partition", "offset").collect()
    return sorted((row[0], row[1]) for row in rows)


def all_of(fake: FakeLog) -> list[tuple[int, int]]:
    logs = fake.partitions
    return [(tp.partition, at) for tp in sorted(logs) for at in range(logs[tp].log_end_offset)]


def test_an_export_continues_where_the_last_run_ended(
    spark: Any, fake: FakeLog, tmp_path: Path
) -> None:
    dry, _ = run(spark, fake, tmp_path / "out", dry_run=True)
    assert (dry.offsets_left, dry.is_dry_run, (tmp_path / "out").exists()) == (120, True, False)
    done, said = run(spark, fake, tmp_path / "out")
    assert said == [(0, 70, 50), (1, 120, 0)]
    assert (done.batches, done.records, done.records_in_all) == (2, 120, 120)
    fake.partitions[TopicPartition("x", 0)].append(records(20, 5))
    done, said = run(spark, fake, tmp_path / "out")
    assert (said, done.records, done.records_in_all) == ([(2, 5, 0)], 5, 125)
    assert exported(spark, tmp_path / "out") == all_of(fake)
    row = spark.read.parquet(str(tmp_path / "out")).where("partition = 1 and offset = 7")
    (found,) = row.selectExpr("string(key)", "string(value)", "headers[0].key", "batch").collect()
    assert tuple(found) == ("k7", "v7", "n", 0)


def test_a_killed_export_resumes_and_each_record_is_there_once(
    spark: Any, fake: FakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the rename, and after it, when its result is not written yet."""
    directory = tmp_path / "out"
    rename = HadoopFiles.rename

    def die_before(self: HadoopFiles, name: str, new_name: str) -> None:
        raise Killed

    def die_after(self: HadoopFiles, name: str, new_name: str) -> None:
        rename(self, name, new_name)
        raise Killed

    for die, seen in ((die_before, False), (die_after, True)):
        monkeypatch.setattr(HadoopFiles, "rename", die)
        with pytest.raises(Killed):
            run(spark, fake, directory)
        fake.partitions[TopicPartition("x", 2)].append(records(60, 5))  # not in the plan
        assert (directory / "batch=0").exists() == seen
    monkeypatch.undo()
    written = sorted(path.name for path in (directory / "batch=0").iterdir())
    assert run(spark, fake, directory)[1] == [(0, 70, 60), (1, 130, 0)]
    assert sorted(path.name for path in (directory / "batch=0").iterdir()) == written
    assert exported(spark, directory) == all_of(fake)


def test_a_batch_that_lost_a_file_is_not_published(
    spark: Any, fake: FakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = job._tallies_at

    def lossy(spark: Any, files: HadoopFiles, name: str) -> Any:
        for path in sorted(Path(f"{files.root}/{name}").glob("*.parquet"))[-1:]:
            path.unlink()
        return at(spark, files, name)

    monkeypatch.setattr(job, "_tallies_at", lossy)
    with pytest.raises(CountMismatchError, match=r"batch 0 was not published.*x-2: read"):
        run(spark, fake, tmp_path)
    assert not list(tmp_path.glob("batch=*"))


def test_a_topic_made_anew_after_the_plan_is_not_exported(
    spark: Any, fake: FakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(job, "_write", die)
        run(spark, fake, tmp_path)
    fake.topic_id = uuid.UUID(int=99)
    with pytest.raises(DataLossError, match="made anew after batch 0 was planned"):
        run(spark, fake, tmp_path)
    assert not list(tmp_path.glob("batch=*"))


def test_statistics_by_partition_and_topic_agree_with_the_headers(
    spark: Any, fake: FakeLog
) -> None:
    source = Source(fake.bootstrap_servers, ("x",))
    rows, wrong = stats.stats(spark, source, stats.plan(source))
    assert wrong == []
    by_partition = {row["partition"]: row for row in rows}
    assert [by_partition[p]["records"] for p in (0, 1, 2, None)] == [20, 40, 60, 120]
    assert by_partition[1] == {
        "topic": "x",
        "partition": 1,
        "records": 40,
        "offsets": 40,
        "key_bytes": sum(len(f"k{n}") for n in range(40) if n % 5),
        "value_bytes": sum(len(f"v{n}") for n in range(40)),
        "null_keys": 8,
        "null_values": 0,
        "distinct_keys": by_partition[1]["distinct_keys"],
        "first_offset": 0,
        "last_offset": 39,
        "min_timestamp_ms": 1_000,
        "max_timestamp_ms": 1_039,
    }
    assert 28 <= by_partition[1]["distinct_keys"] <= 36
    assert by_partition[None]["first_offset"] is None
