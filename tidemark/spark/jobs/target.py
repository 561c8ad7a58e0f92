"""A topic that a job writes to: where it ends, and what a batch added to it.

Each batch is one write of the exactly-once sink, by the job's id and the batch's number. So a batch
that is written again changes nothing. A sink forgets its batches when it is idle for
offsets.retention.minutes, so a batch that is there already is not written again.

The ends of the topic before a batch are durable before its plan. What readers see between them and
the ends after the batch is what the batch wrote, as long as nobody else writes to the topic.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from tidemark.config.security import ClientSecurity
from tidemark.errors import ConfigError, RequestTimedOutError
from tidemark.spark.jobs.batches import Tallies
from tidemark.spark.jobs.files import HadoopFiles
from tidemark.spark.jobs.journal import JobDamagedError
from tidemark.spark.jobs.reading import Source, known_of, refuse_security, rows_of, tallies
from tidemark.spark.offsets import DataLossError, OffsetRange
from tidemark.spark.planning import Known
from tidemark.spark.security import as_options
from tidemark.types import TopicPartition

COLUMNS = ("key", "value", "headers", "timestamp", "partition")
"""Those that are written, if the rows have them."""
_SETTLE_S = 60.0
_PAUSE_S = 0.1
_OF_JOBS = ("bootstrap.servers", "topic", "sinkid", "batchid", "delivery.guarantee")


@dataclass(frozen=True, slots=True)
class Target:
    """The topic; `options` are further options of the sink, by name."""

    bootstrap_servers: str
    topic: str
    options: Mapping[str, str] = field(default_factory=dict)
    security: ClientSecurity | None = None

    def __post_init__(self) -> None:
        refuse_security("--target-option", self.options)
        for name in self.options:
            if name.lower().removeprefix("kafka.") in _OF_JOBS:
                raise ConfigError(f"--target-option {name}: the job sets that itself")

    def source(self) -> Source:
        """The same topic to read from."""
        return Source(self.bootstrap_servers, (self.topic,), security=self.security)

    def known(self) -> Known:
        """The topic as readers see it now."""
        return known_of(self.source())

    def settled(self) -> Known:
        """As `known`, when the transactions that end before now have their markers.

        Raises RequestTimedOutError if one stays open for a minute.
        """
        reader = replace(self.source(), isolation_level="read_uncommitted")
        ends, until_s = known_of(reader).latest, time.monotonic() + _SETTLE_S
        while True:
            found = self.known()
            late = [str(tp) for tp in sorted(ends) if found.latest.get(tp, 0) < ends[tp]]
            if not late:
                return found
            if time.monotonic() > until_s:
                raise RequestTimedOutError(
                    f"transactions stay open in {', '.join(late)}, so that the batch can not be "
                    "counted: see tidemark transactions find-hanging, then run the job again"
                )
            time.sleep(_PAUSE_S)


def write(rows: Any, target: Target, job_id: str, number: int) -> None:
    """Writes the rows, as batch `number` of the job, once. Raises Spark's errors."""
    writer = rows.select(*[name for name in COLUMNS if name in rows.columns]).write
    writer = writer.format("tidemark").mode("append").options(**dict(target.options))
    given = {"bootstrap.servers": target.bootstrap_servers, "topic": target.topic}
    given |= as_options(target.security)
    writer.options(**given, sinkId=job_id, batchId=str(number)).save()


@dataclass(frozen=True, slots=True)
class Marks:
    """The ends of the target's partitions before a batch."""

    topic_id: UUID
    ends: Mapping[int, int]


def marks_of(known: Known) -> Marks:
    """The ends as they are now."""
    (topic_id,) = set(known.topic_ids.values())
    return Marks(topic_id, {tp.partition: end for tp, end in known.latest.items()})


def keep_marks(
    files: HadoopFiles, number: int, marks: Marks, check_owner: Callable[[], None]
) -> None:
    """Makes them durable, before the plan of batch `number`.

    Marks take time: a later run may have its own by then, with the batch behind them. So
    `check_owner` raises JobFencedError first. Raises DataLossError if the batches before went to
    another topic, JobDamagedError.
    """
    check_same_target(files, number - 1, marks)
    check_owner()
    ends = {str(partition): marks.ends[partition] for partition in sorted(marks.ends)}
    files.write(_name(number), json.dumps({"topic_id": str(marks.topic_id), "ends": ends}) + "\n")


def check_same_target(files: HadoopFiles, last: int, now: Marks) -> None:
    """Raises DataLossError unless batch `last`, if any, went to this topic: a rest of the records
    in an empty topic is no copy. Raises JobDamagedError.
    """
    if last >= 0 and kept_marks(files, last).topic_id != now.topic_id:
        raise DataLossError(
            f"the topic is not the one that batch {last} was written to: it was made anew, or is "
            "that of another cluster. Give the job another directory to begin with this topic"
        )


def kept_marks(files: HadoopFiles, number: int) -> Marks:
    """Raises JobDamagedError if there are none."""
    try:
        found = json.loads(files.read(_name(number)) or "")
        return Marks(UUID(found["topic_id"]), {int(p): int(e) for p, e in found["ends"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        name = f"{files.root}/{_name(number)}"
        raise JobDamagedError(f"{name} is gone or can not be read ({error!r})") from None


def added(target: Target, marks: Marks, now: Known) -> list[OffsetRange]:
    """The ranges behind the marks. Raises DataLossError if the topic was made anew since."""
    found = []
    for tp, topic_id in now.topic_ids.items():
        if topic_id != marks.topic_id:
            raise DataLossError(
                f"{tp}: topic {tp.topic!r} was made anew after the job began to write to it; give "
                "the job another directory to begin with the new topic"
            )
        start = marks.ends.get(tp.partition, 0)
        if start < now.latest[tp]:
            place = start, now.latest[tp], topic_id, now.epochs[tp]
            found.append(OffsetRange(tp.topic, tp.partition, *place))
    return found


def tallies_of(spark: Any, target: Target, parts: Sequence[OffsetRange]) -> Tallies:
    """Counts what readers see in these ranges."""
    if not parts:
        return {}
    return tallies(rows_of(spark, target.source(), parts, ("topic", "partition", "offset")))


def by_number(tallies: Mapping[TopicPartition, Any]) -> dict[int, Any]:
    """Tallies of one topic, by the number of the partition."""
    return {tp.partition: tally for tp, tally in tallies.items()}


def _name(number: int) -> str:
    return f"target-{number:08d}.json"
