"""Names of the directories in a log directory (Kafka's names)."""

from __future__ import annotations

import re

from tidemark.types import TopicPartition

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
NAME_BYTES_MAX = 255
_PARTITION = re.compile(r"^(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>\d+)$")
_FUTURE = re.compile(
    r"^(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>\d+)\.[0-9a-f]{32}" + FUTURE_SUFFIX + "$"
)


def parse_directory_name(name: str) -> TopicPartition | None:
    """Returns the partition of a log's directory; None for any other name."""
    return _parse(_PARTITION, name)


def parse_future_name(name: str) -> TopicPartition | None:
    """Returns the partition of a future log's directory; None for any other name."""
    return _parse(_FUTURE, name)


def _parse(pattern: re.Pattern[str], name: str) -> TopicPartition | None:
    match = pattern.match(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None


def unique_name(topic_partition: TopicPartition, unique: str, suffix: str) -> str:
    """Returns `<topic>-<partition>.<unique><suffix>`; its front is cut if the name would be too
    long.
    """
    ending = f".{unique}{suffix}"
    return str(topic_partition)[: NAME_BYTES_MAX - len(ending)] + ending
