"""`tidemark spark run`: jobs over topics, in Spark.

With a local --master, the default, Spark runs within the command; for any other the command runs
itself beneath spark-submit. A line per batch goes to stderr, the result to stdout. The exit status
is 0 only if the counts of what was read and written agree.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.output import json_of, settings_of
from tidemark.cli.session import DryRun, Session, check_reachable, with_session
from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from tidemark.spark.jobs.export import Progress
    from tidemark.spark.jobs.reading import Source

app = typer.Typer(help="Work with topics in Spark.", no_args_is_help=True)
run_app = typer.Typer(help="Run a job over topics in Spark.", no_args_is_help=True)
app.add_typer(run_app, name="run")


@app.callback()
def group() -> None:
    """Work with topics in Spark."""


Topics = Annotated[list[str], typer.Argument(help="One or more topics.", metavar="TOPIC...")]
Master = Annotated[
    str, typer.Option(help="Spark's master; spark-submit is used for any but local[...].")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", help="A setting of Spark, key=value; repeatable.")
]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        help="An option of the source, as startingTimestamp=1790000000000; repeatable.",
    ),
]
Isolation = Annotated[
    str, typer.Option("--isolation-level", help="read_committed or read_uncommitted.")
]
TolerateLoss = Annotated[
    bool,
    typer.Option("--tolerate-data-loss", help="Go on with what there is if records are gone."),
]


@run_app.command("export")
@with_session
def export(
    session: Session,
    topics: Topics,
    to: Annotated[str, typer.Option("--to", help="The directory: a path or a URI of Hadoop's.")],
    batch_records: Annotated[
        int, typer.Option(help="Offsets of all partitions in a batch, at most.", min=1)
    ] = 10_000_000,
    option: Option = None,
    isolation_level: Isolation = "read_committed",
    tolerate_data_loss: TolerateLoss = False,
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Write the records of topics as Parquet, each once. Run it again to go on: after a failure,
    or for the records that came since."""
    from tidemark.spark.jobs import export as job

    source = _source(session, topics, option, isolation_level, tolerate_data_loss)
    with _spark(session, "export", master, conf) as spark:
        done = job.export(
            *(spark, source, to),
            batch_records=batch_records,
            dry_run=dry_run,
            report=_progress("export"),
        )
    if dry_run:
        text = f"would export {done.offsets_left} offsets to {to}, which has {done.records_in_all}"
    else:
        text = f"{done.records} records in {done.batches} batches, {done.records_in_all} in all"
    session.tell(json_of(done), [f"{to}: {text}{'' if dry_run else '; all counts agree'}"])


@run_app.command("stats")
@with_session
def stats(
    session: Session,
    topics: Topics,
    option: Option = None,
    isolation_level: Isolation = "read_committed",
    tolerate_data_loss: TolerateLoss = False,
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Count records, bytes, keys and timestamps of topics, by partition."""
    from tidemark.spark.jobs import stats as job

    source = _source(session, topics, option, isolation_level, tolerate_data_loss)
    batch = job.plan(source)
    if dry_run:
        plan = {str(each.topic_partition): [each.start, each.end] for each in batch.parts()}
        session.show(
            {"is_dry_run": True, "offsets": batch.size, "ranges": plan},
            ("PARTITION", "START", "END"),
            [(name, *ends) for name, ends in plan.items()],
        )
        return
    with _spark(session, "stats", master, conf) as spark:
        rows, wrong = job.stats(spark, source, batch)
    session.show(
        {"partitions": rows, "differences": wrong},
        ("TOPIC", "PARTITION", *(name.upper().replace("_", " ") for name in job.NAMES)),
        [
            (
                row["topic"],
                "all" if row["partition"] is None else row["partition"],
                *(row[name] for name in job.NAMES),
            )
            for row in rows
        ],
    )
    if wrong:
        typer.echo(f"tidemark: counts differ: {'; '.join(wrong)}", err=True)
        raise typer.Exit(1)


def _source(
    session: Session,
    topics: list[str],
    option: list[str] | None,
    isolation_level: str,
    tolerate_data_loss: bool,
) -> Source:
    from tidemark.spark.jobs.reading import Source

    for topic in topics:
        if "," in topic or not topic.strip():
            raise ConfigError(f"{topic!r} is no name of a topic; separate topics by spaces")
    options = settings_of(option or [], "--option")
    found = Source(
        *(session.bootstrap, tuple(dict.fromkeys(topics))),
        fail_on_data_loss=not tolerate_data_loss,
        isolation_level=isolation_level,
        options=options,
    )
    check_reachable(session.bootstrap)
    return found


@contextlib.contextmanager
def _spark(session: Session, job: str, master: str, conf: list[str] | None) -> Iterator[Any]:
    """Spark's session, or the end of this process with the exit status of spark-submit's."""
    from tidemark.spark.jobs import session as sessions

    settings = settings_of(conf or [], "--conf")
    if sessions.needs_submit(master):
        raise typer.Exit(sessions.submit(master, settings, sys.argv[1:]))
    name = f"tidemark-{job}"
    with sessions.session(name, master, settings) as spark:
        yield spark


def _progress(job: str) -> Any:
    def report(done: Progress) -> None:
        text = f"{done.records} records, {done.left} offsets left"
        typer.echo(f"{job}: batch {done.batch.number} is done; {text}", err=True)

    return report
