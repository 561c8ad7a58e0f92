"""Ends transactions in the logs of partitions that this broker leads, and tells who writes there.

A marker has a higher epoch than the transaction that it ends (KIP-890). So one that comes twice, or
late, is known: the log is past it, and it is not written into the next transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from commitlog.segment.producer_state import ProducerEntry
from commitlog.types import AppendOrigin
from coordinator.runtime.runtime import CoordinatorRuntime
from node.coordination.leaderships import LedPartition
from node.coordination.verification import partitions_in
from node.partition.hosted import HostedPartition
from node.partition.registry import PartitionRegistry
from node.runtime.clock import Clock
from node.serving.produce import ProduceHandler
from tidemark.errors import (
    ApiError,
    ErrorCode,
    InvalidProducerEpochError,
    InvalidRequestError,
    TransactionCoordinatorFencedError,
    code_of,
    error_for,
    set_error,
)
from tidemark.records.control import EndTransactionMarker, encode_control_batch
from tidemark.types import GROUP_TOPIC, TopicPartition
from tidemark.v1 import transaction_pb2 as pb

logger = logging.getLogger(__name__)

_PATIENCE_S = 0.2  # for the replicas of one marker: it holds up others of the same request
_MAX_EPOCH = 2**15 - 1
_MARKERS_MAX = 100_000  # of one request, counted by partition

_REMEMBERED_MAX = 10_000  # markers that no answer told of yet

_Marker = tuple[TopicPartition, int, int, int]
"""A marker in a log, by the producer's id and epoch, and the leader's epoch."""


class MarkerWriter:
    """One per broker."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        produce: ProduceHandler,
        groups: CoordinatorRuntime[Any],
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._produce = produce
        self._groups = groups
        self._clock = clock
        self._commits: dict[_Marker, asyncio.Future[ErrorCode]] = {}

    async def write(self, request: pb.WriteTxnMarkersRequest) -> pb.WriteTxnMarkersResponse:
        """Answers when the markers are committed, or after a moment: REQUEST_TIMED_OUT, and the
        same marker may be sent again. Raises InvalidRequestError."""
        wanted = [
            (marker, partition)
            for marker in request.markers
            for partition in partitions_in(marker.topics)
        ]
        if len(wanted) > _MARKERS_MAX:
            raise InvalidRequestError(
                f"{len(wanted)} markers in one request: {_MARKERS_MAX} are allowed"
            )
        outcomes = iter(await asyncio.gather(*(self._one(*each) for each in wanted)))
        answer = pb.WriteTxnMarkersResponse()
        for marker in request.markers:
            answered = answer.markers.add()
            for topic in marker.topics:
                told = answered.topics.add(name=topic.name)
                for number in topic.partitions:
                    code, message = next(outcomes)
                    told.partitions.add(
                        partition_index=number, error_code=int(code), error_message=message
                    )
        return answer

    async def _one(
        self, marker: pb.WriteTxnMarkersRequest.Marker, partition: TopicPartition
    ) -> tuple[ErrorCode, str]:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._write(marker, partition)
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT, f"{partition}: its replicas do not have the marker"
        except ApiError as error:
            return code_of(error), str(error)
        return ErrorCode.NONE, ""

    async def _write(
        self, marker: pb.WriteTxnMarkersRequest.Marker, partition: TopicPartition
    ) -> None:
        if marker.producer_id < 0 or not 0 <= marker.producer_epoch <= _MAX_EPOCH:
            raise InvalidRequestError(
                f"a marker of producer {marker.producer_id} with epoch {marker.producer_epoch}"
            )
        hosted = self._partitions.get(*partition)
        hosted.core.check_leader()
        if _is_missing(marker, partition, hosted):
            if partition.topic == GROUP_TOPIC:
                self._groups.end_transaction(
                    partition.partition,
                    lambda: self._append(marker, hosted),
                    marker.producer_id,
                    marker.committed,
                )
            else:
                self._append(marker, hosted)
        led = LedPartition(hosted, self._produce, None)
        key = partition, marker.producer_id, marker.producer_epoch, led.leader_epoch
        code = await asyncio.shield(self._committed(key, led))
        self._commits.pop(key, None)
        if code != ErrorCode.NONE:
            raise error_for(code)

    def _committed(self, key: _Marker, led: LedPartition) -> asyncio.Future[ErrorCode]:
        """Ends when everything that the log has now is committed. A marker that comes again waits
        for the same end: the present end of a busy log is always some time ahead."""
        found = self._commits.get(key)
        if found is None:
            if len(self._commits) >= _REMEMBERED_MAX:
                del self._commits[next(iter(self._commits))]
            found = self._commits[key] = asyncio.get_running_loop().create_future()
            led.when_committed(led.end_offset, found.set_result)
        return found

    def _append(self, marker: pb.WriteTxnMarkersRequest.Marker, hosted: HostedPartition) -> None:
        batch = encode_control_batch(
            [EndTransactionMarker(marker.committed, marker.coordinator_epoch)],
            base_offset=0,
            timestamp_ms=self._clock.wall_ms(),
            partition_leader_epoch=-1,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
        )
        self._produce.append(hosted, batch, AppendOrigin.COORDINATOR)

    def describe(self, topics: Iterable[pb.TxnTopic]) -> pb.DescribeProducersResponse:
        """The producers that partitions know."""
        answer = pb.DescribeProducersResponse()
        for topic in topics:
            told = answer.topics.add(name=topic.name)
            for number in topic.partitions:
                found = told.partitions.add(partition_index=number)
                try:
                    hosted = self._partitions.get(topic.name, number)
                    hosted.core.check_leader()
                except ApiError as error:
                    set_error(found, error)
                    continue
                known = sorted(hosted.log.producers.producers.items())
                found.active_producers.extend(_described(entry) for _, entry in known)
        return answer


def _is_missing(
    marker: pb.WriteTxnMarkersRequest.Marker, partition: TopicPartition, hosted: HostedPartition
) -> bool:
    """Whether the log needs the marker, which ends the transaction of the epoch before its own.
    Raises TransactionCoordinatorFencedError for one of an earlier coordinator, and
    InvalidProducerEpochError if a later transaction is open."""
    known = hosted.log.producers.producers.get(marker.producer_id)
    if known is None:
        return True
    if marker.coordinator_epoch < known.coordinator_epoch:
        raise TransactionCoordinatorFencedError(
            f"{partition}: a marker of coordinator epoch {marker.coordinator_epoch} comes behind"
            f" one of {known.coordinator_epoch}"
        )
    if known.current_txn_first_offset is None:
        return known.producer_epoch < marker.producer_epoch
    if known.producer_epoch < marker.producer_epoch - 1:  # it hangs, and its outcome is not this
        logger.warning(
            "%s: a transaction of producer %d and epoch %d is open since offset %d, whose end was"
            " lost: `tidemark transactions abort` ends it",
            partition,
            marker.producer_id,
            known.producer_epoch,
            known.current_txn_first_offset,
        )
        return False
    if known.producer_epoch >= marker.producer_epoch:
        raise InvalidProducerEpochError(
            f"{partition}: producer {marker.producer_id} has a transaction of epoch"
            f" {known.producer_epoch} open, and a marker of epoch {marker.producer_epoch} ends none"
        )
    return True


def _described(entry: ProducerEntry) -> pb.DescribeProducersResponse.ProducerState:
    first = entry.current_txn_first_offset
    return pb.DescribeProducersResponse.ProducerState(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_timestamp_ms=entry.last_timestamp_ms,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=-1 if first is None else first,
    )
