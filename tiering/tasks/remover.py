"""The remote partition remover (KIP-405): deletes the remote segments of deleted topics.

The broker that leads a partition of the metadata topic removes the user partitions recorded in it:
DELETE_PARTITION_MARKED, DELETE_PARTITION_STARTED, every segment, DELETE_PARTITION_FINISHED. Each
step may be repeated, so a restart, another owner, or two owners at once continue from the records.

The last leader of a deleted partition marks it at once. Nobody does if that broker is down, so the
owner marks too: a partition whose topic id the cluster's metadata lacks. A broker that lags behind
lacks new topics as well. So a topic counts as deleted only after two looks, at least
`ABSENCE_GRACE_MS` apart, missed it, and the metadata advanced between them.
A topic of the same name has another id and is never touched.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from tidemark.config import ServerConfig
from tidemark.errors import TidemarkError
from tidemark.types import REMOTE_LOG_METADATA_TOPIC, TopicIdPartition, TopicPartition
from tiering.errors import RemoteResourceNotFoundError
from tiering.failing import REMOVE, FailedTasks
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.metadata.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tiering.tasks.deleter import SegmentDeleter
from tiering.tasks.leases import Leases

logger = logging.getLogger(__name__)

ABSENCE_GRACE_MS = 600_000
"""Time for which a topic must be absent from the metadata before the owner takes it as deleted."""
UPLOAD_GRACE_MS = 3_600_000
"""Time for which an unfinished copy of a deleted topic is kept: its upload may be under way."""

_D = RemotePartitionDeleteState


class TierCluster(Protocol):
    """The cluster's metadata as this node has applied it."""

    @property
    def metadata_offset(self) -> int:
        """Offset of the last record applied, -1 before the first."""
        ...

    def leader_of(self, topic_partition: TopicPartition) -> tuple[int, int] | None:
        """(leader, epoch) of a partition; None if it is unknown."""
        ...

    def topic_name(self, topic_id: UUID) -> str | None:
        """Name of the topic with this id, None if there is no such topic."""
        ...


class _NoCluster:
    """Metadata that is never there: nothing is owned, so nothing is removed."""

    metadata_offset = -1

    def leader_of(self, topic_partition: TopicPartition) -> tuple[int, int] | None:
        return None

    def topic_name(self, topic_id: UUID) -> str | None:
        return None


NO_CLUSTER: TierCluster = _NoCluster()


