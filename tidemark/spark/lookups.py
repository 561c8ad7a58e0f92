"""Questions of the driver to the cluster: topics with their ids, offsets with leader epochs.

All tries of one plan have one deadline. A topic that stays unknown for `_UNKNOWN_MS` is an error
before that: nodes may lag behind a creation, but not for long.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from tidemark.client.connections import Connections, parse_bootstrap_servers
from tidemark.client.loop_thread import Face
from tidemark.client.metadata import MetadataCache, TopicMetadata
from tidemark.client.models import OffsetAndTimestamp
from tidemark.client.offsets import OffsetLookup
from tidemark.client.retry import RetryPolicy, is_retriable
from tidemark.errors import (
    ApiError,
    LeaderNotAvailableError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    raise_for,
)
from tidemark.spark.options import SourceOptions
from tidemark.surroundings import make_rng
from tidemark.types import TopicPartition
from tidemark.v1 import admin_pb2

T = TypeVar("T")

_UNKNOWN_MS = 4_000
_GONE_MS = 500  # for a topic that was unknown for so long before: the others do not wait
_LIST_TOPICS = "/tidemark.v1.Admin/ListTopics"
_ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}


class AsyncLookups:
    """A client of one driver; made and used on one event loop."""

    def __init__(self, options: SourceOptions) -> None:
        self._servers = options.bootstrap_servers
        self._timeout_ms = options.lookup_timeout_ms
        retry, rng = RetryPolicy(self._timeout_ms), make_rng()
        self._connections = Connections(security=options.security)
        self._metadata = MetadataCache(
            self._connections, parse_bootstrap_servers(self._servers), retry=retry, rng=rng
        )
        self._offsets = OffsetLookup(
            self._connections,
            self._metadata,
            retry=retry,
            rng=rng,
            isolation_level=_ISOLATION_LEVELS[options.isolation_level],
        )
        self._loop = asyncio.get_running_loop()
        self._until_s = 0.0
        self._gone: set[str] = set()
        self.restart()

    def restart(self, timeout_max_ms: float = math.inf) -> None:
        """Begins the time that all further questions have together; asks anew for all topics."""
        self._until_s = self._loop.time() + min(self._timeout_ms, timeout_max_ms) / 1000
        self._metadata.mark_stale()

    async def close(self) -> None:
        """Ends requests under way, and closes the connections."""
        await self._metadata.close()
        await self._connections.close()

    def _left_ms(self) -> float:
        return max(0.0, (self._until_s - self._loop.time()) * 1000)

    async def topics(self, names: Iterable[str]) -> dict[str, TopicMetadata]:
        """The topics of these names, with a leader of each partition.

        Raises UnknownTopicOrPartitionError soon, RequestTimedOutError at the deadline.
        """
        wanted = list(names)
        self._metadata.look_up(wanted)  # one request names all
        found = await asyncio.gather(*map(self._topic, wanted))
        return dict(zip(wanted, found, strict=True))

    async def existing(self, names: Iterable[str]) -> dict[str, TopicMetadata]:
        """As `topics`, without those that are unknown."""
        wanted = list(names)
        self._metadata.look_up(wanted)
        found = await asyncio.gather(*map(self._if_known, wanted))
        return {topic.name: topic for topic in found if topic is not None}

    async def _if_known(self, name: str) -> TopicMetadata | None:
        try:
            topic = await self._topic(name, _GONE_MS if name in self._gone else _UNKNOWN_MS)
        except UnknownTopicOrPartitionError:
            self._gone.add(name)
            return None
        self._gone.discard(name)
        return topic

    async def matching(self, pattern: str) -> list[str]:
        """The topics whose whole name `pattern` matches, but no internal ones.

        Raises RequestTimedOutError at the deadline.
        """
        matches = re.compile(pattern).fullmatch
        request = admin_pb2.ListTopicsRequest()
        decode = admin_pb2.ListTopicsResponse.FromString
        while True:
            for address in self._metadata.candidates():
                try:
                    await self._metadata.ensure_fresh()
                    answer = await self._connections.call(
                        address, _LIST_TOPICS, request, decode, timeout_ms=self._left_ms()
                    )
                    raise_for(answer.error_code, answer.error_message)
                    return sorted(topic.name for topic in answer.topics if matches(topic.name))
                except ApiError as error:
                    self._raise_if_late(error)
            await asyncio.sleep(0.1)

    async def _topic(self, name: str, unknown_ms: float = _UNKNOWN_MS) -> TopicMetadata:
        while True:
            try:
                return await self._metadata.topic(name, min(unknown_ms, self._left_ms()))
            except UnknownTopicOrPartitionError:
                raise UnknownTopicOrPartitionError(
                    f"topic {name!r} is unknown to the cluster at {self._servers}; is its name"
                    " right?"
                ) from None
            except ApiError as error:
                self._raise_if_late(error)

    def _raise_if_late(self, error: ApiError) -> None:
        if not is_retriable(error):
            raise error
        if not self._left_ms():
            raise RequestTimedOutError(
                f"the cluster at {self._servers} did not answer in {self._timeout_ms / 1000:.0f} s"
                f" (lookupTimeoutMs); the last error: {error}"
            ) from None

    async def offsets(
        self, asked: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The offset for each timestamp (ms, or an OffsetSpec); None if no record is that late.

        Raises RequestTimedOutError at the deadline.
        """
        while True:
            try:
                return await self._offsets.list_offsets(asked, self._left_ms())
            except ApiError as error:
                self._raise_if_late(error)
                await asyncio.sleep(0.1)

    async def ask_leader(
        self, tp: TopicPartition, path: str, request: Any, decode: Callable[[bytes], T]
    ) -> T:
        """The answer of the partition's leader; `decode` raises the error that it has.

        Raises the first error that is not retriable, RequestTimedOutError at the deadline.
        """
        while True:
            try:
                self._metadata.look_up([tp.topic])
                await self._metadata.ensure_fresh()
                leader = self._metadata.leader(tp)
                address = None if leader is None else self._metadata.address(leader)
                if address is None:
                    raise LeaderNotAvailableError(f"{tp} has no leader at the moment")
                return await self._connections.call(
                    *(address, path, request, decode), timeout_ms=self._left_ms()
                )
            except ApiError as error:
                self._raise_if_late(error)
                self._metadata.mark_stale()
                await asyncio.sleep(0.1)


class Lookups(Face):
    """The blocking form of AsyncLookups."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(lambda: AsyncLookups(options))
        self._core: AsyncLookups

    def close(self) -> None:
        self._thread.run(self._core.close())

    def restart(self) -> None:
        self._call(self._core.restart)

    def topics(self, names: Iterable[str]) -> dict[str, TopicMetadata]:
        return self._thread.run(self._core.topics(names))

    def existing(self, names: Iterable[str]) -> dict[str, TopicMetadata]:
        return self._thread.run(self._core.existing(names))

    def matching(self, pattern: str) -> list[str]:
        return self._thread.run(self._core.matching(pattern))

    def offsets(
        self, asked: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return self._thread.run(self._core.offsets(asked))

    def run(self, work: Callable[[AsyncLookups], Coroutine[Any, Any, T]]) -> T:
        """Runs other questions on the client's event loop."""
        return self._thread.run(work(self._core))
