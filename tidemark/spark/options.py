"""The options of `spark.read.format("tidemark")`: names and rules of Spark's Kafka source.

Spark gives option names in lower case and values as text. An unknown name is an error that suggests
the nearest known one. A value of a wrong type and a contradictory combination are errors, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemark.config.definition import nearest
from tidemark.config.security import ClientSecurity
from tidemark.errors import ConfigError
from tidemark.spark import security
from tidemark.spark.offsets import EARLIEST, LATEST, parse_partition_json
from tidemark.types import TopicPartition

COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
"""Those of Spark's Kafka source, in its order."""

_KNOWN = (
    "bootstrap.servers",
    "kafka.bootstrap.servers",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "columns",
    "isolation.level",
    "kafka.isolation.level",
    "kafkaConsumer.pollTimeoutMs",
    "lookupTimeoutMs",
    "direct",
    "splitBytes",
    "leaseMs",
    "snapshot",
    "pushDown",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "commitGroupId",
    "values",
)
_OF_BATCHES = (
    "pushDown",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "leaseMs",
    "snapshot",
)
_OF_SNAPSHOTS = (
    *("snapshot", "bootstrap.servers", "kafka.bootstrap.servers", "failOnDataLoss"),
    *("includeHeaders", "columns", "values", "isolation.level", "kafka.isolation.level"),
    *("kafkaConsumer.pollTimeoutMs", "lookupTimeoutMs"),
)
_OF_STREAMS = (
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("maxBytesPerTrigger", "commitGroupId"),
)
_REFUSED = {
    "fetchOffset.numRetries": "fetchOffset.numRetries: tries have a time here, lookupTimeoutMs",
    "fetchOffset.retryIntervalMs": "fetchOffset.retryIntervalMs: the client chooses its pauses,"
    " and tries for lookupTimeoutMs",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """The start or the end of a read: the same for every partition, or partition by partition.

    `offset` (EARLIEST, LATEST) and `timestamp_ms` apply to every partition, the others by
    partition.
    """

    option: str
    offset: int | None = None
    timestamp_ms: int | None = None
    offsets: tuple[tuple[TopicPartition, int], ...] = ()
    timestamps_ms: tuple[tuple[TopicPartition, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DirectOptions:
    """Reads past the brokers: auto, true or false; bytes of a slice; lease in ms; a plan's path."""

    mode: str = "false"
    split_bytes: int = 128 << 20
    lease_ms: int = 600_000
    snapshot: str = ""


@dataclass(frozen=True, slots=True)
class Triggers:
    """Sizes of the batches of a stream, and the time in ms that it waits for the least one."""

    offsets_max: int | None = None
    offsets_min: int | None = None
    bytes_max: int | None = None
    delay_max_ms: int = 900_000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a read, typed: `topics`, `partitions`, `pattern` or `snapshot` is given."""

    bootstrap_servers: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    pattern: str
    starting: Limit
    ending: Limit
    latest_when_no_record_matches: bool
    fail_on_data_loss: bool
    slices_min: int | None
    records_per_slice_max: int | None
    columns: tuple[str, ...]
    isolation_level: str
    poll_timeout_ms: int
    lookup_timeout_ms: int
    direct: DirectOptions = DirectOptions()
    push_down: bool = False
    triggers: Triggers = Triggers()
    commit_group_id: str = ""
    security: ClientSecurity | None = None
    are_values_typed: bool = False


def parse_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of a batch or a stream. Raises ConfigError as `parse_options`."""
    given = _known_options(options)
    is_stream = not given.keys().isdisjoint(_OF_STREAMS)
    if given.get("startingOffsets", "").lower() == "latest":
        return _columns(given)  # which of the two it is, and so whether it is right, shows later
    return parse_options(options, is_stream=is_stream).columns


def wants_typed_values(options: Mapping[str, str]) -> bool:
    """Whether the values of a batch or a stream are decoded. Raises ConfigError."""
    return _choice(_known_options(options), "values", ("bytes", "typed")) == "typed"


def parse_options(options: Mapping[str, str], *, is_stream: bool = False) -> SourceOptions:
    """Parses the options. Raises ConfigError that names the wrong one and says what to do."""
    given = _known_options(options)
    for name in _OF_BATCHES if is_stream else _OF_STREAMS:
        if name in given:
            kind, other = ("stream", "batches") if is_stream else ("batch query", "streams")
            raise ConfigError(f"{name} has no effect in a {kind}: it is an option of {other}")
    if is_stream and given.get("startingOffsets", "").lower() == "latest":
        raise ConfigError(
            "startingOffsets=latest is another place whenever Spark asks, also after a restart, "
            "and records between would be lost: give startingTimestamp, the present time in ms, "
            "with startingOffsetsByTimestampStrategy=latest, or offsets by partition"
        )
    servers = _one_of(given, "bootstrap.servers", "kafka.bootstrap.servers")
    if not servers:
        raise ConfigError("the option bootstrap.servers is required: host:port,host:port")
    topics, partitions, pattern = _what_to_read(given)
    strategy = _choice(given, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    isolation = _one_of(given, "isolation.level", "kafka.isolation.level") or (
        "read_committed" if is_stream else "read_uncommitted"
    )
    if isolation not in ("read_uncommitted", "read_committed"):
        raise ConfigError(
            f"isolation.level={isolation!r} is none of read_uncommitted, read_committed"
        )
    return SourceOptions(
        bootstrap_servers=servers,
        topics=topics,
        partitions=partitions,
        pattern=pattern,
        starting=_limit(given, "starting", EARLIEST),
        ending=_limit(given, "ending", LATEST),
        latest_when_no_record_matches=strategy == "latest",
        fail_on_data_loss=_boolean(given, "failOnDataLoss", True),
        slices_min=_integer(given, "minPartitions", None, 1),
        records_per_slice_max=_integer(given, "maxRecordsPerPartition", None, 1),
        columns=_columns(given),
        isolation_level=isolation,
        poll_timeout_ms=_integer(given, "kafkaConsumer.pollTimeoutMs", 120_000, 1) or 0,
        lookup_timeout_ms=_integer(given, "lookupTimeoutMs", 25_000, 1) or 0,
        direct=_direct(given, is_stream),
        push_down=_boolean(given, "pushDown", False),
        triggers=Triggers(
            offsets_max=_integer(given, "maxOffsetsPerTrigger", None, 1),
            offsets_min=_integer(given, "minOffsetsPerTrigger", None, 1),
            bytes_max=_integer(given, "maxBytesPerTrigger", None, 1),
            delay_max_ms=_duration_ms(given, "maxTriggerDelay", 900_000),
        ),
        commit_group_id=given.get("commitGroupId", ""),
        security=security.security_of(options),
        are_values_typed=_choice(given, "values", ("bytes", "typed")) == "typed",
    )


def _direct(given: Mapping[str, str], is_stream: bool) -> DirectOptions:
    """A stream reads from the brokers unless told otherwise, and holds nothing: batches are short.

    Most of its batches have new records, of which each plan would be in vain.
    """
    modes = ("false", "auto", "true") if is_stream else ("auto", "true", "false")
    return DirectOptions(
        _choice(given, "direct", modes),
        _integer(given, "splitBytes", 128 << 20, 1 << 20) or 0,
        0 if is_stream else _integer(given, "leaseMs", 600_000, 1_000) or 0,
        given.get("snapshot", ""),
    )


def _known_options(options: Mapping[str, str]) -> dict[str, str]:
    names = {name.lower(): name for name in _KNOWN}
    found: dict[str, str] = {}
    for key in options:
        if security.is_security(key):
            continue
        name = names.get(key.lower())
        if name is None:
            raise _unknown(key, names)
        found[name] = str(options[key]).strip()
    return found


def _unknown(key: str, names: Mapping[str, str]) -> ConfigError:
    for name, reason in _REFUSED.items():
        if key.lower() == name.lower():
            return ConfigError(reason)
    every = {**names, **{name.lower(): name for name in security.names()}}
    near = nearest(key.lower(), every)
    known = ", ".join(every.values())
    hint = f"; did you mean {every[near]!r}?" if near else f"; known are {known}"
    return ConfigError(f"unknown option {key!r}{hint}")


def _one_of(given: Mapping[str, str], name: str, alias: str) -> str | None:
    if name in given and alias in given and given[name] != given[alias]:
        raise ConfigError(f"{name} and {alias} differ: give one of them")
    return given.get(name) or given.get(alias)


def _what_to_read(
    given: Mapping[str, str],
) -> tuple[tuple[str, ...], tuple[TopicPartition, ...], str]:
    """Topics, partitions, or a pattern of topics; the others are empty."""
    if "snapshot" in given:
        for name in given:
            if name not in _OF_SNAPSHOTS:
                raise ConfigError(f"{name} has no effect with snapshot: the plan was made before")
        return (), (), ""
    if sum(name in given for name in ("subscribe", "subscribePattern", "assign")) != 1:
        raise ConfigError("give exactly one of the options subscribe, subscribePattern and assign")
    if "assign" in given:
        return (), _parse_assign(given["assign"]), ""
    if "subscribePattern" in given:
        return (), (), _checked_pattern(given["subscribePattern"])
    topics = tuple(dict.fromkeys(t.strip() for t in given["subscribe"].split(",") if t.strip()))
    if not topics:
        raise ConfigError("subscribe names no topic: topic,topic")
    return topics, (), ""


def _checked_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"subscribePattern={text!r} is no regular expression of Python: {error}"
        ) from None
    if not text:
        raise ConfigError("subscribePattern is empty: it matches no topic")
    return text


def _parse_assign(text: str) -> tuple[TopicPartition, ...]:
    wrong = ConfigError(f'assign={text!r} is not JSON like {{"topic":[0,1]}}')
    try:
        topics = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(topics, dict) or not topics:
        raise wrong
    found: list[TopicPartition] = []
    for topic, numbers in topics.items():
        if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
            raise wrong
        found += [TopicPartition(topic, n) for n in numbers]
    return tuple(sorted(set(found)))


def _limit(given: Mapping[str, str], side: str, default: int) -> Limit:
    """The first given of xTimestamp, xOffsetsByTimestamp and xOffsets: Spark's order."""
    timestamp = f"{side}Timestamp"
    if timestamp in given:
        return Limit(timestamp, timestamp_ms=_integer(given, timestamp, None, 0))
    by_timestamp = f"{side}OffsetsByTimestamp"
    if by_timestamp in given:
        stamps = parse_partition_json(by_timestamp, given[by_timestamp])
        return Limit(by_timestamp, timestamps_ms=_sorted_items(stamps))
    option = f"{side}Offsets"
    text = given.get(option, "")
    words = {"earliest": EARLIEST, "latest": LATEST, "": default}
    if text.lower() in words:
        offset = words[text.lower()]
        _check_meaning(option, {offset})
        return Limit(option, offset=offset)
    offsets = parse_partition_json(option, text)
    _check_meaning(option, offsets.values())
    return Limit(option, offsets=_sorted_items(offsets))


def _check_meaning(option: str, offsets: Iterable[int]) -> None:
    """Raises ConfigError for a start at the latest offset and an end at the earliest.

    A batch query between them reads nothing by definition.
    """
    for offset in offsets:
        if offset < EARLIEST:
            raise ConfigError(f"{option}: {offset} is no offset (-2: earliest, -1: latest)")
        if option == "startingOffsets" and offset == LATEST:
            raise ConfigError("startingOffsets can not be latest in a batch query")
        if option == "endingOffsets" and offset == EARLIEST:
            raise ConfigError("endingOffsets can not be earliest")


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of the source: those named, or all, of which headers only if they are asked
    for.
    """
    with_headers = _boolean(given, "includeHeaders", False)
    if "columns" not in given:
        return COLUMNS if with_headers else COLUMNS[:-1]
    names = tuple(name.strip() for name in given["columns"].split(",") if name.strip())
    return checked_columns("columns", names)


def checked_columns(option: str, names: Sequence[str]) -> tuple[str, ...]:
    """Raises ConfigError unless each name is that of a column, and none is there twice."""
    for name in names:
        if name not in COLUMNS:
            raise ConfigError(f"{option}: {name!r} is none of {', '.join(COLUMNS)}")
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{option} names at least one column, and none twice")
    return tuple(names)


def _duration_ms(given: Mapping[str, str], name: str, default: int) -> int:
    if name not in given:
        return default
    found = re.fullmatch(r"(\d+) ?(ms|s|m|h)", given[name].lower())
    if found is None:
        raise ConfigError(f"{name}={given[name]!r} is no time like 500ms, 30s, 15m or 1h")
    return int(found[1]) * {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}[found[2]]


def _sorted_items(values: Mapping[TopicPartition, int]) -> tuple[tuple[TopicPartition, int], ...]:
    return tuple(sorted(values.items()))


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = given.get(name, choices[0]).lower()
    if value not in choices:
        raise ConfigError(f"{name}={given[name]!r} is none of {', '.join(choices)}")
    return value


def _boolean(given: Mapping[str, str], name: str, default: bool) -> bool:
    value = given.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise ConfigError(f"{name}={given[name]!r} is not true or false")
    return value == "true"


def _integer(given: Mapping[str, str], name: str, default: int | None, least: int) -> int | None:
    if name not in given:
        return default
    try:
        value = int(given[name])
    except ValueError:
        raise ConfigError(f"{name}={given[name]!r} is not a whole number") from None
    if value < least:
        raise ConfigError(f"{name}={value} is below {least}")
    if value >= 1 << 63:
        raise ConfigError(f"{name}={value} is no number of 64 bits")
    return value
