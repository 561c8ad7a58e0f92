"""`tidemark spark run`: jobs over topics, in Spark.

With a local --master, the default, Spark runs within the command; for any other the command runs
itself beneath spark-submit. A line per batch goes to stderr, the result to stdout. The exit status
is 0 only if the counts of what was read and written agree.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.output import json_of, settings_of
from tidemark.cli.session import DryRun, Session, check_reachable, with_session
from tidemark.cli.tier_store import Config, live_partitions, verify_with
from tidemark.errors import ConfigError
from tidemark.surroundings import process_security

if TYPE_CHECKING:
    from tidemark.config.security import ClientSecurity
    from tidemark.spark.jobs.copying import Copy
    from tidemark.spark.jobs.reading import Source
    from tidemark.spark.jobs.running import Progress
    from tidemark.spark.jobs.target import Target

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
    iceberg: Annotated[
        str | None,
        typer.Option(
            help="A table of Iceberg that gets the files, too; PyIceberg's settings have the"
            " catalog.",
            metavar="CATALOG.NAMESPACE.TABLE",
        ),
    ] = None,
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
    from tidemark.spark.jobs.iceberg import IcebergTable

    table = None if iceberg is None else IcebergTable(iceberg)
    source = _source(session, topics, option, isolation_level, tolerate_data_loss)
    with _spark(session, "export", master, conf) as spark:
        done = job.export(
            *(spark, source, to),
            batch_records=batch_records,
            dry_run=dry_run,
            report=_progress("export"),
            table=table,
        )
    if dry_run:
        text = f"would export {done.offsets_left} offsets to {to}, which has {done.records_in_all}"
    else:
        text = f"{done.records} records in {done.batches} batches, {done.records_in_all} in all"
    session.tell(json_of(done), [f"{to}: {text}{'' if dry_run else '; all counts agree'}"])


State = Annotated[
    str,
    typer.Option("--state", help="The directory of the job's journal, on any file system."),
]
TargetServers = Annotated[
    str | None,
    typer.Option("--to-bootstrap-server", help="The other cluster.", metavar="HOST:PORT,..."),
]
TargetConfig = Annotated[
    Path | None,
    typer.Option(
        "--to-command-config",
        help="A file of client settings for the other cluster, as --command-config.",
    ),
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option("--target-option", help="An option of the sink, as acks=all; repeatable."),
]
Verify = Annotated[bool, typer.Option("--verify", help="Compare contents too, not only counts.")]
BatchRecords = Annotated[
    int, typer.Option(help="Offsets of all partitions in a batch, at most.", min=1)
]


@run_app.command("mirror")
@with_session
def mirror(
    session: Session,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    to_bootstrap_server: TargetServers,
    state: State,
    to_topic: Annotated[str | None, typer.Option(help="Its name there; the same.")] = None,
    to_command_config: TargetConfig = None,
    batch_records: BatchRecords = 10_000_000,
    verify: Verify = False,
    option: Option = None,
    target_option: TargetOption = None,
    isolation_level: Isolation = "read_committed",
    tolerate_data_loss: TolerateLoss = False,
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Copy a topic to another cluster, each record once: partitions, order, timestamps and headers
    stay. Run it again to go on."""
    from tidemark.spark.jobs.copying import Copy

    source = _source(session, [topic], option, isolation_level, tolerate_data_loss)
    there = _there(session, to_bootstrap_server, to_command_config)
    target = _target(there, to_topic or topic, target_option)
    job = Copy("mirror", source, target, True, batch_records, verify=verify)
    _copy(session, job, state, dry_run, master, conf)


