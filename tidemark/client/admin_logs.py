"""Administration of logs: deletes records, finds offsets, moves replicas between directories."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tidemark.client.admin_calls import AdminCalls, Final
from tidemark.client.models import OffsetAndTimestamp, OffsetSpec, TopicPartitionReplica
from tidemark.client.offsets import OffsetLookup
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
    """Part of AsyncAdmin about logs: deletes records, finds offsets, moves replicas on disk."""

    async def alter_replica_log_dirs(
        self, moves: Mapping[TopicPartitionReplica, str]
    ) -> dict[TopicPartitionReplica, ApiError | None]:
        """Begins to move replicas to directories of their brokers' log.dirs (KIP-113).

        Naming the directory that a replica is in ends its move. `describe_log_dirs` shows the
        progress.

        Returns None for each replica whose move was accepted, else its error:

        - LogDirNotFoundError: the broker has no such directory;
        - KafkaStorageError: the replica or the directory is offline;
        - InvalidTopicError: the name is too long;
        - ReplicaNotAvailableError: the broker will make the replica there when it gets it.
        """
        await self._refresh_metadata()
        by_broker: dict[int, dict[TopicPartitionReplica, str]] = {}
        for replica, path in moves.items():
            by_broker.setdefault(replica.broker_id, {})[replica] = path
        found: dict[TopicPartitionReplica, ApiError | None] = {}
        for answers in await asyncio.gather(*(self._move_on(b, m) for b, m in by_broker.items())):
            found |= answers
        return found

    async def _move_on(
        self, broker_id: int, moves: Mapping[TopicPartitionReplica, str]
    ) -> dict[TopicPartitionReplica, ApiError | None]:
        request = admin_pb2.AlterReplicaLogDirsRequest()
        for replica, path in moves.items():
            topic = request.dirs.add(path=path).topics.add(name=replica.topic_partition.topic)
            topic.partitions.append(replica.topic_partition.partition)
        response = admin_pb2.AlterReplicaLogDirsResponse

        async def attempt(_: str) -> dict[TopicPartitionReplica, ApiError | None]:
            address = self._metadata.address(broker_id)
            if address is None:
                await self._metadata.refresh()
                raise NetworkError(f"broker {broker_id} is not alive")
            try:
                answer = await self._send(address, request, response)
            except (NetworkError, RequestTimedOutError):
                await self._metadata.refresh()
                raise
            return {
                TopicPartitionReplica(
                    TopicPartition(topic.topic_name, p.partition_index), broker_id
                ): None if not p.error_code else error_for(p.error_code, p.error_message)
                for topic in answer.results
                for p in topic.partitions
            }

        return await self._with_retries(attempt)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes the records below an offset of each partition (-1: below the high watermark).

        Returns the low watermarks: no live replica begins below them. Raises the first partition's
        error: OffsetOutOfRangeError, PolicyViolationError (a topic that is only compacted),
        UnknownTopicOrPartitionError.
        """
        found = await asyncio.gather(
            *(self._delete_in(p, offset, timeout_ms) for p, offset in offsets.items())
        )
        return dict(zip(offsets, found, strict=True))

    async def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int | OffsetSpec],
        *,
        read_committed: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Offset of each partition for a timestamp (ms) or an OffsetSpec; None if there is none.

        A timestamp finds the first record at or after it. LATEST is the high watermark, with
        `read_committed` the last stable offset.

        Raises ValueError for a number that is neither, UnknownTopicOrPartitionError, and
        LeaderNotAvailableError after the timeout.
        """
        for partition, asked in wanted.items():
            if asked < 0:
                try:
                    OffsetSpec(asked)
                except ValueError as error:
                    raise ValueError(
                        f"{partition}: {asked} is no timestamp and no OffsetSpec"
                    ) from error
        lookup = OffsetLookup(
            self._connections,
            self._metadata,
            retry=self._retry,
            rng=self._rng,
            isolation_level=int(read_committed),
        )
        asked_for = {partition: int(asked) for partition, asked in wanted.items()}
        return await lookup.list_offsets(asked_for, timeout_ms)

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
        self._metadata.look_up([partition.topic])
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
