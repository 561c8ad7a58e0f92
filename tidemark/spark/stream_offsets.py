"""Offsets of a streaming query, and what each batch may read. Pure: no Spark, no IO.

An offset has for each partition the end of what the query has read, the topic's id, and the leader
epoch of the log then. Spark stores it as JSON in the query's checkpoint and compares that
text: an offset that reads no more than another is the same text.

The rules are those of Spark's own Kafka source. New partitions are read from their first record.
Records that are gone are data loss, and so are all those of a topic that was made anew.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from tidemark.errors import ConfigError
from tidemark.spark.offsets import DataLossError, OffsetRange
from tidemark.types import TopicPartition

_VERSION = 1
_SIZE_BYTES = 1024  # of a record, where no partition tells
_TOLERATE = "failOnDataLoss=false reads what there is"


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """The end of what a query has read of a partition.

    `leader_epoch` is that of the log's end when this was planned. `first` is set in the first
    offset that has the partition, or its topic under this id: where reading began.
    """

    topic_id: UUID
    offset: int
    leader_epoch: int
    first: int | None = None


@dataclass(frozen=True, slots=True)
class LogEnds:
    """A partition of the cluster: its topic, log start, end, and leader epoch at the end."""

    topic_id: UUID
    earliest: int
    latest: int
    leader_epoch: int


StreamOffset = Mapping[TopicPartition, StreamPlace]
Ends = Mapping[TopicPartition, LogEnds]


# The text in the checkpoint.


def to_json(offset: StreamOffset) -> dict[str, Any]:
    """Dicts of primitive values, as Spark requires, in the order of topic and partition."""
    topics: dict[str, Any] = {}
    for tp, place in sorted(offset.items()):
        known = topics.setdefault(tp.topic, {"id": str(place.topic_id), "partitions": {}})
        one: dict[str, int | str] = {"offset": place.offset, "epoch": place.leader_epoch}
        if place.first is not None:
            one["first"] = place.first
        if str(place.topic_id) != known["id"]:
            one["id"] = str(place.topic_id)
        known["partitions"][str(tp.partition)] = one
    return {"version": _VERSION, "topics": topics}


def from_json(stored: Mapping[str, Any]) -> dict[TopicPartition, StreamPlace]:
    """The inverse of `to_json`. Raises ConfigError for anything else."""
    try:
        if stored["version"] != _VERSION:
            raise ValueError(f"version {stored['version']}")
        found: dict[TopicPartition, StreamPlace] = {}
        for topic, known in stored["topics"].items():
            for number, one in known["partitions"].items():
                first = one.get("first")
                found[TopicPartition(topic, int(number))] = StreamPlace(
                    UUID(one.get("id", known["id"])),
                    int(one["offset"]),
                    int(one["epoch"]),
                    None if first is None else int(first),
                )
        if any(place.offset < 0 for place in found.values()):
            raise ValueError("an offset below zero")
        return found
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the checkpoint has an offset that this source did not write ({error!r}): give the"
            " query a checkpointLocation of its own"
        ) from None


# Admission.


def admitted(
    lags: Mapping[TopicPartition, int], limit: int | None, turn: int = 0
) -> dict[TopicPartition, int]:
    """How many offsets of each partition the next batch reads: `limit` in all, split by lag.

    Each partition that lags gets one at least, if the limit has so many. Otherwise one after the
    other gets one, from that of the `turn` on.
    """
    total = sum(lags.values())
    if limit is None or total <= limit:
        return dict(lags)
    behind = sorted(tp for tp, lag in lags.items() if lag)
    first = turn % len(behind)
    found = dict.fromkeys(lags, 0)
    for tp in [*behind[first:], *behind[:first]][:limit]:
        found[tp] = 1
    spare, rest = limit - min(limit, len(behind)), total - len(behind)
    if spare:
        shares = {tp: divmod((lags[tp] - 1) * spare, rest) for tp in behind}
        for tp, (share, _) in shares.items():
            found[tp] += share
        left = spare - sum(share for share, _ in shares.values())
        for tp in sorted(behind, key=lambda tp: (-shares[tp][1], tp))[:left]:
            found[tp] += 1
    return found


class Patience:
    """The rule of minOffsetsPerTrigger: waits for so many offsets, but for maxTriggerDelay only."""

    def __init__(self, offsets_min: int | None, delay_max_ms: int, now_ms: float) -> None:
        self._offsets_min = offsets_min
        self._delay_max_ms = delay_max_ms
        self._last_ms = now_ms

    def waits(self, lag: int, now_ms: float) -> bool:
        """Whether the next batch is still too small; otherwise the delay begins anew."""
        if self._offsets_min is None:
            return False
        if lag < self._offsets_min and now_ms - self._last_ms < self._delay_max_ms:
            return True
        self._last_ms = now_ms
        return False


# Steps.


def begin_at(starts: Mapping[TopicPartition, int], ends: Ends) -> dict[TopicPartition, StreamPlace]:
    """The offset before the first batch."""
    return {
        tp: StreamPlace(ends[tp].topic_id, offset, ends[tp].leader_epoch)
        for tp, offset in starts.items()
    }


def end_of_log(
    start: StreamOffset, ends: Ends, *, fail_on_data_loss: bool, gone: Collection[str] = ()
) -> dict[TopicPartition, StreamPlace]:
    """The offset behind all records that there are. Partitions that are gone keep their place.

    Raises DataLossError for records between `start` and the log that are gone, and for topics that
    are `gone`, unless that is tolerated.
    """
    found = {tp: place for tp, place in start.items() if tp not in ends}
    for tp in sorted(found):
        if tp.topic in gone and fail_on_data_loss:
            raise DataLossError(f"{tp}: the topic was deleted; {_TOLERATE}")
    for tp, log in ends.items():
        before = start.get(tp)
        problem = _loss(tp, before, log, start)
        if problem is not None and fail_on_data_loss:
            raise DataLossError(f"{problem}; {_TOLERATE}")
        if before is None or before.topic_id != log.topic_id:
            found[tp] = StreamPlace(log.topic_id, log.latest, log.leader_epoch, log.earliest)
        elif before.offset == log.latest:
            found[tp] = before
        else:
            found[tp] = StreamPlace(log.topic_id, log.latest, log.leader_epoch)
    return found


def _loss(
    tp: TopicPartition, before: StreamPlace | None, log: LogEnds, start: StreamOffset
) -> str | None:
    """The loss, if any, of a query that stands at `before` in a partition."""
    if before is None:
        is_new = any(
            known.topic == tp.topic and place.topic_id == log.topic_id
            for known, place in start.items()
        )
        if is_new and log.earliest > 0:
            return (
                f"{tp} is new in the query, and its first records are gone; the log starts at "
                f"{log.earliest}"
            )
        return None
    if before.topic_id != log.topic_id:
        return f"{tp}: the topic was deleted, and another one has its name"
    if before.offset < log.earliest:
        lost = f"{tp}: offsets {before.offset} to {log.earliest - 1} are gone"
        return f"{lost}; the log starts at {log.earliest}"
    if before.offset > log.latest:
        return f"{tp}: the query has read up to {before.offset}, but the log ends at {log.latest}"
    return None


def places_to_read(
    start: StreamOffset, end: StreamOffset
) -> dict[TopicPartition, tuple[UUID, int]]:
    """Topic id and first offset of each partition that has something between."""
    places = {tp: (place, _begin(start, tp, place)) for tp, place in end.items()}
    return {tp: (e.topic_id, begin) for tp, (e, begin) in places.items() if begin < e.offset}


def lags_between(start: StreamOffset, end: StreamOffset) -> dict[TopicPartition, int]:
    """Number of offsets of each partition from `start` to `end`."""
    return {tp: max(0, place.offset - _begin(start, tp, place)) for tp, place in end.items()}


def limited(start: StreamOffset, end: StreamOffset, limit: int | None) -> StreamOffset:
    """`end`, moved towards `start` so that `limit` offsets are between."""
    turn = sum(place.offset for place in start.values())  # each batch moves it by the limit
    return _moved(start, end, admitted(lags_between(start, end), limit, turn))


def limited_by_bytes(
    start: StreamOffset,
    end: StreamOffset,
    bytes_max: int,
    sizes: Mapping[TopicPartition, float],
) -> StreamOffset:
    """`end`, moved towards `start` so that about `bytes_max` bytes are between.

    `sizes` are bytes of one offset. A partition without has the mean of the others. Each one that
    lags gets one offset at least: none starves, and a record larger than the limit is read.
    """
    mean = sum(sizes.values()) / len(sizes) if sizes else _SIZE_BYTES
    lags = lags_between(start, end)
    size_of = {tp: max(1.0, sizes.get(tp, mean)) for tp in lags}
    budget = admitted({tp: math.ceil(lag * size_of[tp]) for tp, lag in lags.items()}, bytes_max)
    counts = {tp: min(lag, max(1, int(budget[tp] / size_of[tp]))) for tp, lag in lags.items()}
    return _moved(start, end, counts)


def _moved(
    start: StreamOffset, end: StreamOffset, counts: Mapping[TopicPartition, int]
) -> dict[TopicPartition, StreamPlace]:
    """`end` with so many offsets of each partition behind `start`."""
    lags = lags_between(start, end)
    found: dict[TopicPartition, StreamPlace] = {}
    for tp, count in counts.items():
        before, place = start.get(tp), end[tp]
        if count < lags[tp]:
            place = replace(place, offset=_begin(start, tp, place) + count)
        same = before is not None and before.topic_id == place.topic_id
        found[tp] = before if before and same and before.offset == place.offset else place
    return found


def at_most(start: StreamOffset, end: StreamOffset, target: StreamOffset) -> StreamOffset:
    """`end` without what lies behind `target`, where a query with AvailableNow stops."""
    found = {tp: place for tp, place in start.items() if tp in end}
    for tp, place in end.items():
        last = target.get(tp)
        if last is not None and last.topic_id == place.topic_id:
            offset = min(place.offset, max(last.offset, _begin(start, tp, place)))
            found[tp] = replace(place, offset=offset)  # never back, though ends may have been
    return found


def _begin(start: StreamOffset, tp: TopicPartition, end: StreamPlace) -> int:
    """The first offset that a batch up to `end` reads of a partition."""
    before = start.get(tp)
    if before is not None and before.topic_id == end.topic_id:
        return before.offset
    return 0 if end.first is None else end.first


def ranges_between(
    start: StreamOffset, end: StreamOffset, *, fail_on_data_loss: bool
) -> list[OffsetRange]:
    """The ranges that a batch reads; the same whenever it is repeated.

    Raises DataLossError unless `end` goes on where `start` stops, or that is tolerated.
    """
    found: list[OffsetRange] = []
    for tp, place in sorted(end.items()):
        before, begin = start.get(tp), _begin(start, tp, place)
        problem = None
        if before is not None and before.topic_id != place.topic_id:
            problem = f"{tp}: the topic was deleted, and another one has its name"
        elif begin > place.offset:
            problem = f"{tp}: the query has read up to {begin}, but the log ended at {place.offset}"
        if problem is not None and fail_on_data_loss:
            raise DataLossError(f"{problem}; {_TOLERATE}")
        if begin < place.offset:
            found.append(OffsetRange(*tp, begin, place.offset, place.topic_id, place.leader_epoch))
    return found
