"""Settings, metadata, requests and effects of the core of the consumer's fetches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from tidemark.client.consuming.partition import AssignedPartition, Position, Target
from tidemark.client.retry import RetryPolicy
from tidemark.errors import ApiError
from tidemark.types import TopicPartition
from tidemark.v1 import common_pb2


class Leaders(Protocol):
    """The cached metadata; nothing here waits."""

    def leader(self, partition: TopicPartition) -> int | None: ...
    def leader_epoch(self, partition: TopicPartition) -> int: ...
    def topic_id(self, topic: str) -> bytes: ...
    def topic_error(self, topic: str) -> ApiError | None: ...
    def mark_stale(self) -> None: ...
    def hint_leader(self, partition: TopicPartition, leader_id: int, leader_epoch: int) -> None: ...
    def hint_nodes(self, nodes: Iterable[common_pb2.Node]) -> None: ...
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

    @property
    def wire(self) -> tuple[bytes, int, int, int]:
        """Topic id, leader epoch, offset, and epoch of the record before it, as a node is told."""
        assert isinstance(self.target, Position), "of a fetch"
        return self.topic_id, self.leader_epoch, self.target.offset, self.target.epoch


@dataclass(slots=True)
class Request:
    """A look-up of positions, or a fetch that is sent again and again in a session (KIP-227).

    `asked` are the partitions that the node reads for it, `live` those of them that wait for it.
    `named` and `forgotten` are what the last sending changed. A partition leaves with an answer
    that has news of it, or because something moved it meanwhile. A fetch with a `rack` may be
    answered with a closer replica.
    """

    request_id: int
    node: int
    is_fetch: bool
    rack: str = ""
    is_under_way: bool = False
    sent_at_ms: float = 0.0
    watch_at_ms: float = 0.0
    rests_since_ms: float = 0.0
    not_before_ms: float = 0.0
    prefers_until_ms: float = math.inf
    asked: dict[TopicPartition, Ask] = field(default_factory=dict)
    live: dict[TopicPartition, AssignedPartition] = field(default_factory=dict)
    named: dict[TopicPartition, None] = field(default_factory=dict)
    forgotten: list[TopicPartition] = field(default_factory=list)
    doubtful: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions to look at again before the next sending: paused, or of a new leader epoch."""
    _left: dict[TopicPartition, None] = field(default_factory=dict)
    _unconfirmed: dict[TopicPartition, None] = field(default_factory=dict)

    def may_join(self, now_ms: float) -> bool:
        """Whether it rests, and may be sent now."""
        return not self.is_under_way and (not self.live or self.not_before_ms <= now_ms)

    def join(self, partition: AssignedPartition, ask: Ask) -> None:
        """Adds a partition to the next sending; names it if the node knows it otherwise."""
        key = partition.topic_partition
        self.live[key] = partition
        self._left.pop(key, None)
        known = self.asked.get(key)
        if known is None or known.wire != ask.wire:
            self.asked.pop(key, None)  # those that moved are behind the others (KIP-74)
            self.named[key] = self._unconfirmed[key] = None
        self.asked[key] = ask
        if partition.preference is not None:
            self.prefers_until_ms = min(self.prefers_until_ms, partition.preference.until_ms)

    def leave(self, key: TopicPartition) -> bool:
        """The partition no longer waits; the next sending has the node forget it. Returns whether
        it waited."""
        if self.live.pop(key, None) is None:
            return False
        self._left[key] = None
        return True

    def take(self, key: TopicPartition) -> tuple[AssignedPartition, Ask] | None:
        """Takes a partition out that the node has news of, and so reads no more until it is named;
        None if it does not wait."""
        partition, ask = self.live.pop(key, None), self.asked.pop(key, None)
        self._left.pop(key, None)
        return None if partition is None or ask is None else (partition, ask)

    def begin(self, now_ms: float, slow_ms: float) -> None:
        """It is being sent, and slow after `slow_ms`."""
        self.forgotten, self._left = list(self._left), {}
        for key in self.forgotten:
            del self.asked[key]
        self.is_under_way = True
        self.sent_at_ms, self.watch_at_ms = now_ms, now_ms + slow_ms

    def rest(self, now_ms: float) -> None:
        """It was answered."""
        self.is_under_way = False
        self.rests_since_ms = now_ms
        self.named.clear()

    def confirmed(self) -> list[tuple[AssignedPartition, Ask]]:
        """Partitions that the node read for the first time, and has no news of."""
        found = [(self.live[key], self.asked[key]) for key in self._unconfirmed if key in self.live]
        self._unconfirmed.clear()
        return found


class Requests:
    """All requests, by id.

    Each node and rack has two fetches at most: a long poll on idle partitions must not delay busy
    ones.
    """

    PER_NODE = 2

    def __init__(self) -> None:
        self.ended: list[int] = []
        self._by_id: dict[int, Request] = {}
        self._fetches: dict[tuple[int, str], list[Request]] = {}
        self._last_id = 0

    def __getitem__(self, request_id: int) -> Request:
        return self._by_id[request_id]

    def get(self, request_id: int) -> Request | None:
        return self._by_id.get(request_id)

    def all(self) -> list[Request]:
        return list(self._by_id.values())

    def under_way(self) -> list[Request]:
        """Those sent and not answered."""
        return [request for request in self._by_id.values() if request.is_under_way]

    def resting(self) -> list[Request]:
        """The fetches that were answered, and not sent again."""
        return [request for request in self._by_id.values() if not request.is_under_way]

    def to(self, node: int, is_fetch: bool, rack: str, now_ms: float) -> Request | None:
        """The resting fetch with most partitions, or a new request. None if as many fetches as may
        be are under way."""
        if is_fetch:
            fetches = self._fetches.get((node, rack), [])
            may_go = [found for found in fetches if found.may_join(now_ms)]
            if may_go:
                return max(may_go, key=lambda found: len(found.live))
            if len(fetches) >= self.PER_NODE:
                return None
        self._last_id += 1
        return Request(self._last_id, node, is_fetch, rack)

    def add(self, request: Request) -> None:
        """A request is being sent, perhaps not for the first time."""
        if request.request_id in self._by_id:
            return
        self._by_id[request.request_id] = request
        if request.is_fetch:
            self._fetches.setdefault((request.node, request.rack), []).append(request)

    def end(self, request: Request) -> dict[TopicPartition, AssignedPartition]:
        """Forgets a request. Returns the partitions that waited for it."""
        del self._by_id[request.request_id]
        if request.is_fetch:
            self._fetches[request.node, request.rack].remove(request)
            self.ended.append(request.request_id)
        waiting, request.live = request.live, {}
        return waiting

    def validate(self) -> None:
        """Asserts that the indexes agree."""
        indexed = [found for fetches in self._fetches.values() for found in fetches]
        assert {id(found) for found in indexed} == {id(r) for r in self.all() if r.is_fetch}
        for (node, rack), fetches in self._fetches.items():
            assert len(fetches) <= self.PER_NODE
            assert all((found.node, found.rack) == (node, rack) for found in fetches)


@dataclass(slots=True)
class FetchEffects:
    """Actions for the edge after a step. `ended` fetches are not sent again."""

    requests: list[Request] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
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
