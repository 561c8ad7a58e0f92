"""Statistics of topics, by partition and by topic, in one pass of Spark.

Distinct keys are an estimate (HyperLogLog, 5 % standard deviation). Bytes are those of keys and
values after decompression. Counts are compared with those of the batches' headers.
"""

from __future__ import annotations

from typing import Any

from tidemark.spark.jobs.batches import JobBatch, next_batch
from tidemark.spark.jobs.reading import Source, look, rows_of, tallies_of_topic
from tidemark.spark.offsets import OffsetRange
from tidemark.types import TopicPartition

NAMES = (
    "records",
    "offsets",
    "key_bytes",
    "value_bytes",
    "null_keys",
    "null_values",
    "distinct_keys",
    "first_offset",
    "last_offset",
    "min_timestamp_ms",
    "max_timestamp_ms",
)
_EMPTY = (0, 0, 0, 0, 0, 0, 0, None, None, None, None)


def plan(source: Source) -> JobBatch:
    """All that the options of `source` mean, as one batch. Raises as `look`."""
    place = look(source)
    batch = next_batch(
        *(None, place.starts, place.ends, place.known),
        limit=None,
        fail_on_data_loss=source.fail_on_data_loss,
    )
    if batch is None:
        ends = place.known.latest
        ranges = {
            tp: OffsetRange(*tp, ends[tp], ends[tp], topic_id, place.known.epochs[tp])
            for tp, topic_id in place.known.topic_ids.items()
        }
        return JobBatch(0, ranges)
    return batch


def stats(spark: Any, source: Source, batch: JobBatch) -> tuple[list[dict[str, Any]], list[str]]:
    """A row per partition and per topic (with partition None), and what does not agree.

    `offsets` is the length of the range that was read: what is above `records` are records that
    compaction removed, that were aborted, and markers.
    """
    has_any = bool(batch.parts())
    counted = _counted(spark, source, batch) if has_any else {}
    by_headers = tallies_of_topic(spark, source, batch) if has_any else {}
    result = [
        _row(batch, topic, number, counted.get((topic, number)))
        for topic in sorted({tp.topic for tp in batch.ranges})
        for number in [*sorted(tp.partition for tp in batch.ranges if tp.topic == topic), None]
    ]
    wrong = []
    for tp in sorted(batch.ranges):
        one = by_headers.get(tp)
        expected, has = one.records if one else 0, counted.get((tp.topic, tp.partition), _EMPTY)[0]
        if expected != has:
            wrong.append(
                f"{tp}: {has} records were read, and the headers of batches say {expected}"
            )
    return result, wrong


def _counted(
    spark: Any, source: Source, batch: JobBatch
) -> dict[tuple[str, int | None], tuple[Any, ...]]:
    from pyspark.sql import functions as f

    columns = ("topic", "partition", "offset", "timestamp", "key", "value")
    rows = rows_of(spark, source, batch.parts(), columns)
    millis = f.unix_millis("timestamp")
    found = (
        rows.rollup("topic", "partition")
        .agg(
            f.count("*"),
            f.sum(f.coalesce(f.octet_length("key"), f.lit(0))),
            f.sum(f.coalesce(f.octet_length("value"), f.lit(0))),
            f.count_if(f.isnull("key")),
            f.count_if(f.isnull("value")),
            f.approx_count_distinct("key"),
            f.min("offset"),
            f.max("offset"),
            f.min(millis),
            f.max(millis),
        )
        .where("topic is not null")
        .collect()
    )
    return {(row[0], row[1]): tuple(row[2:]) for row in found}


def _row(
    batch: JobBatch, topic: str, number: int | None, counted: tuple[Any, ...] | None
) -> dict[str, Any]:
    if number is None:
        size = sum(each.size for tp, each in batch.ranges.items() if tp.topic == topic)
    else:
        size = batch.ranges[TopicPartition(topic, number)].size
    values = _EMPTY if counted is None else (counted[0], size, *counted[1:])
    row = dict(zip(NAMES, values, strict=True)) | {"offsets": size}
    if number is None:  # offsets of different partitions
        row |= {"first_offset": None, "last_offset": None}
    return {"topic": topic, "partition": number} | row
