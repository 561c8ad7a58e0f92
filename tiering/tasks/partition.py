"""The remote log manager's state of one hosted partition, and the files of its segments."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from commitlog.disk.checkpoints import format_epochs
from commitlog.disk.files import Directory, File
from commitlog.log.log import Log
from commitlog.segment.producer_replay import snapshot_of
from commitlog.segment.segment import Segment
from tidemark.types import TopicIdPartition
from tiering.metadata.segments import EpochEntry, RemoteLogSegmentMetadata
from tiering.metrics import NO_LAG, CopyLag
from tiering.store.manager import IndexType, LogSegmentData
from tiering.tasks import planner


@dataclass(frozen=True, slots=True)
class CopyRefusal:
    """Errors in a row that may last, and the time before which no copy is tried."""

    failures: int
    until_ms: int


@dataclass(slots=True, eq=False)
class TieredPartition:
    """A partition with its log, its role (`leader_epoch` is None for a follower) and its tasks."""

    partition: TopicIdPartition
    log: Log
    leader_epoch: int | None
    nudged: asyncio.Event = field(default_factory=asyncio.Event)
    retired: asyncio.Event = field(default_factory=asyncio.Event)
    copying: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a copy pass: one at a time, also across a change of roles and back."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    in_flight: set[UUID] = field(default_factory=set)
    """Copies of this process that are not finished, which must not be taken for dangling."""
    unfinished: dict[int, RemoteLogSegmentMetadata] = field(default_factory=dict)
    """Copies to continue after a transient failure, by start offset."""
    uploaded: dict[UUID, bytes | None] = field(default_factory=dict)
    """Custom metadata of copies whose objects are complete and whose end is not recorded yet."""
    unfinished_since: dict[UUID, int] = field(default_factory=dict)
    """When this node first saw copies that are not finished, in ms since an arbitrary begin."""
    turn: int | None = None
    """Number of the first wait for the quota of copies since the last copy began."""
    copy_failed: bool = False
    """An upload of the pass under way failed: no other one begins."""
    delete_lag: CopyLag = NO_LAG
    """Segments of the last plan that are not deleted from the tier yet."""
    refusal: CopyRefusal | None = None
    history_checked: bool = False

    @property
    def is_leader(self) -> bool:
        return self.leader_epoch is not None

    def retire(self) -> None:
        """Ends the role: a pass under way stops after its segments, and no other one begins."""
        self.leader_epoch = None
        self.retired.set()
        self.nudged.set()

    def succeed(self, earlier: TieredPartition) -> None:
        """Adopts the work under way of an earlier role of the same partition."""
        self.in_flight, self.refusal = earlier.in_flight, earlier.refusal
        self.copying, self.unfinished = earlier.copying, earlier.unfinished
        self.unfinished_since, self.uploaded = earlier.unfinished_since, earlier.uploaded
        self.tasks.extend(task for task in earlier.tasks if not task.done())

    def ended(self, segment: UUID) -> None:
        """Forgets a copy that is finished, or that nobody here finishes."""
        self.in_flight.discard(segment)
        self.uploaded.pop(segment, None)

    def lineage(self) -> tuple[EpochEntry, ...]:
        """Returns the leader epochs of the log, oldest first."""
        return tuple(EpochEntry(epoch, start) for epoch, start in self.log.epochs.entries())

    def local_segments(self) -> list[planner.LocalSegment]:
        """Returns the log's segments, the active one last."""
        return [
            planner.LocalSegment(
                segment.base_offset,
                segment.next_offset,
                segment.size_bytes,
                segment.retention_timestamp_ms,
            )
            for segment in self.log.segments
        ]


class _OpenLog:
    """An open log file of fixed size as a ByteSource."""

    def __init__(self, file: File, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def pread(self, position: int, size: int) -> bytes:
        return self._file.pread(min(size, self._size_bytes - position), position)


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The files of a rolled segment, collected on the event loop, opened in a thread of the
    copier's pool.
    """

    directory: Directory
    log_file: str
    offset_index_file: str
    time_index_file: str
    txn_index_file: str
    size_bytes: int
    base_offset: int
    next_offset: int
    log_start_offset: int
    leader_epochs: bytes

    @classmethod
    def of(
        cls, segment: Segment, epochs: tuple[EpochEntry, ...], log_start_offset: int
    ) -> SegmentFiles:
        """Collects the files; of the log's lineage `epochs` the copy gets the part before the
        segment's end.
        """
        return cls(
            segment.directory,
            segment.log_file,
            segment.offset_index.name,
            segment.time_index.name,
            segment.txn_index.name,
            segment.size_bytes,
            segment.base_offset,
            segment.next_offset,
            log_start_offset,
            format_epochs(planner.epochs_up_to(epochs, segment.next_offset)),
        )

    @property
    def txn_index_empty(self) -> bool:
        """Whether no transaction was aborted in the segment."""
        name = self.txn_index_file
        return not self.directory.exists(name) or self.directory.size_of(name) == 0

    @contextmanager
    def open(self) -> Iterator[LogSegmentData]:
        """Opens the data to copy. Raises StorageError if the segment has left the log, or its
        producer snapshot is missing and can not be made again.
        """
        directory = self.directory
        indexes = {
            IndexType.OFFSET: directory.read(self.offset_index_file),
            IndexType.TIMESTAMP: directory.read(self.time_index_file),
            IndexType.PRODUCER_SNAPSHOT: snapshot_of(
                directory, self.base_offset, self.next_offset, self.log_start_offset
            ),
            IndexType.LEADER_EPOCH: self.leader_epochs,
        }
        if not self.txn_index_empty:
            indexes[IndexType.TRANSACTION] = directory.read(self.txn_index_file)
        file = directory.open_read_only(self.log_file)
        try:
            yield LogSegmentData(_OpenLog(file, self.size_bytes), indexes)
        finally:
            file.close()
