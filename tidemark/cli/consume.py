"""`tidemark consume`: records to stdout."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli import session
from tidemark.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidemark.cli.record_format import Show, as_json_line, by_fields, by_format, unescape
from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from tidemark.client.sync import Consumer
    from tidemark.types import TopicPartition

_POLL_MS = 500

_Partitions = Annotated[list[int] | None, typer.Option(help="Only this partition; repeatable.")]
_FromBeginning = Annotated[
    bool, typer.Option("--from-beginning", help="From the log start; default: from the end.")
]
_Offset = Annotated[
    str | None,
    typer.Option(help="Where each partition begins: earliest, latest, 123, or -10 (last ten)."),
]
_FromTimestamp = Annotated[
    str | None, typer.Option(help="From the first record at or after: ms, or ISO 8601.")
]
_Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        help=r"Tokens %t %p %o %T %k %s %h (topic to headers), %K %S (sizes); \n, \t, \xNN.",
    ),
]
_Group = Annotated[
    str,
    typer.Option(help="Share the partitions with the other members of this group, and commit."),
]
_IsolationLevel = Annotated[
    str,
    typer.Option(
        help="read_committed leaves aborted transactions out, and waits for the end of open ones."
    ),
]
_Rack = Annotated[
    str, typer.Option(help="Read from replicas in this rack, where the brokers allow it.")
]


def consume(
    topics: Annotated[list[str], typer.Argument(help="One or more topics.", metavar="TOPIC...")],
    partition: _Partitions = None,
    from_beginning: _FromBeginning = False,
    offset: _Offset = None,
    from_timestamp: _FromTimestamp = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", help="Stop after so many.", min=1)
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Stop when nothing came for so many seconds.")
    ] = None,
    record_format: _Format = None,
    print_key: Annotated[bool, typer.Option("--print-key", help="key, tab, value.")] = False,
    print_headers: Annotated[bool, typer.Option("--print-headers")] = False,
    print_timestamp: Annotated[bool, typer.Option("--print-timestamp")] = False,
    print_partition: Annotated[bool, typer.Option("--print-partition")] = False,
    print_offset: Annotated[bool, typer.Option("--print-offset")] = False,
    null_marker: Annotated[str, typer.Option(help="Stands for a null key or value.")] = "null",
    group: _Group = "",
    isolation_level: _IsolationLevel = "read_uncommitted",
    client_rack: _Rack = "",
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Print the values of records as they are, one per line; with --json one object per record."""
    from tidemark.client.sync import Consumer

    if sum((from_beginning, offset is not None, from_timestamp is not None)) > 1:
        raise ConfigError("say either --from-beginning, --offset or --from-timestamp")
    shown = {
        "key": print_key,
        "headers": print_headers,
        "timestamp": print_timestamp,
        "partition": print_partition,
        "offset": print_offset,
    }
    names = [name for name, is_shown in shown.items() if is_shown]
    show = as_json_line if as_json else _shown(names, record_format, null_marker)
    start = offset_of(offset)
    settings: dict[str, Any] = {"isolation_level": isolation_level, "client_rack": client_rack}
    if group:
        if partition or from_timestamp is not None or offset is not None:
            raise ConfigError("a --group has its own partitions and offsets: leave those out")
        settings |= {"group_id": group}
    settings["auto_offset_reset"] = "earliest" if group and from_beginning else "latest"
    session.check_reachable(bootstrap_server)
    with Consumer(bootstrap_server, **settings) as consumer:
        known = {
            topic: session.known_partitions(consumer.partitions_for, topic, timeout)
            for topic in topics
        }
        if group:
            consumer.subscribe(list(known))
        else:
            chosen = [tp for topic, found in known.items() for tp in _chosen(found, partition)]
            consumer.assign(chosen)
            if from_beginning:
                consumer.seek_to_beginning()
            elif from_timestamp is not None:
                consumer.seek_to_timestamp(timestamp_of(from_timestamp))
            elif start is not None:
                _seek(consumer, chosen, start)
        _print_all(consumer, max_messages, timeout, show)


def _shown(names: list[str], record_format: str | None, null_marker: str) -> Show:
    null = unescape(null_marker)
    if record_format is None:
        return by_fields(names, null)
    if names:
        raise ConfigError("say either --format or --print-...")
    return by_format(record_format, null)


def _chosen(known: list[TopicPartition], numbers: list[int] | None) -> list[TopicPartition]:
    if not numbers:
        return known
    session.check_partitions(known, numbers)
    return [tp for tp in known if tp.partition in numbers]


def offset_of(text: str | None) -> int | str | None:
    """`earliest`, `latest`, an offset, or a negative number: so many before the end. Raises
    ConfigError."""
    if text is None or text in ("earliest", "latest"):
        return text
    if re.fullmatch(r"-?[0-9]{1,19}", text) is None or int(text) >= 1 << 63:
        raise ConfigError(f"--offset {text!r} is neither earliest, latest, an offset nor -N")
    return int(text)


def _seek(consumer: Consumer, partitions: list[TopicPartition], start: int | str) -> None:
    if start == "earliest":
        consumer.seek_to_beginning()
    elif isinstance(start, int) and start >= 0:
        for tp in partitions:
            consumer.seek(tp, start)
    elif isinstance(start, int):
        first, last = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        for tp in partitions:
            consumer.seek(tp, max(first[tp], last[tp] + start))


def _print_all(
    consumer: Consumer, max_messages: int | None, timeout: float | None, show: Show
) -> None:
    out = sys.stdout.buffer
    left = max_messages
    limit_ms = None if timeout is None else timeout * 1000
    idle_ms = 0.0  # counted by polls, each of which waits as long as it is told
    while left is None or left > 0:
        wait_ms = _POLL_MS if limit_ms is None else min(_POLL_MS, limit_ms - idle_ms)
        records = consumer.poll(wait_ms, 500 if left is None else min(500, left))
        out.write(b"".join(map(show, records)))
        out.flush()
        idle_ms = 0.0 if len(records) else idle_ms + wait_ms
        left = None if left is None else left - len(records)
        if limit_ms is not None and idle_ms >= limit_ms:
            return


def timestamp_of(text: str, option: str = "--from-timestamp") -> int:
    """Milliseconds, from digits or ISO 8601 (UTC unless the text has a zone). Raises
    ConfigError.
    """
    from datetime import UTC, datetime

    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r} is neither ms nor ISO 8601") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
