"""`tidemark reassign`: moves replicas between brokers (KIP-455), by Kafka's JSON plans or by hand.

    tidemark reassign generate --topic flights --brokers 4,5,6 > plan.json
    tidemark reassign execute --plan plan.json --wait
    tidemark reassign execute flights-0=4,5,6

Entries of a plan's log_dirs other than `any` name the directory of each replica (KIP-113).
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli import log_dir_moves, throttles
from tidemark.cli.output import json_of, print_json, read_text
from tidemark.cli.session import Session, progress, with_session
from tidemark.errors import ConfigError, ReplicaNotAvailableError, RequestTimedOutError
from tidemark.types import TopicPartition

if TYPE_CHECKING:
    from tidemark.cli.reassignment import Plan
    from tidemark.client.models import TopicPartitionReplica
    from tidemark.client.sync import Admin

    LogDirs = dict[TopicPartitionReplica, str]

_LOG_DIRS_TIMEOUT_S = 10  # Kafka's
_POLL_S = 0.1

app = typer.Typer(help="Move replicas between brokers.", no_args_is_help=True)

PlanFile = Annotated[
    Path | None, typer.Option("--plan", help="A plan as `generate` writes it, or Kafka's tool.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Return when the moves are done.")]
PreserveThrottles = Annotated[
    bool, typer.Option("--preserve-throttles", help="Leave throttles of replication as they are.")
]
Timeout = Annotated[float, typer.Option(help="Seconds to wait at most.", min=0)]


@app.command("generate")
@with_session
def generate(
    session: Session,
    topic: Annotated[list[str] | None, typer.Option(help="Of this topic; repeatable.")] = None,
    topics_file: Annotated[
        Path | None, typer.Option(help='Kafka\'s {"topics": [{"topic": "t"}], "version": 1}.')
    ] = None,
    brokers: Annotated[
        str | None, typer.Option(help="Ids to spread over, e.g. 4,5,6; default: all live ones.")
    ] = None,
    drain: Annotated[
        str | None, typer.Option(help="Ids to empty; what is elsewhere stays where it is.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(help="Replicas of each partition from now on.", min=1)
    ] = None,
    current: Annotated[
        bool, typer.Option("--current", help="The present assignment, to roll back to.")
    ] = False,
) -> None:
    """Make a plan and print it as JSON: partitions that change, with as few moves as needed."""
    from tidemark.cli import reassignment

    if drain is not None and (brokers is not None or replication_factor is not None):
        raise ConfigError("--drain goes with neither --brokers nor --replication-factor")
    names = [*(topic or []), *(_topics_of(topics_file) if topics_file is not None else [])]
    with session.admin() as admin:
        assigned = assigned_of(admin, names)
        known = {b.node_id: b.rack for b in admin.describe_cluster().brokers if not b.fenced}
    if current:
        print_json(reassignment.plan_document(assigned))
        return
    if drain is not None:
        plan = reassignment.drain(assigned, known, reassignment.parse_ids(drain))
    else:
        chosen = known
        if brokers is not None:
            ids = reassignment.parse_ids(brokers)
            missing = sorted(set(ids) - set(known))
            if missing:
                raise ConfigError(f"brokers {missing} are not alive; alive are {sorted(known)}")
            chosen = {broker: known[broker] for broker in ids}
        plan = reassignment.spread(assigned, chosen, replication_factor=replication_factor)
    print_json(reassignment.plan_document(plan))


@app.command("execute")
@with_session
def execute(
    session: Session,
    moves: Annotated[
        list[str] | None, typer.Argument(metavar="[PARTITION=IDS]...", help="flights-0=4,5,6")
    ] = None,
    plan: PlanFile = None,
    rollback: Annotated[
        Path | None, typer.Option(help="Write the present assignment here, as a plan.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, change nothing.")] = False,
    throttle: Annotated[
        int | None,
        typer.Option(
            help="Bytes a second that each broker sends, and fetches, for the moves; `verify` "
            "removes the limit when they are done.",
            min=1,
        ),
    ] = None,
    wait: Wait = False,
    timeout: Timeout = 3600,
) -> None:
    """Begin to move replicas; shows what each partition's replicas are now and will be."""
    import json

    from tidemark.cli.reassignment import plan_document

    wanted, log_dirs = _plan_of(moves, plan)
    with session.admin() as admin:
        now = assigned_of(admin, sorted({p.topic for p in wanted}))
        unknown = sorted(set(wanted) - set(now))
        if unknown:
            raise ConfigError(f"there is no partition {', '.join(map(str, unknown))}")
        before: Plan = {partition: now[partition] for partition in wanted}
        if rollback is not None:
            text = json.dumps(plan_document(before), indent=1)
            _write(rollback, text + "\n")
        if throttle is not None and not dry_run:
            throttles.begin(admin, before, wanted, throttle)
        if not dry_run:
            _begin(admin, wanted, log_dirs)
        _show_moves(session, before, wanted, dry_run=dry_run)
        if wait and not dry_run:
            wait_until_moved(admin, wanted, log_dirs, timeout)
            if throttle is not None:
                throttles.end(admin, wanted)


