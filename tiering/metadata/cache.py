"""RemoteLogMetadataCache: the remote segments of one partition, by leader epoch and offset.

A pure fold of the partition's metadata records. For each leader epoch it keeps the finished
segments that reads of that epoch use, sorted by their first offset in the epoch. A failover in the
middle of a copy leaves two copies of the same offsets. They hold the same records for the same
epoch, so a copy whose range lies within another's is unreferenced. It is never read, and retention
deletes it in time. Source: KIP-405; org.apache.kafka...RemoteLogMetadataCache.

Unlike in Kafka, the highest offset of an epoch follows from the segments that reads would use. A
segment that is being deleted does not count as copied. So its offsets are copied again rather than
lost.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from uuid import UUID

from tiering.errors import RemoteResourceNotFoundError, RemoteStorageError
from tiering.metadata.ranges import EpochRanges
from tiering.metadata.rows import SegmentRows
from tiering.metadata.segments import (
    RemoteLogMetadata,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    is_legal_deletion,
)

_S = RemoteLogSegmentState


class RemoteLogMetadataCache:
    """One partition's segments; see the module's docstring."""

    def __init__(self) -> None:
        self._rows = SegmentRows()
        self._order = array("I")  # rows by start offset
        self._by_epoch: dict[int, EpochRanges] = {}
        self._unfinished: set[int] = set()  # rows in another state than COPY_SEGMENT_FINISHED
        self.partition_delete: RemotePartitionDeleteMetadata | None = None
        self.finished_bytes = 0
        """Bytes of all finished segments, unreferenced copies included."""
        self.changes = 0
        """Number of records applied: equal numbers mean equal segments."""

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, identity: UUID) -> RemoteLogSegmentMetadata | None:
        """Returns the segment of this id, in any state."""
        row = self._rows.find(identity)
        return None if row is None else self._rows.get(row)

    def apply(self, record: RemoteLogMetadata) -> None:
        """Applies a record of any kind. Raises RemoteStorageError if it is refused."""
        if isinstance(record, RemoteLogSegmentMetadata):
            self.add(record)
        elif isinstance(record, RemoteLogSegmentMetadataUpdate):
            self.update(record)
        else:
            self.delete_partition(record)

    def delete_partition(self, step: RemotePartitionDeleteMetadata) -> None:
        """Applies a step of the partition's deletion.

        The deletion is finished only when no segment is left: a deposed owner that knows fewer
        segments can not finish it. Raises RemoteStorageError for an illegal step.
        """
        self.check_deletion(step)
        self.partition_delete = step

    def check_deletion(self, step: RemotePartitionDeleteMetadata) -> None:
        """Checks a step of the deletion before it is written. Raises as `delete_partition`."""
        known = None if self.partition_delete is None else self.partition_delete.state
        if not is_legal_deletion(known, step.state):
            raise RemoteStorageError(
                f"the deletion of {step.topic_id_partition} is at "
                f"{known.name if known is not None else 'no state'}: "
                f"it can not become {step.state.name}"
            )
        if step.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED and len(self):
            raise RemoteStorageError(
                f"{len(self)} remote segments of {step.topic_id_partition} are left: "
                "its deletion is not finished"
            )

    def add(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Adds a new segment. Raises RemoteStorageError for a state other than
        COPY_SEGMENT_STARTED, and for a partition that is being deleted.
        """
        if metadata.state is not _S.COPY_SEGMENT_STARTED:
            raise RemoteStorageError(
                f"{metadata.remote_log_segment_id} begins as {metadata.state.name}: "
                "only COPY_SEGMENT_STARTED is a beginning"
            )
        if self.partition_delete is not None:
            raise RemoteStorageError(
                f"{metadata.topic_id_partition} is being deleted: no segment of it is copied"
            )
        row = self._rows.find(metadata.id)
        if row is None:
            row = self._rows.insert(metadata)
            insort(self._order, row, key=self._rows.start_offset)
            self._unfinished.add(row)
        elif (state := self._rows.state(row)) is not _S.COPY_SEGMENT_STARTED:
            raise RemoteStorageError(
                f"{metadata.remote_log_segment_id} is {state.name} already: "
                "a new copy needs a new id"
            )
        elif self._rows.get(row) != metadata:
            self._take_from_order(row)
            self._rows.replace(row, metadata)
            insort(self._order, row, key=self._rows.start_offset)
        self.changes += 1

    def update(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Sets a segment's new state.

        Raises RemoteResourceNotFoundError for an unknown id, RemoteStorageError for an illegal
        transition.
        """
        row = self._rows.find(update.remote_log_segment_id.id)
        if row is None:
            raise RemoteResourceNotFoundError(f"no remote segment {update.remote_log_segment_id}")
        known = self._rows.get(row)
        changed = known.updated(update)
        self.changes += 1
        if known.state is _S.COPY_SEGMENT_FINISHED and known.state is not changed.state:
            self.finished_bytes -= known.segment_size_bytes
            self._unreference(row)
            self._unfinished.add(row)
        if changed.state is _S.DELETE_SEGMENT_FINISHED:
            self._unfinished.discard(row)
            self._take_from_order(row)
            self._rows.remove(row)
            return
        self._rows.replace(row, changed)
        if changed.state is _S.COPY_SEGMENT_FINISHED and known.state is not changed.state:
            self._unfinished.discard(row)
            self._reference(row, changed)

    def restore(
        self, entry: RemoteLogSegmentMetadata | RemotePartitionDeleteMetadata | UUID
    ) -> None:
        """Takes over an entry of this fold's file. A segment, in any state, replaces an earlier
        entry of it, and the id of a removed segment removes it.
        """
        self.changes += 1
        if isinstance(entry, RemotePartitionDeleteMetadata):
            self.partition_delete = entry
            return
        row = self._rows.find(entry if isinstance(entry, UUID) else entry.id)
        if row is not None:
            if row not in self._unfinished:
                self.finished_bytes -= self._rows.get(row).segment_size_bytes
                self._unreference(row)
            self._unfinished.discard(row)
            self._take_from_order(row)
            self._rows.remove(row)
        if isinstance(entry, UUID):
            return
        row = self._rows.insert(entry)
        insort(self._order, row, key=self._rows.start_offset)
        if entry.state is _S.COPY_SEGMENT_FINISHED:
            self._reference(row, entry)
        else:
            self._unfinished.add(row)

    def ids(self) -> list[UUID]:
        """Returns the ids of all segments, by start offset."""
        return [self._rows.identity(row) for row in self._order]

    def segment_for(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Returns the finished segment with `offset` written in `epoch`."""
        ranges = self._by_epoch.get(epoch)
        row = None if ranges is None else ranges.find(offset)
        return None if row is None else self._rows.get(row)

    def highest_offset_for_epoch(self, epoch: int) -> int | None:
        """Returns the last offset (inclusive) of `epoch` in finished segments."""
        ranges = self._by_epoch.get(epoch)
        return None if ranges is None else ranges.highest()

    def segments(self, epoch: int | None = None) -> list[RemoteLogSegmentMetadata]:
        """Returns all segments, or those with records of `epoch`, by start offset."""
        return [
            self._rows.get(row)
            for row in self._order
            if epoch is None or self._rows.epoch_range(row, epoch) is not None
        ]

    def segments_from(self, offset: int) -> Iterator[RemoteLogSegmentMetadata]:
        """Yields the segments that start at or above `offset`, by start offset; a change of the
        cache ends it.
        """
        changes = self.changes
        begin = bisect_left(self._order, offset, key=self._rows.start_offset)
        for position in range(begin, len(self._order)):
            if self.changes != changes:
                return
            yield self._rows.get(self._order[position])

    def unfinished(self) -> list[RemoteLogSegmentMetadata]:
        """Returns the segments in another state than COPY_SEGMENT_FINISHED, by start offset."""
        found = sorted(self._unfinished, key=self._rows.start_offset)
        return [self._rows.get(row) for row in found]

    def beside(self, bounds: Mapping[int, tuple[int, int]]) -> list[RemoteLogSegmentMetadata]:
        """Returns the finished segments with offsets outside of `bounds`, and those that lie within
        another one, by start offset. `bounds` has first offset and end (exclusive) of each epoch.
        """
        rows: set[int] = set()
        for epoch, ranges in self._by_epoch.items():
            rows.update(ranges.outside(*bounds.get(epoch, (0, 0))))
        return [self._rows.get(row) for row in sorted(rows, key=self._rows.start_offset)]

    def next_with_txn_index(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Returns the first finished segment of `epoch`, from the one with `offset` on, whose
        transaction index is not empty.
        """
        ranges = self._by_epoch.get(epoch)
        for row in () if ranges is None else ranges.rows_from(offset):
            if self._rows.has_txn_index(row):
                return self._rows.get(row)
        return None

    def size_bytes(self, epoch: int) -> int:
        """Returns the bytes of the finished segments with records of `epoch`."""
        return sum(
            segment.segment_size_bytes
            for segment in self.segments(epoch)
            if segment.state is _S.COPY_SEGMENT_FINISHED
        )

    def validate(self) -> None:
        """Asserts that no finished segment of an epoch hides another one (RULES.md I10)."""
        for epoch, ranges in self._by_epoch.items():
            for row in ranges.validate():
                assert self._rows.state(row) is _S.COPY_SEGMENT_FINISHED
                assert self._rows.epoch_range(row, epoch) is not None
        assert len(self._order) == len(self._rows)
        states = {row: self._rows.state(row) for row in self._order}
        finished = {row for row, state in states.items() if state is _S.COPY_SEGMENT_FINISHED}
        assert self._unfinished == states.keys() - finished
        sizes = (self._rows.get(row).segment_size_bytes for row in finished)
        assert self.finished_bytes == sum(sizes)

    def _reference(self, row: int, segment: RemoteLogSegmentMetadata) -> None:
        self.finished_bytes += segment.segment_size_bytes
        for epoch, _ in self._rows.epochs(row):
            bounds = self._rows.epoch_range(row, epoch)
            if bounds is not None and bounds[0] <= bounds[1]:
                if epoch not in self._by_epoch:
                    self._by_epoch[epoch] = EpochRanges(self._rows, epoch)
                self._by_epoch[epoch].add(row)

    def _unreference(self, row: int) -> None:
        for epoch, _ in self._rows.epochs(row):
            ranges = self._by_epoch.get(epoch)
            if ranges is not None:
                ranges.remove(row)
                if not ranges:
                    del self._by_epoch[epoch]

    def _take_from_order(self, row: int) -> None:
        start = self._rows.start_offset(row)
        position = bisect_left(self._order, start, key=self._rows.start_offset)
        del self._order[self._order.index(row, position)]
