"""Sizes of records, for maxBytesPerTrigger: those of the first batch that each partition has to
read.

The end of a stream's batch is an offset, and a log does not tell bytes of offsets. One batch a
partition is fetched to find out. Sizes are those in the log, where batches are compressed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from uuid import UUID

from tidemark.client import Consumer
from tidemark.errors import TidemarkError
from tidemark.records import iter_batches
from tidemark.spark.options import SourceOptions
from tidemark.types import TopicPartition

logger = logging.getLogger(__name__)

_SAMPLE_MS = 2_000


def open_sampler(options: SourceOptions) -> Consumer:
    """A consumer whose fetches bring one batch."""
    return Consumer(
        options.bootstrap_servers,
        auto_offset_reset="none",
        max_partition_fetch_bytes=1,
        security=options.security,
    )


def sample(
    consumer: Consumer, places: Mapping[TopicPartition, tuple[UUID, int]]
) -> dict[TopicPartition, float]:
    """Bytes of one offset, of the batch at each place (topic id, offset).

    A partition that does not answer soon has none: a size is only an estimate.
    """
    found: dict[TopicPartition, float] = {}
    consumer.assign(list(places))
    for tp, (topic_id, offset) in places.items():
        consumer.seek(tp, offset, topic_id=topic_id)
    until_ms = time.monotonic() * 1000 + _SAMPLE_MS
    try:
        while len(found) < len(places):
            left_ms = until_ms - time.monotonic() * 1000
            if left_ms <= 0:
                break
            for raw in consumer.fetch_batches(timeout_ms=left_ms):
                _, header = next(iter_batches(raw.buffer))
                offsets = header.last_offset - header.base_offset + 1
                found.setdefault(raw.topic_partition, header.size_bytes / offsets)
    except TidemarkError as error:  # planning and reading tell of losses
        logger.debug("no sizes: %s", error)
    finally:
        consumer.assign([])
    return found
