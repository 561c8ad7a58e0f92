"""`tidemark log-dirs`: replicas on the brokers' disks, and their part of the tier.

The command `move` is in `log_dir_moves`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.log_dir_moves import move
from tidemark.cli.output import json_of, print_json, print_line, print_table
from tidemark.cli.session import Session, with_session

app = typer.Typer(help="The log directories of brokers.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """The log directories of brokers."""


app.command("move")(move)


@app.command("describe")
@with_session
def describe(
    session: Session,
    broker: Annotated[
        list[str] | None,
        typer.Option("--broker", "--broker-list", help="Of these only: 1,2,3; repeatable."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "--topic-list", help="Of these only: a,b,c; repeatable."),
    ] = None,
) -> None:
    """Describe log directories: whether they work, their replicas' sizes, offsets and lag, and what
    of them is in the tier."""

    brokers = [_broker_id(text) for text in _listed(broker)]
    with session.admin() as admin:
        found = admin.describe_log_dirs(brokers or None, _listed(topic))
    if session.as_json:
        print_json(json_of(found))
        return
    for directories in found.values():
        for directory in directories:
            state = directory.error or "ok"
            if directory.error_message:
                state += f": {directory.error_message}"
            print_line(f"broker {directory.broker_id}  {directory.log_dir}  {state}")
            print_table(
                (
                    *("PARTITION", "BYTES", "LAG", "FUTURE", "START", "LOCAL START", "TIERED TO"),
                    *("HW", "END", "TIER"),
                ),
                [
                    (
                        r.topic_partition,
                        r.size_bytes,
                        r.offset_lag,
                        "yes" if r.is_future else "",
                        r.log_start_offset,
                        r.local_log_start_offset,
                        r.highest_remote_offset,
                        r.high_watermark,
                        r.log_end_offset,
                        r.remote_log_size_bytes,
                    )
                    for r in directory.replicas
                ],
            )
            for replica in directory.replicas:
                if replica.uncleanable_reason:
                    reason = replica.uncleanable_reason
                    print_line(f"{replica.topic_partition} is not compacted any more: {reason}")


def _listed(options: list[str] | None) -> list[str]:
    """Items of options that may be repeated and may each have several items, as Kafka's tool takes
    them.
    """
    return [item.strip() for text in options or () for item in text.split(",") if item.strip()]


def _broker_id(text: str) -> int:
    from tidemark.errors import ConfigError

    if not text.isdecimal():
        raise ConfigError(f"--broker-list: {text!r} is no broker id")
    return int(text)
