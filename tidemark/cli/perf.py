"""`tidemark perf`: throughput and latency of a cluster, as Kafka's perf tools measure them.

The options have the names of kafka-producer-perf-test, kafka-consumer-perf-test and
EndToEndLatency. Progress goes to stderr, the result to stdout. The exit status is 1 if a record
failed or did not come.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.output import reason_of
from tidemark.cli.perf_measure import Meter
from tidemark.cli.session import Session, check_reachable, with_session
from tidemark.errors import ConfigError, TidemarkError
from tidemark.types import random_uuid

if TYPE_CHECKING:
    from tidemark.client import AsyncConsumer

app = typer.Typer(
    help="Measure throughput and latency, as Kafka's perf tools do.", no_args_is_help=True
)

_TRANSACTION_MS = 3_000  # as in Kafka's tool

Topic = Annotated[str, typer.Option(help="A topic that exists.")]
NumRecords = Annotated[int, typer.Option(help="How many records.", min=1)]
RecordSize = Annotated[int, typer.Option(help="Bytes of a value.", min=1)]
IntervalMs = Annotated[
    int, typer.Option("--reporting-interval", help="ms between progress lines.", min=1)
]
ProducerProperty = Annotated[
    list[str] | None,
    typer.Option(help="A setting of the producer, as linger.ms=0; repeatable."),
]
ConsumerProperty = Annotated[
    list[str] | None,
    typer.Option(help="A setting of the consumer, as fetch.min.bytes=1; repeatable."),
]
TimeoutMs = Annotated[
    int, typer.Option("--timeout", help="Give up after so many ms without a record.", min=1)
]


@app.command("produce")
@with_session
def produce(
    session: Session,
    topic: Topic,
    num_records: NumRecords,
    record_size: RecordSize = 100,
    throughput: Annotated[
        float, typer.Option(help="Records per second at most; -1: as many as can be.")
    ] = -1,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            help="Send in transactions of this id; with a duration alone: of a random one."
        ),
    ] = None,
    transaction_duration_ms: Annotated[
        int | None,
        typer.Option(help="Commit after so many ms; default: 3000 with a transactional id.", min=1),
    ] = None,
    producer_property: ProducerProperty = None,
    reporting_interval_ms: IntervalMs = 5_000,
) -> None:
    """Send records; the latency of each is the time from send to acknowledgement."""
    from tidemark.cli import perf_runs
    from tidemark.client import AsyncProducer

    settings = settings_for(AsyncProducer, producer_property or ())
    if transactional_id is not None:
        settings["transactional_id"] = transactional_id
    duration_ms = transaction_duration_ms
    if settings.get("transactional_id"):
        duration_ms = duration_ms or _TRANSACTION_MS
    elif duration_ms is not None:
        settings["transactional_id"] = f"performance-producer-{random_uuid()}"

    async def run(meter: Meter) -> TidemarkError | None:
        async with AsyncProducer(session.bootstrap, **settings) as producer:
            await producer.partitions_for(topic)
            if duration_ms is None:
                transactions = None
            else:
                await producer.init_transactions()
                transactions = perf_runs.Transactions(producer, duration_ms / 1000)
            return await perf_runs.produce(
                producer, topic, num_records, record_size, throughput, meter, _report, transactions
            )

    _measure(session, run, reporting_interval_ms, "were not acknowledged")


@app.command("consume")
@with_session
def consume(
    session: Session,
    topic: Topic,
    num_records: NumRecords,
    from_latest: Annotated[
        bool, typer.Option("--from-latest", help="From the end; default: from the log start.")
    ] = False,
    timeout_ms: TimeoutMs = 10_000,
    consumer_property: ConsumerProperty = None,
    reporting_interval_ms: IntervalMs = 5_000,
) -> None:
    """Read records of all partitions; the latency is that of a poll which returned records."""
    from tidemark.cli import perf_runs
    from tidemark.client import AsyncConsumer

    settings = settings_for(AsyncConsumer, consumer_property or ())

    async def run(meter: Meter) -> None:
        async with AsyncConsumer(session.bootstrap, **settings) as consumer:
            await _assign_all(consumer, topic, at_end=from_latest)
            await perf_runs.consume(consumer, num_records, timeout_ms / 1000, meter, _report)

    _measure(
        session, run, reporting_interval_ms, f"did not come within {timeout_ms} ms of the last"
    )


@app.command("e2e")
@with_session
def e2e(
    session: Session,
    topic: Topic,
    num_records: NumRecords,
    record_size: RecordSize = 100,
    timeout_ms: TimeoutMs = 60_000,
    producer_property: ProducerProperty = None,
    consumer_property: ConsumerProperty = None,
    reporting_interval_ms: IntervalMs = 5_000,
) -> None:
    """Send one record at a time; the latency is the time until a consumer has read it."""
    from tidemark.cli import perf_runs
    from tidemark.client import AsyncConsumer, AsyncProducer

    # No temporal batching by default, as in Kafka's tool.
    sending = settings_for(AsyncProducer, ("linger.ms=0", *(producer_property or ())))
    reading = settings_for(AsyncConsumer, consumer_property or ())

    async def run(meter: Meter) -> None:
        async with (
            AsyncProducer(session.bootstrap, **sending) as producer,
            AsyncConsumer(session.bootstrap, **reading) as consumer,
        ):
            await _assign_all(consumer, topic, at_end=True)
            await perf_runs.end_to_end(
                producer,
                consumer,
                topic,
                num_records,
                record_size,
                timeout_ms / 1000,
                meter,
                _report,
            )

    _measure(session, run, reporting_interval_ms, "were not read")


def settings_for(client: Callable[..., Any], texts: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts with Kafka's names as arguments of a client. Raises ConfigError."""
    known = {
        name: str(parameter.annotation)
        for name, parameter in inspect.signature(client).parameters.items()
        if isinstance(parameter.default, str | int | float | None)
    }
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.strip().replace(".", "_")
        if not equals:
            raise ConfigError(f"the property {text!r} is not key=value")
        if name not in known:
            names = ", ".join(known).replace("_", ".")
            raise ConfigError(f"{key.strip()} is no setting of this client; there are {names}")
        found[name] = _typed(known[name], key.strip(), value.strip())
    return found


