"""Settings, metadata, requests and effects of the core of the consumer's fetches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tidemark.client.consuming.partition import AssignedPartition, Target
from tidemark.client.retry import RetryPolicy
from tidemark.errors import ApiError
from tidemark.types import TopicPartition


class Leaders(Protocol):
    """The cached metadata; nothing here waits."""

    def leader(self, partition: TopicPartition) -> int | None: ...
    def leader_epoch(self, partition: TopicPartition) -> int: ...
    def topic_id(self, topic: str) -> bytes: ...
    def topic_error(self, topic: str) -> ApiError | None: ...
    def mark_stale(self) -> None: ...
    def hint_leader(self, partition: TopicPartition, leader_id: int, leader_epoch: int) -> None: ...
    @property
    def is_stale(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The settings of a consumer that its fetches obey."""

    retry: RetryPolicy
    auto_offset_reset: str = "latest"
    isolation_level: int = 0
    check_crcs: bool = True
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 << 20
    max_partition_fetch_bytes: int = 2 << 20
    buffer_bytes: int = 64 << 20
    client_rack: str = ""
    preference_max_age_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class Ask:
    """One partition of a request: from where, in which topic, under which leader epoch."""

    target: Target
    topic_id: bytes
    leader_epoch: int


@dataclass(slots=True)
class Request:
    """A fetch, or a look-up of positions. `live` are the partitions that still wait for it.

    A fetch with a `rack` may be answered with a closer replica.
    """

    request_id: int
    node: int
    is_fetch: bool
    rack: str
    sent_at_ms: float
    watch_at_ms: float
    asked: dict[TopicPartition, Ask] = field(default_factory=dict)
    live: dict[TopicPartition, AssignedPartition] = field(default_factory=dict)


@dataclass(slots=True)
class FetchEffects:
    """Actions for the edge after a step."""

    requests: list[Request] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    refresh_metadata: bool = False
    wake_at_ms: float | None = None

    def wake(self, at_ms: float) -> None:
        if self.wake_at_ms is None or at_ms < self.wake_at_ms:
            self.wake_at_ms = at_ms


@dataclass(frozen=True, slots=True)
class Refreshing:
    """The metadata is being refreshed, after so many failures."""

    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Resting:
    """Stale metadata is not refreshed before this time."""

    until_ms: float = 0.0
    attempts: int = 0
