"""`tidemark features`: the levels of what a cluster may do (KIP-584); metadata.version is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
    from collections.abc import Mapping, Sequence

    from tidemark.client.models import FeatureDescription

app = typer.Typer(help="Feature levels of the cluster.", no_args_is_help=True)

_LATEST = "latest"

Levels = Annotated[list[str], typer.Argument(metavar="FEATURE=LEVEL...")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check whether it would be accepted.")]


@app.command("describe")
def describe(bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show the levels in effect, and what the node that answers supports."""
    from tidemark.client.sync import Admin

    with Admin(bootstrap_server) as admin:
        found = admin.describe_features()
    if as_json:
        print_json(json_of(list(found.values())))
        return
    print_table(
        ("FEATURE", "LEVEL", "SUPPORTED"),
        [
            (f.name, f.level or "off", f"{f.supported_min} to {f.supported_max}")
            for _, f in sorted(found.items())
        ],
    )


@app.command("upgrade")
def upgrade(
    levels: Levels,
    dry_run: DryRun = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Raise levels, all of them or none; FEATURE=latest is the highest supported."""
    _update(levels, None, dry_run=dry_run, bootstrap=bootstrap_server, as_json=as_json)


@app.command("downgrade")
def downgrade(
    levels: Levels,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Even where metadata is lost by it.")
    ] = False,
    dry_run: DryRun = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Lower levels, all of them or none; level 0 switches a feature off."""
    kind = "UNSAFE" if unsafe else "SAFE"
    _update(levels, kind, dry_run=dry_run, bootstrap=bootstrap_server, as_json=as_json)


def _update(
    texts: Sequence[str], downgrade: str | None, *, dry_run: bool, bootstrap: str, as_json: bool
) -> None:
    from tidemark.client.sync import Admin

    with Admin(bootstrap) as admin:
        before = admin.describe_features()
        levels = levels_of(texts, before)
        admin.update_features(levels, downgrade=downgrade, validate_only=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "levels": levels})
        return
    for name, level in levels.items():
        old = before[name].level if name in before else 0
        print_line(
            f"{'would set' if dry_run else 'set'} {name} from {old or 'off'} to {level or 'off'}"
        )


def levels_of(texts: Sequence[str], known: Mapping[str, FeatureDescription]) -> dict[str, int]:
    """`name=level` arguments; raises ConfigError."""
    levels: dict[str, int] = {}
    for text in texts:
        name, equals, level = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{text!r} is not FEATURE=LEVEL")
        if name in levels:
            raise ConfigError(f"{name} is named more than once")
        if level == _LATEST:
            if name not in known:
                raise ConfigError(f"feature {name!r} is none of {sorted(known)}")
            levels[name] = known[name].supported_max
        elif level.isascii() and level.isdigit():
            levels[name] = int(level)
        else:
            raise ConfigError(f"{text!r}: a level is a number or {_LATEST}")
    return levels
