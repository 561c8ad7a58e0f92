"""`tidemark elect-leaders`: makes preferred replicas leaders again.

With an unclean election, a live replica outside the ISR becomes leader if no replica of the ISR is
alive.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.output import read_text, reason_of
from tidemark.cli.session import Session, with_session
from tidemark.errors import ConfigError, ElectionNotNeededError

if TYPE_CHECKING:
    from tidemark.client.sync import Admin
    from tidemark.errors import ApiError
    from tidemark.types import TopicPartition

_TYPES = ("preferred", "unclean")


@with_session
def elect_leaders(
    session: Session,
    partitions: Annotated[
        list[str] | None, typer.Argument(metavar="[PARTITION]...", help="flights-0")
    ] = None,
    election_type: Annotated[
        str, typer.Option("--election-type", help="preferred, or unclean: may lose records.")
    ] = "preferred",
    topic: Annotated[
        list[str] | None, typer.Option(help="All partitions of a topic; repeatable.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help='Kafka\'s {"partitions": [{"topic": "t", "partition": 0}]}.'),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Every partition that needs an election.")
    ] = False,
) -> None:
    """Elect leaders; exit status 1 if an election that was needed failed."""

    if election_type not in _TYPES:
        raise ConfigError(f"--election-type {election_type!r} is none of {', '.join(_TYPES)}")
    if all_ == bool(partitions or topic or file):
        raise ConfigError("name partitions, --topic or --file, or say --all")
    with session.admin() as admin:
        chosen = None if all_ else _chosen(admin, partitions or [], topic or [], file)
        outcome = admin.elect_leaders(election_type.upper(), chosen)
    rows = [(str(partition), result_of(error)) for partition, error in sorted(outcome.items())]
    session.show(
        [{"partition": name, "result": result} for name, result in rows],
        ("PARTITION", "RESULT"),
        rows,
        empty="no partition needs an election",
    )
    if any(map(_failed, outcome.values())):
        raise typer.Exit(1)


def result_of(error: ApiError | None) -> str:
    """The outcome of an election, in words."""
    if error is None:
        return "elected"
    if isinstance(error, ElectionNotNeededError):
        return "not needed"
    return reason_of(error)


def _failed(error: ApiError | None) -> bool:
    return error is not None and not isinstance(error, ElectionNotNeededError)


def _chosen(
    admin: Admin, partitions: list[str], topics: list[str], file: Path | None
) -> list[TopicPartition]:
    import json

    from tidemark.cli.reassignment import parse_partition
    from tidemark.types import TopicPartition

    found = [parse_partition(text) for text in partitions]
    if topics:
        for described in admin.describe_topics(topics).values():
            found += [TopicPartition(described.name, p.partition) for p in described.partitions]
    if file is not None:
        try:
            items = json.loads(read_text(file))["partitions"]
            found += [TopicPartition(str(i["topic"]), int(i["partition"])) for i in items]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f'{file} is not {{"partitions": [{{"topic": "t", "partition": 0}}]}}: {error}'
            ) from error
    return list(dict.fromkeys(found))
