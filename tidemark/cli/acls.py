"""`tidemark acls`: who may do what, as in kafka-acls (KIP-11, KIP-290)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.session import DryRun, Session, with_session
from tidemark.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tidemark.security.acls import AclBinding, AclFilter

app = typer.Typer(help="Who may do what, on clusters with an authorizer.", no_args_is_help=True)

_FIELDS = (
    *("resource_type", "resource_name", "pattern_type"),
    *("principal", "host", "operation", "permission"),
)
_ADVICE = "entries are as `tidemark acls list --json` prints them"

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


@app.command("apply")
@with_session
def apply(
    session: Session,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Entries, as `tidemark acls list --json` prints."),
    ],
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove each entry that no file names.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Add the entries of files that the cluster does not have."""
    from tidemark.security.acls import AclFilter

    wanted = {entry for file in files for entry in entries_of(file)}
    with session.admin() as admin:
        present = set(admin.security.describe_acls())
        missing = sorted(wanted - present)
        surplus = sorted(present - wanted) if prune else []
        if missing and not dry_run:  # before others go: nobody is without both
            admin.security.create_acls(missing)
        if surplus and not dry_run:
            admin.security.delete_acls([AclFilter(*entry) for entry in surplus])
    would = "would be " if dry_run else ""
    told = [f"{would}added: {one}" for one in missing]
    told += [f"{would}removed: {one}" for one in surplus]
    changes = {"added": [_json(one) for one in missing], "removed": [_json(one) for one in surplus]}
    session.tell(changes, told or ["nothing to change"])


def entries_of(file: Path) -> list[AclBinding]:
    """The entries of a file of JSON. Raises ConfigError."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}; {_ADVICE}") from None
    if not isinstance(found, list):
        raise ConfigError(f"{file} is no list of entries; {_ADVICE}")
    entries = []
    for number, one in enumerate(found, start=1):
        try:
            entries.append(_entry(one))
        except (ConfigError, InvalidRequestError) as error:
            raise ConfigError(f"{file}, entry {number}: {error}") from None
    return entries


def _entry(found: object) -> AclBinding:
    """The reverse of `_json`. Raises ConfigError and InvalidRequestError."""
    from tidemark.security import acls

    if not isinstance(found, dict) or any(not isinstance(text, str) for text in found.values()):
        raise ConfigError("it is no object of texts")
    if unlike := found.keys() ^ {*_FIELDS}:
        raise ConfigError(f"{', '.join(sorted(unlike))}: the fields are {', '.join(_FIELDS)}")
    kinds = {acls.resource_type_name(n): n for n in acls.RESOURCE_TYPES}
    patterns = {"literal": acls.LITERAL, "prefixed": acls.PREFIXED}
    permissions = {"allow": acls.ALLOW, "deny": acls.DENY}
    entry = acls.AclBinding(
        _one_of(kinds, "resource_type", found),
        found["resource_name"],
        _one_of(patterns, "pattern_type", found),
        found["principal"],
        found["host"],
        _operation(found["operation"]),
        _one_of(permissions, "permission", found),
    )
    acls.check(entry)
    return entry


def _one_of(known: Mapping[str, int], field: str, found: Mapping[str, str]) -> int:
    if found[field] not in known:
        raise ConfigError(f"{field} {found[field]!r} is none of {', '.join(known)}")
    return known[found[field]]


def _operation(text: str) -> int:
    from tidemark.v1 import acl_pb2

    try:
        return int(acl_pb2.AclOperation.Value("ACL_OPERATION_" + text.upper().replace("-", "_")))
    except ValueError:
        raise ConfigError(f"there is no operation {text!r}") from None


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

    if not named:
        raise ConfigError("name a resource: --topic, --group, --transactional-id or --cluster")
    found = []
    for kind, name in named:
        wanted = {_operation(text) for text in operations}
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
