"""Import of files into a topic: each file once, by any format that Spark reads.

A batch is a list of files, and one write of the exactly-once sink. A run imports the files that no
earlier one has planned. A file is known by its name: one that grows later is not read again.

Rows with a column `value` of text or bytes are records as they are, with `key`, `headers` and
`timestamp` if they have them. So an export can be imported. Rows with columns that no export has
become values of JSON, as do those without `value`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tidemark.errors import ConfigError
from tidemark.spark.jobs.files import HadoopFiles, literal
from tidemark.spark.jobs.journal import Journal, PlanText
from tidemark.spark.jobs.running import CountMismatchError, Progress
from tidemark.spark.jobs.target import (
    Marks,
    Target,
    added,
    check_same_target,
    keep_marks,
    kept_marks,
    marks_of,
    tallies_of,
    write,
)
from tidemark.spark.planning import Known

_OF_RECORDS = ("key", "value", "headers", "timestamp")
_PLACES = ("topic", "partition", "offset", "timestampType", "batch")  # of an export


@dataclass(frozen=True, slots=True)
class FileBatch:
    """The files of one batch, by their URIs."""

    number: int
    files: tuple[str, ...]


def _to_json(batch: FileBatch) -> dict[str, Any]:
    return {"number": batch.number, "files": list(batch.files)}


def _from_json(stored: Mapping[str, Any]) -> FileBatch:
    """Raises ConfigError for anything else."""
    try:
        return FileBatch(int(stored["number"]), tuple(map(str, stored["files"])))
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"this is no plan of files ({error!r}): {stored!r}") from None


OF_FILES: PlanText[FileBatch] = PlanText(_to_json, _from_json)


@dataclass(frozen=True, slots=True)
class Import:
    """Files for a topic. `key` names the column of keys, for rows without a column `value`."""

    path: str
    format: str
    target: Target
    key: str | None = None
    batch_files: int = 1000
    options: Mapping[str, str] = field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        return {
            "job": "import",
            "path": self.path,
            "format": self.format,
            "target_topic": self.target.topic,
            "key": self.key,
            "options": dict(sorted(self.options.items())),
        }

    def frame(self, spark: Any) -> Any:
        """All files."""
        return spark.read.format(self.format).options(**dict(self.options)).load(self.path)

    def part(self, spark: Any, files: Sequence[str], schema: Any) -> Any:
        """These files, which stay beneath the path for the columns of its directories.

        `schema` is that of all files: one that is asked alone may differ.
        """
        reader = spark.read.format(self.format).options(**dict(self.options))
        if "basePath" not in self.options and HadoopFiles(spark, self.path).is_directory():
            reader = reader.option("basePath", self.path)
        return reader.schema(schema).load(list(map(literal, files)))


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of a run, or of a dry run."""

    topic: str
    batches: int
    records: int
    records_in_all: int
    files_left: int
    is_dry_run: bool


def import_files(
    spark: Any, job: Import, directory: str, *, dry_run: bool, report: Callable[[Progress], None]
) -> Imported:
    """Imports all files that the path has now; `directory` has the journal.

    Raises CountMismatchError, JobFencedError, JobDamagedError, ConfigError, and Spark's errors.
    """
    files = HadoopFiles(spark, directory)
    journal = Journal(files, directory, OF_FILES)
    if journal.load(job.identity()) and journal.last is not None:
        check_same_target(files, journal.last.number, marks_of(job.target.known()))
    everything = job.frame(spark)
    there, schema = sorted(map(unquote, everything.inputFiles())), everything.schema
    if dry_run:
        left = _left(journal, there)
        return Imported(job.target.topic, 0, 0, journal.records, len(left), True)
    journal.begin(job.identity())
    before, done = journal.records, 0
    new = new_files(there, journal.plans())
    while new or not journal.is_last_done:
        if journal.is_last_done:
            number = 0 if journal.last is None else journal.last.number + 1
            keep_marks(files, number, marks_of(job.target.settled()), journal.check)
            journal.plan(FileBatch(number, tuple(new[: job.batch_files])))
            new = new[job.batch_files :]
        assert journal.last is not None
        rows = as_records(job.part(spark, journal.last.files, schema), job.key)
        records = _import_batch(spark, job, files, journal, journal.last, rows)
        journal.finish(records, {"files": len(journal.last.files)})
        done += 1
        report(Progress(journal.last.number, journal.records - before, len(new)))
    return Imported(job.target.topic, done, journal.records - before, journal.records, 0, False)


def new_files(there: Sequence[str], plans: Sequence[FileBatch]) -> list[str]:
    """The files that no plan names."""
    known = {name for plan in plans for name in plan.files}
    return [name for name in there if name not in known]


def _left(journal: Journal[FileBatch], there: Sequence[str]) -> list[str]:
    interrupted = () if journal.is_last_done or journal.last is None else journal.last.files
    return [*interrupted, *new_files(there, journal.plans())]


def _import_batch(
    spark: Any,
    job: Import,
    files: HadoopFiles,
    journal: Journal[FileBatch],
    batch: FileBatch,
    rows: Any,
) -> int:
    expected = rows.count()
    marks = kept_marks(files, batch.number)
    written = _written(spark, job.target, marks, job.target.known())
    if written != expected:  # else a killed run wrote it
        journal.check()
        write(rows, job.target, journal.job_id, batch.number)
        written = _written(spark, job.target, marks, job.target.settled())
    if written != expected:
        raise CountMismatchError(
            f"batch {batch.number} of {journal.job_id}: the files have {expected} rows, and the "
            f"topic has {written} more records. Did somebody else write to {job.target.topic} "
            "meanwhile, or a file change?"
        )
    return int(expected)


def _written(spark: Any, target: Target, marks: Marks, now: Known) -> int:
    found = tallies_of(spark, target, added(target, marks, now))
    return sum(tally.records for tally in found.values())


def are_records(kinds: Mapping[str, str]) -> bool:
    """Whether rows with these columns and types are records: if none would be lost."""
    return kinds.get("value") in ("binary", "string") and kinds.keys() <= {*_OF_RECORDS, *_PLACES}


def as_records(rows: Any, key: str | None) -> Any:
    """The rows as records. Raises ConfigError for a key that is no column, or is there twice."""
    from pyspark.sql import functions as f

    kinds = {field.name: field.dataType.typeName() for field in rows.schema.fields}
    if are_records(kinds):
        if key is not None:
            raise ConfigError("the rows have a column value, so they are records: leave --key out")
        return rows.select(*[name for name in _OF_RECORDS if name in kinds])
    if key is not None and key not in kinds:
        raise ConfigError(f"--key {key}: the rows have {', '.join(kinds)}")
    chosen = [] if key is None else [f.col(f"`{key}`").cast("string").cast("binary").alias("key")]
    return rows.select(*chosen, f.to_json(f.struct("*")).cast("binary").alias("value"))
