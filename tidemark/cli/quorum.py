"""`tidemark quorum describe`: the metadata quorum, as Kafka's kafka-metadata-quorum shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.output import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    json_of,
    print_json,
    print_line,
    print_table,
)
from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from tidemark.client.models import QuorumDescription, QuorumReplica

app = typer.Typer(help="The metadata quorum.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """The metadata quorum."""


@app.command("describe")
def describe(
    status: Annotated[
        bool, typer.Option("--status", help="Leader, epoch, high watermark.")
    ] = False,
    replication: Annotated[
        bool, typer.Option("--replication", help="Each replica: end offset, lag, last fetch.")
    ] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Describe the quorum by --status or by --replication."""
    if status == replication:
        raise ConfigError("say either --status or --replication")
    from tidemark.client.sync import Admin

    with Admin(bootstrap_server) as admin:
        cluster_id = admin.describe_cluster().cluster_id
        quorum = admin.describe_quorum()
    if status:
        facts = status_of(quorum, cluster_id)
        if as_json:
            print_json(facts)
        else:
            for name, value in facts.items():
                print_line(f"{name + ':':24}{value}")
        return
    replicas = replication_of(quorum)
    if as_json:
        print_json(replicas)
    else:
        columns = list(replicas[0]) if replicas else []
        print_table([c.upper() for c in columns], [list(row.values()) for row in replicas])


def lag_of(quorum: QuorumDescription, replica: QuorumReplica) -> int | None:
    """Records behind the leader's log end; None while one of both is unknown."""
    ends = {r.replica_id: r.log_end_offset for r in (*quorum.voters, *quorum.observers)}
    leader_end = None if quorum.leader_id is None else ends.get(quorum.leader_id)
    if leader_end is None or replica.log_end_offset is None:
        return None
    return max(0, leader_end - replica.log_end_offset)


def status_of(quorum: QuorumDescription, cluster_id: str) -> dict[str, Any]:
    """The facts of --status, by Kafka's names."""
    lags = [lag for r in quorum.voters if (lag := lag_of(quorum, r)) is not None]
    return {
        "ClusterId": cluster_id,
        "LeaderId": quorum.leader_id,
        "LeaderEpoch": quorum.leader_epoch,
        "HighWatermark": quorum.high_watermark,
        "MaxFollowerLag": max(lags, default=None),
        "CurrentVoters": [r.replica_id for r in quorum.voters],
        "CurrentObservers": [r.replica_id for r in quorum.observers],
    }


def replication_of(quorum: QuorumDescription) -> list[dict[str, Any]]:
    """The rows of --replication, by Kafka's names."""
    rows = []
    for role, replicas in (("Voter", quorum.voters), ("Observer", quorum.observers)):
        for replica in replicas:
            rows.append(
                {
                    "NodeId": replica.replica_id,
                    "DirectoryId": json_of(replica.directory_id),
                    "LogEndOffset": replica.log_end_offset,
                    "Lag": lag_of(quorum, replica),
                    "LastFetchTimestamp": replica.last_fetch_timestamp_ms,
                    "LastCaughtUpTimestamp": replica.last_caught_up_timestamp_ms,
                    "Status": "Leader" if replica.replica_id == quorum.leader_id else role,
                }
            )
    return rows
