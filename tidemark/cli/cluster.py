"""`tidemark cluster health`: problems of the cluster; exit status 0 only if there are none.

critical: records cannot be written or read (no active controller, no leader, an ISR below
min.insync.replicas, a certificate past its end). warning: a further failure could make it so, after
a fenced broker, a replica out of sync, a failed or full disk. So do a tier that lags or fails, a
certificate near its end, a controller that lags and a damaged metadata log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.disk_health import disk_problems
from tidemark.cli.leaderless import in_service, way_back
from tidemark.cli.node_health import node_problems
from tidemark.cli.output import json_of, print_json, print_line, print_table
from tidemark.cli.problems import Problem
from tidemark.cli.session import Session, with_session
from tidemark.errors import TidemarkError

if TYPE_CHECKING:
    from tidemark.client.models import ClusterDescription, QuorumDescription, TopicDescription
    from tidemark.client.sync import Admin

app = typer.Typer(help="The cluster as a whole.", no_args_is_help=True)

MIN_ISR = "min.insync.replicas"
_SHOWN_MAX = 50


@app.callback()
def group() -> None:
    """The cluster as a whole."""


@app.command("health")
@with_session
def health(
    session: Session,
    max_lag_ms: Annotated[
        int, typer.Option(help="How long a controller may be behind, in ms.", min=0)
    ] = 10_000,
    max_copy_lag_bytes: Annotated[
        int, typer.Option(help="How much of a partition may wait for its copy to the tier.", min=0)
    ] = 1 << 30,
    min_free_percent: Annotated[
        int, typer.Option(help="The least free part of a disk.", min=0, max=100)
    ] = 10,
    min_certificate_days: Annotated[
        int, typer.Option(help="How long a certificate has to be valid, in days.", min=0)
    ] = 14,
) -> None:
    """Tell what is wrong with brokers, disks, partitions and controllers; 0 healthy, 1 not."""
    import time

    from tidemark.cli.brokers import all_topics

    with session.admin() as admin:
        cluster, quorum, topics = (
            admin.describe_cluster(),
            admin.describe_quorum(),
            all_topics(admin),
        )
        problems = quorum_problems(quorum, max_lag_ms) + broker_problems(cluster)
        least = _default_min_isr(admin, cluster)
        problems += partition_problems(topics, least, in_service(cluster))
        try:
            live = sorted(in_service(cluster))
            disks = admin.describe_log_dirs(live) if live else {}
            problems += disk_problems(disks, max_copy_lag_bytes, min_free_percent)
        except TidemarkError as error:
            problems.append(Problem("warning", "disks unknown", "brokers", str(error)))
        try:
            now_ms, nodes = int(time.time() * 1000), admin.nodes.describe()
            problems += node_problems(nodes, in_service(cluster), now_ms, min_certificate_days)
        except TidemarkError as error:
            problems.append(Problem("warning", "nodes unknown", "cluster", str(error)))
    status = status_of(problems)
    facts = {
        "status": status,
        "cluster_id": cluster.cluster_id,
        "controller": quorum.leader_id,
        "controllers": len(quorum.voters),
        "brokers": len(cluster.brokers),
        "brokers_active": sum(not broker.fenced for broker in cluster.brokers),
        "topics": len(topics),
        "partitions": sum(len(topic.partitions) for topic in topics),
    }
    if session.as_json:
        print_json({**facts, "problems": json_of(problems)})
    else:
        for name, value in facts.items():
            print_line(f"{name.replace('_', ' ') + ':':16}{value}")
        if problems:
            columns = ("SEVERITY", "PROBLEM", "WHERE", "DETAIL")
            rows = [(p.severity, p.kind, p.where, p.detail) for p in problems[:_SHOWN_MAX]]
            print_table(columns, rows)
        if len(problems) > _SHOWN_MAX:
            print_line(f"and {len(problems) - _SHOWN_MAX} more: --json has all")
    if status != "healthy":
        raise typer.Exit(1)


def status_of(problems: Iterable[Problem]) -> str:
    """healthy, degraded (warnings only) or critical."""
    severities = {problem.severity for problem in problems}
    if "critical" in severities:
        return "critical"
    return "degraded" if severities else "healthy"


def quorum_problems(quorum: QuorumDescription, max_lag_ms: int) -> list[Problem]:
    """Problems of the controllers, by the leader's own clock."""
    if quorum.leader_id is None:
        what = "no metadata change is possible until a majority of the controllers runs"
        return [Problem("critical", "no active controller", "quorum", what), *damages(quorum)]
    now_ms = next(
        (r.last_caught_up_timestamp_ms for r in quorum.voters if r.replica_id == quorum.leader_id),
        None,
    )
    if now_ms is None:
        what = "it is said to lead, but does not answer: no metadata change is possible meanwhile"
        where = f"controller {quorum.leader_id}"
        silent = Problem("critical", "active controller is silent", where, what)
        return [silent, *damages(quorum)]
    found = damages(quorum)
    for voter in quorum.voters:
        if voter.replica_id == quorum.leader_id:
            continue
        where = f"controller {voter.replica_id}"
        if voter.last_caught_up_timestamp_ms is None:
            found.append(Problem("warning", "controller lags", where, "it has never caught up"))
        elif now_ms - voter.last_caught_up_timestamp_ms > max_lag_ms:
            behind_ms = now_ms - voter.last_caught_up_timestamp_ms
            detail = f"last caught up {behind_ms} ms ago"
            found.append(Problem("warning", "controller lags", where, detail))
    return found


