"""An export whose batches are in a table of Iceberg, each once, wherever a run was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.spark.fake_log import FakeLog, FakePartition, records, serving
from tidemark.errors import ConfigError
from tidemark.spark.jobs.export import export
from tidemark.spark.jobs.iceberg import DIRECTORY, NEXT_BATCH, IcebergError, IcebergTable
from tidemark.spark.jobs.reading import Source
from tidemark.types import TopicPartition

pytestmark = pytest.mark.spark

NAME = "here.lake.flights"


class Killed(BaseException):
    """The end of the driver, in the middle of a run."""


@pytest.fixture
def fake() -> Iterator[FakeLog]:
    """Topic x of two partitions with 40 and 60 records."""
    logs = {TopicPartition("x", p): FakePartition() for p in range(2)}
    for number, log in enumerate(logs.values()):
        for first in range(0, 40 + 20 * number, 20):
            log.append(records(first, 20))
    with serving(logs) as server:
        yield server


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    return SqlCatalog("here", uri=f"sqlite:///{warehouse}/c.db", warehouse=f"file://{warehouse}")


def run(spark: Any, fake: FakeLog, directory: Path, catalog: Any, **more: Any) -> None:
    options = {"batch_records": 30, "dry_run": False, "report": lambda _: None} | more
    source = Source(fake.bootstrap_servers, ("x",))
    export(spark, source, str(directory), table=IcebergTable(NAME, catalog), **options)


def offsets(catalog: SqlCatalog) -> list[tuple[int, int]]:
    found = catalog.load_table("lake.flights").scan().to_arrow()
    return sorted(zip(*(found[name].to_pylist() for name in ("partition", "offset")), strict=True))


def all_of(fake: FakeLog) -> list[tuple[int, int]]:
    logs = fake.partitions
    return [(tp.partition, at) for tp in sorted(logs) for at in range(logs[tp].log_end_offset)]


def test_a_table_has_each_record_once_and_later_runs_add_to_it(
    spark: Any, fake: FakeLog, catalog: SqlCatalog, tmp_path: Path
) -> None:
    to = tmp_path / "export"
    run(spark, fake, to, catalog)
    assert offsets(catalog) == all_of(fake)
    table = catalog.load_table("lake.flights")
    of_parquet = spark.read.parquet(str(to)).orderBy("partition", "offset").first()
    row = table.scan("partition = 0 and offset = 0").to_arrow().to_pylist()[0]
    assert {name: row[name] for name in ("value", "topic")} == {
        "value": bytes(of_parquet["value"]),
        "topic": "x",
    }
    assert row["timestamp"].timestamp() == of_parquet["timestamp"].timestamp()
    snapshots = len(table.snapshots())
    run(spark, fake, to, catalog)
    assert len(catalog.load_table("lake.flights").snapshots()) == snapshots
    fake.partitions[TopicPartition("x", 0)].append(records(40, 20))
    run(spark, fake, to, catalog)
    assert offsets(catalog) == all_of(fake)


@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_is_killed_at_a_commit_adds_the_batch_once(
    spark: Any,
    fake: FakeLog,
    catalog: SqlCatalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    after: bool,
) -> None:
    commit, commits = catalog.commit_table, 0

    def dying(*arguments: Any) -> Any:
        nonlocal commits
        commits += 1
        done = commit(*arguments) if after or commits != 2 else None
        if commits == 2:
            raise Killed
        return done

    monkeypatch.setattr(catalog, "commit_table", dying)
    with pytest.raises(Killed):
        run(spark, fake, tmp_path / "export", catalog)
    assert len(catalog.load_table("lake.flights").snapshots()) == (2 if after else 1)
    monkeypatch.undo()
    run(spark, fake, tmp_path / "export", catalog)
    assert offsets(catalog) == all_of(fake)


def test_a_table_may_begin_behind_the_export_and_the_commits_of_another_run_are_seen(
    spark: Any, fake: FakeLog, catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "export"
    options = {"batch_records": 30, "dry_run": False, "report": lambda _: None}
    export(spark, Source(fake.bootstrap_servers, ("x",)), str(to), **options)  # without a table
    commit = catalog.commit_table

    def behind(*arguments: Any) -> Any:
        monkeypatch.undo()
        run(spark, fake, to, catalog)
        return commit(*arguments)

    monkeypatch.setattr(catalog, "commit_table", behind)
    run(spark, fake, to, catalog)
    assert offsets(catalog) == all_of(fake)
    table = catalog.load_table("lake.flights")
    assert "commit.retry.num-retries" not in table.properties  # it is nobody else's


def test_a_table_of_something_else_is_refused(
    spark: Any, fake: FakeLog, catalog: SqlCatalog, tmp_path: Path
) -> None:
    run(spark, fake, tmp_path / "export", catalog)
    with pytest.raises(ConfigError, match="has the batches of"):
        run(spark, fake, tmp_path / "other", catalog)
    with catalog.load_table("lake.flights").transaction() as transaction:
        transaction.remove_properties(DIRECTORY, NEXT_BATCH)
    with pytest.raises(ConfigError, match="is not of an export"):
        run(spark, fake, tmp_path / "export", catalog)
    for name in ("flights", "here.flights", "here..flights", "here.lake."):
        with pytest.raises(ConfigError, match="CATALOG"):
            IcebergTable(name, catalog)
    with pytest.raises(IcebergError, match="nowhere"):
        IcebergTable("nowhere.lake.flights")
