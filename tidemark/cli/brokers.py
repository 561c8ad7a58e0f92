"""`tidemark brokers`: lists registered brokers, empties those that will leave, and unregisters one
that will not come back.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.session import Session, with_session
from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidemark.client.models import ClusterDescription, TopicDescription
    from tidemark.client.sync import Admin

app = typer.Typer(help="The brokers of the cluster.", no_args_is_help=True)


@app.command("list")
@with_session
def list_(session: Session) -> None:
    """List registered brokers with how many partitions they lead and hold."""
    with session.admin() as admin:
        cluster = admin.describe_cluster()
        rows = rows_of(cluster, all_topics(admin))
    columns = ("BROKER", "ADDRESS", "RACK", "STATE", "LEADS", "REPLICAS", "IN SYNC")
    session.show(rows, columns, [list(row.values()) for row in rows], empty="no broker")


@app.command("drain")
@with_session
def drain(
    session: Session,
    broker_ids: Annotated[list[int], typer.Argument(metavar="BROKER...")],
    timeout: Annotated[float, typer.Option(help="Seconds to wait at most.", min=0)] = 3600,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, change nothing.")] = False,
) -> None:
    """Move all replicas of brokers that will leave to the others, and wait for it.

    When it returns the brokers can be stopped, and then unregistered. It may be run again.
    """
    from tidemark.cli import reassignment
    from tidemark.cli.reassign import assigned_of, wait_until_moved

    leaving, moved = frozenset(broker_ids), 0
    deadline = time.monotonic() + timeout
    with session.admin() as admin:
        while True:
            assigned = assigned_of(admin, [])
            alive = {b.node_id: b.rack for b in admin.describe_cluster().brokers if not b.fenced}
            # A topic may have been made meanwhile.
            plan = reassignment.drain(assigned, alive, leaving)
            moved += len(plan)
            if not plan or dry_run:
                break
            admin.alter_partition_reassignments(plan)
            wait_until_moved(admin, plan, {}, max(0.0, deadline - time.monotonic()))
    ids = ", ".join(map(str, sorted(leaving)))
    verb = "would be moved" if dry_run else "were moved"
    session.tell(
        {"drained": sorted(leaving), "partitions": moved, "dry_run": dry_run},
        [f"{moved} partitions {verb} away from brokers {ids}"],
    )


@app.command("unregister")
@with_session
def unregister(
    session: Session,
    broker_id: Annotated[int, typer.Argument(metavar="BROKER")],
    force: Annotated[
        bool, typer.Option("--force", help="Even if it is alive or still holds replicas.")
    ] = False,
) -> None:
    """Forget a broker that will not come back; refused while it is alive or holds replicas. Also a
    controller that is no voter any more, which would hold feature levels up.
    """
    with session.admin() as admin:
        if not force:
            rows = rows_of(admin.describe_cluster(), all_topics(admin))
            _check(broker_id, next((r for r in rows if r["broker"] == broker_id), None))
        admin.unregister_broker(broker_id)
    session.tell({"unregistered": broker_id}, [f"unregistered broker {broker_id}"])


def _check(broker_id: int, row: dict[str, Any] | None) -> None:
    if row is None:
        return  # the controller answers with the right error
    if row["state"] != "fenced":
        raise ConfigError(f"broker {broker_id} is alive: stop it first, or say --force")
    if row["replicas"]:
        raise ConfigError(
            f"broker {broker_id} still holds {row['replicas']} replicas: move them "
            f"(tidemark brokers drain {broker_id}), or say --force"
        )


def rows_of(
    cluster: ClusterDescription, topics: Iterable[TopicDescription]
) -> list[dict[str, Any]]:
    """One row per registered broker."""
    leads: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    for topic in topics:
        for partition in topic.partitions:
            if partition.leader is not None:
                leads[partition.leader] += 1
            replicas.update(partition.replicas)
            in_sync.update(partition.isr)
    return [
        {
            "broker": broker.node_id,
            "address": broker.endpoint.address,
            "rack": broker.rack,
            "state": "fenced" if broker.fenced else "active",
            "leads": leads[broker.node_id],
            "replicas": replicas[broker.node_id],
            "in_sync": in_sync[broker.node_id],
        }
        for broker in cluster.brokers
    ]


def all_topics(admin: Admin) -> list[TopicDescription]:
    """Every topic, internal ones included."""
    names = [topic.name for topic in admin.list_topics(include_internal=True)]
    return list(admin.describe_topics(names).values()) if names else []
