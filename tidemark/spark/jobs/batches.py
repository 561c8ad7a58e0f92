"""The batches of a job: which offsets each one reads. Pure: no Spark, no IO.

A batch names all partitions that the job knows, also those of which it reads nothing. So the last
plan alone says where the next batch begins. The rules are those of a stream
(`tidemark.spark.stream_offsets`). New partitions are read from their first record. Records that are
gone are data loss, and so are all those of a topic that was made anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidemark.errors import ConfigError
from tidemark.spark.offsets import DataLossError, OffsetRange
from tidemark.spark.planning import Known
from tidemark.spark.stream_offsets import admitted
from tidemark.types import TopicPartition


@dataclass(frozen=True, slots=True)
class JobBatch:
    """The ranges of one batch, by partition; a partition without new records has an empty one."""

    number: int
    ranges: Mapping[TopicPartition, OffsetRange]

    @property
    def size(self) -> int:
        """Number of offsets; the batch has at most as many records."""
        return sum(each.size for each in self.ranges.values())

    def parts(self) -> list[OffsetRange]:
        """The ranges that are not empty, by topic and partition."""
        return [self.ranges[tp] for tp in sorted(self.ranges) if self.ranges[tp].size]


@dataclass(frozen=True, slots=True)
class Tally:
    """Records of one partition: their number, and the sum, least and greatest of their offsets.

    The sum is None above 2^63 - 1.
    """

    records: int
    offset_sum: int | None
    first: int
    last: int


Tallies = Mapping[TopicPartition, Tally]


def next_batch(
    last: JobBatch | None,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    known: Known,
    *,
    limit: int | None,
    fail_on_data_loss: bool,
) -> JobBatch | None:
    """The batch after `last`, of at most `limit` offsets; None where nothing is left below `ends`.

    `starts` has the first offsets of a job without a batch. Raises DataLossError.
    """
    begins: dict[TopicPartition, int] = {}
    for tp, topic_id in known.topic_ids.items():
        begin = starts.get(tp, known.earliest[tp]) if last is None else known.earliest[tp]
        if last is not None and tp in last.ranges:
            begin = last.ranges[tp].end
            if last.ranges[tp].topic_id != topic_id:
                raise DataLossError(
                    f"{tp}: topic {tp.topic!r} was made anew since the last batch; give the job "
                    "another directory to begin with the new topic"
                )
        begins[tp] = _in_log(tp, begin, known, fail_on_data_loss)
    lags = {
        tp: max(0, _end_of(tp, ends.get(tp, 0), known, fail_on_data_loss) - begin)
        for tp, begin in begins.items()
    }
    if not any(lags.values()):
        return None
    sizes = admitted(lags, limit)
    ranges = {
        tp: OffsetRange(
            *(tp.topic, tp.partition, begin, begin + sizes[tp]),
            *(known.topic_ids[tp], known.epochs[tp]),
        )
        for tp, begin in begins.items()
    }
    return JobBatch(0 if last is None else last.number + 1, ranges)


def _in_log(tp: TopicPartition, begin: int, known: Known, fail_on_data_loss: bool) -> int:
    first, end = known.earliest[tp], known.latest[tp]
    if first <= begin <= end:
        return begin
    if fail_on_data_loss:
        raise DataLossError(
            f"{tp}: the next record to read is {begin}, and the log has {first} to {end - 1}; "
            "with --tolerate-data-loss the job goes on with what there is"
        )
    return min(max(begin, first), end)


def _end_of(tp: TopicPartition, end: int, known: Known, fail_on_data_loss: bool) -> int:
    """A plan names nothing behind the log: the next one would begin there, and miss what comes."""
    if end > known.latest[tp] and fail_on_data_loss:
        raise DataLossError(
            f"{tp}: asked up to {end}, but the log ends at {known.latest[tp]}; with "
            "--tolerate-data-loss the job goes on with what there is"
        )
    return min(end, known.latest[tp])


def check_topic_ids(batch: JobBatch, known: Known) -> None:
    """Raises DataLossError if a topic of the batch is not the planned one."""
    for tp, planned in batch.ranges.items():
        if known.topic_ids.get(tp) != planned.topic_id:
            raise DataLossError(
                f"{tp}: topic {tp.topic!r} was made anew after batch {batch.number} was planned"
            )


def differences(read: Tallies, written: Tallies) -> list[str]:
    """The differences of two counts, by partition; empty if they agree."""
    found = []
    for tp in sorted(read.keys() | written.keys()):
        if read.get(tp) != written.get(tp):
            found.append(f"{tp}: read {_text(read.get(tp))}, written {_text(written.get(tp))}")
    return found


def is_more(found: Tallies, topic: Tallies) -> bool:
    """Whether a partition has more records here than the topic has now."""
    return any(
        each.records > (topic[tp].records if tp in topic else 0) for tp, each in found.items()
    )


def counted(tallies: Tallies) -> tuple[int, dict[str, Any]]:
    """The result of a batch for the journal: all records, and those of each partition."""
    by_partition = {str(tp): tallies[tp].records for tp in sorted(tallies)}
    return sum(by_partition.values()), {"partitions": by_partition}


def _text(tally: Tally | None) -> str:
    if tally is None:
        return "nothing"
    return f"{tally.records} records ({tally.first} to {tally.last}, sum {tally.offset_sum})"


# The text in the journal.


def to_json(batch: JobBatch) -> dict[str, Any]:
    """The plan as JSON's types, by topic and partition."""
    topics: dict[str, Any] = {}
    for tp, each in sorted(batch.ranges.items()):
        topic = topics.setdefault(tp.topic, {"id": str(each.topic_id), "partitions": {}})
        topic["partitions"][str(tp.partition)] = {
            "start": each.start,
            "end": each.end,
            "epoch": each.leader_epoch,
        }
    return {"number": batch.number, "topics": topics}


def tallies_to_json(tallies: Tallies) -> list[list[Any]]:
    """Counts as JSON's types."""
    return [
        [*tp, each.records, each.offset_sum, each.first, each.last]
        for tp, each in sorted(tallies.items())
    ]


def tallies_from_json(stored: Sequence[Sequence[Any]]) -> dict[TopicPartition, Tally]:
    """The inverse of `tallies_to_json`. Raises ConfigError for anything else."""
    try:
        return {
            TopicPartition(str(topic), int(number)): Tally(
                int(records), None if total is None else int(total), int(first), int(last)
            )
            for topic, number, records, total, first, last in stored
        }
    except (ValueError, TypeError) as error:
        raise ConfigError(f"these are no counts ({error!r}): {stored!r}") from None


def from_json(stored: Mapping[str, Any]) -> JobBatch:
    """The inverse of `to_json`. Raises ConfigError for anything else."""
    try:
        ranges: dict[TopicPartition, OffsetRange] = {}
        for name, topic in stored["topics"].items():
            for number, one in topic["partitions"].items():
                tp = TopicPartition(name, int(number))
                places = int(one["start"]), int(one["end"]), UUID(topic["id"]), int(one["epoch"])
                ranges[tp] = OffsetRange(tp.topic, tp.partition, *places)
        return JobBatch(int(stored["number"]), ranges)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"this is no plan of a batch ({error!r}): {stored!r}") from None
