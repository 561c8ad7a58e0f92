"""`tidemark quotas`: limits of clients, by user and client id (KIP-13, KIP-124, KIP-546)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.session import DryRun, Session, with_session
from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidemark.quotas.entities import QuotaEntity, QuotaFilter

app = typer.Typer(
    help="Limits on what clients may produce, fetch and ask for.", no_args_is_help=True
)

User = Annotated[str | None, typer.Option("--user", help="A user, e.g. ANONYMOUS.")]
UserDefaults = Annotated[
    bool, typer.Option("--user-defaults", help="All users without a quota of their own.")
]
ClientId = Annotated[str | None, typer.Option("--client-id", help="A client id.")]
ClientDefaults = Annotated[
    bool, typer.Option("--client-defaults", help="All client ids without a quota of their own.")
]


@app.command("describe")
@with_session
def describe(
    session: Session,
    user: User = None,
    user_defaults: UserDefaults = False,
    client_id: ClientId = None,
    client_defaults: ClientDefaults = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Only entities of exactly the named types.")
    ] = False,
) -> None:
    """Show quotas: of the named entity, or all of them."""
    from tidemark.quotas.entities import CLIENT_ID, USER, QuotaFilter

    named = _named(user, user_defaults, client_id, client_defaults)
    filters: list[QuotaFilter] = [
        QuotaFilter(kind, name)
        for kind, name in ((USER, named.user), (CLIENT_ID, named.client_id))
        if name is not None
    ]
    with session.admin() as admin:
        found = admin.describe_client_quotas(filters, strict=strict and bool(filters))
    session.show(
        [{**_json(entity), "quotas": quotas} for entity, quotas in found.items()],
        ("USER", "CLIENT ID", "QUOTA", "VALUE"),
        [
            (_text(entity.user), _text(entity.client_id), key, _number(value))
            for entity, quotas in found.items()
            for key, value in sorted(quotas.items())
        ],
        empty="no quotas",
    )


@app.command("alter")
@with_session
def alter(
    session: Session,
    user: User = None,
    user_defaults: UserDefaults = False,
    client_id: ClientId = None,
    client_defaults: ClientDefaults = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="KEY=VALUE; repeatable. producer_byte_rate and consumer_byte_rate are bytes a "
            "second of each broker, request_percentage is a share of its event loop.",
        ),
    ] = None,
    delete: Annotated[
        list[str] | None, typer.Option(help="A key: no limit any more; repeatable.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Set and remove quotas of a user, a client id, or a client id of a user."""
    entity = _named(user, user_defaults, client_id, client_defaults)
    if entity.user is None and entity.client_id is None:
        raise ConfigError(
            "say whose quota: --user NAME, --user-defaults, --client-id NAME or --client-defaults"
        )
    changes = _changes(set_ or (), delete or ())
    with session.admin() as admin:
        admin.alter_client_quotas({entity: changes}, validate_only=dry_run)
    verb = "would alter" if dry_run else "altered"
    texts = [
        f"{key} removed" if value is None else f"{key}={_number(value)}"
        for key, value in changes.items()
    ]
    session.tell(
        {"dry_run": dry_run, **_json(entity), "quotas": changes},
        [f"{verb} {entity}: {', '.join(texts)}"],
    )


def _named(
    user: str | None, user_defaults: bool, client_id: str | None, client_defaults: bool
) -> QuotaEntity:
    """The entity that the options name; raises ConfigError for contradicting ones."""
    from tidemark.quotas.entities import QuotaEntity

    return QuotaEntity(
        _name("user", user, user_defaults), _name("client-id", client_id, client_defaults)
    )


def _name(kind: str, name: str | None, is_default: bool) -> str | None:
    from tidemark.quotas.entities import DEFAULT

    if name is not None and is_default:
        raise ConfigError(f"--{kind} and its defaults were both named: use one of them")
    if name == "":
        raise ConfigError(f"--{kind} is empty: name one, or its defaults")
    return DEFAULT if is_default else name


def _changes(sets: Sequence[str], deletes: Sequence[str]) -> Mapping[str, float | None]:
    """Values by key, None to remove. Raises ConfigError."""
    found: dict[str, float | None] = {}
    for text in (*sets, *deletes):
        key, equals, value = text.partition("=")
        key = key.strip()
        if not key or bool(equals) != (text in sets):
            raise ConfigError(f"{text!r}: use --set KEY=VALUE and --delete KEY")
        if key in found:
            raise ConfigError(f"{key} is named more than once")
        try:
            found[key] = float(value) if equals else None
        except ValueError:
            raise ConfigError(f"{text!r}: a quota is a number") from None
    if not found:
        raise ConfigError("say what to change: --set KEY=VALUE or --delete KEY")
    return found


def _text(name: str | None) -> str:
    if name is None:
        return "-"
    return name or "<default>"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _json(entity: QuotaEntity) -> dict[str, str | None]:
    """The entity by Kafka's types; null stands for the default, as in Kafka's requests."""
    return {kind: name or None for kind, name in entity.parts()}
