"""`tidemark features`: the feature levels of a cluster (KIP-584).

metadata.version is one feature, kraft.version another (0: static voters, 1: voters in the log).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.output import json_of, levels_of
from tidemark.cli.session import DryRun, Session, with_session
from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidemark.client.models import FeatureDescription, NodeFeatures

app = typer.Typer(help="Feature levels of the cluster.", no_args_is_help=True)

_LATEST = "latest"

Levels = Annotated[list[str] | None, typer.Argument(metavar="[FEATURE=LEVEL]...")]
Feature = Annotated[
    list[str] | None,
    typer.Option("--feature", "-f", help="FEATURE=LEVEL, as an argument; may be repeated."),
]
Release = Annotated[
    str | None,
    typer.Option(
        "--release-version", "-r", help="The levels of a release: `storage version-mapping`."
    ),
]


@app.command("describe")
@with_session
def describe(
    session: Session,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="What each registered node supports instead.")
    ] = False,
) -> None:
    """Show the levels in effect, and what the node that answers supports."""
    with session.admin() as admin:
        if nodes:
            _show_nodes(session, admin.describe_node_features())
            return
        found = admin.describe_features()
    session.show(
        json_of(list(found.values())),
        ("FEATURE", "LEVEL", "SUPPORTED", "RELEASE"),
        [
            (f.name, f.level or "off", f"{f.supported_min} to {f.supported_max}", f.release or "-")
            for _, f in sorted(found.items())
        ],
    )


def _show_nodes(session: Session, nodes: Sequence[NodeFeatures]) -> None:
    rows = [
        (node.node_id, node.role, name, f"{low} to {high}")
        for node in nodes
        for name, (low, high) in sorted(node.features.items())
    ]
    session.show(json_of(nodes), ("NODE", "ROLE", "FEATURE", "SUPPORTED"), rows)


@app.command("upgrade")
@with_session
def upgrade(
    session: Session,
    levels: Levels = None,
    feature: Feature = None,
    release: Release = None,
    dry_run: DryRun = False,
) -> None:
    """Raise levels, all of them or none; FEATURE=latest is the highest supported."""
    texts = _texts(levels, feature, release)
    _update(session, texts, None, dry_run=dry_run)


@app.command("downgrade")
@with_session
def downgrade(
    session: Session,
    levels: Levels = None,
    feature: Feature = None,
    release: Release = None,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Even where metadata is lost by it.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Lower levels, all of them or none; level 0 switches a feature off."""
    kind = "UNSAFE" if unsafe else "SAFE"
    texts = _texts(levels, feature, release)
    _update(session, texts, kind, dry_run=dry_run)


@app.command("disable")
@with_session
def disable(
    session: Session,
    features: Annotated[list[str], typer.Argument(metavar="FEATURE...")],
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Even where metadata is lost by it.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Switch features off: a downgrade to level 0."""
    texts = [f"{name}=0" for name in features]
    kind = "UNSAFE" if unsafe else "SAFE"
    _update(session, texts, kind, dry_run=dry_run)


def _texts(
    levels: Sequence[str] | None, feature: Sequence[str] | None, release: str | None
) -> list[str]:
    texts = [*(levels or ()), *(feature or ())]
    if release is not None:
        from quorum.image.features import release_levels

        texts += [f"{name}={level}" for name, level in release_levels(release).items()]
    if not texts:
        raise ConfigError("name what to change: FEATURE=LEVEL..., or --release-version")
    return texts


def _update(
    session: Session, texts: Sequence[str], downgrade: str | None, *, dry_run: bool
) -> None:
    with session.admin() as admin:
        before = admin.describe_features()
        levels = wanted_levels(texts, before)
        admin.update_features(levels, downgrade=downgrade, validate_only=dry_run)
    old = {name: before[name].level if name in before else 0 for name in levels}
    session.tell(
        {"dry_run": dry_run, "before": old, "levels": levels},
        [_told(name, old[name], level, dry_run) for name, level in levels.items()],
    )


def _told(name: str, old: int, level: int, dry_run: bool) -> str:
    if old == level:
        return f"{name} is {level or 'off'} already"
    did = "would set" if dry_run else "set"
    return f"{did} {name} from {old or 'off'} to {level or 'off'}"


def wanted_levels(texts: Sequence[str], known: Mapping[str, FeatureDescription]) -> dict[str, int]:
    """`name=level` arguments, where a level may be `latest`. Raises ConfigError."""

    def number(text: str) -> str:
        name, _, level = text.partition("=")
        if level != _LATEST or not name:
            return text
        if name not in known:
            raise ConfigError(f"feature {name!r} is none of {', '.join(sorted(known))}")
        return f"{name}={known[name].supported_max}"

    return levels_of([number(text) for text in texts])
