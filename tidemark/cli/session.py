"""The options, the output and the connection of every command that sends requests to a cluster.

    @app.command("list")
    @with_session
    def list_(session: Session, internal: Internal = False) -> None:
        with session.admin() as admin:
            found = admin.list_topics()
        session.show(found, ("TOPIC", ...), rows, empty="no topics")

`with_session` gives the command the options --bootstrap-server and --json in place of its first
parameter. Imports nothing heavy: `tidemark --help` must be quick.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from tidemark.cli.output import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    print_json,
    print_line,
    print_table,
)
from tidemark.errors import ConfigError, NetworkError, UnknownTopicOrPartitionError
from tidemark.types import Endpoint, TopicPartition

if TYPE_CHECKING:
    from tidemark.client.sync import Admin

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")]

# Long enough for a cluster that starts, short enough to report one that does not exist.
_REACH_S = 5.0
_CONNECT_S = 2.0
_PAUSE_S = 0.25
_UNKNOWN_S = 3.0  # of a topic


@dataclass(frozen=True, slots=True)
class Session:
    """The options of one command."""

    bootstrap: str
    as_json: bool

    @contextlib.contextmanager
    def admin(self) -> Iterator[Admin]:
        """A client of the cluster. Raises NetworkError if none of its nodes takes connections."""
        from tidemark.client import sync

        check_reachable(self.bootstrap)
        with sync.Admin(self.bootstrap) as admin:
            yield admin

    def show(
        self,
        value: Any,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        empty: str | None = None,
    ) -> None:
        """Prints `value` as JSON, or the rows as a table.

        `empty` replaces a table without rows, for people only: programs get its columns.
        """
        found = list(rows)
        if self.as_json:
            print_json(value)
        elif empty is not None and not found and sys.stdout.isatty():
            print_line(empty)
        else:
            print_table(columns, found)

    def tell(self, value: Any, lines: Iterable[str]) -> None:
        """Prints `value` as JSON, or the lines."""
        if self.as_json:
            print_json(value)
            return
        for line in lines:
            print_line(line)


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr for long work, shown to people only.

    Call the function with the amount done.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def check_reachable(bootstrap: str) -> None:
    """Returns when a node takes connections.

    Raises NetworkError if none did for some seconds, ConfigError for text that is no host:port.
    """
    try:
        endpoints = [Endpoint.parse(text.strip()) for text in bootstrap.split(",") if text.strip()]
    except ValueError as error:
        raise ConfigError(f"--bootstrap-server: {error}") from None
    if not endpoints:
        raise ConfigError("--bootstrap-server names no host:port")
    deadline = time.monotonic() + _REACH_S
    while True:
        reasons = []
        for endpoint in endpoints:
            try:
                socket.create_connection((endpoint.host, endpoint.port), _CONNECT_S).close()
                return
            except OSError as error:
                reasons.append(f"{endpoint.address}: {error.strerror or error}")
        if time.monotonic() >= deadline:
            raise NetworkError(
                f"no node answers ({'; '.join(reasons)}): does the cluster run, and is "
                "--bootstrap-server right?"
            )
        time.sleep(_PAUSE_S)


def known_partitions(
    partitions_for: Callable[[str, float], list[TopicPartition]],
    topic: str,
    timeout_s: float | None,
) -> list[TopicPartition]:
    """The partitions of a topic, by a client that is asked for no longer than `timeout_s`.

    Raises UnknownTopicOrPartitionError soon: nodes may lag behind a creation, but not for long.
    """
    limit_s = _UNKNOWN_S if timeout_s is None else min(_UNKNOWN_S, timeout_s)
    try:
        return partitions_for(topic, limit_s * 1000)
    except UnknownTopicOrPartitionError:
        raise UnknownTopicOrPartitionError(
            f"topic {topic!r} does not exist: `tidemark topics list` names those that do, and"
            " `tidemark topics create` makes one"
        ) from None


def check_partitions(known: list[TopicPartition], numbers: Collection[int]) -> None:
    """Raises ConfigError for a partition that its topic does not have."""
    topic = known[0].topic
    for number in numbers:
        if number not in {tp.partition for tp in known}:
            raise ConfigError(
                f"{topic}-{number} does not exist; {topic} has {len(known)} partitions"
            )


def with_session(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of a Session in place of its parameter `session`."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "session"
    ]

    def option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, default=default, annotation=annotation)

    shared = [
        option("bootstrap_server", Bootstrap, DEFAULT_BOOTSTRAP),
        option("as_json", Json, False),
    ]

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        session = Session(arguments.pop("bootstrap_server"), arguments.pop("as_json"))
        command(session, **arguments)

    parameters = [*own, *shared]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper
