"""The settings of the coordinators: consumer groups. Names and defaults are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.config.definition import setting

_MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """The part of `ServerConfig` that is about coordinators."""

    group_consumer_session_timeout_ms: int = setting(
        45_000, doc="a member without a heartbeat for so long is removed", at_least=1
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, doc="what members are told to wait between heartbeats", at_least=1
    )
    group_consumer_max_size: int = setting(
        _MAX_INT, doc="members of one consumer group", at_least=1
    )
    offset_metadata_max_bytes: int = setting(
        4_096, doc="largest metadata of a committed offset", at_least=0
    )
    offsets_commit_timeout_ms: int = setting(
        5_000, doc="longest wait of a coordinator's answer for its replicas", at_least=1
    )
    offsets_retention_minutes: int = setting(
        10_080, doc="age at which offsets of topics without a subscriber expire", at_least=1
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, doc="time between checks for expired offsets", at_least=1
    )
    offsets_topic_num_partitions: int = setting(
        50, doc="partitions of __consumer_offsets, when it is made", at_least=1
    )
    offsets_topic_replication_factor: int = setting(
        3, doc="replicas of __consumer_offsets, when it is made", at_least=1
    )
    offsets_topic_segment_bytes: int = setting(
        100 << 20, doc="segment.bytes of __consumer_offsets, when it is made", at_least=1
    )
