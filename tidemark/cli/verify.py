"""`tidemark verify`: checks all files of log directories against each other; never writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.output import Json, json_of, print_json, print_line
from tidemark.errors import CorruptMessageError, StorageError

if TYPE_CHECKING:
    from commitlog.disk.files import Directory
    from commitlog.verify import Finding

Directories = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR...",
        help="Entries of log.dirs, or directories of single partitions; of a node that runs, too.",
    ),
]


def verify(directories: Directories, as_json: Json = False) -> None:
    """Check log directories: batches, indexes, epochs, snapshots, checkpoints. Exit status 1 if
    anything is damaged; a note is what the next start of the node repairs without a loss."""
    from commitlog.disk.os_files import OsDirectory
    from commitlog.verify import bytes_of

    places = [_place(path) for path in directories]
    total = sum(bytes_of(OsDirectory(str(path), create=False)) for path in directories)
    checked = damaged = notes = 0
    with _progress(total) as advance:

        def on_bytes(count: int) -> None:
            nonlocal checked
            checked += count
            advance(count)

        for place in places:
            for found in _findings(*place, on_bytes):
                damaged += found.is_damage
                notes += not found.is_damage
                if as_json:
                    print_json({"kind": "finding", **json_of(found)})
                else:
                    print_line(f"{'damage' if found.is_damage else 'note'}: {found}")
    if as_json:
        print_json({"kind": "summary", "bytes": checked, "damaged": damaged, "notes": notes})
    else:
        print_line(f"{checked} bytes checked: {damaged} damaged, {notes} to note")
    if damaged:
        raise CorruptMessageError(
            f"{damaged} findings of damage. Stop the node, move the directories of these partitions"
            " away (do not delete them), and start it: its replicas are fetched from their leaders"
        )


def _place(path: Path) -> tuple[Directory, str | None]:
    """Returns the log directory of a path, and the partition in it if the path is of one.

    The partition's log directory has the checkpoints that say how far it was cleaned.
    """
    from commitlog.disk.checkpoints import META_PROPERTIES
    from commitlog.disk.os_files import OsDirectory

    if not path.is_dir():
        raise StorageError(f"there is no directory {path}")
    whole = path.resolve()
    if any(whole.glob("*.log")) and (whole.parent / META_PROPERTIES).is_file():
        return OsDirectory(str(whole.parent), create=False), whole.name
    return OsDirectory(str(path), create=False), None


def _findings(
    directory: Directory, only: str | None, on_bytes: Callable[[int], None]
) -> Iterator[Finding]:
    from commitlog.verify import verify_directory

    return verify_directory(directory, on_bytes, only=only)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar on a terminal, on stderr; findings go to stdout."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    console = Console(stderr=True)
    with Progress(
        "verifying",
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=False,
    ) as progress:
        bar = progress.add_task("verifying", total=total)
        yield lambda count: progress.advance(bar, count)
