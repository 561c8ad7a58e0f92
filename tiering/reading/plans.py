"""Plans of direct reads: which bytes of which objects hold a range of offsets.

A piece is a run of whole batches in the log object of one segment. Where a segment is cut, the
offset index gives the position, and the batch there its exact first offset. Pieces follow one
another without a hole, on the leader's own lineage (`tiering.tasks.planner.coverage`), and end
where the tier does. The decisions are pure; `ReadPlanner` reads indexes and headers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

from commitlog.log.log import Log
from commitlog.types import AbortedTransaction
from tidemark.config import ServerConfig
from tidemark.errors import CorruptMessageError, OffsetOutOfRangeError
from tidemark.records import read_header
from tidemark.records.header import HEADER_BYTES
from tidemark.types import TopicIdPartition
from tiering.errors import RemoteReadBusyError, RemoteStorageNotReadyError
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.metadata.segments import (
    EpochEntry,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tiering.reading.remote_indexes import RemoteIndexes
from tiering.reading.segment_reader import SegmentReader
from tiering.store.direct import DirectStore
from tiering.store.manager import RemoteStorageManager
from tiering.tasks import planner

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED

SPLIT_BYTES_MIN = 1 << 20
SEGMENTS_MAX = 64
"""Segments of one plan: each may cost a read of its indexes, and an answer has a deadline."""
PIECES_MAX = 256
"""Pieces of one plan, about: each cut costs a read of a header, and each piece has a URL."""
PLANS_MAX = 64
"""Plans that a node makes at once."""


class Piece(NamedTuple):
    """The records in [start, end), which are within [start_position, end_position) of a segment."""

    segment: RemoteLogSegmentMetadata
    start: int
    end: int
    start_position: int
    end_position: int
    base_offset: int  # of the batch at start_position
    url: str = ""


class ReadPlan(NamedTuple):
    """Pieces by offset, the offset from which only brokers have records, aborted transactions, and
    why there is no piece (empty: clients read the store).

    With `more`, the tier goes on at the tail offset, and another plan has the rest.
    """

    pieces: tuple[Piece, ...]
    tail_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    not_direct: str = ""
    more: bool = False


def spans(
    segment_for: Callable[[int, int], RemoteLogSegmentMetadata | None],
    epochs: Sequence[EpochEntry],
    log_end_offset: int,
    start: int,
    end: int,
    most: int,
) -> list[tuple[RemoteLogSegmentMetadata, int, int]]:
    """Returns segments, each with the part [from, to) of [start, end) that is read from it.

    It ends where the tier has no more of the lineage, or with `most` segments.
    """
    bounds = planner.lineage_bounds(epochs, log_end_offset)
    found: list[tuple[RemoteLogSegmentMetadata, int, int]] = []
    offset = start
    while offset < end and len(found) < most:
        epoch = next((epoch for epoch, first in reversed(epochs) if first <= offset), None)
        segment = None if epoch is None else segment_for(epoch, offset)
        if segment is None:
            break
        covered = planner.covered_by(segment, bounds, log_end_offset)
        if offset not in covered:
            break
        stop = min(covered.stop, end)
        found.append((segment, offset, stop))
        offset = stop
    return found


def byte_range(
    indexes: RemoteIndexes, size_bytes: int, start: int, end: int, next_offset: int
) -> tuple[int, int]:
    """Returns positions of whole batches that hold the records in [start, end) of a segment.

    An index entry has the last offset of its batch. The first entry at or above `end - 1` may
    be that batch's own: the range ends at the entry behind it.
    """
    begin = indexes.position_of(start)
    if end >= next_offset:
        return begin, size_bytes
    behind = bisect_left(indexes.offsets, end - 1 - indexes.base_offset) + 1
    return begin, indexes.positions[behind] if behind < len(indexes.positions) else size_bytes


def cuts(indexes: RemoteIndexes, begin: int, end: int, split_bytes: int) -> list[int]:
    """Returns positions of batches that cut [begin, end) into parts of at most `split_bytes`, as
    far as the index has entries.
    """
    if split_bytes <= 0:
        return []
    found: list[int] = []
    limit = begin + max(split_bytes, SPLIT_BYTES_MIN)
    while limit < end:
        position = indexes.last_position_within(begin, limit)
        if position <= begin:  # no entry within: the first one behind
            entry = bisect_left(indexes.positions, limit)
            if entry == len(indexes.positions):
                break
            position = indexes.positions[entry]
        if position >= end:
            break
        found.append(position)
        begin, limit = position, position + max(split_bytes, SPLIT_BYTES_MIN)
    return found


class ReadPlanner:
    """Plans for the partitions of a node; on one event loop. `aborted` finds the aborted
    transactions of a range.
    """

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        segments: SegmentReader,
        aborted: Callable[
            [TopicIdPartition, Log, int, int], Awaitable[Sequence[AbortedTransaction]]
        ],
        config: ServerConfig,
    ) -> None:
        self._storage = storage
        self._is_enabled = config.remote_log_direct_read_enable
        self._planning = 0
        self._metadata = metadata
        self._segments = segments
        self._aborted = aborted
        url_s = max(1, config.remote_log_lease_max_ms // 1000)
        self._url_s = min(url_s, 7 * 86_400)  # the most that S3 signs for

    async def plan(
        self,
        partition: TopicIdPartition,
        log: Log,
        start: int,
        end: int,
        split_bytes: int,
        read_committed: bool,
    ) -> ReadPlan:
        """Plans a read of [start, end).

        Raises OffsetOutOfRangeError below the log start, RemoteReadBusyError,
        RemoteStorageNotReadyError, CorruptMessageError and the errors of the store.
        """
        store = self._storage
        if not self._is_enabled:
            return ReadPlan((), start, (), "remote.log.direct.read.enable is false")
        if not isinstance(store, DirectStore):
            return ReadPlan((), start, (), "the store of this cluster gives clients no addresses")
        if not self._metadata.is_ready(partition):
            raise RemoteStorageNotReadyError
        tier = self._metadata.remote_segments(partition)
        epochs = tuple(EpochEntry(*entry) for entry in log.epochs.entries())
        pieces: list[Piece] = []
        limit = min(end, log.high_watermark)
        most = SEGMENTS_MAX + 1  # the last one tells that there is more
        with self._place():
            found = spans(tier.segment_for, epochs, log.log_end_offset, start, limit, most)
            for segment, first, stop in found[:SEGMENTS_MAX]:
                if len(pieces) >= PIECES_MAX:
                    break
                url = await self._url(store, segment)
                pieces += await self._pieces(segment, first, stop, split_bytes, url)
            tail = pieces[-1].end if pieces else start
            aborted: Sequence[AbortedTransaction] = ()
            if read_committed and pieces:
                aborted = await self._aborted(partition, log, start, tail)
        if start < log.log_start_offset:  # now, for leases: see `tiering.tasks.leases`
            raise OffsetOutOfRangeError(
                f"offset {start} of {partition} is below the log start {log.log_start_offset}"
            )
        return ReadPlan(
            tuple(pieces), tail, tuple(aborted), more=bool(found) and tail < found[-1][2]
        )

    @contextmanager
    def _place(self) -> Iterator[None]:
        """One of the plans that a node makes at once. Raises RemoteReadBusyError."""
        if self._planning >= PLANS_MAX:
            raise RemoteReadBusyError
        self._planning += 1
        try:
            yield
        finally:
            self._planning -= 1

    async def urls(self, partition: TopicIdPartition, ids: Sequence[UUID]) -> dict[UUID, str]:
        """Returns new URLs of segments, without those that the tier no longer has.

        A lease keeps segments below the log start, of which no plan can be made any more. Raises
        as `plan`.
        """
        store = self._storage
        if not self._is_enabled or not isinstance(store, DirectStore):
            return {}
        if not self._metadata.is_ready(partition):
            raise RemoteStorageNotReadyError
        tier = self._metadata.remote_segments(partition)
        known = [found for found in map(tier.get, ids[:SEGMENTS_MAX]) if found is not None]
        finished = [one for one in known if one.state is _FINISHED]
        return {one.id: await self._url(store, one) for one in finished}

    async def _url(self, store: DirectStore, segment: RemoteLogSegmentMetadata) -> str:
        return await self._segments.run(lambda: store.locate(segment, self._url_s), segment)

    async def _pieces(
        self, segment: RemoteLogSegmentMetadata, first: int, stop: int, split_bytes: int, url: str
    ) -> list[Piece]:
        size = segment.segment_size_bytes
        is_whole = first <= segment.start_offset and stop >= segment.next_offset
        if is_whole and (not split_bytes or size <= max(split_bytes, SPLIT_BYTES_MIN)):
            return [Piece(segment, first, stop, 0, size, segment.start_offset, url)]
        indexes = await self._segments.indexes(segment)
        begin, finish = byte_range(indexes, size, first, stop, segment.next_offset)
        found: list[Piece] = []
        base = await self._offset_at(segment, indexes, begin)
        for position in cuts(indexes, begin, finish, split_bytes):
            if len(found) >= PIECES_MAX:
                return found
            offset = await self._offset_at(segment, indexes, position)
            if not first < offset < stop:
                continue  # the batches before it end below the range, or all after it are above
            found.append(Piece(segment, first, offset, begin, position, base, url))
            first, begin, base = offset, position, offset
        return [*found, Piece(segment, first, stop, begin, finish, base, url)]

    async def _offset_at(
        self, segment: RemoteLogSegmentMetadata, indexes: RemoteIndexes, position: int
    ) -> int:
        """Returns the offset of the batch at a position of the index, which has its last one.

        Raises CorruptMessageError if its header contradicts that.
        """
        if not position:
            return segment.start_offset
        last_offset = (
            indexes.base_offset + indexes.offsets[bisect_left(indexes.positions, position)]
        )
        storage = self._storage
        head = await self._segments.run(
            lambda: storage.fetch_log_segment(segment, position, position + HEADER_BYTES), segment
        )
        found = read_header(head, start=position)
        if found.last_offset != last_offset or found.base_offset < segment.start_offset:
            raise CorruptMessageError(
                f"{segment.remote_log_segment_id}: the batch at {position} has offsets "
                f"{found.base_offset} to {found.last_offset}, and its index says {last_offset}"
            )
        return found.base_offset
