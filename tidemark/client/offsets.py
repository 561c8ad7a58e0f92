"""ListOffsets: first, last, and by timestamp, from the leader of each partition.

Requests are repeated until all partitions have an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random

from tidemark.client.connections import Connections
from tidemark.client.metadata import MetadataCache, monotonic_ms
from tidemark.client.models import OffsetAndTimestamp
from tidemark.client.retry import RetryPolicy
from tidemark.client.watch import unless_moved
from tidemark.errors import (
    ApiError,
    LeaderNotAvailableError,
    NetworkError,
    RequestTimedOutError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    error_for,
)
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2

LIST_OFFSETS = "/tidemark.v1.Log/ListOffsets"


class OffsetLookup:
    """Looks up offsets; with `isolation_level` 1 the end is the last stable offset."""

    def __init__(
        self,
        connections: Connections,
        metadata: MetadataCache,
        *,
        retry: RetryPolicy,
        rng: Random,
        isolation_level: int = 0,
    ) -> None:
        self._connections = connections
        self._metadata = metadata
        self._retry = retry
        self._rng = rng
        self._isolation_level = isolation_level

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The offset for each timestamp (ms, or an OffsetSpec); None if no record is that late.

        Raises the first error that is not retriable, or the last error after `timeout_ms` (default:
        the policy's).
        """
        policy = self._retry
        if timeout_ms is not None:
            policy = RetryPolicy(int(timeout_ms), policy.backoff_ms, policy.backoff_max_ms)
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        problem: ApiError | None = None
        started_ms, attempt = monotonic_ms(), 0
        while len(found) < len(timestamps):
            missing = {p: ts for p, ts in timestamps.items() if p not in found}
            # In each round: a consumer that no longer reads a topic forgets it meanwhile.
            self._metadata.look_up(partition.topic for partition in missing)
            left_s = policy.timeout_ms / 1000 - (monotonic_ms() - started_ms) / 1000
            try:
                async with asyncio.timeout(left_s):  # a node that hangs must not make it longer
                    problem = await self._round(missing, found)
            except TimeoutError:
                raise problem or RequestTimedOutError(
                    f"no offsets of {next(iter(missing))} in {policy.timeout_ms} ms"
                ) from None
            if problem is None:
                continue
            attempt += 1
            elapsed_ms = monotonic_ms() - started_ms
            wait_ms = policy.next_wait_ms(problem, attempt, elapsed_ms, self._rng)
            if wait_ms is None:
                raise problem
            self._metadata.mark_stale()
            await asyncio.sleep(wait_ms / 1000)
        return {partition: found[partition] for partition in timestamps}

    async def _round(
        self,
        missing: Mapping[TopicPartition, int],
        found: dict[TopicPartition, OffsetAndTimestamp | None],
    ) -> ApiError | None:
        """Sends one request to each leader. Returns the worst error of partitions still without an
        answer.
        """
        try:
            await self._metadata.ensure_fresh()
        except ApiError as error:
            return error
        problems: list[ApiError] = []
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition, timestamp in missing.items():
            leader = self._metadata.leader(partition)
            if leader is None:
                problems.append(self._why_no_leader(partition))
            else:
                by_leader.setdefault(leader, {})[partition] = timestamp
        answers = await asyncio.gather(
            *(self._ask_or_fail(leader, asked) for leader, asked in by_leader.items())
        )
        for answer in answers:
            for partition, result in answer.items():
                if isinstance(result, ApiError):
                    problems.append(result)
                else:
                    found[partition] = result
        return next((p for p in problems if not p.retriable), problems[0] if problems else None)

    def _why_no_leader(self, partition: TopicPartition) -> ApiError:
        count = self._metadata.partition_count(partition.topic)
        if count is None or not 0 <= partition.partition < count:
            return UnknownTopicOrPartitionError(f"{partition} is unknown")
        return LeaderNotAvailableError(f"{partition} has no leader at the moment")

    async def _ask_or_fail(
        self, leader: int, asked: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, OffsetAndTimestamp | ApiError | None]:
        """As `ask`, but leaves a node that hangs when others lead, and never raises an ApiError."""

        def moved() -> bool:
            return any(self._metadata.leader(p) not in (None, leader) for p in asked)

        def refresh() -> None:
            task = asyncio.ensure_future(self._metadata.refresh())
            task.add_done_callback(_take_note)

        try:
            return await unless_moved(self.ask(leader, asked), moved, refresh)
        except ApiError as error:
            return dict.fromkeys(asked, error)

    async def ask(
        self, leader: int, asked: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | ApiError | None]:
        """Asks one node once: the answer of each partition, None if no record is that late.

        Raises an ApiError if the call fails as a whole.
        """
        address = self._metadata.address(leader)
        if address is None:
            raise NetworkError(f"broker {leader} is not alive")
        request = log_pb2.ListOffsetsRequest(
            isolation_level=self._isolation_level,
            timeout_ms=self._connections.request_timeout_ms,
            replica_id=-1,
            partitions=[
                log_pb2.ListOffsetsRequest.ListOffsetsPartition(
                    topic=partition.topic,
                    partition_index=partition.partition,
                    current_leader_epoch=self._metadata.leader_epoch(partition),
                    timestamp=timestamp,
                )
                for partition, timestamp in asked.items()
            ],
        )
        answer = await self._connections.call(
            address, LIST_OFFSETS, request, log_pb2.ListOffsetsResponse.FromString
        )
        results: dict[TopicPartition, OffsetAndTimestamp | ApiError | None] = {
            partition: UnknownServerError(f"{address}: the answer says nothing of {partition}")
            for partition in asked
        }
        for response in answer.partitions:
            partition = TopicPartition(response.topic, response.partition_index)
            if partition not in results:
                continue
            if response.error_code:
                text = f"{partition}: {response.error_message}".rstrip(": ")
                results[partition] = error_for(response.error_code, text)
            elif response.offset < 0:
                results[partition] = None
            else:
                results[partition] = OffsetAndTimestamp(
                    response.offset, response.timestamp, response.leader_epoch
                )
        return results


def _take_note(refreshed: asyncio.Future[None]) -> None:
    """Retrieves the error of a refresh that nobody waits for."""
    if not refreshed.cancelled():
        refreshed.exception()
