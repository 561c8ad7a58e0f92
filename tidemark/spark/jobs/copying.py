"""Mirror and replay: records of topics into another topic, each once, in order by partition.

A mirror keeps partitions, and each run continues where the last one ended. A replay has an end,
which the first run fixes: so a topic may be replayed into itself. It keeps partitions, or lets keys
choose them.

A batch is a write of the exactly-once sink. One task writes a partition, so its order stays. The
result of a batch in the journal has its first and last offsets on both sides. Together they are the
offset map (`translated`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemark.errors import ConfigError
from tidemark.spark.jobs.batches import JobBatch, Tallies, Tally, check_topic_ids, counted
from tidemark.spark.jobs.files import HadoopFiles
from tidemark.spark.jobs.journal import OF_OFFSETS, JobDamagedError, Journal
from tidemark.spark.jobs.reading import (
    Bounds,
    Source,
    known_of,
    look,
    rows_of,
    tallies_of_topic,
)
from tidemark.spark.jobs.running import CountMismatchError, JobRun, Report
from tidemark.spark.jobs.target import (
    Target,
    added,
    by_number,
    check_same_target,
    keep_marks,
    kept_marks,
    marks_of,
    tallies_of,
    write,
)

_RATE_WINDOW_S = 10
_OUT_OF_ORDER = ("minpartitions", "maxrecordsperpartition", "direct", "splitbytes")


@dataclass(frozen=True, slots=True)
class Copy:
    """A mirror or a replay. `rate` is in records per second, 0 for no limit."""

    kind: str
    source: Source
    target: Target
    same_partitions: bool
    batch_records: int
    rate: int = 0
    verify: bool = False

    def __post_init__(self) -> None:
        if len(self.source.topics) != 1:
            raise ConfigError(f"a {self.kind} copies one topic")
        for name in self.source.options:
            if name.lower() in _OUT_OF_ORDER:
                raise ConfigError(
                    f"--option {name}: copies stay in order, so tasks read partitions"
                )

    def identity(self) -> dict[str, Any]:
        return {
            "job": self.kind,
            "target_topic": self.target.topic,
            "same_partitions": self.same_partitions,
        } | self.source.identity()

    def limit(self) -> int:
        """Offsets in a batch; a rate is the mean over a batch."""
        return min(self.batch_records, self.rate * _RATE_WINDOW_S or self.batch_records)


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a run, or of a dry run."""

    topic: str
    batches: int
    records: int
    records_in_all: int
    offsets_left: int
    is_verified: bool
    is_dry_run: bool


