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

from bisect import bisect_left, bisect_right
from itertools import pairwise
from uuid import UUID

from tiering.errors import RemoteResourceNotFoundError, RemoteStorageError
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
        self._segments: dict[UUID, RemoteLogSegmentMetadata] = {}
        self._by_epoch: dict[int, _EpochRanges] = {}
        self.partition_delete: RemotePartitionDeleteMetadata | None = None

    def __len__(self) -> int:
        return len(self._segments)

    def get(self, identity: UUID) -> RemoteLogSegmentMetadata | None:
        """Returns the segment of this id, in any state."""
        return self._segments.get(identity)

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
        if step.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED and self._segments:
            raise RemoteStorageError(
                f"{len(self._segments)} remote segments of {step.topic_id_partition} are left: "
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
        known = self._segments.get(metadata.id)
        if known is not None and known.state is not _S.COPY_SEGMENT_STARTED:
            raise RemoteStorageError(
                f"{metadata.remote_log_segment_id} is {known.state.name} already: "
                "a new copy needs a new id"
            )
        self._segments[metadata.id] = metadata

    def update(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Sets a segment's new state.

        Raises RemoteResourceNotFoundError for an unknown id, RemoteStorageError for an illegal
        transition.
        """
        known = self._segments.get(update.remote_log_segment_id.id)
        if known is None:
            raise RemoteResourceNotFoundError(f"no remote segment {update.remote_log_segment_id}")
        changed = known.updated(update)
        if changed.state is _S.DELETE_SEGMENT_FINISHED:
            del self._segments[changed.id]
            self._unreference(changed)
            return
        self._segments[changed.id] = changed
        if changed.state is _S.COPY_SEGMENT_FINISHED:
            for entry in changed.segment_leader_epochs:
                bounds = changed.epoch_range(entry.epoch)
                if bounds is not None and bounds[0] <= bounds[1]:
                    ranges = self._by_epoch.setdefault(entry.epoch, _EpochRanges())
                    ranges.add(bounds[0], bounds[1], changed.id)
        elif changed.state is _S.DELETE_SEGMENT_STARTED:
            self._unreference(changed)

    def segment_for(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Returns the finished segment with `offset` written in `epoch`."""
        ranges = self._by_epoch.get(epoch)
        found = None if ranges is None else ranges.find(offset)
        return None if found is None else self._segments[found]

    def highest_offset_for_epoch(self, epoch: int) -> int | None:
        """Returns the last offset (inclusive) of `epoch` in finished segments."""
        ranges = self._by_epoch.get(epoch)
        return None if ranges is None else ranges.highest()

    def segments(self, epoch: int | None = None) -> list[RemoteLogSegmentMetadata]:
        """Returns all segments, or those with records of `epoch`; by start offset, then by age."""
        chosen = [
            segment
            for segment in self._segments.values()
            if epoch is None or segment.epoch_range(epoch) is not None
        ]
        return sorted(chosen, key=lambda segment: segment.start_offset)

    def finished_after(self, epoch: int, offset: int) -> list[RemoteLogSegmentMetadata]:
        """Returns the finished segments of `epoch` from the one with `offset` on, by offset."""
        ranges = self._by_epoch.get(epoch)
        return [] if ranges is None else [self._segments[i] for i in ranges.ids_from(offset)]

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
            ranges.validate()
            for first, last, identity in ranges.entries:
                segment = self._segments[identity]
                assert segment.state is _S.COPY_SEGMENT_FINISHED
                assert segment.epoch_range(epoch) == (first, last)

    def _unreference(self, segment: RemoteLogSegmentMetadata) -> None:
        for entry in segment.segment_leader_epochs:
            ranges, bounds = self._by_epoch.get(entry.epoch), segment.epoch_range(entry.epoch)
            if ranges is not None and bounds is not None:
                ranges.remove(bounds[0], segment.id)
                if not ranges.entries:
                    del self._by_epoch[entry.epoch]


class _EpochRanges:
    """Ranges of one epoch, sorted by first offset, and so by last, since none lies within another.

    A copy that lies within another one is kept aside, and is used again when the other one is
    removed.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, UUID]] = []
        self._hidden: dict[UUID, tuple[int, int]] = {}

    def add(self, first: int, last: int, identity: UUID) -> None:
        position = bisect_right(self.entries, first, key=lambda entry: entry[0])
        if position and self.entries[position - 1][1] >= last:
            if self.entries[position - 1][2] != identity:
                self._hidden[identity] = (first, last)
            return
        begin = position - 1 if position and self.entries[position - 1][0] == first else position
        end = begin
        while end < len(self.entries) and self.entries[end][1] <= last:
            self._hidden[self.entries[end][2]] = self.entries[end][:2]
            end += 1
        self.entries[begin:end] = [(first, last, identity)]

    def remove(self, first: int, identity: UUID) -> None:
        self._hidden.pop(identity, None)
        position = bisect_left(self.entries, first, key=lambda entry: entry[0])
        if position == len(self.entries) or self.entries[position][2] != identity:
            return
        del self.entries[position]
        hidden, self._hidden = self._hidden, {}
        for other, bounds in hidden.items():
            self.add(*bounds, other)

    def find(self, offset: int) -> UUID | None:
        position = bisect_right(self.entries, offset, key=lambda entry: entry[0]) - 1
        if position < 0 or self.entries[position][1] < offset:
            return None
        return self.entries[position][2]

    def ids_from(self, offset: int) -> list[UUID]:
        position = bisect_left(self.entries, offset, key=lambda entry: entry[1])
        return [identity for _, _, identity in self.entries[position:]]

    def highest(self) -> int | None:
        return self.entries[-1][1] if self.entries else None

    def validate(self) -> None:
        for before, after in pairwise(self.entries):
            assert before[0] < after[0] and before[1] < after[1], (before, after)
