"""Topic settings by Kafka's names (org.apache.kafka.common.config.TopicConfig), and the server
settings they default to.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.config.definition import (
    convert,
    keys_of,
    setting,
    types_of,
    unknown_key,
    with_values,
)
from tidemark.config.server import ServerConfig
from tidemark.config.value_schema import FORMATS, check_value_schema
from tidemark.errors import InvalidConfigError, TidemarkError

_MAX_INT = 2**31 - 1
_MAX_LONG = 2**63 - 1

# Server settings that hold the defaults of topic settings, where the name is not "log." + name
# (LogConfig.TopicConfigSynonyms).
_SYNONYMS = {
    "segment.ms": "log.roll.ms",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "max.message.bytes": "message.max.bytes",
    "min.insync.replicas": "min.insync.replicas",
    "compression.type": "compression.type",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "local.retention.ms": "log.local.retention.ms",
    "local.retention.bytes": "log.local.retention.bytes",
}
_REPLICA = r"\*|\d+:\d+"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The effective settings of one topic, as far as a log needs them."""

    cleanup_policy: tuple[str, ...] = setting(
        ("delete",), doc="delete, compact or both", one_of=("delete", "compact")
    )
    compression_type: str = setting(
        "producer",
        doc="codec of stored batches",
        one_of=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    segment_bytes: int = setting(
        1 << 30, doc="a segment is rolled at this size", at_least=14, at_most=_MAX_INT
    )
    segment_ms: int = setting(
        604_800_000, doc="a segment is rolled at this age of its first record", at_least=1
    )
    segment_jitter_ms: int = setting(0, doc="random reduction of segment.ms", at_least=0)
    segment_index_bytes: int = setting(
        10 << 20, doc="size limit of an index file", at_least=24, at_most=_MAX_INT
    )
    index_interval_bytes: int = setting(
        4096, doc="bytes of log between index entries", at_least=0, at_most=_MAX_INT
    )
    max_message_bytes: int = setting(
        1_048_588, doc="largest record batch accepted", at_least=0, at_most=_MAX_INT
    )
    retention_ms: int = setting(604_800_000, doc="age limit of records; -1: none", at_least=-1)
    retention_bytes: int = setting(-1, doc="size limit of a partition; -1: none", at_least=-1)
    delete_retention_ms: int = setting(86_400_000, doc="how long tombstones stay", at_least=0)
    min_cleanable_dirty_ratio: float = setting(
        0.5, doc="dirty share that starts a cleaning", at_least=0, at_most=1
    )
    min_compaction_lag_ms: int = setting(
        0, doc="records younger than this stay uncompacted", at_least=0
    )
    max_compaction_lag_ms: int = setting(
        _MAX_LONG, doc="records older than this are compacted", at_least=1
    )
    file_delete_delay_ms: int = setting(60_000, doc="delay before a deleted file goes", at_least=0)
    flush_messages: int = setting(_MAX_LONG, doc="messages between fsyncs", at_least=1)
    flush_ms: int = setting(_MAX_LONG, doc="time between fsyncs", at_least=0)
    message_timestamp_type: str = setting(
        "CreateTime", doc="whose clock stamps records", one_of=("CreateTime", "LogAppendTime")
    )
    message_timestamp_before_max_ms: int = setting(
        _MAX_LONG, doc="how old a record may be", at_least=0
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000, doc="how far ahead a record may be", at_least=0
    )
    min_insync_replicas: int = setting(
        1, doc="replicas that acks=all needs", at_least=1, at_most=_MAX_INT
    )
    unclean_leader_election_enable: bool = setting(False, doc="may a replica outside the ISR lead")
    preallocate: bool = setting(
        False, doc="allocate a segment's file on creation; not supported, only false is taken"
    )
    remote_storage_enable: bool = setting(False, doc="rolled segments go to the tier (KIP-405)")
    remote_log_copy_disable: bool = setting(False, doc="stop copying to the tier")
    remote_log_delete_on_disable: bool = setting(
        False, doc="delete what the tier has once remote.storage.enable is false (KIP-950)"
    )
    local_retention_ms: int = setting(
        -2, doc="age limit of local segments; -2: as retention.ms", at_least=-2
    )
    local_retention_bytes: int = setting(
        -2, doc="size limit of local segments; -2: as retention.bytes", at_least=-2
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        (),
        doc="partition:broker of leaders that send at the throttled rate; *: all",
        matching=_REPLICA,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        (), doc="partition:broker of followers that fetch at that rate; *: all", matching=_REPLICA
    )

    value_format: str = setting(
        "", doc="what values are, for who reads them; nodes do not look", one_of=("", *FORMATS)
    )
    value_schema: str = setting("", doc="JSON Schema, Avro schema, or base64 of descriptors")
    value_schema_message: str = setting(
        "", doc="full name of the message, of value.format=protobuf"
    )

    @property
    def copies_to_tier(self) -> bool:
        """Whether rolled segments go to the tier; if not, local deletion is the only one."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def has_tier(self) -> bool:
        """Whether the tier may have segments: after remote.storage.enable=false it has some until
        they are deleted (KIP-950)."""
        return self.remote_storage_enable or self.remote_log_delete_on_disable

    @property
    def effective_local_retention_ms(self) -> int:
        inherits = self.local_retention_ms == -2 or self.remote_log_copy_disable
        return self.retention_ms if inherits else self.local_retention_ms

    @property
    def effective_local_retention_bytes(self) -> int:
        inherits = self.local_retention_bytes == -2 or self.remote_log_copy_disable
        return self.retention_bytes if inherits else self.local_retention_bytes

    @property
    def is_compacted(self) -> bool:
        """Whether the cleaner compacts the log. Never one with a tier, also where a changed default
        of the brokers says so: the copies would differ from the log."""
        return "compact" in self.cleanup_policy and not self.remote_storage_enable

    @property
    def is_deleted(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def expires_locally(self) -> bool:
        """Whether age and size remove segments from local disks. Without cleanup.policy=delete only
        those that the tier has, which keeps them for good."""
        return self.is_deleted or self.copies_to_tier


def validate_topic_configs(
    overrides: Mapping[str, str], server: ServerConfig | None = None, *dynamic: Mapping[str, str]
) -> dict[str, object]:
    """The typed values of a topic's own settings, by attribute name.

    Settings that the topic leaves out come from `server` and the settings altered since. `dynamic`
    are the latter, as in `server_defaults`. If `server` is None, the built-in defaults apply.

    Raises InvalidConfigError for unknown names, wrong values, and combinations that Kafka refuses:

    - compaction lags that exclude each other
    - tiering of a compacted topic, or on servers without it
    - local retention above the total (KIP-405)
    - a schema of values that has no columns, or no format
    """
    values = _converted(TopicConfig, overrides, keys_of(TopicConfig))
    defaults = TopicConfig() if server is None else server_defaults(server, *dynamic)
    config = dataclasses.replace(defaults, **values)  # type: ignore[arg-type]
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidConfigError(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} is above"
            f" max.compaction.lag.ms={config.max_compaction_lag_ms}"
        )
    _check_tiering(config)
    check_value_schema(config.value_format, config.value_schema, config.value_schema_message)
    if config.preallocate:
        raise InvalidConfigError(
            "preallocate=true has no effect: segments grow with their records; leave it out"
        )
    if config.remote_storage_enable and server and not server.remote_log_storage_system_enable:
        raise InvalidConfigError(
            "remote.storage.enable needs remote.log.storage.system.enable=true in the"
            " server.properties of every node: nothing would ever be copied, nor deleted here"
        )
    return values


def _converted(
    settings_class: type[Any],
    texts: Mapping[str, str],
    allowed: Mapping[str, dataclasses.Field[Any]],
) -> dict[str, object]:
    """Typed values by attribute name; raises InvalidConfigError."""
    hints = types_of(settings_class)
    values: dict[str, object] = {}
    try:
        for key, text in texts.items():
            if key not in allowed:
                raise unknown_key(key, allowed)
            field = allowed[key]
            values[field.name] = convert(key, field, hints[field.name], text)
    except TidemarkError as error:
        raise InvalidConfigError(str(error)) from error
    return values


def _check_tiering(config: TopicConfig) -> None:
    if config.remote_storage_enable and "compact" in config.cleanup_policy:
        raise InvalidConfigError("remote.storage.enable is for cleanup.policy=delete only")
    pairs = (
        ("ms", config.retention_ms, config.local_retention_ms),
        ("bytes", config.retention_bytes, config.local_retention_bytes),
    )
    for unit, total, local in pairs:
        if local != -2 and total != -1 and (local == -1 or local > total):
            raise InvalidConfigError(
                f"local.retention.{unit}={local} is above retention.{unit}={total}"
            )


def synonym_of(topic_key: str) -> str:
    """The name of the server setting that holds the default of a topic setting; it may not
    exist.
    """
    return _SYNONYMS.get(topic_key, "log." + topic_key)


# Settings of a broker itself that take effect while it runs (Kafka's DynamicBrokerConfig).
_OF_BROKERS = frozenset(
    {
        "follower.fetch.last.tiered.offset.enable",
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
        "log.scrubber.interval.ms",
        "log.scrubber.io.max.bytes.per.second",
        "producer.id.expiration.ms",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.fetch.max.bytes.per.second",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "slow.request.threshold.ms",
    }
)


@functools.cache
def dynamic_settings() -> Mapping[str, dataclasses.Field[Any]]:
    """The server settings that can be altered while a node runs, by Kafka's names.

    They are the defaults of topic settings and some settings of the broker itself.
    """
    known = keys_of(ServerConfig)
    wanted = {synonym_of(key) for key in keys_of(TopicConfig)} | _OF_BROKERS
    return {key: field for key, field in known.items() if key in wanted}


def validate_dynamic_configs(overrides: Mapping[str, str]) -> dict[str, object]:
    """The typed values of settings altered while nodes run, by ServerConfig's attribute names.

    Raises InvalidConfigError for unknown names, settings that need a restart, and wrong values.
    """
    for key in overrides:
        if key in keys_of(ServerConfig) and key not in dynamic_settings():
            raise InvalidConfigError(
                f"{key} can not be altered while the node runs: set it in server.properties"
            )
    return _converted(ServerConfig, overrides, dynamic_settings())


def altered_server(server: ServerConfig, *dynamic: Mapping[str, str]) -> ServerConfig:
    """The server's settings with those altered at run time applied, the stronger ones last.

    Raises InvalidConfigError if one of them is not valid.
    """
    altered: dict[str, Any] = {}
    for overrides in dynamic:
        altered |= validate_dynamic_configs(overrides)
    return with_values(server, altered)


def server_defaults(server: ServerConfig, *dynamic: Mapping[str, str]) -> TopicConfig:
    """The settings of a topic without settings of its own on this server (log.* and their
    synonyms).

    `dynamic` are settings altered at run time, the stronger ones last: the cluster's default, then
    the broker's own. Raises InvalidConfigError if one of them is not valid.
    """
    altered: dict[str, object] = {}
    for overrides in dynamic:
        altered |= validate_dynamic_configs(overrides)
    chosen: dict[str, object] = {}
    for key, field in keys_of(TopicConfig).items():
        attribute = synonym_of(key).replace(".", "_")
        if attribute in altered:
            chosen[field.name] = altered[attribute]
        elif hasattr(server, attribute):
            chosen[field.name] = getattr(server, attribute)
    return TopicConfig(**chosen)  # type: ignore[arg-type]


def effective_topic_config(
    defaults: TopicConfig,
    overrides: Mapping[str, str],
    on_error: Callable[[InvalidConfigError], None] | None = None,
) -> TopicConfig:
    """`defaults` with the topic's own settings applied.

    A setting that cannot be read, for example one of another version, keeps its default and is
    passed to `on_error`; the others apply. Otherwise the topic would lose its cleanup.policy to it.
    Raises InvalidConfigError for such a setting if `on_error` is None.
    """
    values: dict[str, object] = {}
    for key, text in overrides.items():
        try:
            values |= _converted(TopicConfig, {key: text}, keys_of(TopicConfig))
        except InvalidConfigError as error:
            if on_error is None:
                raise
            on_error(error)
    return dataclasses.replace(defaults, **values)  # type: ignore[arg-type]
