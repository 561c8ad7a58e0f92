"""`tidemark transactions`: open transactions, those that hang, and their end.

Options have the names of Kafka's kafka-transactions.sh (KIP-664, KIP-939, KIP-994, KIP-1152).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.output import json_of
from tidemark.cli.session import Session, check_reachable, with_session
from tidemark.errors import ConfigError, InvalidTxnStateError, UnknownTopicOrPartitionError
from tidemark.types import TopicPartition

if TYPE_CHECKING:
    from tidemark.client.models import ProducerState
    from tidemark.client.sync import Admin

app = typer.Typer(
    help="Transactions: open ones, hanging ones, and how to end them.", no_args_is_help=True
)

_MINUTE_MS = 60_000
_EVERY_TOPIC_BUT = ("__cluster_metadata", "__transaction_state")

TransactionalId = Annotated[str, typer.Option(help="The transactional id.")]
Topic = Annotated[str, typer.Option(help="The topic.")]
Partition = Annotated[int, typer.Option(help="The number of the partition.", min=0)]


@app.command("list")
@with_session
def list_(
    session: Session,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Empty, Ongoing, PrepareCommit, CompleteAbort, ...; repeatable."),
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option(help="Of this producer only; repeatable.")
    ] = None,
    duration_filter: Annotated[
        int | None, typer.Option(help="Only transactions open for longer than so many ms.", min=0)
    ] = None,
    transactional_id_pattern: Annotated[
        str, typer.Option(help="Only ids that match this RE2 expression as a whole.")
    ] = "",
) -> None:
    """List the transactional ids of all brokers."""
    with session.admin() as admin:
        found = admin.transactions.list(
            states=state or (),
            producer_ids=producer_id or (),
            older_than_ms=duration_filter,
            pattern=transactional_id_pattern,
        )
    session.show(
        json_of(found),
        ("TRANSACTIONAL ID", "COORDINATOR", "PRODUCER", "STATE"),
        [
            (each.transactional_id, each.coordinator_id, each.producer_id, each.state)
            for each in found
        ],
        empty="no transactional ids",
    )


@app.command("describe")
@with_session
def describe(session: Session, transactional_id: TransactionalId) -> None:
    """Show the state of a transactional id, and its open transaction."""
    with session.admin() as admin:
        found = admin.transactions.describe([transactional_id])[transactional_id]
    open_ms = None if found.start_time_ms is None else _now_ms() - found.start_time_ms
    session.show(
        {**json_of(found), "duration_ms": open_ms},
        ("TRANSACTIONAL ID", "PRODUCER", "EPOCH", "STATE", "TIMEOUT MS", "OPEN MS", "PARTITIONS"),
        [
            (
                found.transactional_id,
                found.producer_id,
                found.producer_epoch,
                found.state,
                found.timeout_ms,
                "-" if open_ms is None else open_ms,
                list(found.partitions) or "-",
            )
        ],
    )


@app.command("describe-producers")
@with_session
def describe_producers(session: Session, topic: Topic, partition: Partition) -> None:
    """Show the producers that the leader of a partition knows, with their open transactions."""
    where = TopicPartition(topic, partition)
    with session.admin() as admin:
        found = admin.transactions.describe_producers([where])[where]
    session.show(
        json_of(found),
        ("PRODUCER", "EPOCH", "COORDINATOR EPOCH", "LAST SEQUENCE", "LAST TIMESTAMP", "OPEN SINCE"),
        [
            (
                each.producer_id,
                each.producer_epoch,
                _or_dash(each.coordinator_epoch),
                _or_dash(each.last_sequence),
                each.last_timestamp_ms,
                _or_dash(each.txn_start_offset),
            )
            for each in found
        ],
        empty=f"the leader of {where} knows no producers",
    )


@app.command("abort")
@with_session
def abort(
    session: Session,
    topic: Topic,
    partition: Partition,
    start_offset: Annotated[
        int | None,
        typer.Option(
            help="Where it begins, as find-hanging shows it: instead of the next three.", min=0
        ),
    ] = None,
    producer_id: Annotated[int | None, typer.Option(help="Its producer.", min=0)] = None,
    producer_epoch: Annotated[int | None, typer.Option(help="Its producer's epoch.", min=0)] = None,
    coordinator_epoch: Annotated[
        int | None, typer.Option(help="That of describe-producers; 0 where it shows none.", min=0)
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Even if a coordinator has it open: it may be committed in other partitions.",
        ),
    ] = False,
) -> None:
    """End a hanging transaction in one partition by an abort marker."""
    where = TopicPartition(topic, partition)
    named = (producer_id, producer_epoch, coordinator_epoch)
    if (start_offset is None) == (named == (None, None, None)):
        raise ConfigError(
            "say which transaction: --start-offset, or --producer-id, --producer-epoch and"
            " --coordinator-epoch"
        )
    with session.admin() as admin:
        if start_offset is not None:
            begun = _begun_at(admin, where, start_offset)
            named = (begun.producer_id, begun.producer_epoch, begun.coordinator_epoch or 0)
        number, epoch, coordinator = named
        if number is None or epoch is None or coordinator is None:
            raise ConfigError(
                "--producer-id, --producer-epoch and --coordinator-epoch go together: take them"
                " from `tidemark transactions describe-producers`"
            )
        admin.transactions.abort(where, number, epoch, coordinator, force=force)
    session.tell(
        {
            "topic": topic,
            "partition": partition,
            "producer_id": number,
            "producer_epoch": epoch,
            "coordinator_epoch": coordinator,
        },
        [f"the transaction of producer {number} is aborted in {where}"],
    )


def _begun_at(admin: Admin, where: TopicPartition, start_offset: int) -> ProducerState:
    for each in admin.transactions.describe_producers([where])[where]:
        if each.txn_start_offset == start_offset:
            return each
    raise InvalidTxnStateError(
        f"no transaction that began at offset {start_offset} is open in {where}: see `tidemark"
        f" transactions describe-producers --topic {where.topic} --partition {where.partition}`"
    )


@app.command("find-hanging")
@with_session
def find_hanging(
    session: Session,
    broker_id: Annotated[
        int | None, typer.Option(help="In the partitions that this broker leads.", min=0)
    ] = None,
    topic: Annotated[str | None, typer.Option(help="In this topic; default: in all.")] = None,
    partition: Annotated[
        int | None, typer.Option(help="In this partition of the topic.", min=0)
    ] = None,
    limit_minutes: Annotated[
        int,
        typer.Option(
            "--max-transaction-timeout",
            help="The largest timeout of a transaction, in minutes.",
            min=0,
        ),
    ] = 15,
) -> None:
    """Find transactions that are open in a partition, and that no coordinator will end."""
    if partition is not None and topic is None:
        raise ConfigError("--partition needs --topic")
    with session.admin() as admin:
        found = admin.transactions.find_hanging(
            _partitions(admin, broker_id, topic, partition), limit_minutes * _MINUTE_MS
        )
    now_ms = _now_ms()
    session.show(
        [{**each.topic_partition._asdict(), **json_of(each.producer)} for each in found],
        (
            "TOPIC",
            "PARTITION",
            "PRODUCER",
            "EPOCH",
            "COORDINATOR EPOCH",
            "START OFFSET",
            "LAST TIMESTAMP",
            "MINUTES",
        ),
        [
            (
                *each.topic_partition,
                each.producer.producer_id,
                each.producer.producer_epoch,
                _or_dash(each.producer.coordinator_epoch),
                each.producer.txn_start_offset,
                each.producer.last_timestamp_ms,
                (now_ms - each.producer.last_timestamp_ms) // _MINUTE_MS,
            )
            for each in found
        ],
        empty="no hanging transactions",
    )


def _partitions(
    admin: Admin, broker_id: int | None, topic: str | None, number: int | None
) -> list[TopicPartition]:
    """The partitions to look at. One without a leader is named on stderr, and left out unless it is
    asked for by its number."""
    names = (
        [topic]
        if topic is not None
        else [
            listed.name
            for listed in admin.list_topics(include_internal=True)
            if listed.name not in _EVERY_TOPIC_BUT
        ]
    )
    found: list[TopicPartition] = []
    for name, described in admin.describe_topics(names).items() if names else ():
        if number is not None and number >= len(described.partitions):
            raise UnknownTopicOrPartitionError(f"there is no partition {name}-{number}")
        for each in described.partitions:
            where = TopicPartition(name, each.partition)
            if number not in (None, each.partition):
                continue
            if each.leader is None and number is None and broker_id is None:
                typer.echo(f"tidemark: {where} has no leader and is left out", err=True)
            elif broker_id is None or each.leader == broker_id:
                found.append(where)
    return found


@app.command("force-terminate")
@with_session
def force_terminate(
    session: Session,
    transactional_id: TransactionalId,
    lose_prepared: Annotated[
        bool,
        typer.Option(
            "--lose-prepared",
            help="Abort it also if it is prepared, though its end may be decided: records are lost"
            " then.",
        ),
    ] = False,
) -> None:
    """Fence the producer of a transactional id, and abort its open transaction everywhere."""
    with session.admin() as admin:
        admin.transactions.force_terminate(transactional_id, lose_prepared=lose_prepared)
    session.tell(
        {"transactional_id": transactional_id},
        [f"{transactional_id} has no open transaction now, and its producer is fenced"],
    )


@app.command("recover-sink")
@with_session
def recover_sink(
    session: Session,
    sink_id: Annotated[
        str, typer.Option(help="The sinkId of the job; of a stream without one, its query's id.")
    ],
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Go on though a part of the last batch was aborted by force, and is lost.",
        ),
    ] = False,
) -> None:
    """End what a Spark job left open that does not come back: commit the batch that was decided,
    abort the rest. A job of the sink that is at work fails, and loses nothing.
    """
    from tidemark.spark.sink.coordinators import with_coordinators
    from tidemark.spark.sink.core import recover
    from tidemark.spark.sink.decision import sink_name

    sink = sink_name(sink_id)
    check_reachable(session.bootstrap)
    done = with_coordinators(
        sink,
        session.bootstrap,
        lambda coordinators: recover(coordinators, accept_loss=accept_loss),
    )
    batch = None if done.last is None else done.last.batch
    lost = [each.transactional_id for each in done.lost]
    session.tell(
        {"sink_id": sink_id, "last_batch": batch, "aborted": done.aborted, "lost": lost},
        [
            "nothing was ever decided" if batch is None else f"batch {batch} is committed",
            f"transactions aborted: {done.aborted}",
            *(f"lost: {transactional_id}" for transactional_id in lost),
        ],
    )


def _or_dash(value: int | None) -> int | str:
    return "-" if value is None else value


def _now_ms() -> int:
    return round(time.time() * 1000)
