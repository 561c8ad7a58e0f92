"""`tidemark produce`: lines of a file or of stdin as records, or what `consume --json` printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli import session
from tidemark.cli.consume import timestamp_of
from tidemark.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, print_json
from tidemark.cli.record_format import Fields, fields_of_json, unescape
from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from tidemark.client.models import RecordMetadata
    from tidemark.client.sync import Producer, SyncDelivery

# Acknowledgements are checked after this many records, so that memory stays bounded.
_STEP = 100_000

_CHUNK_BYTES = 1 << 16


@dataclass(slots=True)
class _Acknowledged:
    """The records of one partition that are acknowledged; without offsets for acks=0."""

    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None

    def add(self, offset: int) -> None:
        self.records += 1
        if offset >= 0:
            self.first_offset = offset if self.first_offset is None else self.first_offset
            self.last_offset = offset


@dataclass(slots=True)
class _Target:
    """A topic to send to, or one of its partitions, and the records that have arrived there."""

    producer: Producer
    topic: str
    partition: int | None
    found: dict[int, _Acknowledged] = field(default_factory=dict)

    def send(self, record: Fields) -> SyncDelivery:
        return self.producer.send(
            self.topic,
            record.value,
            record.key,
            partition=self.partition,
            timestamp_ms=record.timestamp_ms,
            headers=record.headers,
        )

    def arrived(self, metadata: RecordMetadata) -> None:
        self.found.setdefault(metadata.partition, _Acknowledged()).add(metadata.offset)


_File = Annotated[Path | None, typer.Option(help="Read lines of this file instead of stdin.")]
_KeySeparator = Annotated[str | None, typer.Option(help="What is before it in a line is the key.")]
_Headers = Annotated[list[str] | None, typer.Option(help="NAME=VALUE, of each record; repeatable.")]
_Timestamp = Annotated[
    str | None, typer.Option(help="Of each record: ms, or ISO 8601; default: now.")
]
_NullMarker = Annotated[str | None, typer.Option(help="A key or value that is this text is null.")]
_Delimiter = Annotated[
    str,
    typer.Option(help=r"What ends a record, such as \n or \0; empty: the input is one record."),
]
_FromJson = Annotated[
    bool, typer.Option("--from-json", help="Lines are as `consume --json` prints them.")
]
_Partition = Annotated[int | None, typer.Option(help="Send to this partition; default: by key.")]


def produce(
    topic: str,
    file: _File = None,
    key_separator: _KeySeparator = None,
    header: _Headers = None,
    timestamp: _Timestamp = None,
    null_marker: _NullMarker = None,
    delimiter: _Delimiter = r"\n",
    from_json: _FromJson = False,
    partition: _Partition = None,
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
    timeout: Annotated[
        float | None,
        typer.Option(help="Fail when a record is not acknowledged in so many seconds."),
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
    if timeout is not None:
        settings |= limits_of(timeout)
    read: Callable[[bytes], Fields] = fields_of_json
    if not from_json:
        read = _reader(key_separator, header or [], timestamp, null_marker)
    elif key_separator is not None or header or timestamp is not None or null_marker is not None:
        raise ConfigError("--from-json has keys, headers, timestamps and nulls: leave those out")
    records = map(read, _with_progress(file, _records(file, unescape(delimiter))))
    session.check_reachable(bootstrap_server)
    with Producer(bootstrap_server, **settings) as producer:
        known = session.known_partitions(producer.partitions_for, topic, timeout)
        if partition is not None:
            session.check_partitions(known, [partition])
        target = _Target(producer, topic, partition)
        if transactional_id:
            count = _send_in_transactions(target, records, messages_per_transaction)
        else:
            count = _send(target, records)
    _report(target, count, as_json=as_json, is_transactional=bool(transactional_id))


def limits_of(timeout_s: float) -> dict[str, Any]:
    """Settings of a producer that gives up after this time. Raises ConfigError."""
    if timeout_s <= 0:
        raise ConfigError(f"--timeout {timeout_s:g}: a number of seconds above 0")
    limit_ms = max(2, round(timeout_s * 1000))
    return {
        "linger_ms": 0,
        "max_block_ms": limit_ms,
        "delivery_timeout_ms": limit_ms,
        "request_timeout_ms": min(30_000, limit_ms),
    }


def _report(target: _Target, count: int, *, as_json: bool, is_transactional: bool) -> None:
    """Says where the records are: to programs, and on a terminal to people."""
    if as_json:
        partitions = [
            {
                "partition": number,
                "records": found.records,
                "first_offset": found.first_offset,
                "last_offset": found.last_offset,
            }
            for number, found in sorted(target.found.items())
        ]
        print_json({"topic": target.topic, "records": count, "partitions": partitions})
    elif sys.stderr.isatty():
        typer.echo(
            f"{count} records {'committed' if is_transactional else 'acknowledged'}", err=True
        )
        for number, found in sorted(target.found.items()):
            offsets = (
                ""
                if found.last_offset is None
                else (f", offsets {found.first_offset} to {found.last_offset}")
            )
            typer.echo(f"{target.topic}-{number}: {found.records} records{offsets}", err=True)


def _send(target: _Target, records: Iterable[Fields]) -> int:
    """Sends records, and waits for all. Returns how many. Raises the first error."""
    count = 0
    pending: list[SyncDelivery] = []
    for record in records:
        pending.append(target.send(record))
        count += 1
        if len(pending) >= _STEP:
            _check(target, pending)
            pending.clear()
    target.producer.flush()
    _check(target, pending)
    return count


def _send_in_transactions(target: _Target, records: Iterator[Fields], each: int | None) -> int:
    """Sends records, and commits after `each` of them. On an error says how many are committed."""
    committed = 0
    target.producer.init_transactions()
    try:
        # A transaction begins with its first record: none is empty.
        for first in records:
            more = islice(records, None if each is None else each - 1)
            with target.producer.transaction():
                count = _send(target, chain((first,), more))
            committed += count
    except BaseException:
        typer.echo(f"tidemark: {committed} records were committed before an error", err=True)
        raise
    return committed


def _reader(
    separator: str | None, headers: list[str], timestamp: str | None, null_marker: str | None
) -> Callable[[bytes], Fields]:
    """Makes records of lines. Raises ConfigError for wrong options."""
    pairs: list[tuple[str, bytes | None]] = []
    for text in headers:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--header {text!r} is not NAME=VALUE")
        pairs.append((name, value.encode()))
    timestamp_ms = None if timestamp is None else timestamp_of(timestamp, "--timestamp")
    null = None if null_marker is None else unescape(null_marker)

    def read(line: bytes) -> Fields:
        key, value = split_line(line, separator)
        return Fields(
            None if value == null else value,
            None if key == null else key,
            tuple(pairs),
            timestamp_ms,
        )

    return read


def split_line(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    """(key, value). Raises ConfigError for a line without the separator."""
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    if not found:
        raise ConfigError(f"a line has no key separator {separator!r}: {line[:60]!r}")
    return key, value


def _check(target: _Target, pending: list[SyncDelivery]) -> None:
    for delivery in pending:
        target.arrived(delivery.result())


def _records(file: Path | None, delimiter: bytes) -> Iterator[bytes]:
    """The records of a file or of stdin, without what ends them. Raises ConfigError."""
    if file is None:
        yield from split(sys.stdin.buffer, delimiter)
        return
    try:
        with file.open("rb") as source:
            yield from split(source, delimiter)
    except OSError as error:
        raise ConfigError(f"can not read {file}: {error}") from error


def split(source: IO[bytes], delimiter: bytes) -> Iterator[bytes]:
    """Parts of a stream; a delimiter at its end begins no other part. A line may end with CR LF."""
    if not delimiter:
        yield source.read()
    elif delimiter == b"\n":
        for line in source:
            yield line.removesuffix(b"\n").removesuffix(b"\r")
    else:
        rest = b""
        while chunk := source.read(_CHUNK_BYTES):
            *parts, rest = (rest + chunk).split(delimiter)
            yield from parts
        if rest:
            yield rest


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
            progress.advance(task, len(line) + 1)  # with what ended it
