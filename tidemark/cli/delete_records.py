"""`tidemark delete-records`: moves the log start offset of partitions up."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.session import Session, with_session
from tidemark.errors import ConfigError
from tidemark.types import TopicPartition


@with_session
def delete_records(
    session: Session,
    offsets: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC-PARTITION=OFFSET...",
            help="The first offset to keep; -1: the high watermark.",
        ),
    ],
) -> None:
    """Delete the records below an offset; they are gone on all live replicas when this returns."""

    wanted = dict(map(_offset_of, offsets))
    with session.admin() as admin:
        found = admin.delete_records(wanted)
    rows = [(str(partition), low_watermark) for partition, low_watermark in found.items()]
    session.show(
        [{"partition": name, "low_watermark": low} for name, low in rows],
        ("PARTITION", "LOW WATERMARK"),
        rows,
    )


def _offset_of(text: str) -> tuple[TopicPartition, int]:
    name, _, offset = text.rpartition("=")
    try:
        return partition_of(name), int(offset)
    except ValueError:
        raise ConfigError(f"{text!r} is not TOPIC-PARTITION=OFFSET, like events-0=42") from None


def partition_of(name: str) -> TopicPartition:
    """`events-0` as a partition. Raises ValueError for other text."""
    topic, dash, index = name.rpartition("-")
    if not dash or not topic:
        raise ValueError(f"{name!r} is not TOPIC-PARTITION")
    return TopicPartition(topic, int(index))
