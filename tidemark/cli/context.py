"""`tidemark context`: clusters by name, so that commands need no --bootstrap-server.

They are in `$XDG_CONFIG_HOME/tidemark/contexts.json` (`~/.config` by default). A command takes the
first that is given of --bootstrap-server, --context, TIDEMARK_BOOTSTRAP_SERVER, the context in use,
and 127.0.0.1:9092.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.output import (
    BOOTSTRAP_VARIABLE,
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    print_json,
    print_table,
)
from tidemark.errors import ConfigError
from tidemark.types import Endpoint

app = typer.Typer(help="Clusters by name, for all other commands.", no_args_is_help=True)


@dataclass(slots=True)
class Contexts:
    """Bootstrap servers by name, and the name in use."""

    servers: dict[str, str] = field(default_factory=dict)
    current: str | None = None

    def server_of(self, name: str) -> str:
        """Raises ConfigError for an unknown name."""
        if name not in self.servers:
            raise ConfigError(
                f"there is no context {name!r}; there are: {', '.join(self.servers) or 'none'}"
            )
        return self.servers[name]


def path_of_contexts() -> Path:
    """The file of the user."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "tidemark" / "contexts.json"


def load() -> Contexts:
    """Reads the file. Raises ConfigError for a file that can not be read."""
    path = path_of_contexts()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        servers = {str(name): str(server) for name, server in found["contexts"].items()}
        current = found.get("current")
        return Contexts(servers, current if current in servers else None)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"can not read {path}: {error!r}; mend or remove it") from error


def save(contexts: Contexts) -> None:
    """Writes the file, whole or not at all. Raises ConfigError."""
    path = path_of_contexts()
    text = json.dumps({"current": contexts.current, "contexts": contexts.servers}, indent=2)
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch(mode=0o600)
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"can not write {path}: {error}") from error


def server_in_use(name: str | None) -> str | None:
    """The bootstrap servers of a context, by default of the one in use. Raises ConfigError."""
    if name is None and BOOTSTRAP_VARIABLE in os.environ:
        return None
    contexts = load()
    chosen = contexts.current if name is None else name
    return None if chosen is None else contexts.server_of(chosen)


@app.command("create")
def create(
    name: str,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Name a cluster, or give the name to another; the first one is in use at once."""
    for address in bootstrap_server.split(","):
        try:
            Endpoint.parse(address.strip())
        except ValueError as error:
            raise ConfigError(f"--bootstrap-server: {error}") from None
    contexts = load()
    contexts.servers[name] = bootstrap_server
    if use or contexts.current is None:
        contexts.current = name
    save(contexts)


@app.command("use")
def use(name: str) -> None:
    """Use a context from now on."""
    contexts = load()
    contexts.server_of(name)
    contexts.current = name
    save(contexts)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the contexts."""
    contexts = load()
    rows = [
        {"name": name, "bootstrap_server": server, "in_use": name == contexts.current}
        for name, server in sorted(contexts.servers.items())
    ]
    if as_json:
        print_json(rows)
    else:
        shown = [
            ("*" if row["in_use"] else "", row["name"], row["bootstrap_server"]) for row in rows
        ]
        print_table(("IN USE", "NAME", "BOOTSTRAP SERVER"), shown)


@app.command("delete")
def delete(name: str) -> None:
    """Forget a context; the cluster is not touched."""
    contexts = load()
    contexts.server_of(name)
    del contexts.servers[name]
    if contexts.current == name:
        contexts.current = None
    save(contexts)