def copy(
    spark: Any,
    job: Copy,
    directory: str,
    *,
    dry_run: bool,
    report: Report,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Copied:
    """Runs until the ends of the topic at the start of the run, or of a replay's first run.

    `directory` has the journal. Raises CountMismatchError, DataLossError, JobFencedError,
    JobDamagedError, ConfigError for a target that does not fit, and Spark's and the client's
    errors.
    """
    files = HadoopFiles(spark, directory)
    journal = Journal(files, directory, OF_OFFSETS)
    journal.load(job.identity())
    place = look(job.source, has_begun=journal.last is not None)
    _check_fits(job, place)
    if journal.last is not None:
        check_same_target(files, journal.last.number, marks_of(job.target.known()))
    if dry_run:
        run = JobRun(journal, _with_fixed_ends(job, files, place), job.source)
        return Copied(job.target.topic, 0, 0, journal.records, run.left(), False, True)
    journal.begin(job.identity())
    place = look(job.source, has_begun=journal.last is not None)  # another run may have gone on
    place = _with_fixed_ends(job, files, place, fix=True)
    run, before, began_s = JobRun(journal, place, job.source), journal.records, now_s()

    def prepare(batch: JobBatch) -> None:
        keep_marks(files, batch.number, marks_of(job.target.settled()), journal.check)

    def work(batch: JobBatch) -> None:
        _copy_batch(spark, job, files, journal, batch)
        if job.rate:
            sleep(max(0.0, began_s + (journal.records - before) / job.rate - now_s()))

    done, _ = run.batches(job.limit(), work, report, prepare)
    records = journal.records - before
    return Copied(job.target.topic, done, records, journal.records, 0, job.verify, False)


def _check_fits(job: Copy, place: Bounds) -> None:
    """Raises ConfigError for another number of partitions, and a mirror of a topic to itself."""
    there = job.target.known()
    numbers = sorted(tp.partition for tp in place.known.topic_ids)
    if job.same_partitions and numbers != sorted(tp.partition for tp in there.topic_ids):
        raise ConfigError(
            f"{job.source.topics[0]} has {len(numbers)} partitions and {job.target.topic} has "
            f"{len(there.topic_ids)}: give it as many (tidemark topics create or alter)"
        )
    same = set(place.known.topic_ids.values()) & set(there.topic_ids.values())
    if job.kind == "mirror" and same:
        raise ConfigError(f"{job.target.topic} would be mirrored to itself, and never end")


def _with_fixed_ends(job: Copy, files: HadoopFiles, place: Bounds, *, fix: bool = False) -> Bounds:
    """The bounds with the ends of the first run, for a replay."""
    if job.kind != "replay":
        return place
    text = files.read("ends.json")
    if text is not None:
        try:
            kept = {int(number): int(end) for number, end in json.loads(text).items()}
        except (ValueError, AttributeError, TypeError):
            raise JobDamagedError(f"{files.root}/ends.json can not be read: {text!r}") from None
        ends = {tp: kept.get(tp.partition, 0) for tp in place.ends}
        return replace(place, ends=ends)
    if fix:
        ends_by_number = {str(tp.partition): end for tp, end in sorted(place.ends.items())}
        files.write("ends.json", json.dumps(ends_by_number) + "\n")
    return place


def _copy_batch(
    spark: Any, job: Copy, files: HadoopFiles, journal: Journal[JobBatch], batch: JobBatch
) -> None:
    marks = kept_marks(files, batch.number)
    parts = added(job.target, marks, job.target.known())
    found = tallies_of(spark, job.target, parts)
    expected = _like(found, journal.noted(), job)  # a killed run wrote it
    if expected is None:
        expected = tallies_of_topic(spark, _ordered(job.source), batch)
    if unequal(expected, found, by_partition=job.same_partitions):
        rows = _rows(spark, job, batch)
        if not job.same_partitions:
            rows = rows.drop("partition")
        journal.note(expected)
        write(rows, job.target, journal.job_id, batch.number)
        parts = added(job.target, marks, job.target.settled())
        found = tallies_of(spark, job.target, parts)
        expected = _like(found, journal.noted(), job) or expected  # the attempt that counts
    check_topic_ids(batch, known_of(job.source))
    wrong = unequal(expected, found, by_partition=job.same_partitions)
    if not wrong and job.verify:
        read = rows_of(spark, job.target.source(), parts, _VERIFIED) if parts else None
        wrong = _other_contents(job, _rows(spark, job, batch), read)
    if wrong:
        raise CountMismatchError(
            f"batch {batch.number} of {journal.job_id} is not that of the source: "
            f"{'; '.join(wrong)}. Did somebody else write to {job.target.topic} meanwhile?"
        )
    records, more = counted(expected)
    journal.finish(records, more | {"map": offset_map(expected, found)})


def _like(found: Tallies, noted: Sequence[Tallies], job: Copy) -> Tallies | None:
    """The counts of the last attempt that wrote as many records as were found."""
    for each in reversed(noted):
        if not unequal(each, found, by_partition=job.same_partitions):
            return each
    return None


_VERIFIED = ("key", "value", "partition", "offset", "timestamp", "headers")


def _ordered(source: Source) -> Source:
    """The source with one slice for a partition."""
    return replace(source, options=dict(source.options) | {"direct": "false"})


def _rows(spark: Any, job: Copy, batch: JobBatch) -> Any:
    return rows_of(spark, _ordered(job.source), batch.parts(), _VERIFIED)


def unequal(expected: Tallies, found: Tallies, *, by_partition: bool) -> list[str]:
    """The differences between the numbers of records that were read and written."""
    read = {number: tally.records for number, tally in by_number(expected).items()}
    written = {number: tally.records for number, tally in by_number(found).items()}
    if not by_partition:
        read, written = {-1: sum(read.values())}, {-1: sum(written.values())}
    return [
        f"{'all partitions' if number < 0 else f'partition {number}'}: {read.get(number, 0)} "
        f"records were read, and {written.get(number, 0)} are in the target"
        for number in sorted(read.keys() | written.keys())
        if read.get(number, 0) != written.get(number, 0)
    ]


def _other_contents(job: Copy, read: Any, written: Any) -> list[str]:
    """The partitions where keys, values, timestamps or headers differ, or their order."""
    one = _fingerprints(read, job.same_partitions)
    other = {} if written is None else _fingerprints(written, job.same_partitions)
    return [
        f"{'all partitions' if number is None else f'partition {number}'}: contents differ"
        for number in sorted(one.keys() | other.keys(), key=lambda n: -1 if n is None else n)
        if one.get(number) != other.get(number)
    ]


def _fingerprints(rows: Any, by_partition: bool) -> dict[int | None, Any]:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    in_order = Window.partitionBy("partition").orderBy("offset")
    place = f.row_number().over(in_order) if by_partition else f.lit(0)
    headers = f.transform("headers", lambda h: f.struct(h["key"], h["value"].isNull(), h["value"]))
    hashed = f.xxhash64(
        *(place, f.col("key").isNull(), "key", f.col("value").isNull(), "value"),
        *(f.unix_millis("timestamp"), f.coalesce(f.size("headers"), f.lit(0)), headers),
    )
    number = f.col("partition") if by_partition else f.lit(None).cast("int")
    found = rows.select(number.alias("number"), hashed.cast("decimal(38,0)").alias("hash"))
    return {row[0]: row[1] for row in found.groupBy("number").agg(f.sum("hash")).collect()}


def offset_map(read: Tallies, written: Tallies) -> dict[str, dict[str, int]]:
    """The offsets of a batch on both sides, by partition; empty if the keys chose partitions."""
    there = by_number(written)
    found: dict[str, dict[str, int]] = {}
    for number, tally in sorted(by_number(read).items()):
        other: Tally | None = there.get(number)
        if other is None or other.records != tally.records:
            return {}
        found[str(number)] = {
            "first": tally.first,
            "last": tally.last,
            "target_first": other.first,
            "target_last": other.last,
            "records": tally.records,
        }
    return found


def translated(
    results: Sequence[Mapping[str, Any]], partition: int, offset: int
) -> tuple[int, bool] | None:
    """The target's offset for a consumer that is at `offset` of the source, and if it is exact.

    Where a batch has gaps on a side, the answer is the begin of the batch there. Such a consumer
    reads some records twice, and misses none. None before the first batch.
    """
    answer = None
    for result in results:
        each = result.get("map", {}).get(str(partition))
        if each is None or offset < each["first"]:
            continue
        if offset > each["last"]:
            answer = each["target_last"] + 1, True
            continue
        spans = each["last"] - each["first"], each["target_last"] - each["target_first"]
        is_dense = spans == (each["records"] - 1,) * 2
        behind = offset - each["first"] if is_dense else 0
        answer = each["target_first"] + behind, is_dense or offset == each["first"]
    return answer
