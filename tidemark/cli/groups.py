"""`tidemark groups`: consumer groups, their members, their lag, and their offsets."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.delete_records import partition_of
from tidemark.cli.group_offsets import Destination, resets, targets
from tidemark.cli.output import json_of
from tidemark.cli.session import DryRun, Session, with_session
from tidemark.errors import ApiError, ConfigError, NonEmptyGroupError, TidemarkError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.client.models import GroupDescription, OffsetAndMetadata
    from tidemark.client.sync import Admin
    from tidemark.types import TopicPartition

app = typer.Typer(help="Consumer groups: members, lag and offsets.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group id.")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Of this topic only, or of events-0; repeatable."),
]


@app.command("list")
@with_session
def list_(
    session: Session,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="Empty, Assigning, Reconciling or Stable; repeatable."),
    ] = None,
) -> None:
    """List the groups of all brokers."""
    with session.admin() as admin:
        found = admin.groups.list(states=state or ())
    session.show(
        json_of(found),
        ("GROUP", "STATE", "TYPE"),
        [(group.group_id, group.state, group.type) for group in found],
        empty="no groups",
    )


@app.command("describe")
@with_session
def describe(
    session: Session,
    group: Group,
    members: Annotated[bool, typer.Option("--members", help="Its members instead.")] = False,
    watch: Annotated[
        float | None, typer.Option("--watch", help="Again every so many seconds.", min=0.1)
    ] = None,
) -> None:
    """Show the offsets of a group with their lag, or its members."""
    with session.admin() as admin:
        while True:
            if watch is not None and sys.stdout.isatty() and not session.as_json:
                sys.stdout.write("\x1b[2J\x1b[H")
            found = admin.groups.describe([group])[group]
            if members:
                _show_members(session, found)
            else:
                _show_lag(session, admin, found)
            if watch is None:
                return
            sys.stdout.flush()
            time.sleep(watch)


def _show_members(session: Session, group: GroupDescription) -> None:
    session.show(
        json_of(group),
        ("MEMBER", "INSTANCE", "CLIENT", "HOST", "EPOCH", "PARTITIONS", "TO HAVE"),
        [
            (
                member.member_id,
                member.instance_id or "-",
                member.client_id or "-",
                member.client_host,
                member.member_epoch,
                len(member.assignment),
                len(member.target_assignment),
            )
            for member in group.members
        ],
        empty=f"group {group.group_id} has no members ({group.state})",
    )


def _show_lag(session: Session, admin: Admin, group: GroupDescription) -> None:
    committed = admin.groups.offsets(group.group_id)
    owners = {part: member for member in group.members for part in member.assignment}
    partitions = sorted({*committed, *owners})
    ends = _ends(admin, partitions)
    rows: list[dict[str, Any]] = []
    for partition in partitions:
        found, end, owner = committed.get(partition), ends.get(partition), owners.get(partition)
        offset = None if found is None else found.offset
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "offset": offset,
                "log_end_offset": end,
                "lag": None if offset is None or end is None else max(0, end - offset),
                "member_id": None if owner is None else owner.member_id,
                "client_id": None if owner is None else owner.client_id,
            }
        )
    session.show(
        {"group": group.group_id, "state": group.state, "partitions": rows},
        ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "MEMBER", "CLIENT"),
        [tuple("-" if value is None else value for value in row.values()) for row in rows],
        empty=f"group {group.group_id} has no offsets ({group.state})",
    )


def _ends(admin: Admin, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    from tidemark.client.models import OffsetSpec

    there = existing(admin, partitions)
    found = admin.list_offsets(dict.fromkeys(there, int(OffsetSpec.LATEST))) if there else {}
    return {partition: answer.offset for partition, answer in found.items() if answer is not None}


def existing(admin: Admin, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """The partitions that there are: a topic may be deleted."""
    counts = {topic.name: topic.num_partitions for topic in admin.list_topics()}
    return [part for part in partitions if part.partition < counts.get(part.topic, 0)]


@app.command("reset-offsets")
@with_session
def reset_offsets(
    session: Session,
    group: Group,
    topic: Topics = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Of all topics with an offset of the group.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the log start.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="As it is, within the log.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option(help="To this offset.", min=0)] = None,
    shift_by: Annotated[int | None, typer.Option(help="By so many records; may be -100.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(help="To the first record at or after: ms, or ISO 8601.")
    ] = None,
    ago: Annotated[
        str | None,
        typer.Option("--by-duration", help="To the records of so long ago, like 90m, 36h or 7d."),
    ] = None,
    from_file: Annotated[
        str | None, typer.Option(help="To those of a CSV file: topic,partition,offset; - is stdin.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Set the offsets of a group without members; offsets outside of a log are moved into it."""
    from tidemark.client.models import OffsetAndMetadata

    ways = resets(
        to_earliest, to_latest, to_current, to_offset, shift_by, to_datetime, ago, from_file
    )
    with session.admin() as admin:
        committed = admin.groups.offsets(group)
        wanted = _wanted(admin, ways, committed, topic or [], all_topics)
        found = targets(admin, ways, wanted, committed)
        if not dry_run:
            _check_empty(admin, group)
            admin.groups.alter_offsets(
                group, {part: OffsetAndMetadata(offset) for part, offset in found.items()}
            )
    rows = [
        (part.topic, part.partition, committed[part].offset if part in committed else None, offset)
        for part, offset in sorted(found.items())
    ]
    session.show(
        [
            {"topic": name, "partition": number, "before": before, "offset": offset}
            for name, number, before, offset in rows
        ],
        ("TOPIC", "PARTITION", "BEFORE", "OFFSET"),
        rows,
        empty="no partitions",
    )


