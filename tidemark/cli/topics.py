"""`tidemark topics`: create, list, describe, alter, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.leaderless import in_service, way_back
from tidemark.cli.output import json_of, print_json, print_line, print_table, settings_of
from tidemark.cli.session import Session, with_session

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...")]


@app.command("create")
@with_session
def create(
    session: Session,
    topics: Topics,
    partitions: Annotated[
        int | None, typer.Option(help="Number of partitions; default: the cluster's.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(help="Replicas of each; default: the cluster's.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(help="key=value, a setting of the topic; repeatable.")
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="An existing topic is no error.")
    ] = False,
) -> None:
    """Create topics; they can be written to when this returns."""
    from tidemark.client.models import NewTopic
    from tidemark.errors import TopicAlreadyExistsError

    configs = settings_of(config or [])
    created: list[str] = []
    with session.admin() as admin:
        for name in topics:
            try:
                admin.create_topics(
                    [NewTopic(name, partitions, replication_factor, configs=configs)]
                )
            except TopicAlreadyExistsError:
                if not if_not_exists:
                    raise
            else:
                created.append(name)
    session.tell({"created": created}, [f"created topic {name}" for name in created])


@app.command("list")
@with_session
def list_(
    session: Session,
    internal: Annotated[
        bool, typer.Option("--internal", help="Topics whose name begins with __ as well.")
    ] = False,
) -> None:
    """List topics."""
    with session.admin() as admin:
        found = admin.list_topics(include_internal=internal)
    columns = ("TOPIC", "PARTITIONS", "REPLICATION")
    rows = [(t.name, t.num_partitions, t.replication_factor) for t in found]
    session.show(json_of(found), columns, rows)


@app.command("describe")
@with_session
def describe(
    session: Session,
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...")] = None,
) -> None:
    """Describe topics (all by default): settings, and leader, replicas and ISR per partition. For a
    partition without a leader also what to do.
    """
    from tidemark.types import uuid_to_text

    with session.admin() as admin:
        names = topics or [topic.name for topic in admin.list_topics()]
        found = admin.describe_topics(names) if names else {}
        active = in_service(admin.describe_cluster())
    if session.as_json:
        print_json(json_of(list(found.values())))
        return
    for topic in found.values():
        configs = ",".join(f"{key}={value}" for key, value in topic.configs.items()) or "none"
        print_line(f"topic {topic.name}  id {uuid_to_text(topic.topic_id)}  configs {configs}")
        print_table(
            ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "ELR"),
            [
                (p.partition, p.leader, p.leader_epoch, p.replicas, p.isr, p.elr)
                for p in topic.partitions
            ],
        )
        for p in topic.partitions:
            way = way_back(p, active) if p.leader is None else ""
            if way:
                print_line(f"{topic.name}-{p.partition} has no leader: {way}")


@app.command("alter")
@with_session
def alter(
    session: Session,
    topics: Topics,
    partitions: Annotated[
        int, typer.Option(help="Number of partitions afterwards: more than now.", min=1)
    ],
    assignment: Annotated[
        list[str] | None,
        typer.Option(help="4,5,6: brokers of a new partition, preferred first; repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check whether it would be accepted.")
    ] = False,
) -> None:
    """Add partitions; records that are there stay, new ones of a key may go elsewhere."""
    from tidemark.cli.reassignment import parse_ids

    placed = [parse_ids(text) for text in assignment or ()]
    with session.admin() as admin:
        admin.create_partitions(
            dict.fromkeys(topics, partitions),
            assignments=dict.fromkeys(topics, placed) if placed else None,
            validate_only=dry_run,
        )
    if session.as_json:
        print_json({"dry_run": dry_run, "partitions": dict.fromkeys(topics, partitions)})
    else:
        for name in topics:
            verb = "would have" if dry_run else "has"
            print_line(f"topic {name} {verb} {partitions} partitions")


@app.command("delete")
@with_session
def delete(
    session: Session,
    topics: Topics,
) -> None:
    """Delete topics and all their records."""
    with session.admin() as admin:
        admin.delete_topics(topics)
    session.tell({"deleted": topics}, [f"deleted topic {name}" for name in topics])