@app.command("verify")
@with_session
def verify(
    session: Session,
    moves: Annotated[list[str] | None, typer.Argument(metavar="[PARTITION=IDS]...")] = None,
    plan: PlanFile = None,
    wait: Wait = False,
    timeout: Timeout = 3600,
    preserve_throttles: PreserveThrottles = False,
) -> None:
    """Tell how far a plan is; exit status 1 unless all of it is done.

    When it is, throttles of replication are removed.
    """

    wanted, log_dirs = _plan_of(moves, plan)
    with session.admin() as admin:
        if wait:
            wait_until_moved(admin, wanted, log_dirs, timeout)
        states = states_of(admin, wanted)
        for replica, state in log_dir_moves.states_of(admin, log_dirs).items():
            if state != "complete" and states[replica.topic_partition] == "complete":
                states[replica.topic_partition] = f"replica {replica.broker_id} {state}"
        if not preserve_throttles and all(state == "complete" for state in states.values()):
            throttles.end(admin, wanted)
    session.show(
        {str(partition): state for partition, state in states.items()},
        ("PARTITION", "STATE"),
        list(states.items()),
    )
    if any(state != "complete" for state in states.values()):
        raise typer.Exit(1)


@app.command("cancel")
@with_session
def cancel(
    session: Session,
    partitions: Annotated[list[str] | None, typer.Argument(metavar="[PARTITION]...")] = None,
    plan: PlanFile = None,
    all_: Annotated[bool, typer.Option("--all", help="Whatever is under way.")] = False,
    preserve_throttles: PreserveThrottles = False,
) -> None:
    """Stop moves under way and go back to the replicas of before."""
    from tidemark.cli.reassignment import parse_partition, parse_plan

    if sum((bool(partitions), plan is not None, all_)) != 1:
        raise ConfigError("name partitions, or give --plan, or --all")
    named: Collection[TopicPartition] = [parse_partition(text) for text in partitions or ()]
    if plan is not None:
        named = parse_plan(read_text(plan))
    with session.admin() as admin:
        under_way = admin.list_partition_reassignments(None if all_ else list(named))
        if under_way:
            admin.alter_partition_reassignments(dict.fromkeys(under_way))
            if not preserve_throttles:
                throttles.end(admin, under_way)
    cancelled = sorted(under_way)
    session.tell(
        {"cancelled": [str(partition) for partition in cancelled]},
        [f"cancelled the reassignment of {partition}" for partition in cancelled]
        or ["no reassignment of these was under way"],
    )


@app.command("list")
@with_session
def list_(session: Session) -> None:
    """List the reassignments under way."""
    with session.admin() as admin:
        found = admin.list_partition_reassignments()
    session.show(
        json_of(found),
        ("PARTITION", "REPLICAS", "ADDING", "REMOVING"),
        [(p, r.replicas, r.adding, r.removing) for p, r in sorted(found.items())],
        empty="no reassignment is under way",
    )


