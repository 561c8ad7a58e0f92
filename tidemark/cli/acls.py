"""`tidemark acls`: who may do what, as in kafka-acls (KIP-11, KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.session import DryRun, Session, with_session
from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tidemark.security.acls import AclBinding, AclFilter

app = typer.Typer(help="Who may do what, on clusters with an authorizer.", no_args_is_help=True)

Topics = Annotated[list[str] | None, typer.Option("--topic", help="A topic; * is each.")]
Groups = Annotated[list[str] | None, typer.Option("--group", help="A group; * is each.")]
Ids = Annotated[list[str] | None, typer.Option("--transactional-id", help="A transactional id.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="Names that begin so.")]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", help="read, write, describe, create, ..., or all; repeatable."),
]
Allowed = Annotated[list[str] | None, typer.Option("--allow-principal", help="User:NAME")]
Denied = Annotated[list[str] | None, typer.Option("--deny-principal", help="User:NAME")]
Hosts = Annotated[list[str] | None, typer.Option("--host", help="An IP address; * is each.")]
Producer = Annotated[
    bool, typer.Option("--producer", help="What a producer needs: write, describe, create.")
]
Consumer = Annotated[
    bool, typer.Option("--consumer", help="What a consumer needs: read, describe; of groups read.")
]


@app.command("list")
@with_session
def list_(
    session: Session,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Ids = None,
    cluster: Cluster = False,
    principal: Annotated[str | None, typer.Option(help="Entries of User:NAME alone.")] = None,
) -> None:
    """Show entries: all of them, or those that apply to the named resources."""
    with session.admin() as admin:
        found: set[AclBinding] = set()
        for chosen in _filters(topic, group, transactional_id, cluster, principal):
            found.update(admin.security.describe_acls(chosen))
    _show(session, sorted(found))


@app.command("add")
@with_session
def add(
    session: Session,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Ids = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    operation: Operations = None,
    allow_principal: Allowed = None,
    deny_principal: Denied = None,
    host: Hosts = None,
    producer: Producer = False,
    consumer: Consumer = False,
    dry_run: DryRun = False,
) -> None:
    """Allow or deny principals operations on resources."""
    named = _resources(topic, group, transactional_id, cluster)
    wanted = list(
        _bindings(
            named,
            _needed(named, operation or (), producer, consumer),
            prefixed,
            allow_principal or (),
            deny_principal or (),
            host or ("*",),
        )
    )
    if not dry_run:
        with session.admin() as admin:
            admin.security.create_acls(wanted)
    verb = "would add" if dry_run else "added"
    session.tell([_json(one) for one in wanted], [f"{verb}: {one}" for one in wanted])


@app.command("remove")
@with_session
def remove(
    session: Session,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Ids = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    principal: Annotated[str | None, typer.Option(help="Entries of User:NAME alone.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Entries of each resource.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Remove the entries of the named resources."""
    named = _resources(topic, group, transactional_id, cluster)
    if not named and not everything:
        raise ConfigError(
            "say whose entries: --topic, --group, --transactional-id, --cluster, --all"
        )
    from tidemark.security.acls import LITERAL, PREFIXED, AclFilter

    pattern = PREFIXED if prefixed else LITERAL
    filters = [AclFilter(kind, name, pattern, principal) for kind, name in named]
    filters = filters or [AclFilter(principal=principal)]
    with session.admin() as admin:
        if dry_run:
            gone = [one for chosen in filters for one in admin.security.describe_acls(chosen)]
        else:
            gone = admin.security.delete_acls(filters)
    verb = "would remove" if dry_run else "removed"
    session.tell([_json(one) for one in gone], [f"{verb}: {one}" for one in gone] or ["no entries"])


def _resources(
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    ids: Sequence[str] | None,
    cluster: bool,
) -> list[tuple[int, str]]:
    from tidemark.security import acls

    kinds = ((acls.TOPIC, topics), (acls.GROUP, groups), (acls.TRANSACTIONAL_ID, ids))
    named = [(kind, name) for kind, names in kinds for name in names or ()]
    return [*named, *([(acls.CLUSTER, acls.CLUSTER_NAME)] if cluster else [])]


def _filters(
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    ids: Sequence[str] | None,
    cluster: bool,
    principal: str | None,
) -> list[AclFilter]:
    from tidemark.security.acls import MATCH, AclFilter

    named = _resources(topics, groups, ids, cluster)
    chosen = [AclFilter(kind, name, MATCH, principal) for kind, name in named]
    return chosen or [AclFilter(principal=principal)]


def _needed(
    named: Sequence[tuple[int, str]], operations: Sequence[str], producer: bool, consumer: bool
) -> list[tuple[int, str, int]]:
    """Each resource with each of its operations. Raises ConfigError."""
    from tidemark.security import acls
    from tidemark.v1 import acl_pb2

    if not named:
        raise ConfigError("name a resource: --topic, --group, --transactional-id or --cluster")
    found = []
    for kind, name in named:
        wanted = set()
        for text in operations:
            key = "ACL_OPERATION_" + text.upper().replace("-", "_")
            try:
                wanted.add(int(acl_pb2.AclOperation.Value(key)))
            except ValueError:
                raise ConfigError(f"there is no operation {text!r}") from None
        if producer and kind == acls.TOPIC:
            wanted |= {acls.WRITE, acls.DESCRIBE, acls.CREATE}
        if producer and kind == acls.TRANSACTIONAL_ID:
            wanted |= {acls.WRITE, acls.DESCRIBE}
        if consumer and kind in (acls.TOPIC, acls.GROUP):
            wanted |= {acls.READ} if kind == acls.GROUP else {acls.READ, acls.DESCRIBE}
        found += [(kind, name, operation) for operation in sorted(wanted)]
    if not found:
        raise ConfigError("say what: --operation, --producer or --consumer")
    return found


def _bindings(
    named: Sequence[tuple[int, str]],
    needed: Sequence[tuple[int, str, int]],
    prefixed: bool,
    allowed: Sequence[str],
    denied: Sequence[str],
    hosts: Sequence[str],
) -> Iterable[AclBinding]:
    """The entries to add. Raises ConfigError."""
    from tidemark.security.acls import ALLOW, DENY, LITERAL, PREFIXED, AclBinding

    if not allowed and not denied:
        raise ConfigError("say whom: --allow-principal User:NAME or --deny-principal User:NAME")
    pattern = PREFIXED if prefixed else LITERAL
    for kind, name, operation in needed:
        for permission, principals in ((ALLOW, allowed), (DENY, denied)):
            for principal in principals:
                for host in hosts:
                    yield AclBinding(kind, name, pattern, principal, host, operation, permission)


def _show(session: Session, found: Sequence[AclBinding]) -> None:
    rows = [tuple(_json(one).values()) for one in found]
    columns = ("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION")
    session.show([_json(one) for one in found], columns, rows, empty="no entries")


def _json(binding: AclBinding) -> dict[str, str]:
    from tidemark.security import acls

    return {
        "resource_type": acls.resource_type_name(binding.resource_type),
        "resource_name": binding.resource_name,
        "pattern_type": "prefixed" if binding.pattern_type == acls.PREFIXED else "literal",
        "principal": binding.principal,
        "host": binding.host,
        "operation": acls.operation_name(binding.operation),
        "permission": "allow" if binding.permission == acls.ALLOW else "deny",
    }
