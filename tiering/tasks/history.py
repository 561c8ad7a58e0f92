"""The leader epochs of a tiered log: checked against the tier, and rebuilt from it (rule 12).

The epochs of records that are only in the tier can not be found in local batches. If their
checkpoint is lost, the log knows a short lineage, for which the tier has nothing. Each copy of a
segment has the whole lineage up to its end. A copy that agrees with the local part of the history
tells the rest: histories that agree on a record agree on all before it. Without such a copy the
last record before the local log decides, if the tier has it in one epoch only. Otherwise nothing is
copied, deleted or moved, and the error names the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from commitlog.disk.checkpoints import parse_epochs
from tiering.errors import RemoteStorageError
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.metadata.segments import EpochEntry, RemoteLogSegmentMetadata, RemoteLogSegmentState
from tiering.store.manager import IndexType, RemoteStorageManager
from tiering.tasks.partition import TieredPartition
from tiering.tasks.planner import coverage, covered_by, lineage_bounds

logger = logging.getLogger(__name__)

Anchor = tuple[RemoteLogSegmentMetadata, int]
"""A segment, and the offset (exclusive) up to which its lineage is the log's."""


class UnknownHistoryError(RemoteStorageError):
    """The leader epochs of a log are lost, and the tier has several candidates for them. A person
    restores leader-epoch-checkpoint, or elects a replica that has it.
    """


def finished(segments: Iterable[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    """Returns the segments that can be read."""
    return [s for s in segments if s.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]


def is_whole(
    epochs: Sequence[EpochEntry],
    segments: Iterable[RemoteLogSegmentMetadata],
    log_start_offset: int,
    log_end_offset: int,
) -> bool:
    """Returns whether the history begins at the log start, and no segment contradicts it.

    A segment that shares a record with the log shares all records before it. It names no epochs of
    records that were deleted before its copy.
    """
    if not epochs:
        return log_start_offset == log_end_offset
    floor = epochs[0].start_offset
    if floor > log_start_offset:
        return False
    bounds = lineage_bounds(epochs, log_end_offset)
    for segment in segments:
        own = covered_by(segment, bounds, log_end_offset)
        if own and own.start > max(segment.segment_leader_epochs[0].start_offset, floor):
            return False
    return True


def find_anchor(
    epochs: Sequence[EpochEntry],
    segments: Iterable[RemoteLogSegmentMetadata],
    local_start_offset: int,
    log_start_offset: int,
    log_end_offset: int,
) -> Anchor | None:
    """Returns the segment whose lineage is that of the log; None if the tier has nothing below the
    local log. Only epochs of local records count. Raises UnknownHistoryError.
    """
    readable, local = finished(segments), local_epochs(epochs, local_start_offset)
    agreeing = [(coverage(s, local, log_end_offset), s) for s in readable]
    shared = [(own.stop, s) for own, s in agreeing if own]
    if shared:
        stop, segment = max(shared, key=lambda found: found[0])
        return segment, stop
    below = [s for s in readable if s.end_offset >= log_start_offset]
    below = [s for s in below if s.start_offset < local_start_offset]
    if not below:
        return None
    candidates = {}
    for segment in below:
        for epoch, _ in segment.segment_leader_epochs:
            bounds = segment.epoch_range(epoch)
            may_precede = not local or epoch <= local[0].epoch
            if may_precede and bounds and bounds[0] < local_start_offset <= bounds[1] + 1:
                candidates[epoch] = segment
    if local and local[0].epoch in candidates:  # an epoch has one leader, and so one history
        return candidates[local[0].epoch], local_start_offset
    if len(candidates) != 1:
        raise UnknownHistoryError(
            f"the leader epochs below offset {local_start_offset} of"
            f" {below[0].topic_id_partition} are lost, and the tier has the record before it in"
            f" {len(candidates)} epochs: nothing is deleted. Restore leader-epoch-checkpoint, or"
            " let a replica lead that has it"
        )
    return next(iter(candidates.values())), local_start_offset


def local_epochs(epochs: Sequence[EpochEntry], local_start_offset: int) -> tuple[EpochEntry, ...]:
    """Returns the epochs of local records; the oldest one begins with the first of them."""
    ends = [entry.start_offset for entry in epochs[1:]]
    spanning = sum(end <= local_start_offset for end in ends)
    return tuple(
        EpochEntry(epoch, max(start, local_start_offset)) for epoch, start in epochs[spanning:]
    )


def joined(
    of_segment: Iterable[EpochEntry], local: Sequence[EpochEntry], stop: int
) -> tuple[EpochEntry, ...]:
    """Returns the lineage of a segment below `stop`, and then the local one."""
    below = [entry for entry in of_segment if entry.start_offset < stop]
    last = below[-1].epoch if below else -1
    return (*below, *(entry for entry in local if entry.epoch > last))


class LineageKeeper:
    """Checks the history of each log that is led here, once per leadership."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        run: Callable[[Callable[[], bytes]], Awaitable[bytes]],
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._run = run

    async def check(self, hosted: TieredPartition) -> None:
        """Rebuilds the leader epochs if they are not whole. Raises UnknownHistoryError, and the
        errors of the storage; the next pass checks again.
        """
        partition, log = hosted.partition, hosted.log
        if hosted.history_checked or not self._metadata.is_ready(partition):
            return
        segments = finished(self._metadata.list_remote_log_segments(partition))
        epochs, start, end = hosted.lineage(), log.log_start_offset, log.log_end_offset
        if not is_whole(epochs, segments, start, end):
            anchor = find_anchor(epochs, segments, log.local_log_start_offset, start, end)
            if anchor is not None:
                await self._rebuild(hosted, *anchor)
        hosted.history_checked = hosted.is_leader

    async def _rebuild(
        self, hosted: TieredPartition, segment: RemoteLogSegmentMetadata, stop: int
    ) -> None:
        content = await self._run(
            lambda: self._storage.fetch_index(segment, IndexType.LEADER_EPOCH)
        )
        if not hosted.is_leader:
            return
        log, before = hosted.log, hosted.lineage()
        of_segment = [EpochEntry(*entry) for entry in parse_epochs(content)]
        log.epochs.replace(
            joined(of_segment, local_epochs(before, log.local_log_start_offset), stop)
        )
        log.epochs.truncate_from_start(log.log_start_offset)
        log.epochs.flush()
        logger.warning(
            "%s: its leader epochs were not whole (%s); rebuilt from the tier: %s",
            hosted.partition,
            before,
            hosted.lineage(),
        )
