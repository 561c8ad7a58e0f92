"""Options, JSON and tables that all commands share.

Imports nothing heavy: `tidemark --help` must be quick.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.errors import ApiError, ConfigError

BOOTSTRAP_VARIABLE = "TIDEMARK_BOOTSTRAP_SERVER"
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        help="host:port of brokers or controllers, comma-separated.",
        envvar=BOOTSTRAP_VARIABLE,
    ),
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def print_json(value: Any) -> None:
    """One line of JSON on stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def print_line(text: str) -> None:
    """One line on stdout, as it is."""
    sys.stdout.write(text + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table for people; in a pipe, tab-separated lines for programs."""
    if not sys.stdout.isatty():
        for row in [columns, *rows]:
            print_line("\t".join(map(_text, row)))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    found = list(rows)
    for index, column in enumerate(columns):
        numbers = all(row[index] is None or type(row[index]) is int for row in found)
        table.add_column(column, justify="right" if numbers else "left")
    for row in found:
        table.add_row(*map(_text, row))
    Console().print(table)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if type(value) in (list, tuple):  # not a TopicPartition, which has a text of its own
        return ",".join(map(str, value))
    return str(value)


def settings_of(texts: Sequence[str], option: str = "--config") -> dict[str, str]:
    """`key=value` options. Raises ConfigError."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{option} {text!r} is not key=value")
        found[key.strip()] = value.strip()
    return found


def levels_of(texts: Sequence[str]) -> dict[str, int]:
    """`feature=level` options. Raises ConfigError."""
    found: dict[str, int] = {}
    for text in texts:
        name, equals, level = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{text!r} is not FEATURE=LEVEL")
        if name in found:
            raise ConfigError(f"{name} is named more than once")
        if not (level.isascii() and level.isdigit()):
            raise ConfigError(f"{text!r}: a level is a number, 0 or above")
        found[name] = int(level)
    return found


def read_text(path: Path) -> str:
    """The text of a file that an option names; `-` is standard input. Raises ConfigError."""
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can not read {path}: {error}") from error


def reason_of(error: BaseException) -> str:
    """An error in one line, with Kafka's name for it if it is one of the cluster's."""
    kind = f" ({error.code.name})" if isinstance(error, ApiError) else ""
    return " ".join(str(error).split()) + kind


def json_of(value: Any) -> Any:
    """Dataclasses, ids and tuples of `tidemark.client.models` as JSON's types."""
    import dataclasses
    from uuid import UUID

    from tidemark.types import Endpoint, TopicPartition, uuid_to_text

    if isinstance(value, UUID):
        return uuid_to_text(value)
    if isinstance(value, TopicPartition | Endpoint):
        return value._asdict()
    if dataclasses.is_dataclass(value):
        return {f.name: json_of(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): json_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_of(item) for item in value]
    return value
