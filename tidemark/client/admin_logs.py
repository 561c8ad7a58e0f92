"""The part of the admin client that changes logs: deleting records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tidemark.client.admin_calls import AdminCalls, Final
from tidemark.errors import (
    ApiError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
    raise_for,
)
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2

DELETE_RECORDS = "/tidemark.v1.Log/DeleteRecords"


class LogAdmin(AdminCalls):
    """Deletes records; see AsyncAdmin."""

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes the records below an offset of each partition (-1: below the high watermark) and
        gives the low watermarks: no live replica begins below them.

        Raises the first partition's error: OffsetOutOfRangeError, PolicyViolationError (a topic
        that is only compacted), UnknownTopicOrPartitionError.
        """
        found = await asyncio.gather(
            *(self._delete_in(p, offset, timeout_ms) for p, offset in offsets.items())
        )
        return dict(zip(offsets, found, strict=True))

    async def _delete_in(
        self, partition: TopicPartition, offset: int, timeout_ms: int | None
    ) -> int:
        request = log_pb2.DeleteRecordsRequest(timeout_ms=self._connections.request_timeout_ms)
        request.partitions.add(
            topic=partition.topic, partition_index=partition.partition, offset=offset
        )

        async def attempt(_: str) -> int:
            address = await self._leader_address(partition)
            try:
                answer = await self._connections.call(
                    address, DELETE_RECORDS, request, log_pb2.DeleteRecordsResponse.FromString
                )
                (result,) = answer.partitions
                raise_for(result.error_code, result.error_message)
            except ApiError:
                self._metadata.mark_stale()
                raise
            return int(result.low_watermark)

        return await self._with_retries(attempt, timeout_ms)

    async def _leader_address(self, partition: TopicPartition) -> str:
        self._metadata.want([partition.topic])
        await self._metadata.ensure_fresh()
        leader = self._metadata.leader(partition)
        address = None if leader is None else self._metadata.address(leader)
        if address is not None:
            return address
        self._metadata.mark_stale()
        count = self._metadata.partition_count(partition.topic)
        if count is None or not 0 <= partition.partition < count:
            raise Final(UnknownTopicOrPartitionError(f"{partition} is unknown"))
        raise LeaderNotAvailableError(f"{partition} has no leader at the moment")
