"""The copy task of a leader, and the task of a follower that follows the leader's copies (KIP-405).

Each rolled segment is recorded as COPY_SEGMENT_STARTED, uploaded, and recorded as
COPY_SEGMENT_FINISHED. Only then may local retention delete it (RULES.md rule 10). Several segments
of a partition are uploaded at once, but their ends are recorded in their order. A transient
failure leaves the copy begun. The next pass continues with the same id, so an outage of the store
does not fill the metadata topic. Any other failure deletes the uploaded objects. It may last
(access denied), so the partition is copied again only after a growing wait. A copy under way at the
loss of leadership is finished: its records lie below the last stable offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from commitlog.log.expiration import delete_expired
from commitlog.segment.segment import Segment
from tidemark.config import ServerConfig
from tidemark.errors import StorageError, TidemarkError
from tiering.errors import (
    TRANSIENT,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.metadata.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tiering.metrics import NO_LAG, CopyLag, RemoteMetrics
from tiering.tasks import planner
from tiering.tasks.checking import check_transactions
from tiering.tasks.deleter import SegmentDeleter
from tiering.tasks.partition import CopyRefusal, SegmentFiles, TieredPartition
from tiering.tasks.quota import CopyTurns, RateQuota
from tiering.tasks.uploads import Uploads

logger = logging.getLogger(__name__)

REFUSED_WAIT_MS = 30_000
"""Wait after an error that may last; it doubles with each one."""
REFUSED_WAIT_MAX_MS = 3_600_000
PASS_S = 30.0
"""Time after which a pass begins no other copy: retention comes after the copies of a pass. The
next one begins at once."""


class Copier:
    """The copies of all partitions this node leads."""

    def __init__(
        self,
        config: ServerConfig,
        uploads: Uploads,
        metadata: RemoteLogMetadataManager,
        deleter: SegmentDeleter,
        metrics: RemoteMetrics,
        now_ms: Callable[[], int],
    ) -> None:
        self._broker_id = config.node_id
        self._custom_bytes_max = config.remote_log_metadata_custom_metadata_max_bytes
        self._uploads = uploads
        self._quota = RateQuota(
            config.remote_log_manager_copy_max_bytes_per_second,
            config.remote_log_manager_copy_quota_window_num,
            config.remote_log_manager_copy_quota_window_size_seconds,
            metrics.remote_copy_throttle_time,
        )
        self._turns = CopyTurns()
        self._concurrency = config.remote_log_manager_copier_segments_per_partition
        self._metadata = metadata
        self._deleter = deleter
        self._metrics = metrics
        self._now_ms = now_ms

    def in_flight(self, hosted: TieredPartition, segment: UUID) -> bool:
        """Whether this process may still finish the copy, or its upload has not ended."""
        return segment in hosted.in_flight or segment in self._uploads

    def learn(self, hosted: TieredPartition) -> int:
        """Sets the log's highest remote offset from the metadata; returns it (-1: none)."""
        epochs = hosted.lineage()
        found: dict[int, int | None] = {}
        for entry in reversed(epochs):
            found[entry.epoch] = self._metadata.highest_offset_for_epoch(
                hosted.partition, entry.epoch
            )
            if found[entry.epoch] is not None:
                break
        log = hosted.log
        highest = planner.highest_copied_offset(epochs, log.log_end_offset, found.get)
        log.highest_remote_offset = highest
        return highest

    async def follow(self, hosted: TieredPartition) -> None:
        """Makes a follower's pass: updates the highest remote offset, and applies local
        retention.
        """
        if self._metadata.is_ready(hosted.partition):
            self.learn(hosted)
            delete_expired(hosted.log, self._now_ms())

    async def copy(self, hosted: TieredPartition) -> None:
        """Makes a leader's pass. Raises the error that stops it; copies finished before
        that count.
        """
        if not self._metadata.is_ready(hosted.partition):
            return
        async with hosted.copying:
            copied = self.learn(hosted)
            if copied >= 0:
                self._uploads.expect_segments()
            candidates = self._candidates(hosted, copied)
            self._forget_outdated(hosted, candidates)
            failed: Exception | None = None
            try:
                await self._copy_all(hosted, candidates)
            except Exception as error:
                failed = error
            # Local retention may delete the copied segments, even if a later copy failed. Not if
            # this pass was cancelled: the log belongs to this node no more then.
            delete_expired(hosted.log, self._now_ms())
            if failed is not None:
                raise failed

    async def _copy_all(self, hosted: TieredPartition, candidates: list[Segment]) -> None:
        """Copies segments, several at once. Raises the error of the oldest one that failed, after
        all those under way have ended.
        """
        copies: deque[asyncio.Future[None]] = deque()
        hosted.copy_failed = False
        until_s = asyncio.get_running_loop().time() + PASS_S
        try:
            for segment in candidates:
                if len(copies) >= self._concurrency:
                    await copies[0]
                    copies.popleft()
                if self._may_copy(hosted):
                    await self._throttle(hosted, until_s)
                if hosted.copy_failed or not self._may_copy(hosted):
                    break
                if asyncio.get_running_loop().time() >= until_s:
                    hosted.nudged.set()
                    break
                self._quota.record(segment.size_bytes, asyncio.get_running_loop().time())
                self._turns.copies(hosted)
                before = copies[-1] if copies else None
                copies.append(asyncio.ensure_future(self._copy_segment(hosted, segment, before)))
            for copy in copies:
                await copy
        except asyncio.CancelledError:
            for copy in copies:
                copy.cancel()
            raise
        finally:
            await asyncio.gather(*copies, return_exceptions=True)

    async def _throttle(self, hosted: TieredPartition, until_s: float) -> None:
        """Waits for the quota of copies while the partition is led, at most until `until_s`. Looks
        again each second: the quota may be altered.
        """
        now_s = asyncio.get_running_loop().time
        began_s, throttled = now_s(), False
        with self._turns.waiting(hosted):
            while now_s() < until_s and not hosted.retired.is_set():
                wait_s = self._turns.wait_s(hosted, self._quota.throttle_s(now_s()))
                if wait_s <= 0:
                    break
                throttled = True
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min(now_s() + min(wait_s, 1.0), until_s)):
                        await hosted.retired.wait()
        if throttled:
            self._quota.throttle_time.add(now_s() - began_s)

    def reconfigure(self, config: ServerConfig) -> None:
        """Applies an altered quota of copies."""
        self._quota.set_rate(config.remote_log_manager_copy_max_bytes_per_second)

    def _may_copy(self, hosted: TieredPartition) -> bool:
        return (
            hosted.is_leader
            and hosted.log.config.copies_to_tier
            and (hosted.refusal is None or hosted.refusal.until_ms <= self._now_ms())
        )

    def lag(self, hosted: TieredPartition) -> CopyLag:
        """Returns the rolled segments that the tier lacks, also those above the last stable
        offset.
        """
        log = hosted.log
        if not log.config.remote_storage_enable:
            return NO_LAG
        missing = planner.segments_to_copy(
            hosted.local_segments(),
            log.highest_remote_offset,
            log.log_end_offset,
            log.log_start_offset,
        )
        return CopyLag(sum(segment.size_bytes for segment in missing), len(missing))

    def _candidates(self, hosted: TieredPartition, copied_offset: int) -> list[Segment]:
        log = hosted.log
        wanted = planner.segments_to_copy(
            hosted.local_segments(), copied_offset, log.last_stable_offset, log.log_start_offset
        )
        offsets = {segment.base_offset for segment in wanted}
        return [segment for segment in log.segments if segment.base_offset in offsets]

    def forget_unfinished(self, hosted: TieredPartition) -> None:
        """Continues no copy that was begun; the expiration task deletes it."""
        self._forget_outdated(hosted, [])

    def _forget_outdated(self, hosted: TieredPartition, candidates: list[Segment]) -> None:
        """Leaves copies that were begun but are no longer wanted to the expiration task."""
        wanted = {segment.base_offset for segment in candidates}
        for start_offset in hosted.unfinished.keys() - wanted:
            hosted.ended(hosted.unfinished.pop(start_offset).id)

    async def _copy_segment(
        self, hosted: TieredPartition, segment: Segment, before: asyncio.Future[None] | None
    ) -> None:
        """Copies a segment, and records its end after that of the copy `before` it.

        So the finished copies are a contiguous prefix for every reader of the metadata. Local
        retention needs no more than their highest offset.
        """
        if segment.txn_index.has_entries:  # nobody compares the copy with its batches later
            await check_transactions(hosted.log, segment.base_offset, segment.base_offset + 1)
        if segment.next_offset <= hosted.log.log_start_offset:  # since the pass began
            await _finished(before)
            return
        files = SegmentFiles.of(segment, hosted.lineage(), hosted.log.log_start_offset)
        metadata = await self._started(hosted, segment, files)
        try:
            if metadata.id not in hosted.uploaded:
                hosted.uploaded[metadata.id] = await self._upload_in_order(
                    hosted, metadata, files, before
                )
            await _finished(before)
            update = metadata.update(
                RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                self._now_ms(),
                self._broker_id,
                hosted.uploaded[metadata.id],
            )
            await self._metadata.update_remote_log_segment_metadata(update)
        except TRANSIENT:
            hosted.unfinished[segment.base_offset] = metadata
            raise
        except (TidemarkError, OSError, ValueError) as error:
            hosted.ended(metadata.id)
            if not isinstance(error, StorageError | RemoteResourceNotFoundError):
                self._refuse(hosted, metadata, error)
            await self._abandon(metadata)
            raise
        except BaseException:
            # Cancelled (the node stops, or the partition moves away): a later leader finds the
            # copy.
            hosted.ended(metadata.id)
            raise
        hosted.ended(metadata.id)
        hosted.refusal = None
        self.learn(hosted)
        topic = hosted.partition.topic
        self._metrics.count("remote_copy_bytes", topic, segment.size_bytes)
        logger.info(
            "copied %s [%d, %d]", hosted.partition, metadata.start_offset, metadata.end_offset
        )

    async def _started(
        self, hosted: TieredPartition, segment: Segment, files: SegmentFiles
    ) -> RemoteLogSegmentMetadata:
        """Returns the copy that was begun, or records a new one."""
        metadata = hosted.unfinished.pop(segment.base_offset, None)
        if metadata is not None:
            if metadata.end_offset == segment.next_offset - 1:
                return metadata
            hosted.ended(metadata.id)
        epochs = hosted.lineage()
        metadata = RemoteLogSegmentMetadata(
            RemoteLogSegmentId.generate(hosted.partition),
            segment.base_offset,
            segment.next_offset - 1,
            segment.retention_timestamp_ms,
            self._broker_id,
            self._now_ms(),
            segment.size_bytes,
            planner.segment_leader_epochs(epochs, segment.base_offset, segment.next_offset),
            txn_index_empty=files.txn_index_empty,
        )
        hosted.in_flight.add(metadata.id)
        await self._begin(hosted, metadata)
        return metadata

    async def _begin(self, hosted: TieredPartition, metadata: RemoteLogSegmentMetadata) -> None:
        try:
            await self._metadata.add_remote_log_segment_metadata(metadata)
        except BaseException:
            hosted.ended(metadata.id)
            raise

    async def _upload_in_order(
        self,
        hosted: TieredPartition,
        metadata: RemoteLogSegmentMetadata,
        files: SegmentFiles,
        before: asyncio.Future[None] | None,
    ) -> bytes | None:
        """Uploads; an error is raised after the end of the copy before, and no other one begins."""
        try:
            return await self._upload(metadata, files)
        except Exception:
            hosted.copy_failed = True
            if before is not None:
                await asyncio.wait([before])
            raise

    async def _upload(
        self, metadata: RemoteLogSegmentMetadata, files: SegmentFiles
    ) -> bytes | None:
        topic = metadata.topic_id_partition.topic
        self._metrics.count("remote_copy_requests", topic)
        try:
            custom = await self._uploads.upload(metadata, files)
        except Exception:
            self._metrics.count("remote_copy_errors", topic)
            raise
        if custom is not None and len(custom) > self._custom_bytes_max:
            raise RemoteStorageError(
                f"the custom metadata of {metadata.remote_log_segment_id} has {len(custom)} bytes: "
                f"more than remote.log.metadata.custom.metadata.max.bytes={self._custom_bytes_max}"
            )
        return custom

    def _refuse(
        self, hosted: TieredPartition, metadata: RemoteLogSegmentMetadata, error: Exception
    ) -> None:
        """Has the partition wait after an error that may last, so that no segment is uploaded for
        nothing again and again.
        """
        failures = 1 if hosted.refusal is None else hosted.refusal.failures + 1
        wait_ms = min(REFUSED_WAIT_MS * 2 ** min(failures - 1, 20), REFUSED_WAIT_MAX_MS)
        hosted.refusal = CopyRefusal(failures, self._now_ms() + wait_ms)
        self._metrics.remote_copy_refusals += 1
        logger.error(
            "the tier refuses %s [%d, %d], failure %d; no copies of %s for %d s: %s",
            *(metadata.remote_log_segment_id, metadata.start_offset, metadata.end_offset),
            *(failures, hosted.partition, wait_ms // 1000, error),
        )

    async def _abandon(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Deletes the objects of a copy that can not be finished; if that fails, a later pass does.

        The metadata lacks the segment if another leader deleted it while this node uploaded it; its
        objects are this node's to delete then.
        """
        try:
            await self._deleter.delete(metadata)
        except RemoteResourceNotFoundError:
            await self._delete_unknown(metadata)
        except TidemarkError as error:
            logger.warning("left-over copy %s: %s", metadata.remote_log_segment_id, error)

    async def _delete_unknown(self, metadata: RemoteLogSegmentMetadata) -> None:
        try:
            await self._deleter.delete_objects(metadata)
        except TidemarkError as error:
            logger.warning("left-over objects %s: %s", metadata.remote_log_segment_id, error)


async def _finished(before: asyncio.Future[None] | None) -> None:
    """Waits for the copy before. Raises RetriableRemoteStorageError if it failed."""
    if before is not None:
        await asyncio.wait([before])
        if before.cancelled() or before.exception() is not None:
            raise RetriableRemoteStorageError("the copy of the segment before it failed")
