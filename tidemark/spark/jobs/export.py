"""Export of topics to Parquet, exactly once: a directory per batch, and a journal beside them.

    DIRECTORY/batch=7/part-*.parquet   appears by one rename, when its counts agree with the topic's
    DIRECTORY/_tidemark/               the journal, and batches under way; Spark does not read it

`spark.read.parquet(DIRECTORY)` has the columns of the source and `batch`. A run reads up to the
ends that the topics have when it begins; the next one goes on from there. A table of Iceberg can
follow: it gets the files of each batch that is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tidemark.spark.jobs.batches import (
    JobBatch,
    Tallies,
    check_topic_ids,
    counted,
    differences,
    is_more,
)
from tidemark.spark.jobs.files import HadoopFiles, literal
from tidemark.spark.jobs.iceberg import IcebergTable
from tidemark.spark.jobs.journal import OF_OFFSETS, Journal
from tidemark.spark.jobs.reading import (
    OF_RECORDS,
    Source,
    known_of,
    look,
    rows_of,
    tallies,
    tallies_of_topic,
)
from tidemark.spark.jobs.running import CountMismatchError, JobRun, Report

_STAGED = "_tidemark/staged"
_COLUMNS = (*OF_RECORDS, "headers")


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of a run, or of a dry run; `first_batch` is None for none."""

    directory: str
    batches: int
    first_batch: int | None
    records: int
    records_in_all: int
    offsets_left: int
    is_dry_run: bool


def export(
    spark: Any,
    source: Source,
    directory: str,
    *,
    batch_records: int,
    dry_run: bool,
    report: Report,
    table: IcebergTable | None = None,
) -> Exported:
    """Runs until the ends of the topics at the start of the run; `table` has all batches then.

    Raises CountMismatchError, DataLossError, JobFencedError, JobDamagedError, IcebergError,
    ConfigError if the directory or the table is of another job, and the client's errors.
    """
    files = HadoopFiles(spark, directory)
    journal = Journal(
        HadoopFiles(spark, f"{directory.rstrip('/')}/_tidemark"), directory, OF_OFFSETS
    )
    identity = {"job": "export"} | source.identity()
    journal.load(identity)
    place = look(source, has_begun=journal.last is not None)
    if dry_run:
        left = JobRun(journal, place, source).left()
        return Exported(directory, 0, None, 0, journal.records, left, True)
    journal.begin(identity)
    place = look(source, has_begun=journal.last is not None)  # another run may have gone on
    files.delete(_STAGED)
    before = journal.records

    def follow() -> None:
        if table is not None and journal.last is not None:
            end = journal.last.number + (1 if journal.is_last_done else 0)
            table.follow(end, lambda number: files.locations(f"batch={number}", ".parquet"))

    def work(batch: JobBatch) -> None:
        journal.finish(*counted(_write(spark, source, files, journal, batch)))
        follow()

    if table is not None:
        table.begin(directory.rstrip("/"), _arrow_schema())
        follow()
    with _plain_timestamps(spark):
        done, first = JobRun(journal, place, source).batches(batch_records, work, report)
    return Exported(directory, done, first, journal.records - before, journal.records, 0, False)


def _write(
    spark: Any, source: Source, files: HadoopFiles, journal: Journal[JobBatch], batch: JobBatch
) -> Tallies:
    """Writes the batch, unless it is there and right; returns its counts."""
    target, staged = f"batch={batch.number}", f"{_STAGED}/{batch.number}-{journal.run}"
    is_there = files.exists(target)  # the run was killed before it could write the result
    found = _tallies_at(spark, files, target) if is_there else {}
    if is_there and any(not differences(noted, found) for noted in journal.noted()):
        return found
    expected = tallies_of_topic(spark, source, batch)
    if is_there:  # a rename that copies, and was interrupted
        check_topic_ids(batch, known_of(source))
        if not differences(expected, found):
            return found
        if is_more(found, expected):
            raise CountMismatchError(
                f"{files.root}/{target} is not whole, and has records that the topic lost "
                "meanwhile: move it away, then run the same command again for those that are left"
            )
        journal.check()
        files.delete(target)
    rows = rows_of(spark, source, batch.parts(), _COLUMNS)
    rows.write.mode("overwrite").parquet(f"{files.root}/{staged}")
    found = _tallies_at(spark, files, staged)
    wrong = differences(expected, found)
    if wrong:
        raise CountMismatchError(
            f"batch {batch.number} was not published, because counts differ: {'; '.join(wrong)}; "
            "a run of the same command tries again"
        )
    check_topic_ids(batch, known_of(source))
    journal.note(found)
    files.rename(staged, target)
    return found


@contextmanager
def _plain_timestamps(spark: Any) -> Iterator[None]:
    """Timestamps are those of Parquet's own type, which others than Spark read, too."""
    key = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(key)
    spark.conf.set(key, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(key, before)


def _arrow_schema() -> Any:
    """The schema of the files."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from tidemark.spark.source import source_schema

    return to_arrow_schema(source_schema(_COLUMNS), timezone="UTC")


def _tallies_at(spark: Any, files: HadoopFiles, name: str) -> Tallies:
    reader = spark.read.schema("topic string, partition int, offset bigint")  # also without files
    return tallies(reader.parquet(literal(f"{files.root}/{name}")))
