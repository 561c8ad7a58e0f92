"""`tidemark produce`: lines of a file or of stdin as records."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, print_json, print_line
from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from tidemark.client.sync import Producer, SyncDelivery

# Acknowledgements are checked after this many records, so that memory stays bounded.
_STEP = 100_000

# Topic, value, key and partition of a record.
_Fields = tuple[str, bytes, bytes | None, int | None]


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
    transactional_id: Annotated[
        str | None, typer.Option(help="Send all lines in one transaction of this id.")
    ] = None,
    transaction_timeout_ms: Annotated[
        int | None, typer.Option(help="The broker aborts one that is open for longer.", min=1)
    ] = None,
    messages_per_transaction: Annotated[
        int | None, typer.Option(help="Commit after each so many lines, and at the end.", min=1)
    ] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Send each line as a record; fails if any is not acknowledged.

    With --transactional-id an error aborts the open transaction: read_committed readers see none of
    its lines.
    """
    from tidemark.client.sync import Producer

    settings: dict[str, Any] = {"acks": acks, "compression_type": compression_type}
    if transactional_id is not None:  # an empty one is refused, not left out
        settings["transactional_id"] = transactional_id
        if transaction_timeout_ms is not None:
            settings["transaction_timeout_ms"] = transaction_timeout_ms
    elif transaction_timeout_ms is not None or messages_per_transaction is not None:
        raise ConfigError("transactions need a --transactional-id")
    with Producer(bootstrap_server, **settings) as producer:
        records = (
            (topic, value, key, partition)
            for key, value in (
                split_line(line, key_separator) for line in _with_progress(file, _lines(file))
            )
        )
        if transactional_id:
            count = _send_in_transactions(producer, records, messages_per_transaction)
        else:
            count = _send(producer, records)
    if as_json:
        print_json({"topic": topic, "records": count})
    elif sys.stderr.isatty():
        print_line(f"{count} records {'committed' if transactional_id else 'acknowledged'}")


def _send(producer: Producer, records: Iterable[_Fields]) -> int:
    """Sends records, and waits for all. Returns how many. Raises the first error."""
    count = 0
    pending: list[SyncDelivery] = []
    for topic, value, key, partition in records:
        pending.append(producer.send(topic, value, key, partition=partition))
        count += 1
        if len(pending) >= _STEP:
            _check(pending)
            pending.clear()
    producer.flush()
    _check(pending)
    return count


def _send_in_transactions(producer: Producer, records: Iterator[_Fields], each: int | None) -> int:
    """Sends records, and commits after `each` of them. On an error says how many are committed."""
    committed = 0
    producer.init_transactions()
    try:
        # A transaction begins with its first record: none is empty.
        for first in records:
            more = islice(records, None if each is None else each - 1)
            with producer.transaction():
                count = _send(producer, chain((first,), more))
            committed += count
    except BaseException:
        typer.echo(f"tidemark: {committed} records were committed before an error", err=True)
        raise
    return committed


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
