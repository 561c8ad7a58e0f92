"""`tidemark consume`: records to stdout."""

from __future__ import annotations

import base64
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, print_json
from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from tidemark.client.models import ConsumerRecord
    from tidemark.client.sync import Consumer

_POLL_MS = 500


def consume(
    topic: str,
    partition: Annotated[
        list[int] | None, typer.Option(help="Only this partition; repeatable.")
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="From the log start; default: from the end.")
    ] = False,
    from_timestamp: Annotated[
        str | None, typer.Option(help="From the first record at or after: ms, or ISO 8601.")
    ] = None,
    max_messages: Annotated[int | None, typer.Option(help="Stop after so many.", min=1)] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Stop when nothing came for so many seconds.")
    ] = None,
    print_key: Annotated[bool, typer.Option("--print-key", help="key, tab, value.")] = False,
    group: Annotated[
        str,
        typer.Option(help="Share the partitions with the other members of this group, and commit."),
    ] = "",
    isolation_level: Annotated[
        str,
        typer.Option(
            help="read_committed leaves aborted transactions out, and waits for the end of open"
            " ones."
        ),
    ] = "read_uncommitted",
    client_rack: Annotated[
        str, typer.Option(help="Read from replicas in this rack, where the brokers allow it.")
    ] = "",
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Print the values of records, one per line; with --json one object per record."""
    from tidemark.client.sync import Consumer
    from tidemark.types import TopicPartition

    if from_beginning and from_timestamp is not None:
        raise ConfigError("say either --from-beginning or --from-timestamp")
    settings = {"isolation_level": isolation_level, "client_rack": client_rack}
    if group:
        if partition or from_timestamp is not None:
            raise ConfigError("a --group has its own partitions and offsets: leave those out")
        reset = "earliest" if from_beginning else "latest"
        with Consumer(
            bootstrap_server, group_id=group, auto_offset_reset=reset, **settings
        ) as member:
            member.subscribe([topic])
            _print_all(member, max_messages, timeout, print_key, as_json)
        return
    with Consumer(bootstrap_server, auto_offset_reset="latest", **settings) as consumer:
        known = consumer.partitions_for(topic)
        chosen = [TopicPartition(topic, number) for number in partition or []] or known
        unknown = sorted(set(chosen) - set(known))
        if unknown:
            raise ConfigError(f"{unknown[0]} does not exist; {topic} has {len(known)} partitions")
        consumer.assign(chosen)
        if from_beginning:
            consumer.seek_to_beginning()
        elif from_timestamp is not None:
            consumer.seek_to_timestamp(timestamp_of(from_timestamp))
        _print_all(consumer, max_messages, timeout, print_key, as_json)


def _print_all(
    consumer: Consumer,
    max_messages: int | None,
    timeout: float | None,
    print_key: bool,
    as_json: bool,
) -> None:
    left = max_messages
    last_s = time.monotonic()
    while left is None or left > 0:
        wait_ms = _POLL_MS if timeout is None else min(_POLL_MS, timeout * 1000)
        records = consumer.poll(wait_ms, 500 if left is None else min(500, left))
        for record in records:
            if as_json:
                print_json(json_record(record))
            else:
                sys.stdout.write(text_record(record, print_key) + "\n")
        sys.stdout.flush()
        if len(records):
            last_s = time.monotonic()
            left = None if left is None else left - len(records)
        elif timeout is not None and time.monotonic() - last_s >= timeout:
            return


def timestamp_of(text: str) -> int:
    """Milliseconds, from digits or ISO 8601 (UTC unless the text has a zone). Raises
    ConfigError.
    """
    from datetime import UTC, datetime

    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--from-timestamp {text!r} is neither ms nor ISO 8601") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def text_record(record: ConsumerRecord, print_key: bool) -> str:
    """The value, after key and tab if `print_key`; None as `null`, bytes that are no UTF-8
    replaced.
    """

    def text(data: bytes | None) -> str:
        return "null" if data is None else data.decode("utf-8", errors="replace")

    value = text(record.value)
    return f"{text(record.key)}\t{value}" if print_key else value


def json_record(record: ConsumerRecord) -> dict[str, Any]:
    """A record as JSON's types; bytes that are no UTF-8 become {"base64": ...}."""

    def plain(data: bytes | None) -> Any:
        if data is None:
            return None
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data).decode()}

    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": plain(record.key),
        "value": plain(record.value),
        "headers": [[key, plain(value)] for key, value in record.headers],
    }