class PartitionRemover:
    """The remover of one node; `run` never returns by itself."""

    def __init__(
        self,
        config: ServerConfig,
        metadata: RemoteLogMetadataManager,
        deleter: SegmentDeleter,
        leases: Leases,
        cluster: TierCluster,
        now_ms: Callable[[], int],
        rng: random.Random,
        failed_tasks: FailedTasks | None = None,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._deleter = deleter
        self._leases = leases
        self._cluster = cluster
        self._now_ms = now_ms
        self._random = rng
        self._failed = failed_tasks or FailedTasks()
        self._absent: dict[TopicIdPartition, tuple[float, int]] = {}
        self._unfinished: dict[UUID, float] = {}

    async def run(self) -> None:
        """Makes a pass each remote.partition.remover.task.interval.ms, and earlier after a
        failure.
        """
        config, failures = self._config, 0
        while True:
            failures = 0 if await self.remove_once() else failures + 1
            wait_ms = float(config.remote_partition_remover_task_interval_ms)
            if failures:
                backoff_ms = config.remote_log_manager_task_retry_backoff_ms * 2 ** min(
                    failures, 20
                )
                jitter = config.remote_log_manager_task_retry_jitter
                longest_ms = config.remote_log_manager_task_retry_backoff_max_ms
                backoff_ms = min(backoff_ms, longest_ms)
                wait_ms = min(wait_ms, backoff_ms * self._random.uniform(1 - jitter, 1 + jitter))
            await asyncio.sleep(wait_ms / 1000)

    async def mark(self, partition: TopicIdPartition) -> None:
        """Records that the partition's topic was deleted. Raises the errors of the metadata."""
        if self._metadata.partition_deletion(partition) is None:
            await self._record(partition, _D.DELETE_PARTITION_MARKED)

    async def remove_once(self) -> bool:
        """Makes a pass over the partitions owned here; returns whether all were known, and none
        failed.
        """
        owned, complete = self._metadata.recorded_partitions(self._leads)
        gone = [partition for partition in owned if self._is_gone(partition)]
        self._absent = {p: seen for p, seen in self._absent.items() if p in set(gone)}
        self._failed.keep(REMOVE, set(gone))
        for partition in gone:
            try:
                await self._remove(partition)
                self._failed.succeed(REMOVE, partition)
            except Exception as error:  # a plug-in may raise anything; the next pass tries again
                self._failed.fail(REMOVE, partition, error)
                level = logging.WARNING if isinstance(error, TidemarkError | OSError) else 40
                logger.log(level, "removing %s from the tier: %r", partition, error)
                complete = False
        return complete

    def _leads(self, metadata_partition: int) -> bool:
        found = self._cluster.leader_of(
            TopicPartition(REMOTE_LOG_METADATA_TOPIC, metadata_partition)
        )
        return found is not None and found[0] == self._config.node_id

    def _is_gone(self, partition: TopicIdPartition) -> bool:
        """Whether the partition is marked and not removed, or absent with segments."""
        deletion = self._metadata.partition_deletion(partition)
        if deletion is not None:
            return deletion.state is not _D.DELETE_PARTITION_FINISHED
        return (
            self._cluster.metadata_offset >= 0
            and self._cluster.topic_name(partition.topic_id) is None
            and bool(self._metadata.list_remote_log_segments(partition))
        )

    async def _remove(self, partition: TopicIdPartition) -> None:
        deletion = self._metadata.partition_deletion(partition)
        if deletion is None:
            if not self._is_confirmed(partition):
                return
            logger.warning("%s is gone and was not marked: its leader was down", partition)
            await self._record(partition, _D.DELETE_PARTITION_MARKED)
        if deletion is None or deletion.state is _D.DELETE_PARTITION_MARKED:
            await self._record(partition, _D.DELETE_PARTITION_STARTED)
        left = 0
        for segment in self._metadata.list_remote_log_segments(partition):
            if self._may_be_uploading(segment):
                left += 1
                continue
            try:
                await self._deleter.delete(segment)
            except RemoteResourceNotFoundError:
                logger.debug("%s was removed by another owner", segment.remote_log_segment_id)
            self._unfinished.pop(segment.id, None)
        if left:
            logger.info("%s: %d copies may still be uploading", partition, left)
            return
        await self._leases.forget(partition)
        await self._record(partition, _D.DELETE_PARTITION_FINISHED)
        logger.info("removed %s from the tier", partition)

    def _is_confirmed(self, partition: TopicIdPartition) -> bool:
        """Whether the topic was absent for the grace, in metadata that advanced meanwhile."""
        now, offset = asyncio.get_running_loop().time(), self._cluster.metadata_offset
        since, first_offset = self._absent.setdefault(partition, (now, offset))
        return (now - since) * 1000 >= ABSENCE_GRACE_MS and offset > first_offset

    def _may_be_uploading(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether the copy was begun, and its upload not given the time to end. The time counts
        from when this node first saw it, since clocks of brokers differ.
        """
        if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            return False
        now = asyncio.get_running_loop().time()
        return (now - self._unfinished.setdefault(segment.id, now)) * 1000 < UPLOAD_GRACE_MS

    async def _record(self, partition: TopicIdPartition, state: _D) -> None:
        step = RemotePartitionDeleteMetadata(partition, state, self._now_ms(), self._config.node_id)
        await self._metadata.put_remote_partition_delete_metadata(step)
