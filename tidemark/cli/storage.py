"""`tidemark storage`: formats the directories of a node, and describes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.output import Json, levels_of, print_json, print_line, print_table

app = typer.Typer(help="Format the directories of a node and look at them.", no_args_is_help=True)

Config = Annotated[Path, typer.Option("--config", "-c", help="The node's server.properties.")]


@app.command("random-uuid")
def random_uuid(as_json: Json = False) -> None:
    """Print a new cluster id."""
    from tidemark import types

    text = types.uuid_to_text(types.random_uuid())
    if as_json:
        print_json({"uuid": text})
    else:
        print_line(text)


@app.command("format")
def format_(
    config: Config,
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", "-t", help="The cluster's id: see random-uuid.")
    ],
    ignore_formatted: Annotated[
        bool, typer.Option("--ignore-formatted", help="Leave formatted directories as they are.")
    ] = False,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="This controller is the first and only voter.")
    ] = False,
    initial_controllers: Annotated[
        str | None,
        typer.Option(
            "--initial-controllers",
            "-I",
            help="The first voters, the same on each: id@host:port:directoryId,...",
        ),
    ] = None,
    no_initial_controllers: Annotated[
        bool,
        typer.Option("--no-initial-controllers", "-N", help="Join a cluster that exists."),
    ] = False,
    release: Annotated[
        str | None,
        typer.Option(
            "--release-version", "-r", help="Begin with the levels of a release: version-mapping."
        ),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option("--feature", "-f", help="Begin with FEATURE=LEVEL; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write meta.properties into every directory of the node, and what a new cluster begins with:
    its first voters if asked, and on a controller its feature levels."""
    from node.runtime.storage import first_voters, format_storage
    from quorum.image.features import first_levels
    from tidemark.config import load_server_config
    from tidemark.errors import ConfigError

    if standalone + (initial_controllers is not None) + no_initial_controllers > 1:
        raise ConfigError(
            "--standalone, --initial-controllers and --no-initial-controllers exclude each other"
        )
    settings = load_server_config(config)
    voters = first_voters(settings, standalone=standalone, initial_controllers=initial_controllers)
    if no_initial_controllers and settings.controller_quorum_voters:
        raise ConfigError("--no-initial-controllers goes with bootstrap servers, not with voters")
    levels = first_levels(release, levels_of(features or ()))
    lines = format_storage(
        settings, cluster_id, ignore_formatted=ignore_formatted, voters=voters, levels=levels
    )
    if as_json:
        told = levels if settings.is_controller else {}
        print_json({"cluster_id": cluster_id, "directories": lines, "features": told})
        return
    for line in lines:
        print_line(line)
    if settings.is_controller:
        text = ", ".join(f"{name} {level}" for name, level in sorted(levels.items()))
        print_line(f"a new cluster begins with {text}")


@app.command("version-mapping")
def version_mapping(
    release: Annotated[
        str | None, typer.Option("--release-version", "-r", help="Only this one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the feature levels that each release brought."""
    from quorum.image.features import METADATA_RELEASES, release_levels

    names = list(METADATA_RELEASES.values()) if release is None else [release]
    rows = [(name, *pair) for name in names for pair in sorted(release_levels(name).items())]
    if as_json:
        fields = ("release", "feature", "level")
        print_json([dict(zip(fields, row, strict=True)) for row in rows])
    else:
        print_table(("RELEASE", "FEATURE", "LEVEL"), rows)


@app.command("info")
def info(config: Config, as_json: Json = False) -> None:
    """Show which cluster and node each directory belongs to; fails if they disagree."""
    from node.runtime.storage import open_storage
    from tidemark.config import load_server_config
    from tidemark.errors import StorageError
    from tidemark.types import uuid_to_text

    settings = load_server_config(config)
    found = open_storage(settings)
    if found.unusable:
        raise StorageError("; ".join(found.unusable.values()))
    rows = [
        (path, found.cluster_id, settings.node_id, uuid_to_text(found.directory_ids[path]))
        for path in found.directories
    ]
    if as_json:
        names = ("directory", "cluster_id", "node_id", "directory_id")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(("DIRECTORY", "CLUSTER", "NODE", "DIRECTORY ID"), rows)
