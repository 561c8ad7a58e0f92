"""`tidemark quorum`: describes and changes the metadata quorum, as Kafka's
kafka-metadata-quorum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tidemark.cli import quorum_recover
from tidemark.cli.output import json_of, print_json, print_line, print_table
from tidemark.cli.session import DryRun, Session, with_session
from tidemark.errors import ConfigError
from tidemark.types import uuid_to_text

if TYPE_CHECKING:
    from uuid import UUID

    from tidemark.client.models import QuorumDescription, QuorumReplica
    from tidemark.types import Endpoint

app = typer.Typer(help="The metadata quorum.", no_args_is_help=True)
app.command("recover")(quorum_recover.recover)

_LISTENER = "CONTROLLER"
_TIMES = ("LastFetchTimestamp", "LastCaughtUpTimestamp")

ControllerConfig = Annotated[
    Path | None, typer.Option("--config", "-c", help="The controller's server.properties.")
]
ControllerId = Annotated[int | None, typer.Option("--controller-id", help="Its node id.")]
DirectoryId = Annotated[
    str | None, typer.Option("--directory-id", help="Of its metadata directory: storage info.")
]


class Controller(NamedTuple):
    """A controller to add or remove."""

    controller_id: int
    directory_id: UUID
    endpoints: Mapping[str, Endpoint]


@app.callback()
def group() -> None:
    """The metadata quorum."""


@app.command("describe")
@with_session
def describe(
    session: Session,
    status: Annotated[
        bool, typer.Option("--status", help="Leader, epoch, high watermark, who votes.")
    ] = False,
    replication: Annotated[
        bool, typer.Option("--replication", help="Each replica: end offset, lag, last fetch.")
    ] = False,
    human_readable: Annotated[
        bool, typer.Option("--human-readable", "-hr", help="Times as how long ago.")
    ] = False,
) -> None:
    """Describe the quorum by --status or by --replication."""
    if status == replication:
        raise ConfigError("say either --status or --replication")
    with session.admin() as admin:
        cluster_id = admin.describe_cluster().cluster_id
        quorum = admin.describe_quorum()
    if quorum.leader_id is None or leader_time_ms(quorum) is None:
        who = "nobody leads" if quorum.leader_id is None else "the leader does not answer"
        note = f"tidemark: {who}: this is what another node last heard, without offsets"
        typer.echo(note, err=True)
    if status:
        facts = status_of(quorum, cluster_id)
        if session.as_json:
            print_json(facts)
        else:
            _print_status(facts)
        return
    replicas = replication_of(quorum)
    if human_readable:
        now_ms = leader_time_ms(quorum)
        replicas = [_with_ages(row, now_ms) for row in replicas]
    if session.as_json:
        print_json(replicas)
    else:
        columns = list(replicas[0]) if replicas else []
        print_table([c.upper() for c in columns], [list(row.values()) for row in replicas])


@app.command("add-controller")
@with_session
def add_controller(
    session: Session,
    config: ControllerConfig = None,
    controller_id: ControllerId = None,
    directory_id: DirectoryId = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(help="host:port, or NAME://host:port, of a controller listener; repeatable."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Make a controller that runs a voter: by its --config, on its host, or by id, directory id and
    endpoint.
    """

    if config is not None:
        if controller_id is not None or directory_id is not None or endpoint:
            raise ConfigError("--config says it all: leave the other options out")
        new = controller_of(config)
    elif controller_id is None or directory_id is None or not endpoint:
        raise ConfigError("say --config, or --controller-id, --directory-id and --endpoint")
    else:
        new = Controller(controller_id, _directory_id(directory_id), endpoints_of(endpoint))
    if not dry_run:
        with session.admin() as admin:
            admin.add_raft_voter(new.controller_id, new.directory_id, new.endpoints)
    _say_changed(session, "added" if not dry_run else "would add", new, dry_run=dry_run)


@app.command("remove-controller")
@with_session
def remove_controller(
    session: Session,
    config: ControllerConfig = None,
    controller_id: ControllerId = None,
    directory_id: DirectoryId = None,
    dry_run: DryRun = False,
) -> None:
    """Make a voter an observer; its directory id is looked up where the quorum has one voter of
    that id.
    """
    with session.admin() as admin:
        if config is not None:
            old = controller_of(config)
        elif controller_id is None:
            raise ConfigError("say --controller-id, or --config")
        elif directory_id is not None:
            old = Controller(controller_id, _directory_id(directory_id), {})
        else:
            old = voter_of(admin.describe_quorum(), controller_id)
        if not dry_run:
            admin.remove_raft_voter(old.controller_id, old.directory_id)
    _say_changed(session, "removed" if not dry_run else "would remove", old, dry_run=dry_run)


def controller_of(config: Path) -> Controller:
    """The controller of a server.properties and its formatted directory.

    Raises ConfigError and StorageError.
    """
    from commitlog.disk.checkpoints import MetaProperties
    from commitlog.disk.os_files import OsDirectory
    from tidemark.config import load_server_config

    settings = load_server_config(config)
    if not settings.is_controller:
        raise ConfigError(f"{config}: process.roles has no controller")
    found = MetaProperties.read(OsDirectory(settings.metadata_directory, create=False))
    if found is None:
        raise ConfigError(
            f"{settings.metadata_directory} is not formatted: tidemark storage format"
        )
    advertised = settings.advertised_endpoints()
    names = [name for name in settings.controller_listener_names if name in advertised]
    endpoints = {name: advertised[name] for name in names}
    return Controller(settings.node_id, found.directory_id, endpoints)


