"""One cleaning of one log (Kafka's Cleaner).

It builds the offset map of the dirty part. Then it rewrites the segments, group by group, without
the records that the map makes obsolete.

`Cleaning` is made by the owner of the log and copies what it needs. `build_map` and `next_group`
then run in any thread: they read rolled segments and write `.cleaned` files, which the log does not
use. `swap`, called by the owner of the log, puts a finished group in place of the old segments. It
refuses if the log was cut or its segments changed meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from commitlog.cleaner.choice import Cleanable, SegmentSizes, group_segments
from commitlog.cleaner.filter import (
    BatchFilter,
    LastOfProducer,
    crc_error,
    plain_body,
    shape_of,
)
from commitlog.cleaner.io import CleanerIo, CleaningAbortedError, SegmentDoesNotFitError
from commitlog.cleaner.offset_map import OffsetMap, OffsetMapFullError, checked
from commitlog.cleaner.reading import BatchReader
from commitlog.cleaner.transactions import TransactionWalk
from commitlog.disk.files import File
from commitlog.log.log import Log
from commitlog.log.swap import CLEANED_SUFFIX, remove_files
from commitlog.segment.batch_table import BatchTable
from commitlog.segment.indexes import MAX_RELATIVE_OFFSET
from commitlog.segment.segment import Segment
from tidemark.records.control import end_transaction
from tidemark.records.header import HEADER_BYTES, read_header, whole_header
from tidemark.records.header import BatchHeader as Header
from tidemark.records.kernels import clean as kernels


@dataclass(slots=True)
class CleaningStats:
    """Counts of one cleaning."""

    bytes_mapped: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    segments_before: int = 0
    segments_after: int = 0


@dataclass(slots=True)
class CleanedGroup:
    """Old segments, and the finished `.cleaned` segments that are to replace them."""

    old: list[Segment]
    new: list[Segment] = field(default_factory=list)
    changed: bool = False
    has_records: bool = False
    """Whether a batch in `new` is not empty."""

    @property
    def new_bases(self) -> list[int]:
        return [segment.base_offset for segment in self.new]


class Cleaning:
    """A cleaning under way."""

    def __init__(self, log: Log, found: Cleanable, now_ms: int, io: CleanerIo) -> None:
        """Copies what it needs of the log; called by the owner of the log."""
        self.log = log
        self.now_ms = now_ms
        self.io = io
        self.stats = CleaningStats()
        self._reader = BatchReader(io)
        self._specials = np.empty(0, np.int64)
        self.end_offset = found.end_offset
        self._first_dirty = found.first_dirty_offset
        self._config = log.config
        self._truncations = log.durability.truncations
        segments = [s for s in log.segments if s.base_offset < found.end_offset]
        self._sizes = [(segment, segment.size_bytes) for segment in segments]
        first = segments[0].base_offset
        self._aborted = log.aborted_transactions(first, found.end_offset)
        self._producers = {
            entry.producer_id: LastOfProducer(
                entry.batches[-1].last_offset if entry.batches else None, entry.producer_epoch
            )
            for entry in log.producers.producers.values()
        }
        self._filter: BatchFilter | None = None
        self._groups: Iterator[list[SegmentSizes]] = iter(())

    # --- in any thread

    def build_map(self, offset_map: OffsetMap) -> None:
        """Fills the map with the dirty part, as many whole segments as fit; lowers `end_offset`
        accordingly.

        Raises SegmentDoesNotFitError if not even one fits, CorruptMessageError,
        CleaningAbortedError.
        """
        self.log.flush(self.end_offset)  # cleaned ranges are durable: no crash cuts into them
        walk = TransactionWalk(e for e in self._aborted if e.last_offset >= self._first_dirty)
        bases = [segment.base_offset for segment, _ in self._sizes] + [self.end_offset]
        for (segment, size), following in zip(self._sizes, bases[1:], strict=True):
            if following <= self._first_dirty:
                continue
            try:
                self._map_segment(segment, size, offset_map, walk)
            except OffsetMapFullError as error:
                if offset_map.latest_offset < 0:
                    raise SegmentDoesNotFitError(
                        f"{self.log.topic_partition}: segment {segment.base_offset} has {error}"
                    ) from error
                self.end_offset = segment.base_offset
                break
            offset_map.latest_offset = following - 1
        self._prepare_groups(offset_map)

    def _prepare_groups(self, offset_map: OffsetMap) -> None:
        offset_map.seal(self._first_dirty)
        self._sizes = [item for item in self._sizes if item[0].base_offset < self.end_offset]
        self._filter = BatchFilter(
            offset_map,
            TransactionWalk(self._aborted),
            self._producers,
            self.now_ms,
            self._config.delete_retention_ms,
            self.io.buffer_bytes,
        )
        directory = self.log.directory

        def size_of(name: str) -> int:
            return directory.size_of(name) if directory.exists(name) else 0

        bases = [segment.base_offset for segment, _ in self._sizes] + [self.end_offset]
        sizes = [
            SegmentSizes(
                segment.base_offset,
                following,
                size,
                size_of(segment.offset_index.name),
                size_of(segment.time_index.name),
            )
            for (segment, size), following in zip(self._sizes, bases[1:], strict=True)
        ]
        limit = self._config.segment_index_bytes
        self._groups = iter(group_segments(sizes, self._config.segment_bytes, limit))

    def _map_segment(
        self, segment: Segment, size: int, offset_map: OffsetMap, walk: TransactionWalk
    ) -> None:
        notes = np.zeros(kernels.NOTES, np.int64)
        for view in self._views(segment, size):
            if len(self._specials) < len(view) // HEADER_BYTES:
                self._specials = np.empty(len(view) // HEADER_BYTES, np.int64)
            data = np.frombuffer(view, np.uint8)
            fault = offset_map.put_batches(data, self._first_dirty, self._specials, notes)
            end, batches, specials, _ = notes.tolist()
            if fault == kernels.FAULT_DAMAGED:
                raise crc_error(read_header(view, end).base_offset)
            checked(fault)
            for position in self._specials[:specials].tolist():
                self._map_special(view, whole_header(view, position), offset_map, walk)
            self.stats.bytes_mapped += end
            self._reader.took(end, batches)

    def _map_special(
        self, view: memoryview, header: Header, offset_map: OffsetMap, walk: TransactionWalk
    ) -> None:
        """Maps a batch that is no plain data; its CRC was checked."""
        if header.is_control:
            end = end_transaction(view, header.position) if header.record_count else None
            walk.on_control(header, end)
        elif (
            not walk.on_data(header)
            and header.record_count
            and header.last_offset >= self._first_dirty
        ):
            body = plain_body(view, header)
            offset_map.put(body, shape_of(header, self.now_ms), self._first_dirty)

    def next_group(self) -> CleanedGroup | None:
        """Writes the `.cleaned` files of the next group and syncs them; None when all groups are
        done.

        Raises CleaningAbortedError, CorruptMessageError or StorageError; the files of the group are
        removed then.
        """
        for wanted in self._groups:
            members = self._members(wanted)
            if not any(size for _, size in members):
                continue
            group = CleanedGroup([segment for segment, _ in members])
            try:
                self._write_group(group, members)
            except BaseException:
                self.discard(group)
                raise
            if group.changed or len(group.old) > 1:
                return group
            self.discard(group)  # nothing would become smaller
            self.stats.segments_before += 1
            self.stats.segments_after += 1
        return None

    def _members(self, wanted: list[SegmentSizes]) -> list[tuple[Segment, int]]:
        bases = {sizes.base_offset for sizes in wanted}
        return [item for item in self._sizes if item[0].base_offset in bases]

    def _write_group(self, group: CleanedGroup, members: list[tuple[Segment, int]]) -> None:
        """Writes what stays of a group. If that is only empty batches, the next group follows in
        the same segment: Kafka's search by timestamp may end at a segment without records.
        """
        target = self._new_target(group, group.old[0].base_offset)
        while True:
            target = self._write_members(group, target, members)
            further = None if group.has_records else next(self._groups, None)
            if further is None:
                break
            if further[-1].next_base - 1 - group.old[0].base_offset > MAX_RELATIVE_OFFSET:
                self._groups = chain([further], self._groups)
                break
            members = self._members(further)
            group.old += [segment for segment, _ in members]
        for segment in group.new:
            segment.finish_indexes()
            for name in segment.file_names:
                if self.log.directory.exists(name):
                    _sync(self.log.directory.open(name))
            segment.close()
        self.stats.segments_before += len(group.old)
        self.stats.segments_after += len(group.new)

    def _write_members(
        self, group: CleanedGroup, target: Segment, members: list[tuple[Segment, int]]
    ) -> Segment:
        assert self._filter is not None, "build_map comes first"
        filled = [segment for segment, size in members if size]
        for segment, size in members:
            is_last = segment is filled[-1] if filled else False
            for view in self._views(segment, size):
                filtered = self._filter.filter(
                    view, keeps_last=is_last and self._reader.reaches_end
                )
                self._reader.took(filtered.taken, filtered.batches)
                self.stats.bytes_read += filtered.taken
                group.changed = group.changed or filtered.changed
                target = self._append(group, target, filtered.table)
        return self._append(group, target, self._filter.rest())

    def _append(self, group: CleanedGroup, target: Segment, left: BatchTable) -> Segment:
        """Appends the batches that stay of a buffer; returns the segment for the next ones."""
        while len(left):
            fitting = self._fitting(group, target, left)
            if fitting == 0:  # rewritten batches may be larger: one segment may not hold a group
                self._keep_aborted(target, target.next_offset)
                target = self._new_target(group, target.next_offset)  # no gap: see log.loader
                continue
            piece, left = left.split(fitting)
            target.append_table(piece)
            group.has_records = group.has_records or piece.has_records
            self.stats.bytes_written += len(piece.view)
            self.io.throttle.spend(len(piece.view))
            self._keep_aborted(target, target.next_offset)
        return target

    def _fitting(self, group: CleanedGroup, target: Segment, table: BatchTable) -> int:
        """Returns how many of these batches fit into `target`; at least one if it has no records.

        An empty batch fits in any case, so that no segment is without records.
        """
        size = target.size_bytes
        if size and (target.offset_index.is_full or target.time_index.is_full):
            return 0
        joins = not group.has_records or size == 0 or table.header(0).record_count == 0
        return max(int(joins), table.fitting(self._config.segment_bytes - size))

    def _keep_aborted(self, target: Segment, end_offset: int = sys.maxsize) -> None:
        """Writes the transaction index entries of markers in `target`, those below `end_offset`."""
        assert self._filter is not None
        entries = self._filter.kept_aborted
        for entry in entries:
            if entry.last_offset < end_offset:
                target.txn_index.append(entry)
        entries[:] = [entry for entry in entries if entry.last_offset >= end_offset]

    def _new_target(self, group: CleanedGroup, base_offset: int) -> Segment:
        target = Segment.create(
            self.log.directory, base_offset, self._config, self.now_ms, CLEANED_SUFFIX
        )
        group.new.append(target)
        return target

    def _views(self, segment: Segment, size: int) -> Iterator[memoryview]:
        file = self.log.directory.open_read_only(segment.log_file)
        try:
            yield from self._reader.views(file, size)
        finally:
            file.close()

    def discard(self, group: CleanedGroup) -> None:
        """Removes the `.cleaned` files of a group."""
        for segment in group.new:
            segment.close()
        remove_files(self.log.directory, reversed(group.new_bases), CLEANED_SUFFIX)

    # --- where the log is owned

    def swap(self, group: CleanedGroup) -> None:
        """Puts a finished group in place. Raises CleaningAbortedError if the log changed
        meanwhile.
        """
        present = {id(segment) for segment in self.log.segments[:-1]}
        cut = self.log.durability.truncations != self._truncations
        if self.io.must_stop() or cut or any(id(s) not in present for s in group.old):
            self.discard(group)
            raise CleaningAbortedError(f"{self.log.topic_partition} changed while it was cleaned")
        self.log.replace_segments(group.old, group.new_bases, self.now_ms)


def _sync(file: File) -> None:
    try:
        file.fsync()
    finally:
        file.close()
