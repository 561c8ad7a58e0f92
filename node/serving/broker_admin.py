"""DescribeLogDirs and AlterReplicaLogDirs: the part of the Admin service that answers from own
disks.

It implements `quorum.services.admin_service.LogDirAdmin`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from commitlog.manager.manager import LogManager
from commitlog.moves.future_log import FutureLog
from node.partition.hosted import HostedPartition
from node.partition.registry import PartitionRegistry
from node.upkeep.directory_mover import DirectoryMover
from tidemark.errors import ApiError, ErrorCode, StorageError, TidemarkError, set_error
from tidemark.types import TopicPartition
from tidemark.v1 import admin_pb2
from tiering.manager import RemoteLogManager

logger = logging.getLogger(__name__)


class BrokerLogDirs:
    """`tier` is None without tiered storage; `uncleanable` has the logs that the cleaner gave up,
    with reasons."""

    def __init__(
        self,
        *,
        partitions: PartitionRegistry,
        logs: LogManager,
        tier: RemoteLogManager | None,
        mover: DirectoryMover,
        uncleanable: Mapping[TopicPartition, str],
    ) -> None:
        self._uncleanable = uncleanable
        self._mover = mover
        self._partitions = partitions
        self._logs = logs
        self._tier = tier

    async def describe_log_dirs(
        self, request: admin_pb2.DescribeLogDirsRequest
    ) -> admin_pb2.DescribeLogDirsResponse:
        """Sizes and offsets of this node's replicas, including their sizes in the tier.

        A directory that is offline has only an error.
        """
        wanted = set(request.topics)
        hosted = [p for p in self._partitions if not wanted or p.topic_partition.topic in wanted]
        sizes = await asyncio.gather(*(self._remote_size(p) for p in hosted))
        response = admin_pb2.DescribeLogDirsResponse()
        for directory in self._logs.directories:
            result = response.results.add(log_dir=str(directory.path))
            try:
                usage = directory.usage()
            except (StorageError, OSError) as error:  # its disk may fail only now
                result.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)  # type: ignore[assignment]
                result.error_message = directory.failure or str(error)
                continue
            result.total_bytes, result.usable_bytes = usage.total_bytes, usage.free_bytes
            for partition, remote_bytes in zip(hosted, sizes, strict=True):
                if self._logs.directory_of(partition.topic_partition) is directory:
                    self._describe(result, partition, remote_bytes)
            for future in self._logs.moves.all():
                if self._logs.moves.destination_of(future.topic_partition) is directory and (
                    not wanted or future.topic_partition.topic in wanted
                ):
                    _describe_future(result, future)
        return response

    async def alter_replica_log_dirs(
        self, request: admin_pb2.AlterReplicaLogDirsRequest
    ) -> admin_pb2.AlterReplicaLogDirsResponse:
        """Starts moves between the directories of this node; each partition has its own answer."""
        response = admin_pb2.AlterReplicaLogDirsResponse()
        topics: dict[str, admin_pb2.AlterReplicaLogDirsResponse.Topic] = {}
        for directory in request.dirs:
            for topic in directory.topics:
                if topic.name not in topics:
                    topics[topic.name] = response.results.add(topic_name=topic.name)
                for index in topic.partitions:
                    answer = topics[topic.name].partitions.add(partition_index=index)
                    try:
                        self._mover.alter(TopicPartition(topic.name, index), directory.path)
                    except ApiError as error:
                        set_error(answer, error)
                    await asyncio.sleep(0)  # each creates a directory durably
        return response

    def failed_tasks(self, count: int) -> list[admin_pb2.DescribeNodeResponse.FailedTask]:
        """Tasks of the tier whose last try failed, the worst first."""
        failed = [] if self._tier is None else self._tier.metrics.failed_tasks.worst(count)
        return [
            admin_pb2.DescribeNodeResponse.FailedTask(
                task=one.task,
                topic=one.partition.topic,
                partition_index=one.partition.partition,
                failures=one.failures,
                since_ms=one.since_ms,
                last_error=one.error,
            )
            for one in failed
        ]

    async def _remote_size(self, hosted: HostedPartition) -> int:
        if self._tier is None or not hosted.config.remote_storage_enable:
            return 0
        try:
            return await self._tier.remote_log_size(hosted.core.identity)
        except TidemarkError as error:
            logger.info("%s: remote size unknown: %s", hosted.topic_partition, error)
            return 0

    def _describe(
        self,
        result: admin_pb2.DescribeLogDirsResponse.LogDir,
        hosted: HostedPartition,
        remote_bytes: int,
    ) -> None:
        local, core = hosted.log, hosted.core
        described = result.partitions.add(
            topic=hosted.topic_partition.topic,
            partition_index=hosted.topic_partition.partition,
            partition_size=local.size_bytes,
            offset_lag=max(0, core.high_watermark - local.log_end_offset),
            is_leader=hosted.is_leader,
            log_start_offset=local.log_start_offset,
            local_log_start_offset=local.local_log_start_offset,
            highest_remote_offset=local.highest_remote_offset,
            high_watermark=core.high_watermark,
            log_end_offset=local.log_end_offset,
            remote_log_size_bytes=remote_bytes,
            uncleanable_reason=self._uncleanable.get(hosted.topic_partition, ""),
        )
        if self._tier is not None and hosted.config.remote_storage_enable and hosted.is_leader:
            lag = self._tier.copy_lag(core.identity)
            described.remote_copy_lag_bytes = lag.bytes
            described.remote_copy_lag_segments = lag.segments


def _describe_future(result: admin_pb2.DescribeLogDirsResponse.LogDir, future: FutureLog) -> None:
    result.partitions.add(
        topic=future.topic_partition.topic,
        partition_index=future.topic_partition.partition,
        partition_size=future.size_bytes,
        offset_lag=future.lag,
        log_start_offset=future.current.log_start_offset,
        local_log_start_offset=future.current.local_log_start_offset,
        highest_remote_offset=-1,
        high_watermark=future.current.high_watermark,
        log_end_offset=future.end_offset,
        is_future=True,
    )