def damages(quorum: QuorumDescription) -> list[Problem]:
    """Nodes whose own metadata log or checkpoint is damaged, and what that means."""
    from tidemark.client.models import OwnDamage

    meanings = {
        OwnDamage.LOG: (
            "a batch of its metadata log cannot be read: it does not lead until a newer checkpoint "
            "has replaced the batch, or a restart has fetched it anew. Check its disk"
        ),
        OwnDamage.LOG_TAIL: (
            "its disk lost metadata records: it does not vote until it has fetched them from a "
            "leader. Check its disk"
        ),
        OwnDamage.CHECKPOINT: (
            "the checkpoint where its metadata log begins is damaged, and no new one is made yet: "
            "nodes that need it cannot join. Check its disk"
        ),
        OwnDamage.OTHER: "its own log names the file. Check its disk",
    }
    nodes = [("controller", r) for r in quorum.voters] + [("node", r) for r in quorum.observers]
    return [
        Problem("warning", "metadata log damaged", f"{what} {r.replica_id}", meanings[r.own_damage])
        for what, r in nodes
        if r.own_damage
    ]


def broker_problems(cluster: ClusterDescription) -> list[Problem]:
    """Problems of the registered brokers."""
    found = [
        Problem(
            "warning", "fenced broker", f"broker {b.node_id}", f"{b.endpoint.address} is silent"
        )
        for b in cluster.brokers
        if b.fenced
    ]
    if cluster.brokers and len(found) == len(cluster.brokers):
        found.append(Problem("critical", "no active broker", "cluster", "nothing can be served"))
    return found


def partition_problems(
    topics: Iterable[TopicDescription], default_min_isr: int, active: Collection[int]
) -> list[Problem]:
    """The worst problem of each partition.

    `default_min_isr` applies to topics without a min.insync.replicas of their own. `active` are the
    brokers in service.
    """
    found: list[Problem] = []
    for topic in topics:
        least = int(topic.configs.get(MIN_ISR, default_min_isr))
        for p in topic.partitions:
            where = f"{topic.name}-{p.partition}"
            detail = f"replicas {list(p.replicas)}, in sync {list(p.isr)}"
            # With fewer replicas than min.insync.replicas all of them must be in sync (KIP-966).
            if p.leader is None:
                way = way_back(p, active)
                detail = f"{detail}: {way}" if way else detail
                found.append(Problem("critical", "no leader", where, detail))
            elif len(p.isr) < min(least, len(p.replicas)):
                detail = f"{detail}, {MIN_ISR} {least}"
                found.append(Problem("critical", "under min ISR", where, detail))
            elif len(p.isr) < len(p.replicas):
                found.append(Problem("warning", "under-replicated", where, detail))
    return sorted(found, key=lambda problem: problem.severity)


def _default_min_isr(admin: Admin, cluster: ClusterDescription) -> int:
    """The min.insync.replicas that a live broker applies to topics without one."""
    from tidemark.client.models import ConfigResource

    live = next((b.node_id for b in cluster.brokers if not b.fenced), None)
    if live is None:
        return 1
    resource = ConfigResource.broker(live)
    entry = admin.describe_configs([resource], [MIN_ISR])[resource].get(MIN_ISR)
    return 1 if entry is None else int(entry.value)
