"""The command `tidemark`: its groups, and its errors.

A failure is one line on stderr, with the name that Kafka has for an error of the cluster; `--debug`
shows the traceback. The exit status is 1, or 2 for wrong usage, or 130 for Ctrl-C. The module of a
command is imported when the command is asked for, and heavy imports happen inside the commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from tidemark import __version__
from tidemark.cli.context import server_in_use
from tidemark.cli.output import BOOTSTRAP_VARIABLE, reason_of
from tidemark.errors import ConfigError, TidemarkError
from tidemark.surroundings import secure

# Modules of the extra `server`; commands that run a node, or read its files, need them.
_OF_A_NODE = {
    *("grpc_health", "grpc_health.v1", "grpc_reflection"),
    *("immutables", "minio", "prometheus_client"),
}

_GROUPS = (
    "storage",
    "topics",
    "quorum",
    "log-dirs",
    "metadata",
    "cluster",
    "debug",
    "context",
    "brokers",
    "configs",
    "reassign",
    "features",
    "quotas",
    "acls",
    "users",
    "groups",
    "transactions",
    "perf",
    "tier",
    "spark",
)
_COMMANDS = (
    "elect-leaders",
    "server",
    "dev",
    "produce",
    "consume",
    "self-test",
    "get-offsets",
    "delete-records",
    "dump-log",
    "verify",
    "completion",
)


@cache
def _loaded(name: str) -> Any:
    """A group or a command, from the module of its name. Help asks for each of them twice."""
    plain = name.replace("-", "_")
    module = import_module(f"tidemark.cli.{plain}")
    if name in _GROUPS:
        group = get_group(module.app)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False)
    alone.command(name)(getattr(module, plain))
    return get_command(alone)


class _Commands(Mapping[str, Any]):
    """The commands by name, each loaded when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        if name not in (*_GROUPS, *_COMMANDS):
            raise KeyError(name)
        return _loaded(name)

    def __iter__(self) -> Iterator[str]:
        return iter((*_GROUPS, *_COMMANDS))

    def __len__(self) -> int:
        return len(_GROUPS) + len(_COMMANDS)


class _Group(TyperGroup):
    """Turns Tidemark's errors into a line and an exit status; any other error is a bug and
    shows.
    """

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands: Any = _Commands()

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TidemarkError as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"tidemark: {reason_of(error)}", err=True)
            raise typer.Exit(1) from None
        except ModuleNotFoundError as error:
            if error.name not in _OF_A_NODE or ctx.params.get("debug"):
                raise
            typer.echo(
                f"tidemark: this command needs {error.name!r}, which is not installed: "
                "pip install 'tidemark[server]'",
                err=True,
            )
            raise typer.Exit(1) from None
        except BrokenPipeError:
            # The reader has closed the pipe (`| head`).
            sys.stderr.close()
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    name="tidemark",
    cls=_Group,
    help="A partitioned, replicated log in the manner of Apache Kafka.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"tidemark {__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    context: Annotated[
        str | None, typer.Option("--context", help="The cluster of this name: `tidemark context`.")
    ] = None,
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            envvar="TIDEMARK_COMMAND_CONFIG",
            help="A file of client settings: security.protocol, ssl.*, sasl.*",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback when a command fails.")
    ] = False,
) -> None:
    """A partitioned, replicated log in the manner of Apache Kafka."""
    if command_config is not None:
        _secure(command_config)
        ctx.call_on_close(lambda: secure(None))
    server = server_in_use(context)
    if server is not None:  # until the command ends: its option --bootstrap-server reads this
        before = os.environ.get(BOOTSTRAP_VARIABLE)
        os.environ[BOOTSTRAP_VARIABLE] = server
        ctx.call_on_close(lambda: _restore(before))


def _secure(path: Path) -> None:
    """Makes all clients of the command connect as the file says. Raises ConfigError."""
    from tidemark.config.properties import parse_properties
    from tidemark.config.security import client_security

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--command-config: {error}") from None
    try:
        secure(client_security(parse_properties(text)))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _restore(server: str | None) -> None:
    if server is None:
        os.environ.pop(BOOTSTRAP_VARIABLE, None)
    else:
        os.environ[BOOTSTRAP_VARIABLE] = server


def run() -> None:
    """Entry point of the `tidemark` command."""
    app(prog_name="tidemark")


if __name__ == "__main__":
    run()
