"""`tidemark log-dirs describe`: replicas on the brokers' disks, and their part of the tier."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.output import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    json_of,
    print_json,
    print_line,
    print_table,
)

app = typer.Typer(help="The log directories of brokers.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """The log directories of brokers."""


@app.command("describe")
def describe(
    broker: Annotated[
        list[int] | None, typer.Option(help="Of this broker only; repeatable.")
    ] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Of this topic only; repeatable.")] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Describe log directories: sizes, offsets, and what is in the tier."""
    from tidemark.client.sync import Admin

    with Admin(bootstrap_server) as admin:
        found = admin.describe_log_dirs(broker or None, topic or ())
    if as_json:
        print_json(json_of(found))
        return
    for directories in found.values():
        for directory in directories:
            state = directory.error or "ok"
            print_line(f"broker {directory.broker_id}  {directory.log_dir}  {state}")
            print_table(
                ("PARTITION", "BYTES", "START", "LOCAL START", "TIERED TO", "HW", "END", "TIER"),
                [
                    (
                        r.topic_partition,
                        r.size_bytes,
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
