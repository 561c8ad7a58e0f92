"""`tidemark topics`: create, list, describe, alter, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.output import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    json_of,
    print_json,
    print_line,
    print_table,
    settings_of,
)

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...")]


@app.command("create")
def create(
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
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Create topics; they can be written to when this returns."""
    from tidemark.client.models import NewTopic
    from tidemark.client.sync import Admin
    from tidemark.errors import TopicAlreadyExistsError

    configs = settings_of(config or [])
    created: list[str] = []
    with Admin(bootstrap_server) as admin:
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
    if as_json:
        print_json({"created": created})
    else:
        for name in created:
            print_line(f"created topic {name}")


@app.command("list")
def list_(
    internal: Annotated[
        bool, typer.Option("--internal", help="Topics whose name begins with __ as well.")
    ] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """List topics."""
    from tidemark.client.sync import Admin

    with Admin(bootstrap_server) as admin:
        found = admin.list_topics(include_internal=internal)
    if as_json:
        print_json(json_of(found))
    else:
        columns = ("TOPIC", "PARTITIONS", "REPLICATION")
        rows = [(t.name, t.num_partitions, t.replication_factor) for t in found]
        print_table(columns, rows)


@app.command("describe")
def describe(
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...")] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Describe topics (all by default): settings, and leader, replicas and ISR per partition."""
    from tidemark.client.sync import Admin
    from tidemark.types import uuid_to_text

    with Admin(bootstrap_server) as admin:
        names = topics or [topic.name for topic in admin.list_topics()]
        found = admin.describe_topics(names) if names else {}
    if as_json:
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


@app.command("alter")
def alter(
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
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Add partitions; records that are there stay, new ones of a key may go elsewhere."""
    from tidemark.cli.reassignment import parse_ids
    from tidemark.client.sync import Admin

    placed = [parse_ids(text) for text in assignment or ()]
    with Admin(bootstrap_server) as admin:
        admin.create_partitions(
            dict.fromkeys(topics, partitions),
            assignments=dict.fromkeys(topics, placed) if placed else None,
            validate_only=dry_run,
        )
    if as_json:
        print_json({"dry_run": dry_run, "partitions": dict.fromkeys(topics, partitions)})
    else:
        for name in topics:
            verb = "would have" if dry_run else "has"
            print_line(f"topic {name} {verb} {partitions} partitions")


@app.command("delete")
def delete(
    topics: Topics, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False
) -> None:
    """Delete topics and all their records."""
    from tidemark.client.sync import Admin

    with Admin(bootstrap_server) as admin:
        admin.delete_topics(topics)
    if as_json:
        print_json({"deleted": topics})
    else:
        for name in topics:
            print_line(f"deleted topic {name}")
