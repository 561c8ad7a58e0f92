"""The state from which a follower starts above the tier (KIP-405): epochs and producers of remote
segments.

Followers have a pool and a limit of their own, remote.log.manager.follower.thread.pool.size. Many
of them hold back no consumer, and a hanging store holds back none but them. Those beyond the limit
wait for their turn, which costs nothing; the deadline begins with the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from commitlog.disk.checkpoints import parse_epochs
from commitlog.segment.producer_replay import NO_PRODUCERS, producers_after
from tidemark.config import ServerConfig
from tidemark.errors import RequestTimedOutError
from tidemark.types import TopicIdPartition
from tiering.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageNotReadyError,
    plugin_errors_typed,
)
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.metadata.segments import EpochEntry, RemoteLogSegmentMetadata
from tiering.metrics import RemoteMetrics
from tiering.reading.failures import naming
from tiering.store.manager import IndexType, RemoteStorageManager, SegmentListing
from tiering.tasks import planner, recovery
from tiering.tasks.unrecorded import UnrecordedSegments, UnrecordedSegmentsError
from tiering.threads import DaemonPool

T = TypeVar("T")

_READY_POLL_MS = 5


@dataclass(frozen=True, slots=True)
class RemoteAuxState:
    """State of a log that begins at `start_offset`: lineage and producers up to there."""

    epochs: tuple[EpochEntry, ...]
    producer_snapshot: bytes
    start_offset: int


@dataclass(frozen=True, slots=True)
class RemoteHistory:
    """The log that the tier has: from `log_start_offset` up to `next_offset`."""

    log_start_offset: int
    next_offset: int
    epochs: tuple[EpochEntry, ...]
    producer_snapshot: bytes


class RemoteAuxStates:
    """The followers' side of one node's tier; used on one event loop."""

    def __init__(
        self,
        config: ServerConfig,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        metrics: RemoteMetrics,
    ) -> None:
        threads = config.remote_log_manager_follower_thread_pool_size
        self._storage = storage
        self._metadata = metadata
        self._metrics = metrics
        self._unrecorded = UnrecordedSegments(storage, metadata, self._run)
        self._timeout_ms = config.remote_log_reader_timeout_ms
        self._turns = asyncio.Semaphore(threads)
        self._pool = DaemonPool(threads, "remote-log-follower")

    def close(self) -> None:
        """Starts no more calls; one under way ends by itself."""
        self._pool.shutdown()

    async def fetch(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int, *, exact: bool = False
    ) -> RemoteAuxState:
        """Fetches the state before an offset; see `RemoteLogManager.fetch_aux_state`."""

        async def work() -> RemoteAuxState:
            segment = self._segment_before(partition, leader_epoch, offset)
            if exact and segment.next_offset > offset:
                return await self._cut(partition, segment, offset)
            return await self._at_end(segment)

        return await self._in_turn(partition, f"remote state of {partition} before {offset}", work)

    async def latest(self, partition: TopicIdPartition) -> RemoteHistory | None:
        """Fetches the latest history; see `RemoteLogManager.latest_history`."""

        async def work() -> RemoteHistory | None:
            await self._unrecorded.check(partition)
            segments = self._metadata.list_remote_log_segments(partition)
            last = recovery.latest_segment(segments)
            await self._check_unfinished(partition, recovery.unfinished_above(segments, last))
            if last is None:
                return None
            state = await self._at_end(last)
            first = recovery.first_offset(segments, state.epochs, last)
            return RemoteHistory(first, last.next_offset, state.epochs, state.producer_snapshot)

        self._metrics.restore_requests += 1
        try:
            what = f"the history of {partition} in the tier"
            return await self._in_turn(partition, what, work)
        except BaseException:
            self._metrics.restore_errors += 1
            raise

    async def _check_unfinished(
        self, partition: TopicIdPartition, unfinished: Collection[RemoteLogSegmentMetadata]
    ) -> None:
        """Raises UnrecordedSegmentsError if one of the segments is whole in the store.

        Its copy ended, and the record of that was lost, or never written. A log that begins below
        it would use its offsets again, and its objects would be deleted as an unfinished copy.
        """
        storage = self._storage
        if not unfinished or not isinstance(storage, SegmentListing):
            return
        wanted = {segment.id: segment for segment in unfinished}

        def whole() -> list[RemoteLogSegmentMetadata]:
            with plugin_errors_typed():
                found = storage.list_segments(partition)
                return [wanted[stored.id] for stored in found if stored.id in wanted]

        for segment in await self._run(whole):
            raise UnrecordedSegmentsError(
                f"the store has the whole segment {segment.id} of {partition} from offset"
                f" {segment.start_offset} on, and no record that its copy ended: a log that begins"
                " below it would lose it. Run `tidemark tier rebuild`"
            )

    async def _ready(self, partition: TopicIdPartition) -> None:
        """Waits until the metadata of a partition is read, a moment after it was assigned here.

        A follower that gave up at once would come back only after its fetch back-off. Raises
        RemoteStorageNotReadyError after remote.log.reader.timeout.ms.
        """
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                while not self._metadata.is_ready(partition):  # noqa: ASYNC110 a plug-in tells no event
                    await asyncio.sleep(_READY_POLL_MS / 1000)
        except TimeoutError:
            raise RemoteStorageNotReadyError from None

    async def _in_turn(
        self, partition: TopicIdPartition, what: str, work: Callable[[], Awaitable[T]]
    ) -> T:
        """Does the work when the metadata is read, as one of a bounded number, with the
        deadline.
        """
        self._metrics.count("build_remote_log_aux_state_requests", partition.topic)
        try:
            await self._ready(partition)
            async with self._turns:
                async with asyncio.timeout(self._timeout_ms / 1000):
                    return await work()
        except BaseException as error:
            self._metrics.count("build_remote_log_aux_state_errors", partition.topic)
            if isinstance(error, TimeoutError):
                raise RequestTimedOutError(
                    f"{what} took longer than {self._timeout_ms} ms"
                ) from None
            raise

    async def _of(self, segment: RemoteLogSegmentMetadata, call: Callable[[], T]) -> T:
        """Runs a call of the storage; whatever it raises is typed, and names the segment."""
        return await self._run(naming(segment, call))

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def _at_end(self, segment: RemoteLogSegmentMetadata) -> RemoteAuxState:
        """Returns the state at the end of a segment."""
        storage = self._storage
        snapshot = await self._of(
            segment, lambda: storage.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT)
        )
        epochs = planner.epochs_up_to(await self._lineage(segment), segment.next_offset)
        return RemoteAuxState(epochs, snapshot, segment.next_offset)

    async def _lineage(self, segment: RemoteLogSegmentMetadata) -> list[EpochEntry]:
        storage = self._storage
        content = await self._of(
            segment, lambda: storage.fetch_index(segment, IndexType.LEADER_EPOCH)
        )
        return [EpochEntry(epoch, start) for epoch, start in parse_epochs(content)]

    async def _cut(
        self, partition: TopicIdPartition, segment: RemoteLogSegmentMetadata, offset: int
    ) -> RemoteAuxState:
        """Returns the state within a segment, whose later records may be of another lineage.

        The producers are those at the end of the segment before it, and the batches from there on.
        """
        lineage = await self._lineage(segment)
        epochs = planner.epochs_up_to(lineage, offset)
        begin, snapshot = segment.start_offset, NO_PRODUCERS
        before = planner.epochs_up_to(lineage, begin)
        if before:
            earlier = self._metadata.remote_log_segment_metadata(
                partition, before[-1].epoch, begin - 1
            )
            if earlier is not None and earlier.next_offset > offset:
                return await self._cut(partition, earlier, offset)
            if earlier is not None:
                begin, snapshot = (
                    earlier.next_offset,
                    (await self._at_end(earlier)).producer_snapshot,
                )
        storage, size = self._storage, segment.segment_size_bytes
        snapshot = await self._of(
            segment,
            lambda: producers_after(
                snapshot,
                lambda start, end: storage.fetch_log_segment(segment, start, end),
                size,
                begin,
                offset,
            ),
        )
        return RemoteAuxState(epochs, snapshot, offset)

    def _segment_before(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata:
        """Returns the segment with the record before `offset`, in `leader_epoch` or an older epoch.

        If `leader_epoch` itself begins at `offset`, the record before belongs to an older epoch.
        That epoch is known only if the tier has a single candidate: after unclean elections it may
        have several.
        """
        metadata = self._metadata
        exact = metadata.remote_log_segment_metadata(partition, leader_epoch, offset - 1)
        if exact is not None:
            return exact
        older = {
            entry.epoch
            for segment in metadata.list_remote_log_segments(partition)
            for entry in segment.segment_leader_epochs
            if entry.epoch < leader_epoch
        }
        found = [metadata.remote_log_segment_metadata(partition, e, offset - 1) for e in older]
        candidates = [segment for segment in found if segment is not None]
        if len(candidates) == 1:
            return candidates[0]
        raise RemoteResourceNotFoundError(
            f"{len(candidates)} remote segments of {partition} hold offset {offset - 1} in epochs "
            f"below {leader_epoch}: ask the leader for the epoch of that offset"
        )
