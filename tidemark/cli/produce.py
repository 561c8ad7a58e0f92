"""`tidemark produce`: lines of a file or of stdin as records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, print_json, print_line
from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from tidemark.client.sync import SyncDelivery

# Acknowledgements are checked after this many records, so that memory stays bounded.
_STEP = 100_000


def produce(
    topic: str,
    file: Annotated[
        Path | None, typer.Option(help="Read lines of this file instead of stdin.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(help="What is before it in a line is the key.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(help="Send to this partition; default: by key.")
    ] = None,
    acks: Annotated[str, typer.Option(help="all, 1 or 0.")] = "all",
    compression_type: Annotated[
        str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Send each line as a record; fails if any is not acknowledged."""
    from tidemark.client.sync import Producer

    count = 0
    pending: list[SyncDelivery] = []
    with Producer(bootstrap_server, acks=acks, compression_type=compression_type) as producer:
        for line in _with_progress(file, _lines(file)):
            key, value = split_line(line, key_separator)
            pending.append(producer.send(topic, value, key, partition=partition))
            count += 1
            if len(pending) >= _STEP:
                _check(pending)
                pending.clear()
        producer.flush()
        _check(pending)
    if as_json:
        print_json({"topic": topic, "records": count})
    elif sys.stderr.isatty():
        print_line(f"{count} records acknowledged")


def split_line(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    """(key, value). Raises ConfigError for a line without the separator."""
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    if not found:
        raise ConfigError(f"a line has no key separator {separator!r}: {line[:60]!r}")
    return key, value


def _check(pending: list[SyncDelivery]) -> None:
    for delivery in pending:
        delivery.result()


def _lines(file: Path | None) -> Iterator[bytes]:
    if file is None:
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")
        return
    try:
        with file.open("rb") as lines:
            for line in lines:
                yield line.rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"can not read {file}: {error}") from error


def _with_progress(file: Path | None, lines: Iterator[bytes]) -> Iterator[bytes]:
    """The lines, with a progress bar over the file's bytes on a terminal."""
    if file is None or not sys.stderr.isatty():
        yield from lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=file.stat().st_size if file.exists() else None)
        for line in lines:
            yield line
            progress.advance(task, len(line) + 1)