def states_of(admin: Admin, wanted: Plan) -> dict[TopicPartition, str]:
    """`complete`, `in progress ...`, or the actual state, for each partition of a plan."""
    now = {
        TopicPartition(topic.name, p.partition): p
        for topic in admin.describe_topics(sorted({p.topic for p in wanted})).values()
        for p in topic.partitions
    }
    under_way = admin.list_partition_reassignments(list(wanted))
    states: dict[TopicPartition, str] = {}
    for partition, replicas in sorted(wanted.items()):
        found = now.get(partition)
        moving = under_way.get(partition)
        if found is None:
            states[partition] = "there is no such partition"
        elif moving is not None:
            behind = [b for b in moving.adding if b not in found.isr]
            states[partition] = f"in progress: adding {list(moving.adding)}, not in sync {behind}"
        elif found.replicas == tuple(replicas):
            states[partition] = "complete"
        else:
            states[partition] = f"not as planned: replicas are {list(found.replicas)}"
    return states


def _begin(admin: Admin, wanted: Plan, log_dirs: LogDirs) -> None:
    """Starts the moves. Brokers without their replicas get the directories first, to make them
    there.

    The directories are sent again afterwards, in case the reassignment was faster.
    """
    later = log_dir_moves.begin(admin, log_dirs)
    admin.alter_partition_reassignments(wanted)
    deadline = time.monotonic() + _LOG_DIRS_TIMEOUT_S
    while later := log_dir_moves.begin(admin, later):
        if time.monotonic() >= deadline:
            missing = [f"{r.topic_partition} on broker {r.broker_id}" for r in later]
            raise ReplicaNotAvailableError(f"not there yet: {', '.join(missing)}; try again later")
        time.sleep(_POLL_S)


def wait_until_moved(admin: Admin, wanted: Plan, log_dirs: LogDirs, timeout_s: float) -> None:
    """Shows progress until all moves are done. Raises RequestTimedOutError; the moves continue
    then.
    """
    deadline = time.monotonic() + timeout_s
    with progress("moving partitions", len(wanted)) as report:
        while under_way := admin.list_partition_reassignments(list(wanted)):
            report(len(wanted) - len(under_way))
            if time.monotonic() >= deadline:
                raise RequestTimedOutError(
                    f"{len(under_way)} of {len(wanted)} partitions are still on the move after "
                    f"{timeout_s:g} s, and go on: `tidemark reassign verify` tells how far they are"
                )
            time.sleep(_POLL_S)
    left_s = max(1.0, deadline - time.monotonic())
    admin.wait_until_reassigned(wanted, timeout_ms=int(left_s * 1000))
    log_dir_moves.wait_until_moved(admin, log_dirs, left_s)


def _plan_of(moves: list[str] | None, plan: Path | None) -> tuple[Plan, LogDirs]:
    from tidemark.cli.reassignment import parse_move, parse_plan

    if bool(moves) == (plan is not None):
        raise ConfigError("say either --plan FILE or moves such as flights-0=4,5,6")
    if plan is not None:
        text = read_text(plan)
        return parse_plan(text), log_dir_moves.parse_log_dirs(text)
    return dict(map(parse_move, moves or ())), {}


def _topics_of(path: Path) -> list[str]:
    import json

    try:
        return [str(item["topic"]) for item in json.loads(read_text(path))["topics"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f'{path} is not {{"topics": [{{"topic": "t"}}]}}: {error}') from error


def assigned_of(admin: Admin, names: list[str]) -> Plan:
    """The replicas of these topics, or of all topics."""
    chosen = names or [topic.name for topic in admin.list_topics(include_internal=True)]
    found = admin.describe_topics(chosen) if chosen else {}
    return {
        TopicPartition(topic.name, p.partition): p.replicas
        for topic in found.values()
        for p in topic.partitions
    }


def _show_moves(session: Session, before: Plan, after: Plan, *, dry_run: bool) -> None:
    rows: list[dict[str, Any]] = [
        {"partition": str(p), "before": list(before[p]), "after": list(after[p])}
        for p in sorted(after)
    ]
    session.show(
        {"dry_run": dry_run, "moves": rows},
        ("PARTITION", "BEFORE", "AFTER"),
        [tuple(row.values()) for row in rows],
        empty="nothing to move",
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"can not write {path}: {error}") from error
