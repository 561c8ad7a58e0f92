"""`tidemark tier`: the remote segments of a cluster, and the objects of its store.

`ls` and `describe` read the remote log metadata of a live cluster. `verify` and `gc`, which compare
it with the store, are in `tier_store`, and `rebuild`, which makes it anew, in `tier_rebuild`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.output import json_of, print_json
from tidemark.cli.session import Session, with_session
from tidemark.cli.tier_metadata import leader_replicas, read_history
from tidemark.cli.tier_rebuild import rebuild
from tidemark.cli.tier_store import gc, verify
from tidemark.errors import ConfigError, UnknownTopicOrPartitionError
from tidemark.types import TopicIdPartition

if TYPE_CHECKING:
    from tidemark.client.models import ReplicaDescription
    from tiering.metadata.cache import RemoteLogMetadataCache
    from tiering.metadata.segments import RemoteLogSegmentMetadata

app = typer.Typer(help="Look at the tier of a cluster, check and clean it.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Look at the tier of a cluster, check and clean it."""


app.command("verify")(verify)
app.command("gc")(gc)
app.command("rebuild")(rebuild)


@app.command("ls")
@with_session
def ls(
    session: Session,
    topic: Annotated[str | None, typer.Option("--topic", help="Of this topic only.")] = None,
) -> None:
    """List the partitions in the tier: finished segments, their bytes and offsets, and copies or
    deletions that are unfinished. A deleted topic is listed until its segments are gone."""
    with session.admin() as admin:
        replicas = leader_replicas(admin)
        history = read_history(session, admin)
        ids = {found.name: found.topic_id for found in admin.list_topics()}
    found = []
    for partition, cache in history.of_topic(topic):
        live = ids.get(partition.topic) == partition.topic_id
        if live or len(cache):
            replica = replicas.get(partition.topic_partition) if live else None
            found.append(_summary(partition, cache, replica, live))
    session.show(
        json_of(found),
        (
            *("TOPIC", "PARTITION", "TOPIC ID", "SEGMENTS", "BYTES", "LOG START"),
            *("FIRST OFFSET", "TIERED TO", "UNFINISHED", "STATE"),
        ),
        [tuple(json_of(row).values()) for row in found],
        empty="nothing is in the tier",
    )


@app.command("describe")
@with_session
def describe(
    session: Session,
    name: Annotated[
        str, typer.Argument(metavar="TOPIC[:PARTITION]", help="Like events, or events:3.")
    ],
) -> None:
    """Describe the remote segments of a topic, by partition and start offset."""
    topic, _, number = name.partition(":")
    if ":" in name and not (number.isascii() and number.isdigit()):
        raise ConfigError(f"{name!r} is not TOPIC[:PARTITION], like events:3")
    with session.admin() as admin:
        history = read_history(session, admin)
    partitions = history.of_topic(topic, int(number) if number else None)
    if not partitions:
        raise UnknownTopicOrPartitionError(f"the tier never had a segment of {name}")
    segments = [one for _, cache in partitions for one in cache.segments()]
    if session.as_json:
        print_json(json_of([_segment(one) for one in segments]))
        return
    session.show(
        None,
        (
            *("PARTITION", "SEGMENT", "FIRST", "LAST", "EPOCHS", "STATE", "BYTES"),
            *("NEWEST RECORD", "CHANGED", "BROKER"),
        ),
        [
            (
                one.topic_id_partition.topic_partition,
                json_of(one.id),
                one.start_offset,
                one.end_offset,
                [f"{epoch}@{offset}" for epoch, offset in one.segment_leader_epochs],
                one.state.name,
                one.segment_size_bytes,
                _time(one.max_timestamp_ms),
                _time(one.event_timestamp_ms),
                one.broker_id,
            )
            for one in segments
        ],
        empty=f"no segment of {name} is left in the tier",
    )


def _summary(
    partition: TopicIdPartition,
    cache: RemoteLogMetadataCache,
    replica: ReplicaDescription | None,
    live: bool,
) -> dict[str, Any]:
    from tiering.metadata.history import finished

    segments = finished(cache)
    deletion = cache.partition_delete
    state = "live" if live else "deleted topic"
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "topic_id": partition.topic_id,
        "segments": len(segments),
        "bytes": cache.finished_bytes,
        "log_start_offset": None if replica is None else replica.log_start_offset,
        "first_offset": min((one.start_offset for one in segments), default=None),
        "highest_remote_offset": max((one.end_offset for one in segments), default=None),
        "unfinished": len(cache.unfinished()),
        "state": state if deletion is None else deletion.state.name,
    }


def _segment(segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    partition = segment.topic_id_partition
    custom = segment.custom_metadata
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "topic_id": partition.topic_id,
        "segment_id": segment.id,
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "leader_epochs": [
            {"epoch": epoch, "start_offset": offset}
            for epoch, offset in segment.segment_leader_epochs
        ],
        "state": segment.state.name,
        "size_bytes": segment.segment_size_bytes,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "event_timestamp_ms": segment.event_timestamp_ms,
        "broker_id": segment.broker_id,
        "custom_metadata": None if custom is None else custom.hex(),
    }


def _time(timestamp_ms: int) -> str | None:
    if timestamp_ms < 0:
        return None
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
