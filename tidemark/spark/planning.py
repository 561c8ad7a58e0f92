"""Planning of a batch read in the driver: asks the cluster for partitions and offsets.

The decisions are in `offsets.plan_ranges` and `offsets.split_ranges`; this module has only the
questions. A planning client lives for one plan.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from tidemark.errors import ConfigError
from tidemark.spark.direct.plans import directed
from tidemark.spark.direct.snapshots import read_snapshot
from tidemark.spark.lookups import Lookups
from tidemark.spark.offsets import (
    EARLIEST,
    LATEST,
    OffsetRange,
    check_partitions_named,
    plan_ranges,
    resolve,
    split_ranges,
)
from tidemark.spark.options import Limit, SourceOptions
from tidemark.spark.pushdown import Restriction, timestamp_min_ms, within
from tidemark.types import TopicPartition

Offsets = dict[TopicPartition, int]


class Known(NamedTuple):
    """The partitions that are read: topic id, log start, end, and leader epoch at that end.

    `gone` has the topics that a stream has begun, and that the cluster does not know any more.
    """

    topic_ids: dict[TopicPartition, UUID]
    earliest: Offsets
    latest: Offsets
    epochs: dict[TopicPartition, int]
    gone: frozenset[str] = frozenset()

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self.topic_ids)


def plan(options: SourceOptions, restrictions: Sequence[Restriction] = ()) -> list[OffsetRange]:
    """The slices of a read, without what `restrictions` exclude.

    Raises ConfigError, DataLossError, UnknownTopicOrPartitionError, and RequestTimedOutError after
    lookupTimeoutMs.
    """
    if options.direct.snapshot:
        return read_snapshot(options.direct.snapshot, options.isolation_level)
    with Lookups(options) as lookups:
        return plan_with(lookups, options, restrictions)


def plan_with(
    lookups: Lookups, options: SourceOptions, restrictions: Sequence[Restriction] = ()
) -> list[OffsetRange]:
    """As `plan`, with an existing client."""
    known = look_around(lookups, options)
    starts = offsets_of(lookups, options, options.starting, known)
    ends = offsets_of(lookups, options, options.ending, known)
    ranges = plan_ranges(
        starts, ends, known.earliest, known.latest, fail_on_data_loss=options.fail_on_data_loss
    )
    slices = split_ranges(
        _restricted(lookups, ranges, restrictions),
        slices_min=options.slices_min,
        records_per_slice_max=options.records_per_slice_max,
    )
    return directed(lookups, options, [identified(each, known) for each in slices])


def _restricted(
    lookups: Lookups, ranges: Sequence[OffsetRange], restrictions: Sequence[Restriction]
) -> list[OffsetRange]:
    kept = within(ranges, restrictions)
    stamp = timestamp_min_ms(restrictions)
    if stamp is None or not kept:
        return kept
    first = lookups.offsets({each.topic_partition: stamp for each in kept})
    late: list[OffsetRange] = []
    for each in kept:
        found = first[each.topic_partition]
        start = each.end if found is None else max(each.start, found.offset)
        if start < each.end:
            late.append(replace(each, start=start))
    return late


def identified(offsets: OffsetRange, known: Known) -> OffsetRange:
    """The range with the topic id and the leader epoch of the plan."""
    tp = offsets.topic_partition
    return replace(offsets, topic_id=known.topic_ids[tp], leader_epoch=known.epochs[tp])


def look_around(lookups: Lookups, options: SourceOptions, begun: Collection[str] = ()) -> Known:
    """The partitions of the options, and what their logs have. Raises as `plan`.

    Topics that a stream has `begun` may be gone. One that is not listed is asked for by its name:
    the list of a node may lag behind.
    """
    named = dict.fromkeys(tp.topic for tp in options.partitions) or dict.fromkeys(options.topics)
    if options.pattern:
        matches = re.compile(options.pattern).fullmatch
        listed = lookups.matching(options.pattern)
        topics = lookups.existing({*listed, *filter(matches, begun)})
        gone = frozenset(filter(matches, begun)) - topics.keys()
    else:
        topics = lookups.topics(name for name in named if name not in begun)
        topics |= lookups.existing(name for name in named if name in begun)
        gone = frozenset(named) - topics.keys()
    existing = {
        TopicPartition(topic.name, number): topic.topic_id
        for topic in topics.values()
        for number in topic.partitions
    }
    assigned = [tp for tp in options.partitions if tp.topic not in gone]
    for tp in assigned:
        if tp not in existing:
            count = len(topics[tp.topic].partitions)
            raise ConfigError(f"assign names {tp}, but the topic has {count} partitions, from 0 on")
    ids = {tp: existing[tp] for tp in sorted(assigned if options.partitions else existing)}
    earliest = lookups.offsets(dict.fromkeys(ids, EARLIEST))
    latest = lookups.offsets(dict.fromkeys(ids, LATEST))
    return Known(
        ids,
        {tp: found.offset if found else 0 for tp, found in earliest.items()},
        {tp: found.offset if found else 0 for tp, found in latest.items()},
        {tp: found.leader_epoch if found else -1 for tp, found in latest.items()},
        gone,
    )


def offsets_of(lookups: Lookups, options: SourceOptions, limit: Limit, known: Known) -> Offsets:
    """The offsets that a limit means. Raises ConfigError."""
    if limit.timestamp_ms is not None:
        stamps = dict.fromkeys(known.partitions, limit.timestamp_ms)
        return _offsets_at(lookups, options, limit, stamps, known.latest)
    if limit.timestamps_ms:
        stamps = dict(limit.timestamps_ms)
        check_partitions_named(limit.option, stamps, known.partitions)
        return _offsets_at(lookups, options, limit, stamps, known.latest)
    if limit.offsets:
        named = dict(limit.offsets)
        check_partitions_named(limit.option, named, known.partitions)
        return resolve(named, known.earliest, known.latest)
    assert limit.offset in (EARLIEST, LATEST)
    return resolve(dict.fromkeys(known.partitions, limit.offset), known.earliest, known.latest)


def _offsets_at(
    lookups: Lookups,
    options: SourceOptions,
    limit: Limit,
    stamps: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> Offsets:
    """First offsets at or after each timestamp.

    Where no record is that late, an end becomes the log end; for a start,
    startingOffsetsByTimestampStrategy decides.
    """
    found = lookups.offsets(dict(stamps))
    offsets: Offsets = {}
    for tp, stamp in stamps.items():
        match = found.get(tp)
        if match is not None:
            offsets[tp] = min(match.offset, latest[tp])
        elif limit is options.ending or options.latest_when_no_record_matches:
            offsets[tp] = latest[tp]
        else:
            raise ConfigError(
                f"{limit.option}: {tp} has no record at or after {stamp} ms; set "
                "startingOffsetsByTimestampStrategy to latest to begin at the end there"
            )
    return offsets
