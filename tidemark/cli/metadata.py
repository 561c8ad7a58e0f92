"""`tidemark metadata`: the cluster's metadata as a directory tree; never writes.

The tree is that of a checkpoint file or a metadata log directory (`--snapshot`), or of a live
cluster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.output import print_json, print_line
from tidemark.cli.session import Session, check_reachable, with_session
from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from quorum.inspect.tree import Change, MetadataView, Node

app = typer.Typer(
    help="Browse the cluster's metadata: a checkpoint, a log directory, or a live cluster.",
    no_args_is_help=True,
)

_DIFFERENT = 1
_SHOWN_BYTES_LEAST = 4 << 20

Snapshot = Annotated[
    Path | None,
    typer.Option(
        "--snapshot", "-s", help="A checkpoint, or a directory with __cluster_metadata-0."
    ),
]
AsOf = Annotated[
    int | None, typer.Option("--as-of", help="Offset of the last record to apply.", min=0)
]
Paths = Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="May hold * and ?.")]


@app.command("ls")
@with_session
def ls(
    session: Session,
    paths: Paths = None,
    snapshot: Snapshot = None,
    as_of: AsOf = None,
) -> None:
    """List what is in a branch; a path to a value lists itself."""
    from quorum.inspect.tree import Branch, children, find

    root = _root(snapshot, session.bootstrap, as_of)
    found = [match for path in paths or ["/"] for match in find(root, path)]
    listed: dict[str, list[str]] = {}
    for path, node in found:
        below = [_name(child) + _mark(sub) for child, sub in children(path, node)]
        listed[path] = below if isinstance(node, Branch) else [_name(path)]
    if session.as_json:
        print_json(listed)
        return
    for path, names in listed.items():
        if len(listed) > 1:
            print_line(f"{path}:")
        for name in names:
            print_line(name)


@app.command("cat")
@with_session
def cat(
    session: Session,
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="May hold * and ?.")],
    snapshot: Snapshot = None,
    as_of: AsOf = None,
) -> None:
    """Print values; of a branch all that is below it, as one object."""
    from quorum.inspect.tree import find, value_of

    root = _root(snapshot, session.bootstrap, as_of)
    values = {path: value_of(node) for name in paths for path, node in find(root, name)}
    if session.as_json:
        print_json(values)
        return
    for path, value in values.items():
        if len(values) > 1:
            print_line(f"{path}:")
        for line in readable(value):
            print_line(line)


@app.command("tree")
@with_session
def tree(
    session: Session,
    path: Annotated[str, typer.Argument()] = "/",
    depth: Annotated[int | None, typer.Option(help="Levels below the path.", min=1)] = None,
    snapshot: Snapshot = None,
    as_of: AsOf = None,
) -> None:
    """Show a branch and everything below it."""
    from quorum.inspect.tree import Leaf, find, value_of, walk

    root = _root(snapshot, session.bootstrap, as_of)
    for top, start in find(root, path):
        if session.as_json:
            shown = walk(top, start, depth)
            print_json({p: value_of(n) for p, n in shown if isinstance(n, Leaf)})
            continue
        for at, node in walk(top, start, depth):
            indent = "  " * (at.count("/") - top.rstrip("/").count("/") if at != top else 0)
            name = at if at == top else _name(at)
            mark = "" if name == "/" else _mark(node)
            text = f" {_compact(node.value)}" if isinstance(node, Leaf) else mark
            print_line(f"{indent}{name}{text}")


@app.command("find")
@with_session
def find_(
    session: Session,
    path: Annotated[str, typer.Argument()] = "/",
    name: Annotated[str | None, typer.Option(help="Names to find; may hold * and ?.")] = None,
    contains: Annotated[str | None, typer.Option(help="Text that the value holds.")] = None,
    snapshot: Snapshot = None,
    as_of: AsOf = None,
) -> None:
    """Find paths by name and by what their value holds; one path a line."""
    from fnmatch import fnmatchcase

    from quorum.inspect.tree import Leaf, find, walk

    root = _root(snapshot, session.bootstrap, as_of)
    for top, start in find(root, path):
        for at, node in walk(top, start):
            if name is not None and not fnmatchcase(_name(at), name):
                continue
            value = _compact(node.value) if isinstance(node, Leaf) else ""
            if contains is not None and contains not in value:
                continue
            if session.as_json:
                print_json({"path": at, "value": node.value if isinstance(node, Leaf) else None})
            else:
                print_line(at)


@app.command("diff")
@with_session
def diff(
    session: Session,
    before: Annotated[str, typer.Argument(metavar="A")],
    after: Annotated[str, typer.Argument(metavar="B")],
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 when they differ.")
    ] = False,
    snapshot: Snapshot = None,
) -> None:
    """Tell what differs between A and B.

    Each is an OFFSET (of --snapshot or the live cluster), a checkpoint, a directory, or host:port;
    SOURCE@OFFSET is a source as of an offset.
    """
    from quorum.inspect.tree import changes

    default = str(snapshot) if snapshot is not None else session.bootstrap
    first, second = (_loaded(*parse_side(text, default)) for text in (before, after))
    found = list(changes(first, second))
    if session.as_json:
        print_json(
            {
                "before": _side(first),
                "after": _side(second),
                "changes": [
                    {"path": c.path, "kind": c.kind, "before": c.before, "after": c.after}
                    for c in found
                ],
            }
        )
    else:
        for sign, view in (("---", first), ("+++", second)):
            side = _side(view)
            print_line(f"{sign} {side['source']} offset {side['offset']} epoch {side['epoch']}")
        for change in found:
            for line in text_of_change(change):
                print_line(line)
        print_line(f"{len(found)} changes")
    if found and exit_code:
        raise typer.Exit(_DIFFERENT)


def parse_side(text: str, default: str) -> tuple[str, int | None]:
    """(source, as of) of `OFFSET`, `SOURCE` or `SOURCE@OFFSET`. Raises ConfigError."""
    if text.isascii() and text.isdigit():
        return default, int(text)
    source, at, offset = text.rpartition("@")
    if at and offset.isascii() and offset.isdigit():
        return source or default, int(offset)
    if not text:
        raise ConfigError("say what to compare: an offset, a checkpoint, a directory, host:port")
    return text, None


def text_of_change(change: Change) -> list[str]:
    """The lines of a difference: + added, - removed, ~ changed, with the changed fields."""
    if change.kind == "added":
        return [f"+ {change.path} {_compact(change.after)}"]
    if change.kind == "removed":
        return [f"- {change.path} {_compact(change.before)}"]
    fields = [
        f"{name + ': ' if name else ''}{_compact(before)} -> {_compact(after)}"
        for name, before, after in change.fields()
    ]
    if len(fields) == 1:
        return [f"~ {change.path} {fields[0]}"]
    return [f"~ {change.path}", *(f"    {field}" for field in fields)]


def readable(value: Any, indent: str = "") -> list[str]:
    """JSON for people: one line per field of an object, lists on one line."""
    if not isinstance(value, dict) or not value:
        return [indent + _compact(value)]
    lines = [indent + "{"]
    for number, (name, item) in enumerate(value.items(), start=1):
        nested = isinstance(item, dict) and bool(item)
        below = readable(item, indent + "  ") if nested else [indent + "  " + json.dumps(item)]
        head = f"{indent}  {json.dumps(name)}: {below[0].lstrip()}"
        lines += [head, *below[1:]]
        lines[-1] += "," if number < len(value) else ""
    return [*lines, indent + "}"]


def _root(snapshot: Path | None, bootstrap: str, as_of: int | None) -> Any:
    from quorum.inspect.tree import tree_of

    return tree_of(_loaded(str(snapshot) if snapshot is not None else bootstrap, as_of))


def _loaded(source: str, as_of: int | None) -> MetadataView:
    from quorum.inspect.source import load

    if ":" in source and not Path(source).exists():
        check_reachable(source)
    view = load(source, as_of, _shown)
    for note in view.notes:
        typer.echo(f"tidemark: {note}", err=True)
    return view


def _shown(batches: Iterator[bytes], size_bytes: int) -> Iterator[bytes]:
    """The batches of a large file, with a progress bar on a terminal: a million partitions take
    seconds.
    """
    if size_bytes < _SHOWN_BYTES_LEAST or not sys.stderr.isatty():
        yield from batches
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress

    columns = ("reading the checkpoint", BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=size_bytes)
        for raw in batches:
            yield raw
            progress.advance(task, len(raw))


def _side(view: MetadataView) -> dict[str, Any]:
    return {name: view.quorum.get(name) for name in ("source", "offset", "epoch")}


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1] or "/"


def _mark(node: Node) -> str:
    from quorum.inspect.tree import Branch

    return "/" if isinstance(node, Branch) else ""


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
