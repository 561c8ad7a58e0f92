"""Questions of a job to the cluster, and data frames of exactly one batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark.config.security import ClientSecurity
from tidemark.errors import ConfigError
from tidemark.spark.jobs.batches import JobBatch, Tally
from tidemark.spark.lookups import Lookups
from tidemark.spark.offsets import OffsetRange, format_partition_json
from tidemark.spark.options import SourceOptions, parse_options
from tidemark.spark.planning import Known, look_around, offsets_of
from tidemark.spark.security import as_options, is_security
from tidemark.types import TopicPartition

OF_RECORDS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_OF_JOBS = ("bootstrap.servers", "subscribe", "isolation.level", "failOnDataLoss")


@dataclass(frozen=True, slots=True)
class Source:
    """The topics that a job reads. `options` are further options of the source, by name, and
    `security` is that of the job's clients, of which its journal has nothing.
    """

    bootstrap_servers: str
    topics: tuple[str, ...]
    fail_on_data_loss: bool = True
    isolation_level: str = "read_committed"
    options: Mapping[str, str] = field(default_factory=dict)
    security: ClientSecurity | None = None

    def __post_init__(self) -> None:
        refuse_security("--option", self.options)
        for name in self.options:
            if name.lower().removeprefix("kafka.") in map(str.lower, (*_OF_JOBS, "assign")):
                raise ConfigError(f"--option {name}: the job sets that itself")
        self.parsed()

    def identity(self) -> dict[str, Any]:
        """All that makes a job another one; servers may change their names."""
        return {
            "topics": sorted(self.topics),
            "isolation_level": self.isolation_level,
            "options": dict(sorted(self.options.items())),
        }

    def given(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "isolation.level": self.isolation_level,
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
        } | as_options(self.security)

    def parsed(self) -> SourceOptions:
        """Raises ConfigError for options that the source does not take."""
        subscribe = {"subscribe": ",".join(self.topics)}
        return parse_options(self.given() | subscribe | dict(self.options))


def refuse_security(flag: str, options: Iterable[str]) -> None:
    """Raises ConfigError for options of `tidemark.spark.security`: all see a command line."""
    for name in filter(is_security, options):
        raise ConfigError(
            f"{flag} {name}: give client settings in a file, by --command-config, or for another"
            " target by --to-command-config"
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """The cluster at one moment: its logs, and the offsets that the options mean there."""

    known: Known
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def look(source: Source, *, has_begun: bool = False) -> Bounds:
    """Leaves the starts out if the job `has_begun`: they may not be found any more.

    Raises as `tidemark.spark.planning.plan`.
    """
    options = source.parsed()
    with Lookups(options) as lookups:
        known = look_around(lookups, options)
        starts = {} if has_begun else offsets_of(lookups, options, options.starting, known)
        return Bounds(known, starts, offsets_of(lookups, options, options.ending, known))


def known_of(source: Source) -> Known:
    """The partitions now, without the options' offsets."""
    options = source.parsed()
    with Lookups(options) as lookups:
        return look_around(lookups, options)


def rows_of(
    spark: Any, source: Source, parts: Sequence[OffsetRange], columns: Iterable[str]
) -> Any:
    """A data frame of exactly these ranges, of which there is one at least."""
    assigned: dict[str, list[int]] = {}
    for each in parts:
        assigned.setdefault(each.topic, []).append(each.partition)
    reader = spark.read.format("tidemark").options(**source.given())
    for name, value in source.options.items():
        if not name.lower().startswith(("starting", "ending", "columns", "includeheaders")):
            reader = reader.option(name, value)
    return (
        reader.option("assign", json.dumps(assigned))
        .option(
            "startingOffsets", format_partition_json({p.topic_partition: p.start for p in parts})
        )
        .option("endingOffsets", format_partition_json({p.topic_partition: p.end for p in parts}))
        .option("columns", ",".join(columns))
        .load()
    )


def tallies(rows: Any) -> dict[TopicPartition, Tally]:
    """Counts the rows by topic and partition; needs these columns and `offset` alone."""
    from pyspark.sql import functions as f

    found = (
        rows.groupBy("topic", "partition")
        .agg(f.count("*"), f.try_sum("offset"), f.min("offset"), f.max("offset"))
        .collect()
    )
    return {TopicPartition(row[0], row[1]): Tally(*row[2:]) for row in found}


def tallies_of_topic(spark: Any, source: Source, batch: JobBatch) -> dict[TopicPartition, Tally]:
    """The records that the topic has of a batch: nearly always by the headers of batches alone."""
    parts = batch.parts()
    return tallies(rows_of(spark, source, parts, ("topic", "partition", "offset")))
