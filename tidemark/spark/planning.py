"""Planning of a batch read in the driver: asks the cluster for partitions and offsets.

The decisions are in `offsets.plan_ranges` and `offsets.split_ranges`; this module has only the
requests. A planning client lives for one plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

from tidemark.client import Consumer
from tidemark.errors import ConfigError, TidemarkError
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
from tidemark.types import TopicPartition

Offsets = dict[TopicPartition, int]


def plan(options: SourceOptions) -> list[OffsetRange]:
    """The slices of a read. Retriable errors are retried fetchOffset.numRetries times."""
    attempts = Retrying(
        stop=stop_after_attempt(options.retries + 1),
        wait=wait_fixed(options.retry_interval_ms / 1000),
        retry=retry_if_exception(_is_retriable),
        reraise=True,
    )
    slices: list[OffsetRange] = attempts(_plan_once, options)
    return slices


def _is_retriable(error: BaseException) -> bool:
    return isinstance(error, TidemarkError) and error.retriable


def _plan_once(options: SourceOptions) -> list[OffsetRange]:
    with Consumer(
        options.bootstrap_servers,
        auto_offset_reset="none",
        isolation_level=options.isolation_level,
    ) as consumer:
        return plan_with(consumer, options)


def plan_with(consumer: Consumer, options: SourceOptions) -> list[OffsetRange]:
    """As `plan`, with an existing client."""
    partitions = _partitions(consumer, options)
    earliest = consumer.beginning_offsets(partitions)
    latest = consumer.end_offsets(partitions)
    starts = _offsets_of(consumer, options, options.starting, partitions, earliest, latest)
    ends = _offsets_of(consumer, options, options.ending, partitions, earliest, latest)
    ranges = plan_ranges(
        starts, ends, earliest, latest, fail_on_data_loss=options.fail_on_data_loss
    )
    return split_ranges(
        ranges,
        slices_min=options.slices_min,
        records_per_slice_max=options.records_per_slice_max,
    )


def _partitions(consumer: Consumer, options: SourceOptions) -> list[TopicPartition]:
    if options.partitions:
        return list(options.partitions)
    return sorted(tp for topic in options.topics for tp in consumer.partitions_for(topic))


def _offsets_of(
    consumer: Consumer,
    options: SourceOptions,
    limit: Limit,
    partitions: Sequence[TopicPartition],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> Offsets:
    if limit.timestamp_ms is not None:
        stamps = dict.fromkeys(partitions, limit.timestamp_ms)
        return _offsets_at(consumer, options, limit, stamps, latest)
    if limit.timestamps_ms:
        stamps = dict(limit.timestamps_ms)
        check_partitions_named(limit.option, stamps, partitions)
        return _offsets_at(consumer, options, limit, stamps, latest)
    if limit.offsets:
        named = dict(limit.offsets)
        check_partitions_named(limit.option, named, partitions)
        return resolve(named, earliest, latest)
    assert limit.offset in (EARLIEST, LATEST)
    return resolve(dict.fromkeys(partitions, limit.offset), earliest, latest)


def _offsets_at(
    consumer: Consumer,
    options: SourceOptions,
    limit: Limit,
    stamps: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> Offsets:
    """First offsets at or after each timestamp.

    Where no record is that late, an end becomes the log end; for a start,
    startingOffsetsByTimestampStrategy decides.
    """
    found = consumer.offsets_for_times(dict(stamps))
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
