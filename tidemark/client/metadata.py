"""The leader of each partition: a cached view of the cluster that refreshes itself.

It is stale after `metadata_max_age_ms`, or when marked so (after NOT_LEADER_OR_FOLLOWER). Refreshes
are single-flight: all waiters share one request. Requests go to nodes in rotation: the live brokers
of the last answer, then the bootstrap servers. A client therefore survives the loss of every node
of its first answer (KIP-899's rebootstrap).

Requests name the topics that the client reads or writes. A topic that was only looked up is named
for metadata.max.idle.ms: a program may look many of them up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from uuid import UUID

from tidemark.client.connections import Connections
from tidemark.client.errors import ClientClosedError
from tidemark.client.retry import RetryPolicy, is_retriable
from tidemark.errors import (
    ApiError,
    LeaderNotAvailableError,
    NetworkError,
    RequestTimedOutError,
    SaslAuthenticationError,
    UnknownTopicOrPartitionError,
    error_for,
)
from tidemark.types import ZERO_UUID, Endpoint, TopicPartition
from tidemark.v1 import common_pb2, log_pb2

logger = logging.getLogger(__name__)

METADATA = "/tidemark.v1.Log/Metadata"

# A node that hangs must not use up a caller's whole timeout: the next one is tried after this time.
_ATTEMPT_TIMEOUT_MS = 5_000
_TOLD = (RequestTimedOutError, SaslAuthenticationError)  # no other node makes them right

_MAX_IDLE_MS = 300_000
"""Kafka's default of metadata.max.idle.ms."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition as clients see it; `leader` is None if there is none."""

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic and its partitions by number."""

    name: str
    topic_id: UUID
    partitions: dict[int, PartitionInfo]


def monotonic_ms() -> float:
    """The default clock of clients, in ms: that of the running event loop."""
    return asyncio.get_running_loop().time() * 1000


class MetadataCache:
    """The cluster as of the last answer. All methods belong to one event loop."""

    def __init__(
        self,
        connections: Connections,
        bootstrap: Sequence[Endpoint],
        *,
        retry: RetryPolicy,
        rng: Random,
        metadata_max_age_ms: int = 300_000,
        now_ms: Callable[[], float] = monotonic_ms,
        on_update: Callable[[], None] | None = None,
        in_use: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`in_use` returns topics that stay, although they were only looked up."""
        self._connections = connections
        self._in_use = in_use
        self._on_update = on_update
        self._bootstrap = tuple(bootstrap)
        self._retry = retry
        self._rng = rng
        self._max_age_ms = metadata_max_age_ms
        self._now_ms = now_ms
        self._rotation = rng.randrange(len(self._bootstrap))
        self._wanted: set[str] = set()
        self._looked_up_ms: dict[str, float] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._topic_errors: dict[str, ApiError] = {}
        self._refreshed_at_ms: float | None = None
        self._stale = True
        self._refreshing: asyncio.Task[None] | None = None
        self._is_closed = False
        self.brokers: dict[int, Endpoint] = {}
        self.cluster_id = ""
        self.controller_id: int | None = None

    # Look-ups, without waiting.

    def topics(self) -> dict[str, TopicMetadata]:
        return self._topics

    def partition_count(self, topic: str) -> int | None:
        """The number of partitions of a topic; None if unknown."""
        found = self._topics.get(topic)
        return None if found is None else len(found.partitions)

    def leader(self, partition: TopicPartition) -> int | None:
        """The leader's node id, if it is known and reachable."""
        topic = self._topics.get(partition.topic)
        found = None if topic is None else topic.partitions.get(partition.partition)
        if found is None or found.leader is None or found.leader not in self.brokers:
            return None
        return found.leader

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The leader's epoch; -1 if unknown."""
        topic = self._topics.get(partition.topic)
        found = None if topic is None else topic.partitions.get(partition.partition)
        return -1 if found is None else found.leader_epoch

    def topic_id(self, topic: str) -> bytes:
        """The id of the topic that has this name now; empty if unknown."""
        found = self._topics.get(topic)
        return b"" if found is None or found.topic_id == ZERO_UUID else found.topic_id.bytes

    def address(self, node_id: int) -> str | None:
        """The address of a live broker."""
        endpoint = self.brokers.get(node_id)
        return None if endpoint is None else endpoint.address

    def topic_error(self, topic: str) -> ApiError | None:
        """The error of a topic in the last answer."""
        return self._topic_errors.get(topic)

    @property
    def is_stale(self) -> bool:
        """Whether the next `ensure_fresh` sends a request."""
        if self._stale or self._refreshed_at_ms is None:
            return True
        return self._now_ms() - self._refreshed_at_ms >= self._max_age_ms

    def mark_stale(self) -> None:
        """Makes the next `ensure_fresh` refresh, because something contradicted the cache."""
        self._stale = True

    def hint_leader(self, partition: TopicPartition, leader_id: int, leader_epoch: int) -> None:
        """Adopts a leader that a node named in an error (KIP-951), unless the cached one is as
        new.
        """
        topic = self._topics.get(partition.topic)
        found = None if topic is None else topic.partitions.get(partition.partition)
        if topic is None or found is None or leader_epoch <= found.leader_epoch or leader_id < 0:
            return
        topic.partitions[partition.partition] = PartitionInfo(
            found.partition, leader_id, leader_epoch, found.replicas, found.isr
        )

    def hint_nodes(self, nodes: Iterable[common_pb2.Node]) -> None:
        """Adopts the addresses of nodes that are not known yet, of the leaders in an answer."""
        for node in nodes:
            self.brokers.setdefault(node.node_id, Endpoint(node.host, node.port))

    def want(self, topics: Iterable[str]) -> None:
        """Adds topics to the requests from now on, until `forget`."""
        for topic in topics:
            if topic not in self._wanted:
                self._stale = self._stale or topic not in self._looked_up_ms
                self._wanted.add(topic)

    def look_up(self, topics: Iterable[str]) -> None:
        """Adds topics to the requests of the next metadata.max.idle.ms."""
        for topic in topics:
            self._stale = self._stale or not self._is_asked_for(topic)
            self._looked_up_ms[topic] = self._now_ms()

    def _is_asked_for(self, topic: str) -> bool:
        return topic in self._wanted or topic in self._looked_up_ms

    def _expire(self) -> None:
        """Drops topics that nobody has looked up for long (Kafka's ProducerMetadata)."""
        last_ms = self._now_ms() - _MAX_IDLE_MS
        self._wanted.update(self._looked_up_ms.keys() & set(self._in_use()))
        self._looked_up_ms = {t: at for t, at in self._looked_up_ms.items() if at > last_ms}

    def forget(self, topics: Iterable[str]) -> None:
        """Removes topics that are no longer of interest."""
        for topic in topics:
            self._wanted.discard(topic)
            self._looked_up_ms.pop(topic, None)
            self._topics.pop(topic, None)
            self._topic_errors.pop(topic, None)

    # Refreshes.

    async def ensure_fresh(self) -> None:
        """Refreshes once if the cache is stale. Raises the error of the last node tried."""
        if self.is_stale:
            await self.refresh()

    async def refresh(self) -> None:
        """Refreshes now, or joins a request under way.

        Raises NetworkError or another error of the table if no node answers, ClientClosedError
        after `close`.
        """
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._refresh())
            self._refreshing.add_done_callback(_take_note)
        asked, task = self._refreshing, asyncio.current_task()
        try:
            await asyncio.shield(asked)
        except asyncio.CancelledError:
            if asked.cancelled() and task is not None and not task.cancelling():
                raise ClientClosedError("the client is closed") from None  # nobody cancelled us
            raise

    async def close(self) -> None:
        """Ends a refresh under way: no task outlives its client. Idempotent."""
        self._is_closed = True
        if self._refreshing is not None and not self._refreshing.done():
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])

    async def topic(self, name: str, timeout_ms: float | None = None) -> TopicMetadata:
        """Waits until `name` and a leader of each partition are known.

        Raises errors that are not retriable at once. After `timeout_ms` (default: the retry
        policy's), raises UnknownTopicOrPartitionError, LeaderNotAvailableError or the last error.
        """
        started_ms = self._now_ms()
        limit = self._retry.timeout_ms if timeout_ms is None else timeout_ms
        attempt, problem = 0, None
        while True:
            self.look_up([name])
            left_s = (limit - (self._now_ms() - started_ms)) / 1000
            try:
                async with asyncio.timeout(left_s):  # a node that hangs must not make it longer
                    problem = await self._look_up(name)
            except TimeoutError:
                raise problem or RequestTimedOutError(
                    f"topic {name!r}: no node answered in {limit:.0f} ms"
                ) from None
            if problem is None:
                return self._topics[name]
            attempt += 1
            wait_ms = self._retry.backoff(attempt, self._rng)
            left_ms = limit - (self._now_ms() - started_ms)
            if not is_retriable(problem) or wait_ms >= left_ms:
                raise problem
            self._stale = True
            await asyncio.sleep(wait_ms / 1000)

    async def _look_up(self, name: str) -> ApiError | None:
        try:
            await self.ensure_fresh()
        except ApiError as error:
            return error
        if name in self._topic_errors:
            return self._topic_errors[name]
        found = self._topics.get(name)
        if found is None:
            return UnknownTopicOrPartitionError(f"topic {name!r} is unknown")
        missing = [p.partition for p in found.partitions.values() if p.leader is None]
        if missing:
            return LeaderNotAvailableError(f"topic {name!r}: no leader of partitions {missing}")
        return None

    def candidates(self) -> list[str]:
        """Addresses to try, best first. Each call begins one further, to spread load and
        failures.
        """
        known = sorted(self.brokers.values())
        self._rotation += 1
        if known:
            start = self._rotation % len(known)
            known = known[start:] + known[:start]
        start = self._rotation % len(self._bootstrap)
        rest = self._bootstrap[start:] + self._bootstrap[:start]
        return list(dict.fromkeys(endpoint.address for endpoint in (*known, *rest)))

    async def _refresh(self) -> None:
        error: ApiError = NetworkError("no node answered")
        self._stale = False  # a mark set during the request causes another one
        self._expire()
        asked = self._wanted.union(self._looked_up_ms)
        request = log_pb2.MetadataRequest(topics=sorted(asked))
        timeout_ms = min(_ATTEMPT_TIMEOUT_MS, self._connections.request_timeout_ms)
        for address in self.candidates():
            try:
                answer = await self._connections.call(
                    address,
                    METADATA,
                    request,
                    log_pb2.MetadataResponse.FromString,
                    timeout_ms=timeout_ms,
                )
                if not answer.brokers:
                    error = LeaderNotAvailableError(f"{address} knows of no live broker yet")
                    continue
                self._take(answer)
                return
            except ApiError as failure:
                error = failure
            except ClientClosedError:
                self._stale = True
                raise
            except Exception as failure:  # of one node; the others are asked
                logger.exception("%s: its answer about the metadata can not be used", address)
                error = NetworkError(f"{address}: {failure!r}")
        self._stale = True
        if isinstance(error, _TOLD) or is_retriable(error):
            raise error
        raise NetworkError(f"no node answered; the last one asked said: {error}")

    def _take(self, answer: log_pb2.MetadataResponse) -> None:
        self.brokers = {n.node_id: Endpoint(n.host, n.port) for n in answer.brokers}
        self.cluster_id = answer.cluster_id
        self.controller_id = answer.controller_id if answer.controller_id >= 0 else None
        topics: dict[str, TopicMetadata] = {}
        errors: dict[str, ApiError] = {}
        for topic in answer.topics:
            if not self._is_asked_for(topic.name):
                continue  # it was forgotten after the request
            if topic.error_code:
                errors[topic.name] = error_for(topic.error_code, f"topic {topic.name!r}")
                continue
            topics[topic.name] = self._merged(topic)
        self._topics, self._topic_errors = topics, errors
        self._refreshed_at_ms = self._now_ms()
        if self._on_update is not None:
            self._on_update()

    def _merged(self, topic: log_pb2.MetadataResponse.Topic) -> TopicMetadata:
        """The topic of an answer, with cached partitions whose leader epoch is newer kept."""
        topic_id = UUID(bytes=topic.topic_id) if topic.topic_id else ZERO_UUID
        old = self._topics.get(topic.name)
        partitions: dict[int, PartitionInfo] = {}
        for partition in sorted(topic.partitions, key=lambda p: p.partition_index):
            new = PartitionInfo(
                partition.partition_index,
                partition.leader_id if partition.leader_id >= 0 else None,
                partition.leader_epoch,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
            )
            before = old.partitions.get(new.partition) if old and old.topic_id == topic_id else None
            if before is not None and before.leader_epoch > new.leader_epoch:
                new = before
                self._stale = True
            partitions[new.partition] = new
        return TopicMetadata(topic.name, topic_id, partitions)


def _take_note(asked: asyncio.Task[None]) -> None:
    """Retrieves the error of a refresh: waiters that joined have it, and there may be none left."""
    if not asked.cancelled():
        asked.exception()