@run_app.command("translate-offsets")
@with_session
def translate_offsets(
    session: Session,
    topic: Annotated[str, typer.Argument(help="The topic that was mirrored.")],
    group: Annotated[str, typer.Option(help="The consumer group.")],
    to_bootstrap_server: TargetServers,
    state: State,
    to_topic: Annotated[str | None, typer.Option(help="Its name there; the same.")] = None,
    to_command_config: TargetConfig = None,
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Commit the offsets of a group in the other cluster of a mirror, so that it goes on there. It
    may read some records twice, and misses none."""
    from tidemark.spark.jobs.translating import translate

    servers, security = _there(session, to_bootstrap_server, to_command_config)
    for each in (session.bootstrap, servers):
        check_reachable(each)
    with _spark(session, "translate-offsets", master, conf) as spark:
        found = translate(
            *(spark, session.bootstrap, servers, group, (topic, to_topic or topic), state),
            dry_run=dry_run,
            security=process_security(),
            target_security=security,
        )
    session.show(
        [json_of(each) for each in found],
        ("PARTITION", "OFFSET", "THERE", "EXACT"),
        [
            (
                each.partition,
                each.offset,
                "-" if each.target_offset is None else each.target_offset,
                "yes" if each.is_exact else "no",
            )
            for each in found
        ],
    )


@run_app.command("replay")
@with_session
def replay(
    session: Session,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    to: Annotated[str, typer.Option("--to", help="The topic to write to; may be the same.")],
    state: State,
    rate: Annotated[
        int, typer.Option(help="Records per second, as a mean over ten of them; 0: any.", min=0)
    ] = 0,
    same_partitions: Annotated[
        bool, typer.Option("--same-partitions", help="Keep partitions, not leave them to keys.")
    ] = False,
    to_bootstrap_server: TargetServers = None,
    to_command_config: TargetConfig = None,
    batch_records: BatchRecords = 10_000_000,
    verify: Verify = False,
    option: Option = None,
    target_option: TargetOption = None,
    isolation_level: Isolation = "read_committed",
    tolerate_data_loss: TolerateLoss = False,
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Write a range of a topic to a topic again, each record once. The range is that of --option
    startingTimestamp, endingOffsets and the like; its end is fixed by the first run."""
    from tidemark.spark.jobs.copying import Copy

    source = _source(session, [topic], option, isolation_level, tolerate_data_loss)
    there = _there(session, to_bootstrap_server, to_command_config)
    target = _target(there, to, target_option)
    job = Copy("replay", source, target, same_partitions, batch_records, rate, verify)
    _copy(session, job, state, dry_run, master, conf)


@run_app.command("import")
@with_session
def import_(
    session: Session,
    path: Annotated[str, typer.Argument(help="Files, a directory, or a pattern, of Hadoop's.")],
    to: Annotated[str, typer.Option("--to", help="The topic.")],
    state: State,
    format: Annotated[str, typer.Option(help="Spark's: parquet, json, csv, ...")] = "parquet",
    key: Annotated[
        str | None, typer.Option(help="A column whose text is the key; the row is JSON then.")
    ] = None,
    batch_files: Annotated[int, typer.Option(help="Files in a batch, at most.", min=1)] = 1000,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="An option of the format, as header=true; repeatable."),
    ] = None,
    target_option: TargetOption = None,
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Write the rows of files to a topic, each file once. Run it again to go on: after a failure,
    or for new files."""
    from tidemark.spark.jobs import importing as job

    target = _target(_there(session, None, None), to, target_option)
    options = settings_of(option or [], "--option")
    given = job.Import(path, format, target, key, batch_files, options)
    with _spark(session, "import", master, conf) as spark:
        report = _progress("import", "files")
        done = job.import_files(spark, given, state, dry_run=dry_run, report=report)
    if dry_run:
        text = f"would import {done.files_left} files, after {done.records_in_all} records"
    else:
        text = f"{done.records} records in {done.batches} batches, {done.records_in_all} in all"
    session.tell(json_of(done), [f"{to}: {text}{'' if dry_run else '; all counts agree'}"])


@run_app.command("scrub")
@with_session
def scrub(
    session: Session,
    config: Config,
    topic: Annotated[str | None, typer.Option("--topic", help="Of this topic only.")] = None,
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Check every finished segment of the tier as `tidemark tier verify` does, in Spark's tasks."""
    from tidemark.cli.spark_scrub import findings_in_spark
    from tidemark.config import load_server_config

    settings = load_server_config(config)
    if dry_run:
        from tiering.metadata.history import finished

        with session.admin() as admin:
            live, history = live_partitions(session, admin, topic)
        segments = sum(len(finished(cache)) for _, cache, _ in live)
        session.tell(
            {"is_dry_run": True, "segments": segments, "complete": history.is_complete},
            [f"would check {segments} segments"],
        )
        return

    def report(done: int, total: int) -> None:
        typer.echo(f"scrub: {done} of {total} segments are checked", err=True)

    with _spark(session, "scrub", master, conf) as spark:
        verify_with(session, topic, lambda live: findings_in_spark(spark, settings, live, report))


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
        security=process_security(),
    )
    check_reachable(session.bootstrap)
    return found


_Place = tuple[str, "ClientSecurity | None"]


def _there(session: Session, servers: str | None, config: Path | None) -> _Place:
    """The cluster that is written to, and how. Raises ConfigError.

    Settings of one cluster are not sent to another: they may be a token of its users.
    """
    if config is not None:
        from tidemark.config.properties import parse_properties
        from tidemark.config.security import client_security

        try:
            text = config.read_text(encoding="utf-8")
            security = client_security(parse_properties(text, source=str(config)))
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            raise ConfigError(f"--to-command-config: {error}") from None
        return servers or session.bootstrap, security
    if servers is not None and process_security() is not None:
        raise ConfigError(
            "--to-bootstrap-server needs --to-command-config where --command-config is given: the"
            " same file, if it is meant for both clusters, or an empty one"
        )
    return servers or session.bootstrap, process_security()


def _target(place: _Place, topic: str, options: list[str] | None) -> Target:
    from tidemark.spark.jobs.target import Target

    servers, security = place
    given = settings_of(options or [], "--target-option")
    found = Target(servers, topic, given, security)
    check_reachable(servers)
    return found


def _copy(
    session: Session, job: Copy, state: str, dry_run: bool, master: str, conf: list[str] | None
) -> None:
    from tidemark.spark.jobs.copying import copy

    with _spark(session, job.kind, master, conf) as spark:
        done = copy(spark, job, state, dry_run=dry_run, report=_progress(job.kind))
    if dry_run:
        text = f"would write {done.offsets_left} offsets, after {done.records_in_all} records"
    else:
        text = f"{done.records} records in {done.batches} batches, {done.records_in_all} in all"
    agree = (
        ""
        if dry_run
        else f"; all counts{' and contents' if job.verify and done.batches else ''} agree"
    )
    session.tell(json_of(done), [f"{done.topic}: {text}{agree}"])


@contextlib.contextmanager
def _spark(session: Session, job: str, master: str, conf: list[str] | None) -> Iterator[Any]:
    """Spark's session, or the end of this process with the exit status of spark-submit's."""
    from tidemark.spark.jobs import session as sessions

    settings = settings_of(conf or [], "--conf")
    if sessions.needs_submit(master):
        raise typer.Exit(sessions.submit(master, settings, sys.argv[1:]))
    name = f"tidemark-{job}"
    with sessions.in_one_line(), sessions.session(name, master, settings) as spark:
        yield spark


def _progress(job: str, unit: str = "offsets") -> Any:
    def report(done: Progress) -> None:
        text = f"{done.records} records, {done.left} {unit} left"
        typer.echo(f"{job}: batch {done.number} is done; {text}", err=True)

    return report
