"""Producers of partitions, and markers, at the leaders of the partitions (KIP-664)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from random import Random
from typing import TypeVar

from tidemark.client.connections import Connections
from tidemark.client.metadata import MetadataCache, monotonic_ms
from tidemark.client.models import ProducerState
from tidemark.client.retry import RetryPolicy
from tidemark.errors import (
    ApiError,
    InvalidRequestError,
    LeaderNotAvailableError,
    NetworkError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    error_for,
)
from tidemark.types import TopicPartition
from tidemark.v1 import transaction_pb2 as pb

_DESCRIBE = "/tidemark.v1.Transactions/DescribeProducers"
_MARKERS = "/tidemark.v1.TransactionMarkers/WriteTxnMarkers"
_LAST_EPOCH = 2**15 - 2  # of a transaction; its marker has the next one
_PARTITIONS_MAX = 500  # of one request: an answer has all producers of each

T = TypeVar("T")
Asked = dict[TopicPartition, T | ApiError]


class PartitionLeaders:
    """Asks the leaders of partitions, again where they moved or have an error that passes."""

    def __init__(
        self, connections: Connections, metadata: MetadataCache, retry: RetryPolicy, rng: Random
    ) -> None:
        self._connections = connections
        self._metadata = metadata
        self._retry = retry
        self._rng = rng

    async def producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """The producers of each partition, by id. Raises UnknownTopicOrPartitionError at once,
        other errors of the table when they are final, or the time is up."""
        return await self._ask_until_all(list(dict.fromkeys(partitions)), self._describe)

    async def abort(
        self, partition: TopicPartition, producer_id: int, producer_epoch: int, epoch: int
    ) -> None:
        """Writes the marker that aborts an open transaction; `epoch` is the coordinator's.

        The marker has the producer's next epoch (KIP-890). Raises InvalidRequestError,
        InvalidProducerEpochError and TransactionCoordinatorFencedError.
        """
        if not 0 <= producer_epoch <= _LAST_EPOCH:
            raise InvalidRequestError(
                f"an open transaction has an epoch of 0 to {_LAST_EPOCH}, not {producer_epoch}:"
                " take that of describe-producers"
            )
        request = pb.WriteTxnMarkersRequest()
        marker = request.markers.add(
            producer_id=producer_id, producer_epoch=producer_epoch + 1, coordinator_epoch=epoch
        )
        marker.topics.add(name=partition.topic, partitions=[partition.partition])

        async def ask(address: str, _: list[TopicPartition]) -> Asked[None]:
            answer = await self._connections.call(
                address, _MARKERS, request, pb.WriteTxnMarkersResponse.FromString
            )
            return {
                TopicPartition(topic.name, item.partition_index): _error(item)
                for found in answer.markers
                for topic in found.topics
                for item in topic.partitions
            }

        await self._ask_until_all([partition], ask)

    async def _describe(
        self, address: str, partitions: list[TopicPartition]
    ) -> Asked[tuple[ProducerState, ...]]:
        request = pb.DescribeProducersRequest(topics=_by_topic(partitions))
        answer = await self._connections.call(
            address, _DESCRIBE, request, pb.DescribeProducersResponse.FromString
        )
        return {
            TopicPartition(topic.name, item.partition_index): _error(item)
            or tuple(map(_producer, item.active_producers))
            for topic in answer.topics
            for item in topic.partitions
        }

    # --- rounds

    async def _ask_until_all(
        self,
        partitions: list[TopicPartition],
        ask: Callable[[str, list[TopicPartition]], Awaitable[Asked[T]]],
    ) -> dict[TopicPartition, T]:
        found: dict[TopicPartition, T] = {}
        started_ms, tries = monotonic_ms(), 0
        while missing := [each for each in partitions if each not in found]:
            problem = await self._round(missing, ask, found)
            if problem is None:
                continue
            tries += 1
            elapsed_ms = monotonic_ms() - started_ms
            wait_ms = self._retry.next_wait_ms(problem, tries, elapsed_ms, self._rng)
            if wait_ms is None or isinstance(problem, UnknownTopicOrPartitionError):
                raise problem
            self._metadata.mark_stale()
            await asyncio.sleep(wait_ms / 1000)
        return {partition: found[partition] for partition in partitions}

    async def _round(
        self,
        missing: list[TopicPartition],
        ask: Callable[[str, list[TopicPartition]], Awaitable[Asked[T]]],
        found: dict[TopicPartition, T],
    ) -> ApiError | None:
        """Asks each leader once. Returns the worst error of partitions still without an answer."""
        self._metadata.look_up(partition.topic for partition in missing)
        try:
            await self._metadata.ensure_fresh()
        except ApiError as error:
            return error
        problems: list[ApiError] = []
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in missing:
            leader = self._metadata.leader(partition)
            if leader is None:
                problems.append(self._why_no_leader(partition))
            elif len(asked := by_leader.setdefault(leader, [])) < _PARTITIONS_MAX:
                asked.append(partition)  # the rest is missing in the next round, too
        answers = await asyncio.gather(
            *(self._ask_one(leader, asked, ask) for leader, asked in by_leader.items())
        )
        for partition, result in (item for answer in answers for item in answer.items()):
            if isinstance(result, ApiError):
                problems.append(result)
            else:
                found[partition] = result
        return min(problems, key=_worst_first, default=None)

    async def _ask_one(
        self,
        leader: int,
        partitions: list[TopicPartition],
        ask: Callable[[str, list[TopicPartition]], Awaitable[Asked[T]]],
    ) -> Asked[T]:
        address = self._metadata.address(leader)
        try:
            if address is None:
                raise NetworkError(f"broker {leader} is not alive")
            answer = await ask(address, partitions)
        except ApiError as error:
            return dict.fromkeys(partitions, error)
        silent = UnknownServerError(f"{address}: the answer leaves out partitions")
        results: Asked[T] = {}
        for partition in partitions:
            result = answer.get(partition, silent)
            if isinstance(result, UnknownTopicOrPartitionError):
                # The leader has not heard of it yet, or not any more: the metadata decides.
                result = LeaderNotAvailableError(str(result))
            results[partition] = result
        return results

    def _why_no_leader(self, partition: TopicPartition) -> ApiError:
        count = self._metadata.partition_count(partition.topic)
        if count is None or not 0 <= partition.partition < count:
            return UnknownTopicOrPartitionError(f"{partition} is unknown")
        return LeaderNotAvailableError(f"{partition} has no leader at the moment")


def _worst_first(error: ApiError) -> int:
    if not error.retriable:
        return 0
    return 1 if isinstance(error, UnknownTopicOrPartitionError) else 2


def _error(
    item: pb.DescribeProducersResponse.Partition | pb.WriteTxnMarkersResponse.Partition,
) -> ApiError | None:
    return error_for(item.error_code, item.error_message) if item.error_code else None


def _producer(state: pb.DescribeProducersResponse.ProducerState) -> ProducerState:
    def known(value: int) -> int | None:
        return None if value < 0 else value

    return ProducerState(
        state.producer_id,
        state.producer_epoch,
        known(state.last_sequence),
        state.last_timestamp_ms,
        known(state.coordinator_epoch),
        known(state.current_txn_start_offset),
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterator[pb.TxnTopic]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return (pb.TxnTopic(name=topic, partitions=found) for topic, found in topics.items())