def voter_of(quorum: QuorumDescription, controller_id: int) -> Controller:
    """The only voter of an id. Raises ConfigError if there is none, or its directory is unknown."""
    found = [v for v in quorum.voters if v.replica_id == controller_id]
    if not found:
        ids = [voter.replica_id for voter in quorum.voters]
        raise ConfigError(f"controller {controller_id} is no voter: voters are {ids}")
    directory = found[0].directory_id
    if len(found) > 1 or directory is None:
        raise ConfigError(f"controller {controller_id}: say --directory-id as well")
    return Controller(controller_id, directory, {})


def endpoints_of(texts: Iterable[str]) -> dict[str, Endpoint]:
    """Listeners by name; the name is `CONTROLLER` by default. Raises ConfigError."""
    from tidemark.types import Endpoint

    found: dict[str, Endpoint] = {}
    for text in texts:
        name, _, address = text.rpartition("://")
        name = name or _LISTENER
        if name in found:
            raise ConfigError(f"--endpoint: listener {name} is named more than once")
        try:
            found[name] = Endpoint.parse(address)
        except ValueError as error:
            raise ConfigError(f"--endpoint: {error}") from None
    return found


def _directory_id(text: str) -> UUID:
    from tidemark.types import uuid_from_text

    try:
        return uuid_from_text(text)
    except ValueError as error:
        raise ConfigError(f"--directory-id: {error}") from None


def _say_changed(session: Session, verb: str, who: Controller, *, dry_run: bool) -> None:
    where = _urls(who.endpoints)
    directory = uuid_to_text(who.directory_id)
    at = f" at {', '.join(where)}" if where else ""
    session.tell(
        {
            "dry_run": dry_run,
            "controller_id": who.controller_id,
            "directory_id": directory,
            "endpoints": where,
        },
        [f"{verb} controller {who.controller_id} with directory id {directory}{at}"],
    )


def _urls(endpoints: Mapping[str, Endpoint]) -> list[str]:
    """`CONTROLLER://host:port` of each listener, as Kafka writes them."""
    return [f"{name}://{endpoint.address}" for name, endpoint in endpoints.items()]


def lag_of(quorum: QuorumDescription, replica: QuorumReplica) -> int | None:
    """Records behind the leader's log end; None if one of both is unknown."""
    ends = {r.replica_id: r.log_end_offset for r in (*quorum.voters, *quorum.observers)}
    leader_end = None if quorum.leader_id is None else ends.get(quorum.leader_id)
    if leader_end is None or replica.log_end_offset is None:
        return None
    return max(0, leader_end - replica.log_end_offset)


def leader_time_ms(quorum: QuorumDescription) -> int | None:
    """The leader's clock as of its answer, because it is always caught up with itself."""
    return next(
        (r.last_caught_up_timestamp_ms for r in quorum.voters if r.replica_id == quorum.leader_id),
        None,
    )


def lag_time_ms(quorum: QuorumDescription) -> int | None:
    """The time in ms since the slowest voter had all of the leader's log."""
    now_ms = leader_time_ms(quorum)
    times = [r.last_caught_up_timestamp_ms for r in quorum.voters]
    if now_ms is None or None in times:
        return None
    return max((now_ms - time for time in times if time is not None), default=0)


def damage_name(replica: QuorumReplica) -> str | None:
    """Damage on the replica's own disk: LOG, LOG_TAIL, CHECKPOINT or OTHER; None if there is
    none.
    """
    return replica.own_damage.name if replica.own_damage else None


def status_of(quorum: QuorumDescription, cluster_id: str) -> dict[str, Any]:
    """The fields of --status, by Kafka's names."""
    lags = [lag for r in quorum.voters if (lag := lag_of(quorum, r)) is not None]

    addresses = {node.node_id: [node.endpoint.address] for node in quorum.nodes}

    def members(replicas: Iterable[QuorumReplica]) -> list[dict[str, Any]]:
        return [
            {
                "id": r.replica_id,
                "directoryId": json_of(r.directory_id),
                "endpoints": _urls(r.listeners) or addresses.get(r.replica_id, []),
                "ownDamage": damage_name(r),
            }
            for r in replicas
        ]

    return {
        "ClusterId": cluster_id,
        "LeaderId": quorum.leader_id,
        "LeaderEpoch": quorum.leader_epoch,
        "HighWatermark": quorum.high_watermark,
        "MaxFollowerLag": max(lags, default=None),
        "MaxFollowerLagTimeMs": lag_time_ms(quorum),
        "CurrentVoters": members(quorum.voters),
        "CurrentObservers": members(quorum.observers),
    }


def _print_status(facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        if isinstance(value, list):
            value = f"\n{'':24}".join(map(_member_text, value)) or "none"
        print_line(f"{name + ':':24}{'unknown' if value is None else value}")


def _member_text(member: dict[str, Any]) -> str:
    damage = [f"own damage: {member['ownDamage']}"] if member["ownDamage"] else []
    named = str(member["id"]), member["directoryId"] or "-"
    return " ".join([*named, *member["endpoints"], *damage])


def _with_ages(row: dict[str, Any], now_ms: int | None) -> dict[str, Any]:
    def age(time_ms: int | None) -> str:
        if time_ms is None or now_ms is None:
            return "never" if time_ms is None else "unknown"
        return age_text(max(0, now_ms - time_ms))

    return row | {name: age(row[name]) for name in _TIMES}


def age_text(age_ms: int) -> str:
    """`250 ms ago`, `12.5 s ago`, `3 min ago`, ..."""
    if age_ms < 1000:
        return f"{age_ms} ms ago"
    if age_ms < 60_000:
        return f"{age_ms / 1000:.1f} s ago"
    minutes = age_ms // 60_000
    return f"{minutes} min ago" if minutes < 120 else f"{minutes // 60} h ago"


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
                    "OwnDamage": damage_name(replica),
                }
            )
    return rows
