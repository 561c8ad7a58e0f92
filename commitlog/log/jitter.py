"""How much earlier than segment.ms a segment rolls (segment.jitter.ms). Without it, logs created
together would all roll, and flush, at the same moment.

Each segment has its own share, derived from its name, so it is equal on all replicas. The share is
below segment.ms, or every append would roll. Source: Kafka's LogConfig.randomSegmentJitter.
"""

from __future__ import annotations

import random

from tidemark.config import TopicConfig
from tidemark.types import TopicPartition


def roll_jitter_ms(config: TopicConfig, partition: TopicPartition, base_offset: int) -> int:
    """Returns the ms to subtract from segment.ms for the segment that begins at `base_offset`."""
    bound_ms = min(config.segment_jitter_ms, config.segment_ms)
    return random.Random(f"{partition} {base_offset}").randrange(bound_ms) if bound_ms else 0
