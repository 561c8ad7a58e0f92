"""The expiration task of a leader: retention in the tier, and the remains of earlier failures
(KIP-405).

Copies that can not be finished any more are deleted first. The plan is made after the tier's
contents are known, since a fresh leader would delete too much otherwise. Then the log start moves,
and segments are deleted from the oldest on. So a reader whose offset is refused already sees the
new log start (RULES.md rule 10). Segments that a job holds wait for the end of its lease. Without
cleanup.policy=delete nothing is too old, or too much.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from commitlog.log.expiration import delete_expired
from tidemark.config import ServerConfig
from tidemark.surroundings import surroundings
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.metadata.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tiering.metrics import CopyLag
from tiering.tasks import planner
from tiering.tasks.copier import Copier
from tiering.tasks.deleter import SegmentDeleter
from tiering.tasks.leases import Leases
from tiering.tasks.partition import TieredPartition
from tiering.tasks.unrecorded import UnrecordedSegments

logger = logging.getLogger(__name__)

_DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED

DANGLING_GRACE_MS = 3_600_000
"""Age up to which another broker's unfinished copy is kept: it may still be uploading."""


class Expirer:
    """Retention in the tier for all partitions this node leads."""

    def __init__(
        self,
        config: ServerConfig,
        metadata: RemoteLogMetadataManager,
        copier: Copier,
        deleter: SegmentDeleter,
        unrecorded: UnrecordedSegments,
        leases: Leases,
        now_ms: Callable[[], int],
        mono_ms: Callable[[], int] | None = None,
    ) -> None:
        self._broker_id = config.node_id
        self._metadata = metadata
        self._copier = copier
        self._deleter = deleter
        self._unrecorded = unrecorded
        self._leases = leases
        self._now_ms = now_ms
        self._mono_ms = mono_ms or surroundings().mono_ms  # a wall clock may jump

    async def expire(self, hosted: TieredPartition) -> None:
        """Makes a leader's pass. Raises the error that stops it; the next pass starts over."""
        partition, log = hosted.partition, hosted.log
        if not self._metadata.is_ready(partition):
            return
        first = self._first_available(hosted)
        if first > log.log_start_offset:
            await self._unrecorded.check(partition, first)
            if not hosted.is_leader:
                return
        self._raise_log_start(hosted)
        await self._delete_dangling(hosted)
        highest = self._copier.learn(hosted)
        tier = self._metadata.remote_segments(partition)
        plan = planner.plan_expiration(
            tier, hosted.lineage(), self._retention(hosted, highest), self._now_ms()
        )
        hosted.delete_lag = _lag(plan.delete)
        if plan.log_start_offset is not None:
            if not hosted.is_leader or plan.log_start_offset > log.high_watermark:
                return  # a new leader's high watermark is behind for a moment
            log.increment_log_start_offset(plan.log_start_offset)
        started = [s for s in plan.delete if s.state is _DELETE_STARTED]  # no plan names them
        others = [s for s in plan.delete if s.state is not _DELETE_STARTED]
        free = await self._leases.unheld(partition, others)
        await self._delete(hosted, [*started, *free], lambda: hosted.is_leader)
        if plan.delete and hosted.is_leader:
            delete_expired(log, self._now_ms())

    async def clear(self, hosted: TieredPartition) -> None:
        """Deletes all that the tier has of a partition whose tiering was switched off (KIP-950).

        The log begins on this disk before anything goes. Ends when tiering is switched on again.
        Raises the error that stops it; the next pass goes on.
        """
        partition, log = hosted.partition, hosted.log
        if (
            not self._metadata.is_ready(partition)
            or log.local_log_start_offset > log.high_watermark
        ):
            return
        log.increment_log_start_offset(log.local_log_start_offset)
        self._copier.forget_unfinished(hosted)
        await self._delete_dangling(hosted)
        segments = planner.plan_clearing(self._metadata.remote_segments(partition))
        await self._delete(
            *(hosted, segments),
            lambda: hosted.is_leader and not log.config.remote_storage_enable,
        )

    async def _delete(
        self,
        hosted: TieredPartition,
        segments: Sequence[RemoteLogSegmentMetadata],
        goes_on: Callable[[], bool],
    ) -> None:
        hosted.delete_lag = _lag(segments)
        for segment in segments:
            if not goes_on():
                return
            await self._deleter.delete(segment)
            lag = hosted.delete_lag
            hosted.delete_lag = CopyLag(lag.bytes - segment.segment_size_bytes, lag.segments - 1)

    async def _delete_dangling(self, hosted: TieredPartition) -> None:
        now_ms = self._mono_ms()
        segments = self._metadata.remote_segments(hosted.partition).unfinished()
        hosted.unfinished_since = since_ms = planner.unfinished_since(
            segments, hosted.unfinished_since, now_ms
        )
        for segment in planner.dangling_copies(
            *(segments, self._broker_id, now_ms, DANGLING_GRACE_MS, since_ms),
            lambda segment: self._copier.in_flight(hosted, segment),
        ):
            logger.info("deleting unfinished copy %s", segment.remote_log_segment_id)
            await self._deleter.delete(segment)

    def _raise_log_start(self, hosted: TieredPartition) -> None:
        """Raises the log start to the first offset that is left.

        An earlier leader may have deleted more than this log reflects. As long as it does not know
        that it was deposed, it may even delete now: so each pass checks.
        """
        first = self._first_available(hosted)
        if first > hosted.log.high_watermark:
            return  # a new leader's high watermark is behind for a moment
        hosted.log.increment_log_start_offset(first)

    def _first_available(self, hosted: TieredPartition) -> int:
        log, tier = hosted.log, self._metadata.remote_segments(hosted.partition)
        return planner.first_available_offset(
            tier, hosted.lineage(), log.log_end_offset, log.local_log_start_offset
        )

    def _retention(self, hosted: TieredPartition, highest_remote_offset: int) -> planner.Retention:
        log = hosted.log
        config = log.config
        return planner.Retention(
            config.retention_ms if config.is_deleted else -1,
            config.retention_bytes if config.is_deleted else -1,
            log.log_start_offset,
            log.log_end_offset,
            sum(
                segment.size_bytes
                for segment in hosted.local_segments()
                if segment.next_offset - 1 > highest_remote_offset
            ),
        )


def _lag(segments: Sequence[RemoteLogSegmentMetadata]) -> CopyLag:
    return CopyLag(sum(segment.segment_size_bytes for segment in segments), len(segments))
