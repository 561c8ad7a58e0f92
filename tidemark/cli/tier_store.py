"""`tidemark tier verify` and `tidemark tier gc`: the objects of the store against the metadata.

Both read the store by a node's settings (rsm.config.*) and the metadata of a live cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.output import json_of, print_json, print_line
from tidemark.cli.session import Session, progress, with_session
from tidemark.cli.tier_metadata import leader_replicas, read_history
from tidemark.errors import ConfigError, CorruptMessageError, TidemarkError
from tidemark.types import TopicIdPartition

if TYPE_CHECKING:
    from tidemark.client.sync import Admin
    from tiering.metadata.cache import RemoteLogMetadataCache
    from tiering.metadata.history import MetadataHistory
    from tiering.store.inventory import Leftover
    from tiering.store.listing import StoreListing
    from tiering.store.manager import RemoteStorageManager
    from tiering.store.verifying import RemoteFinding

    Live = list[tuple[TopicIdPartition, RemoteLogMetadataCache, tuple[int, int] | None]]

Config = Annotated[
    Path, typer.Option("--config", "-c", help="A node's server.properties: rsm.config.* is used.")
]


@with_session
def verify(
    session: Session,
    config: Config,
    topic: Annotated[str | None, typer.Option("--topic", help="Of this topic only.")] = None,
) -> None:
    """Check every finished segment in the store: both objects, checksums, batches, offsets; and
    that segments cover the log. Reads all bytes. Exit status 1 if anything is wrong."""

    def check(live: Live) -> tuple[list[RemoteFinding], int]:
        storage, _ = _open(config)
        with closing(storage):
            return _findings(storage, live)

    verify_with(session, topic, check)


def verify_with(
    session: Session,
    topic: str | None,
    check: Callable[[Live], tuple[list[RemoteFinding], int]],
) -> None:
    """Shows what `check` finds wrong in live partitions, and the number of segments it checked.

    Raises CorruptMessageError if anything is wrong.
    """
    with session.admin() as admin:
        live, history = live_partitions(session, admin, topic)
        found, checked = check(live)
        if any(one.segment is not None for one in found):
            found = _still_there(found, read_history(session, admin))
    summary = {"segments": checked, "findings": len(found), "complete": history.is_complete}
    if session.as_json:
        print_json({**summary, "found": [_finding(one) for one in found]})
    else:
        for one in found:
            print_line(str(one))
        if not history.is_complete:
            print_line("the remote log metadata is incomplete: segments may have been left out")
        print_line(f"{checked} segments checked: {len(found)} findings")
    if found:
        raise CorruptMessageError(
            f"{len(found)} findings in the tier: of these records only those on brokers' disks can "
            "be read. Restore damaged objects from a copy of the bucket, if there is one"
        )


def live_partitions(
    session: Session, admin: Admin, topic: str | None
) -> tuple[Live, MetadataHistory]:
    """The partitions of topics that exist, with log start and local start; and what was read."""
    first = leader_replicas(admin)
    history = read_history(session, admin)
    starts = {one: replica.log_start_offset for one, replica in leader_replicas(admin).items()}
    bounds = {
        one: (starts[one], replica.local_log_start_offset)
        for one, replica in first.items()
        if one in starts
    }
    ids = {found.name: found.topic_id for found in admin.list_topics()}
    live = [
        (partition, cache, bounds.get(partition.topic_partition))
        for partition, cache in history.of_topic(topic)
        if ids.get(partition.topic) == partition.topic_id
    ]
    return live, history


@with_session
def gc(
    session: Session,
    config: Config,
    grace_minutes: Annotated[
        int, typer.Option("--grace", help="Leave objects younger than this; minutes.", min=1)
    ] = 60,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete them; otherwise they are only listed.")
    ] = False,
    unrecorded: Annotated[
        bool,
        typer.Option(
            "--unrecorded",
            help="Delete objects whose first record is not there, too: of lost metadata, maybe.",
        ),
    ] = False,
) -> None:
    """List objects of the store that no metadata names, and uploads that nobody continues; with
    --delete, delete those whose segment was deleted. Objects of partitions that the metadata never
    named are never deleted: another cluster may own them."""
    from tiering.store.inventory import Kind, leftovers

    storage, listing = _open(config)
    with closing(storage), session.admin() as admin:
        objects = list(listing.objects())  # before the metadata, which names all of them
        history = read_history(session, admin)
        limit_ms = time.time_ns() // 1_000_000 - grace_minutes * 60_000
        found = leftovers(objects, history, older_than_ms=limit_ms)
        removable = {Kind.ORPHAN, Kind.UNFINISHED} | ({Kind.UNRECORDED} if unrecorded else set())
        chosen = [one for one in found if one.kind in removable]
        if delete and chosen:
            _check_complete(history)
        removed, failures = _remove(listing, chosen) if delete else ([], [])
    rows = [(one, one in removed) for one in found]
    session.show(
        [
            {
                "key": one.stored.key,
                "upload_id": one.stored.upload_id,
                "size_bytes": one.stored.size_bytes,
                "modified_ms": one.stored.modified_ms,
                "kind": one.kind.name,
                "deleted": is_removed,
            }
            for one, is_removed in rows
        ],
        ("OBJECT", "BYTES", "REASON", "DELETED"),
        [
            (one.stored.key, one.stored.size_bytes, one.kind.value, "yes" if is_removed else "")
            for one, is_removed in rows
        ],
        empty="nothing is left over",
    )
    if failures:
        raise failures[0]


def _open(config: Path) -> tuple[RemoteStorageManager, StoreListing]:
    from tidemark.config import load_server_config
    from tiering.store.listing import open_store

    return open_store(load_server_config(config))


def _findings(storage: RemoteStorageManager, partitions: Live) -> tuple[list[RemoteFinding], int]:
    """Returns what is wrong, and the number of segments checked."""
    from tiering.metadata.history import finished
    from tiering.store.verifying import verify_coverage, verify_segment

    found: list[RemoteFinding] = []
    done_bytes = checked = 0
    with progress("verifying", sum(cache.finished_bytes for _, cache, _ in partitions)) as report:

        def on_bytes(count: int) -> None:
            nonlocal done_bytes
            done_bytes += count
            report(done_bytes)

        for _, cache, bounds in partitions:
            for segment in finished(cache):
                found += verify_segment(storage, segment, on_bytes)
                checked += 1
            found += verify_coverage(storage, cache, bounds)
    return found, checked


def _still_there(found: list[RemoteFinding], now: MetadataHistory) -> list[RemoteFinding]:
    """Returns the findings without those of segments whose deletion began meanwhile."""
    from tiering.metadata.segments import RemoteLogSegmentState

    kept = []
    for one in found:
        if one.segment is not None:
            newest = now.find(one.segment.topic_id_partition, one.segment.id)
            if newest is None or newest.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                continue
        kept.append(one)
    return kept


def _finding(one: RemoteFinding) -> dict[str, object]:
    segment = one.segment
    return {
        "path": one.path,
        "position": one.position,
        "reason": one.reason,
        "segment_id": None if segment is None else json_of(segment.id),
    }


def _check_complete(history: MetadataHistory) -> None:
    """Raises ConfigError if the metadata may name more than was read."""
    if not history.is_complete:
        raise ConfigError(
            "the remote log metadata is incomplete: its first records were deleted, or can not be "
            "read by this release. Nothing was deleted: objects that it named may be wanted"
        )


def _remove(
    listing: StoreListing, chosen: list[Leftover]
) -> tuple[list[Leftover], list[TidemarkError]]:
    removed, failures = [], []
    with progress("deleting", len(chosen)) as report:
        for one in chosen:
            try:
                listing.remove(one.stored)
                removed.append(one)
            except TidemarkError as error:
                failures.append(error)
            report(len(removed))
    return removed, failures
