"""The part of the admin client that changes logs: deleting records, moving replicas between the
directories of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tidemark.client.admin_calls import AdminCalls, Final
from tidemark.errors import (
    ApiError,
    LeaderNotAvailableError,
    NetworkError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    error_for,
    raise_for,
)
from tidemark.types import TopicPartition
from tidemark.v1 import admin_pb2, log_pb2

DELETE_RECORDS = "/tidemark.v1.Log/DeleteRecords"


class LogAdmin(AdminCalls):
    """Deletes records and moves replicas; see AsyncAdmin."""

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

    async def alter_replica_log_dirs(
        self,
        broker_id: int,
        moves: Mapping[TopicPartition, str],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Begins to move replicas of a broker to other directories of its log.dirs; returns when
        the broker has begun. `describe_log_dirs` tells when they are there.

        Raises the first replica's error: LogDirNotFoundError, ReplicaNotAvailableError,
        KafkaStorageError.
        """
        request = admin_pb2.AlterReplicaLogDirsRequest()
        for partition, log_dir in moves.items():
            request.moves.add(
                topic=partition.topic, partition_index=partition.partition, log_dir=log_dir
            )
        await self._refresh_metadata()

        async def attempt(_: str) -> None:
            address = self._metadata.address(broker_id)
            if address is None:
                await self._metadata.refresh()
                raise NetworkError(f"broker {broker_id} is not alive")
            try:
                answer = await self._send(
                    address,
                    "AlterReplicaLogDirs",
                    request,
                    admin_pb2.AlterReplicaLogDirsResponse,
                )
            except (NetworkError, RequestTimedOutError):
                await self._metadata.refresh()
                raise
            for result in answer.results:
                if result.error_code:
                    raise Final(error_for(result.error_code, result.error_message))

        await self._with_retries(attempt, timeout_ms)
