"""`tidemark get-offsets`: offsets of partitions, by name or by time (Kafka's kafka-get-offsets).

tidemark get-offsets events --time 2026-11-21T08:00:00Z
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.session import Session, with_session
from tidemark.errors import ConfigError, UnknownTopicOrPartitionError
from tidemark.types import TopicPartition

if TYPE_CHECKING:
    from tidemark.client.sync import Admin

_NAMES = "latest, earliest, max-timestamp, earliest-local, latest-tiered, earliest-pending-upload"


@with_session
def get_offsets(
    session: Session,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", help="Topics; default: all but internal ones."),
    ] = None,
    topic_partitions: Annotated[
        list[str] | None,
        typer.Option("--topic-partition", help="Of these only, like events-0; repeatable."),
    ] = None,
    time: Annotated[
        str,
        typer.Option(
            help=f"{_NAMES}, milliseconds since 1970, or a time like 2026-11-21T08:00:00Z: the "
            "first record at or after it."
        ),
    ] = "latest",
    read_committed: Annotated[
        bool,
        typer.Option("--read-committed", help="latest is the end of what is committed."),
    ] = False,
) -> None:
    """Show the offsets of partitions: where they begin and end, or which record has a time."""

    asked = asked_of(time)
    with session.admin() as admin:
        partitions = partitions_of(admin, topics or [], topic_partitions or [])
        found = admin.list_offsets(dict.fromkeys(partitions, asked), read_committed=read_committed)
    session.show(
        [
            {
                **partition._asdict(),
                "offset": None if answer is None else answer.offset,
                "timestamp_ms": None if answer is None or answer.timestamp_ms < 0 else answer[1],
            }
            for partition, answer in found.items()
        ],
        ("PARTITION", "OFFSET", "TIMESTAMP"),
        [
            (partition, None, None)
            if answer is None
            else (partition, answer.offset, answer.timestamp_ms if answer[1] >= 0 else None)
            for partition, answer in found.items()
        ],
        empty="no partitions",
    )


def asked_of(text: str) -> int:
    """A name as OffsetSpec, or else a time in ms. Raises ConfigError."""
    from tidemark.client.models import OffsetSpec

    name = text.strip().upper().replace("-", "_")
    if name in OffsetSpec.__members__:
        return OffsetSpec[name]
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--time {text!r} is none of {_NAMES}, ms, or a time") from None
    return round(moment.astimezone().timestamp() * 1000)


def partitions_of(admin: Admin, topics: list[str], named: list[str]) -> list[TopicPartition]:
    """The partitions of the topics, and the named ones.

    Raises UnknownTopicOrPartitionError at once for one that does not exist.
    """
    from tidemark.cli.reassignment import parse_partition

    wanted = [parse_partition(text) for text in named]
    if not topics and not wanted:
        topics = [topic.name for topic in admin.list_topics()]
    asked = list(dict.fromkeys([*topics, *(partition.topic for partition in wanted)]))
    described = admin.describe_topics(asked) if asked else {}
    there = {
        name: [TopicPartition(name, found.partition) for found in topic.partitions]
        for name, topic in described.items()
    }
    for name in topics:
        if name not in there:
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
    for partition in wanted:
        if partition not in there.get(partition.topic, ()):
            raise UnknownTopicOrPartitionError(f"there is no partition {partition}")
    return list(dict.fromkeys([*wanted, *(found for name in topics for found in there[name])]))