def _typed(annotation: str, key: str, value: str) -> Any:
    if "bool" in annotation:
        if value.lower() not in ("true", "false"):
            raise ConfigError(f"{key}={value}: say true or false")
        return value.lower() == "true"
    if "str" in annotation:
        return value
    try:
        return float(value) if "float" in annotation else int(value)
    except ValueError:
        raise ConfigError(f"{key}={value} is not a number") from None


async def _assign_all(consumer: AsyncConsumer, topic: str, *, at_end: bool) -> None:
    """Reads all partitions of a topic from the ends that they have now, or from their starts."""
    partitions = await consumer.partitions_for(topic)
    consumer.assign(partitions)
    if at_end:
        consumer.seek_to_end()
    else:
        consumer.seek_to_beginning()
    for partition in partitions:
        await consumer.position(partition)


def _measure(
    session: Session,
    run: Callable[[Meter], Coroutine[Any, Any, TidemarkError | None]],
    interval_ms: int,
    complaint: str,
) -> None:
    """Runs, prints the result, and fails if records are missing."""
    from tidemark.records.arrow import warm_up

    check_reachable(session.bootstrap)
    warm_up()
    meter = Meter(interval_ms / 1000)
    error = asyncio.run(run(meter))
    session.tell(meter.result(), [meter.text()])
    if meter.failed or error is not None:
        reason = "" if error is None else f"; the first error: {reason_of(error)}"
        typer.echo(f"tidemark: {meter.failed} records {complaint}{reason}", err=True)
        raise typer.Exit(1)


def _report(line: str) -> None:
    typer.echo(line, err=True)