def _check_empty(admin: Admin, group: str) -> None:
    for listed in admin.groups.list():
        if listed.group_id == group and listed.state != "Empty":
            raise NonEmptyGroupError(
                f"group {group} is {listed.state}: stop its members, or they would go on where"
                " they are"
            )


def _wanted(
    admin: Admin,
    way: Destination,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    topics: list[str],
    all_topics: bool,
) -> list[TopicPartition]:
    if way.from_file is not None:
        if topics or all_topics:
            raise ConfigError("--from-file names the partitions: leave --topic out")
        return []
    if all_topics == bool(topics):
        raise ConfigError("say --topic or --all-topics")
    if all_topics:
        return existing(admin, sorted(committed))
    from tidemark.cli.get_offsets import partitions_of

    names = {topic.name for topic in admin.list_topics(include_internal=True)}
    whole = [text for text in topics if text in names]
    return partitions_of(admin, whole, [text for text in topics if text not in names])


@app.command("delete")
@with_session
def delete(
    session: Session,
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", help="The group ids.")],
) -> None:
    """Delete groups without members, with their offsets."""
    with session.admin() as admin:
        _show_outcomes(session, "GROUP", admin.groups.delete(groups))


@app.command("delete-offsets")
@with_session
def delete_offsets(
    session: Session,
    group: Group,
    partitions: Annotated[
        list[str], typer.Argument(metavar="TOPIC-PARTITION...", help="Like events-0.")
    ],
) -> None:
    """Delete offsets of topics that no member of the group subscribes to."""
    try:
        wanted = [partition_of(text) for text in partitions]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    with session.admin() as admin:
        found = admin.groups.delete_offsets(group, wanted)
    _show_outcomes(session, "PARTITION", {str(part): error for part, error in found.items()})


def _show_outcomes(session: Session, what: str, outcomes: Mapping[str, ApiError | None]) -> None:
    """Prints the outcomes. Raises the first error, after all are printed."""
    rows = [(name, "deleted" if error is None else str(error)) for name, error in outcomes.items()]
    session.show(
        [{what.lower(): name, "error": None if outcomes[name] is None else t} for name, t in rows],
        (what, "OUTCOME"),
        rows,
    )
    errors: list[TidemarkError] = [error for error in outcomes.values() if error is not None]
    if errors:
        raise errors[0]
