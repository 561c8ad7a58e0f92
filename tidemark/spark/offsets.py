"""Ranges of offsets that a query reads of each partition, cut into slices. Pure: no Spark, no IO.

The rules are those of Spark's own Kafka source. In JSON, `-2` stands for earliest and `-1` for
latest. An explicit list must name every partition. An offset that the log no longer has is data
loss.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from tidemark.errors import ConfigError, TidemarkError
from tidemark.types import TopicPartition

if TYPE_CHECKING:
    from tidemark.spark.direct.pieces import DirectRead

EARLIEST = -2
LATEST = -1


class DataLossError(TidemarkError):
    """Offsets that a query names are gone or never existed; the message lists them.

    With failOnDataLoss set to false, the query reads the records that exist.
    """


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records of one partition from `start` up to, but not including, `end`.

    They are those of the topic with `topic_id`, and of leader epochs up to `leader_epoch`. The
    range was planned when the log had its end: a later epoch is that of other records. None and
    -1 stand for any. With `direct`, objects of the tier have them all.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: UUID | None = None
    leader_epoch: int = -1
    direct: DirectRead | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"not a range of offsets: {self}")

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Number of offsets in the range; it has at most as many records."""
        return self.end - self.start


def parse_partition_json(option: str, text: str) -> dict[TopicPartition, int]:
    """`{"topic": {"0": 23, "1": -2}}` by partition. Raises ConfigError that names the option."""
    example = f'{option} is not JSON like {{"topic":{{"0":23,"1":-1}}}}'
    try:
        topics = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{example}: {error}") from None
    found: dict[TopicPartition, int] = {}
    if not isinstance(topics, dict) or not all(isinstance(p, dict) for p in topics.values()):
        raise ConfigError(f"{example}: {text!r}")
    for topic, partitions in topics.items():
        for number, value in partitions.items():
            if not number.isdecimal() or not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"{example}: {topic} has {number!r}: {value!r}")
            found[TopicPartition(topic, int(number))] = value
    return found


def format_partition_json(offsets: Mapping[TopicPartition, int]) -> str:
    """The inverse of `parse_partition_json`, sorted by topic and partition."""
    topics: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(offsets.items()):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return json.dumps(topics, separators=(",", ":"))


def check_partitions_named(
    option: str, named: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition]
) -> None:
    """Raises ConfigError unless `named` has exactly the partitions that are read."""
    missing = sorted(set(partitions) - named.keys())
    strange = sorted(named.keys() - set(partitions))
    if missing:
        raise ConfigError(f"{option} must name every partition; it lacks {_listed(missing)}")
    if strange:
        raise ConfigError(f"{option} names {_listed(strange)}, which the query does not read")


def _listed(partitions: Sequence[TopicPartition], shown_max: int = 8) -> str:
    more = len(partitions) - shown_max
    text = ", ".join(map(str, partitions[:shown_max]))
    return f"{text} and {more} more" if more > 0 else text


def resolve(
    wanted: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Offsets with EARLIEST and LATEST replaced by the log's own."""
    places = {EARLIEST: earliest, LATEST: latest}
    return {tp: places[o][tp] if o in places else o for tp, o in wanted.items()}


def plan_ranges(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    *,
    fail_on_data_loss: bool,
) -> list[OffsetRange]:
    """The non-empty ranges, by topic and partition.

    If losses are tolerated, both are cut to the log: a start above the log's end, and an end below
    its start, read nothing. Otherwise they raise DataLossError. A start above its end within the
    log raises ConfigError.
    """
    ranges: list[OffsetRange] = []
    for tp in sorted(starts):
        start, end = starts[tp], ends[tp]
        if start < earliest[tp] and start < end:
            loss = f"{tp}: offsets {start} to {min(end, earliest[tp]) - 1} are gone"
            _lose(f"{loss}; the log starts at {earliest[tp]}", fail_on_data_loss)
        elif end < earliest[tp]:
            loss = f"{tp}: the offsets below {end} are gone"
            _lose(f"{loss}; the log starts at {earliest[tp]}", fail_on_data_loss)
        elif start > latest[tp]:
            loss = f"{tp}: asked from {start} on, but the log ends at {latest[tp]}"
            _lose(loss, fail_on_data_loss)
        elif end > latest[tp]:
            _lose(f"{tp}: asked up to {end}, but the log ends at {latest[tp]}", fail_on_data_loss)
        elif start > end:
            raise ConfigError(f"{tp}: the starting offset {start} is above the ending offset {end}")
        start, end = max(start, earliest[tp]), min(end, latest[tp])
        if start < end:
            ranges.append(OffsetRange(tp.topic, tp.partition, start, end))
    return ranges


def _lose(message: str, fail_on_data_loss: bool) -> None:
    if fail_on_data_loss:
        raise DataLossError(f"{message}; failOnDataLoss=false reads what there is")


def split_ranges(
    ranges: Sequence[OffsetRange],
    *,
    slices_min: int | None = None,
    records_per_slice_max: int | None = None,
) -> list[OffsetRange]:
    """Cuts ranges into slices of at most `records_per_slice_max` offsets, at least `slices_min` in
    all.

    There are fewer slices only if there are fewer offsets. The pieces of a range are contiguous, in
    order, and of sizes that differ by one at most. Each range gets slices in proportion to its
    size.
    """
    total = sum(r.size for r in ranges)
    slices: list[OffsetRange] = []
    for whole in ranges:
        parts = 1
        if records_per_slice_max is not None:
            parts = -(-whole.size // records_per_slice_max)
        if slices_min is not None and slices_min > len(ranges):
            parts = max(parts, -(-whole.size * slices_min // total))
        slices += _cut(whole, max(1, min(parts, whole.size)))
    return slices


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    edges = [whole.start + whole.size * i // parts for i in range(parts + 1)]
    return [replace(whole, start=begin, end=end) for begin, end in itertools.pairwise(edges)]
