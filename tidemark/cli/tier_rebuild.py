"""`tidemark tier rebuild`: topics recovered from the bucket alone.

For a cluster whose disks were all lost: a freshly formatted one gets the topics whose segments are
in the store. It also records the segments of a topic whose remote log metadata was lost.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.output import json_of, print_json, print_line
from tidemark.cli.session import DryRun, Session, progress, with_session
from tidemark.cli.tier_metadata import read_history
from tidemark.cli.tier_rebuild_steps import (
    FIXED_CONFIGS,
    SAFE_CONFIGS,
    Rebuilder,
    Settings,
    obstacles,
)
from tidemark.errors import (
    ConfigError,
    CorruptMessageError,
    TidemarkError,
    UnknownTopicOrPartitionError,
)
from tidemark.types import TopicIdPartition, uuid_from_text, uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from tidemark.client.sync import Admin
    from tidemark.config import ServerConfig
    from tiering.metadata.history import MetadataHistory
    from tiering.metadata.segments import RemoteLogMetadata
    from tiering.store.recovered import RecoveredSegment, Remark
    from tiering.tasks.rebuild import TopicPlan


@with_session
def rebuild(
    session: Session,
    config: Annotated[
        Path,
        typer.Option("--config", "-c", help="A broker's server.properties: its store and topic."),
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", help="NAME or NAME:TOPIC_ID, may be repeated; all by default."),
    ] = None,
    partitions: Annotated[
        list[str] | None,
        typer.Option("--partitions", help="NAME=COUNT, where the tier has not seen all of them."),
    ] = None,
    topic_config: Annotated[
        list[str] | None,
        typer.Option("--topic-config", help="[NAME:]KEY=VALUE, of new topics; may be repeated."),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", help="Of new topics.", min=1)
    ] = None,
    accept_holes: Annotated[
        bool,
        typer.Option(
            "--accept-holes",
            help="Go on although offsets are missing: segments below a hole will be deleted.",
        ),
    ] = False,
    timeout: Annotated[
        int,
        typer.Option("--timeout", help="Longest wait for the leaders of a topic; seconds.", min=1),
    ] = 300,
    dry_run: DryRun = False,
) -> None:
    """Recover topics from the tier alone, after all disks of a cluster were lost: topics with their
    old ids, the remote log metadata, and leaders that begin where the tier ends. Only if the old
    cluster is gone for good. May be run again after a failure. Holes are listed; once they are
    accepted, they are no failure."""
    from tidemark.config import load_server_config
    from tiering.store.listing import open_store

    chosen = _chosen(topics or [])
    counts = {name: _count(text) for name, text in map(_pair, partitions or [])}
    settings = Settings(_configs(topic_config or []), replication_factor, timeout)
    server = load_server_config(config)
    storage, listing = open_store(server)
    with closing(storage), session.admin() as admin:
        found, remarks = _read(storage, list(listing.objects()), chosen)
        history = _history(session, admin)
        plans, problems = _plans(found, counts)
        _check_wanted(chosen, plans, remarks)
        known = admin.list_topics(include_internal=True)
        problems += [text for plan in plans for text in obstacles(plan, known, history)]
        problems += _unreadable(remarks)
        doubts = _doubts(plans, remarks)
        report = _report(plans, remarks, problems, settings)
        stopped = bool(problems) or (bool(doubts) and not accept_holes)
        failures: list[str] = []
        if not dry_run and not stopped:
            failures = _run(session, server, admin, plans, history, settings, report)
    _tell(session, report, dry_run)
    if problems or failures:
        raise ConfigError("; ".join(problems + failures))
    if doubts and stopped:
        raise CorruptMessageError(
            f"{len(doubts)} holes or unreadable objects: --accept-holes gives these records up"
        )


def _chosen(topics: Sequence[str]) -> dict[str, UUID | None]:
    chosen: dict[str, UUID | None] = {}
    for text in topics:
        name, colon, identity = text.partition(":")
        try:
            chosen[name] = uuid_from_text(identity) if colon else None
        except ValueError:
            raise ConfigError(f"--topic {text}: {identity!r} is no topic id") from None
    return chosen


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"{text!r} is not NAME=VALUE")
    return key, value


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"--partitions: {text!r} is no number of partitions")
    return int(text)


def _configs(given: Sequence[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for key, value in map(_pair, given):
        topic, colon, name = key.rpartition(":")
        if name in FIXED_CONFIGS:
            raise ConfigError(f"--topic-config: a rebuild needs {name}={FIXED_CONFIGS[name]}")
        found[topic if colon else ""][name] = value
    return found


def _read(
    storage: Any, objects: list[Any], chosen: dict[str, UUID | None]
) -> tuple[list[RecoveredSegment], list[Remark]]:
    from tiering.store.recovered import read_segments

    def wanted(partition: TopicIdPartition) -> bool:
        if not chosen:
            return True
        topic_id = chosen.get(partition.topic, TopicIdPartition)
        return topic_id in (None, partition.topic_id)

    with progress("sidecars", len(objects)) as show:
        return read_segments(storage, objects, wanted, lambda done, _: show(done))


def _history(session: Session, admin: Admin) -> MetadataHistory:
    from tiering.metadata.history import MetadataHistory

    try:
        return read_history(session, admin)
    except UnknownTopicOrPartitionError:
        return MetadataHistory()


def _plans(
    found: list[RecoveredSegment], counts: dict[str, int]
) -> tuple[list[TopicPlan], list[str]]:
    """Returns the plan of each topic, and reasons why one can not be made."""
    from tiering.tasks.rebuild import TopicPlan, plan_partition

    by_topic: dict[str, dict[UUID, dict[int, list[RecoveredSegment]]]] = {}
    for segment in found:
        where = segment.partition
        of_topic = by_topic.setdefault(where.topic, {}).setdefault(where.topic_id, {})
        of_topic.setdefault(where.partition, []).append(segment)
    plans, problems = [], []
    for name, ids in sorted(by_topic.items()):
        if len(ids) > 1:
            told = ", ".join(sorted(f"{name}:{uuid_to_text(topic_id)}" for topic_id in ids))
            problems.append(f"the tier has several topics {name}: choose with --topic, of {told}")
            continue
        ((topic_id, numbers),) = ids.items()
        count = counts.get(name, max(numbers) + 1)
        if count <= max(numbers):
            problems.append(f"--partitions {name}={count}: the tier has partition {max(numbers)}")
            continue
        plans.append(
            TopicPlan(
                name,
                [
                    plan_partition(TopicIdPartition(topic_id, name, n), numbers.get(n, []))
                    for n in range(count)
                ],
            )
        )
    return plans, problems


def _check_wanted(
    chosen: dict[str, UUID | None], plans: list[TopicPlan], remarks: list[Remark]
) -> None:
    seen = {plan.name for plan in plans} | {remark.partition.topic for remark in remarks}
    for name in chosen.keys() - seen:
        raise UnknownTopicOrPartitionError(f"the store has no segment of {name}")


def _unreadable(remarks: list[Remark]) -> list[str]:
    return [
        f"{one.key} is unreadable ({one.reason}): restore it from a copy, or move it and its "
        ".log out of the tier"
        for one in remarks
        if one.is_unreadable and one.has_log
    ]


def _doubts(plans: list[TopicPlan], remarks: list[Remark]) -> list[str]:
    doubts = [f"{one.key}: {one.reason}" for one in remarks if one.is_unreadable]
    for plan in plans:
        for each in plan.partitions:
            where = each.partition.topic_partition
            doubts += [
                f"{where}: offsets {hole.start} to {hole.end - 1}: {hole.reason}"
                for hole in each.holes
            ]
    return doubts


def _report(
    plans: list[TopicPlan], remarks: list[Remark], problems: list[str], settings: Settings
) -> dict[str, Any]:
    left = [
        {"object": remark.key, "reason": remark.reason, "unreadable": remark.is_unreadable}
        for remark in remarks
    ]
    each_plan = [each for plan in plans for each in plan.partitions]
    left += [
        {"object": str(segment.remote_log_segment_id), "reason": reason, "unreadable": False}
        for each in each_plan
        for segment, reason in each.left
    ]
    extra = [
        {"object": str(segment.remote_log_segment_id), "reason": reason}
        for each in each_plan
        for segment, reason in each.extra
    ]
    return {
        "topics": [
            {
                "topic": plan.name,
                "topic_id": plan.partitions[0].partition.topic_id,
                "configs": settings.of_topic(plan.name),
                "nothing_in_tier": plan.unseen,
                "state": "planned",
                "partitions": [
                    {
                        "partition": each.partition.partition,
                        "segments": len(each.chosen),
                        "first_offset": each.first_offset,
                        "next_offset": each.next_offset,
                        "leader_epoch": each.leader_epoch,
                        "holes": [
                            {"start": hole.start, "end": hole.end, "reason": hole.reason}
                            for hole in each.holes
                        ],
                    }
                    for each in plan.partitions
                ],
            }
            for plan in plans
        ],
        "left_alone": left,
        "recorded_for_retention": extra,
        "problems": problems,
    }


def _run(
    session: Session,
    server: ServerConfig,
    admin: Admin,
    plans: list[TopicPlan],
    history: MetadataHistory,
    settings: Settings,
    report: dict[str, Any],
) -> list[str]:
    """Rebuilds the topics one by one; returns the failures."""
    failures = []
    rebuilder = Rebuilder(
        admin,  # type: ignore[arg-type]
        _writer(server, session.bootstrap),
        settings,
        on_step=lambda step: None if session.as_json else typer.echo(step, err=True),
    )
    with progress("topics", len(plans)) as show:
        for done, (plan, row) in enumerate(zip(plans, report["topics"], strict=True), 1):
            try:
                offsets = rebuilder.run(plan, history)
            except TidemarkError as error:
                row["state"] = "failed"
                failures.append(f"{plan.name}: {error}")
            else:
                row["state"] = "rebuilt"
                for each in row["partitions"]:
                    each["first_offset"], each["next_offset"] = offsets[each["partition"]]
            show(done)
    return failures


def _writer(server: ServerConfig, bootstrap: str) -> Callable[[Sequence[RemoteLogMetadata]], None]:
    """Returns a function that writes records to the metadata topic, created if it is missing."""
    from tiering.metadata.codec import encode
    from tiering.metadata.topic import ClientMetadataTopic
    from tiering.metadata.topic_based import metadata_partition

    async def write(records: Sequence[RemoteLogMetadata]) -> None:
        topic = ClientMetadataTopic(server, bootstrap)
        try:
            count = await topic.open()
            await asyncio.gather(  # the producer keeps their order within a partition
                *(
                    topic.append(metadata_partition(one.topic_id_partition, count), encode(one))
                    for one in records
                )
            )
        finally:
            await topic.close()

    return lambda records: asyncio.run(write(records))


def _tell(session: Session, report: dict[str, Any], dry_run: bool) -> None:
    if session.as_json:
        print_json(json_of({**report, "dry_run": dry_run}))
        return
    for topic in report["topics"]:
        print_line(f"{topic['topic']} ({uuid_to_text(topic['topic_id'])}): {topic['state']}")
        for each in topic["partitions"]:
            print_line(
                f"  partition {each['partition']}: {each['segments']} segments, offsets "
                f"{each['first_offset']} to {each['next_offset'] - 1}"
            )
            for hole in each["holes"]:
                print_line(f"    hole: {hole['start']} to {hole['end'] - 1}: {hole['reason']}")
        if topic["nothing_in_tier"]:
            print_line(f"  nothing in the tier of partitions {topic['nothing_in_tier']}")
        configs = " ".join(f"{key}={value}" for key, value in sorted(topic["configs"].items()))
        print_line(f"  settings of a new topic: {configs}")
    for one in report["left_alone"]:
        print_line(f"left alone: {one['object']}: {one['reason']}")
    for one in report["recorded_for_retention"]:
        print_line(f"recorded for retention to delete: {one['object']}: {one['reason']}")
    for text in report["problems"]:
        print_line(f"problem: {text}")
    if report["topics"]:
        print_line(
            "The tier has no settings of topics, no number of partitions above those with segments,"
            " and no log start of DeleteRecords. Set by hand what is not above: "
            f"{', '.join(SAFE_CONFIGS)} keep all records until then."
        )
