"""How much earlier than segment.ms a segment is rolled (segment.jitter.ms): logs that began
together must not all roll, and flush, in the same moment.

Each segment has its own share, drawn from its name and so the same on all replicas; it never takes
all of segment.ms, or every append would roll. Source: Kafka's LogConfig.randomSegmentJitter.
"""

from __future__ import annotations

import random

from tidemark.config import TopicConfig
from tidemark.types import TopicPartition


def roll_jitter_ms(config: TopicConfig, partition: TopicPartition, base_offset: int) -> int:
    """ms to take off segment.ms for the segment that begins at `base_offset`."""
    bound_ms = min(config.segment_jitter_ms, config.segment_ms)
    return random.Random(f"{partition} {base_offset}").randrange(bound_ms) if bound_ms else 0
