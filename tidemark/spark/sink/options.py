"""The options of `df.write.format("tidemark")` and `df.writeStream.format("tidemark")`.

Settings of the producer have Kafka's names, with or without the prefix `kafka.`, as Spark's Kafka
sink wants them. An unknown name is an error that suggests the nearest known one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.config.definition import nearest
from tidemark.config.security import ClientSecurity
from tidemark.errors import ConfigError
from tidemark.spark import security
from tidemark.spark.sink.decision import sink_name
from tidemark.types import COORDINATOR_TOPICS

_PRODUCER: Mapping[str, type] = {
    "acks": str,
    "compression.type": str,
    "client.id": str,
    "batch.size": int,
    "linger.ms": float,
    "buffer.memory": int,
    "max.request.size": int,
    "max.block.ms": float,
    "delivery.timeout.ms": int,
    "request.timeout.ms": int,
}
_KNOWN = (
    "bootstrap.servers",
    "topic",
    "delivery.guarantee",
    "sinkId",
    "batchId",
    "transaction.timeout.ms",
    *_PRODUCER,
)
_OF_SPARK = frozenset(("checkpointlocation", "queryname"))
_GUARANTEES = ("exactly-once", "at-least-once")
_TIMEOUT_MS = 600_000
_MAX_TIMEOUT_MS = 2**31 - 2  # 2^31-1 is that of a prepared transaction
_MAX_BATCH = 2**63 - 2  # its offset is one more


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write, typed. `producer` are keyword arguments of a producer."""

    bootstrap_servers: str
    topic: str | None
    exactly_once: bool
    sink_id: str | None
    batch_id: int | None
    transaction_timeout_ms: int
    producer: tuple[tuple[str, Any], ...]
    security: ClientSecurity | None = None


def parse_sink_options(options: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Parses the options. Raises ConfigError that names the wrong one and says what to do."""
    given = _known_options(options)
    if not given.get("bootstrap.servers"):
        raise ConfigError("the option bootstrap.servers is required: host:port,host:port")
    guarantee = given.get("delivery.guarantee", _GUARANTEES[0])
    if guarantee not in _GUARANTEES:
        raise ConfigError(f"delivery.guarantee={guarantee!r} is none of {', '.join(_GUARANTEES)}")
    exactly_once = guarantee == _GUARANTEES[0]
    _check_names(given, exactly_once=exactly_once, is_stream=is_stream)
    if exactly_once and given.get("acks", "all") not in ("all", "-1"):
        raise ConfigError(
            f"acks={given['acks']}: delivery.guarantee=exactly-once needs acks=all; the other"
            " guarantee is at-least-once"
        )
    if "topic" in given and not given["topic"]:
        raise ConfigError("topic is empty: leave it out if the rows have a column topic")
    if given.get("topic") in COORDINATOR_TOPICS:
        raise ConfigError(f"topic={given['topic']}: it is written by coordinators alone")
    batch_id = _number(given, "batchId", int) if "batchId" in given else None
    timeout_ms = _TIMEOUT_MS
    if "transaction.timeout.ms" in given:
        timeout_ms = _number(given, "transaction.timeout.ms", int)
    for name, value, least, most in (
        ("batchId", batch_id, 0, _MAX_BATCH),
        ("transaction.timeout.ms", timeout_ms, 1, _MAX_TIMEOUT_MS),
    ):
        if value is not None and not least <= value <= most:
            raise ConfigError(f"{name}={value}: {least} to {most} are allowed")
    return SinkOptions(
        bootstrap_servers=given["bootstrap.servers"],
        topic=given.get("topic"),
        exactly_once=exactly_once,
        sink_id=given.get("sinkId"),
        batch_id=batch_id,
        transaction_timeout_ms=timeout_ms,
        producer=tuple(
            (name.replace(".", "_"), given[name] if kind is str else _number(given, name, kind))
            for name, kind in _PRODUCER.items()
            if name in given
        ),
        security=security.security_of(options),
    )


def _check_names(given: Mapping[str, str], *, exactly_once: bool, is_stream: bool) -> None:
    for name in ("sinkId", "batchId", "transaction.timeout.ms"):
        if name in given and not exactly_once:
            raise ConfigError(f"{name} has no effect with delivery.guarantee=at-least-once")
    if "sinkId" in given:
        sink_name(given["sinkId"])
    if is_stream and "batchId" in given:
        raise ConfigError("batchId is an option of batch jobs: a stream numbers its batches")
    if not is_stream and ("sinkId" in given) != ("batchId" in given):
        raise ConfigError(
            "sinkId and batchId belong together: a batch job that is repeated with the same two"
            " writes once, and the next one has a greater batchId"
        )


def _known_options(options: Mapping[str, str]) -> dict[str, str]:
    names = {name.lower(): name for name in _KNOWN}
    found: dict[str, str] = {}
    for key in options:
        lower = key.lower()
        if lower in _OF_SPARK or security.is_security(lower):
            continue
        name = names.get(lower.removeprefix("kafka."))
        if name is None:
            every = {**names, **{name.lower(): name for name in security.names()}}
            near, known = nearest(lower, every), ", ".join(every.values())
            hint = f"did you mean {every[near]!r}?" if near else f"known are {known}"
            raise ConfigError(f"unknown option {key!r} of a write; {hint}")
        value = str(options[key]).strip()
        if found.get(name, value) != value:
            raise ConfigError(f"{name} and kafka.{name} differ: give one of them")
        found[name] = value
    return found


def _number(given: Mapping[str, str], name: str, kind: type) -> Any:
    try:
        value = kind(given[name])
    except ValueError:
        raise ConfigError(f"{name}={given[name]!r} is not a number") from None
    if not value >= 0:  # NaN is not, either
        raise ConfigError(f"{name}={given[name]} is below zero")
    return value
