"""One cleaning of one log: the offset map of its dirty part, then group after group of segments
written anew without the records that the map makes obsolete.

`Cleaning` is made where the log is owned and takes copies of what it needs; `build_map` and
`next_group` then run in any thread: they read rolled segments and write `.cleaned` files, nothing
that the log uses. `swap` (where the log is owned) puts a finished group in its place, unless the
log was cut or its segments changed meanwhile. Source: Kafka's Cleaner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from commitlog.batches import HEADER_BYTES, Header, end_transaction, header_in, unpack_header
from commitlog.cleaner_choice import Cleanable, SegmentSizes, group_segments
from commitlog.cleaner_filter import (
    CODEC_MASK,
    BatchFilter,
    LastOfProducer,
    check_crc,
    plain_body,
    row_of,
)
from commitlog.cleaner_io import CleanerIo, CleaningAbortedError, SegmentDoesNotFitError
from commitlog.cleaner_swap import CLEANED_SUFFIX, remove_files
from commitlog.cleaner_transactions import TransactionWalk
from commitlog.files import File
from commitlog.log import Log
from commitlog.offset_map import OffsetMap, OffsetMapFullError
from commitlog.segment import Segment
from tidemark.errors import CorruptMessageError
from tidemark.records.compact_kernels import rows_array


@dataclass(slots=True)
class CleaningStats:
    """What a cleaning did."""

    bytes_mapped: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    segments_before: int = 0
    segments_after: int = 0


@dataclass(slots=True)
class CleanedGroup:
    """Old segments, and the finished `.cleaned` ones that shall replace them."""

    old: list[Segment]
    new: list[Segment] = field(default_factory=list)
    changed: bool = False

    @property
    def new_bases(self) -> list[int]:
        return [segment.base_offset for segment in self.new]


class Cleaning:
    """A cleaning under way."""

    def __init__(self, log: Log, found: Cleanable, now_ms: int, io: CleanerIo) -> None:
        """Takes down what it needs of the log; called where the log is owned."""
        self.log = log
        self.now_ms = now_ms
        self.io = io
        self.stats = CleaningStats()
        self._chunk_bytes = io.buffer_bytes  # grows where a batch is larger
        self.end_offset = found.end_offset
        self._first_dirty = found.first_dirty_offset
        self._config = log.config
        self._truncations = log.truncations
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
        to where it got. SegmentDoesNotFitError where not even one does; CorruptMessageError;
        CleaningAbortedError.
        """
        self.log.flush(self.end_offset)  # what is cleaned is durable: no crash cuts into it
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
        self._sizes = [item for item in self._sizes if item[0].base_offset < self.end_offset]
        self._filter = BatchFilter(
            offset_map,
            TransactionWalk(self._aborted),
            self._producers,
            self.now_ms,
            self._config.delete_retention_ms,
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
                size_of(segment.offset_index_file),
                size_of(segment.time_index_file),
            )
            for (segment, size), following in zip(self._sizes, bases[1:], strict=True)
        ]
        limit = self._config.segment_index_bytes
        self._groups = iter(group_segments(sizes, self._config.segment_bytes, limit))

    def _map_segment(
        self, segment: Segment, size: int, offset_map: OffsetMap, walk: TransactionWalk
    ) -> None:
        for chunk, headers in self._chunks(segment, size):
            self.stats.bytes_mapped += len(chunk)
            rows = []
            for header in headers:
                check_crc(chunk, header)
                if header.is_control:
                    count = header.record_count
                    walk.on_control(
                        header, end_transaction(chunk, header.position) if count else None
                    )
                elif not walk.on_data(header) and header.last_offset >= self._first_dirty:
                    if header.attributes & CODEC_MASK:
                        body = plain_body(chunk, header)
                        row = rows_array([row_of(header, 0, len(body))])
                        offset_map.put(body, row, self._first_dirty)
                    else:
                        begin = header.position + HEADER_BYTES
                        rows.append(row_of(header, begin, header.end_position))
            if rows:
                offset_map.put(np.frombuffer(chunk, np.uint8), rows_array(rows), self._first_dirty)

    def next_group(self) -> CleanedGroup | None:
        """Writes the next group's `.cleaned` files, synced; None when all are done.

        CleaningAbortedError, CorruptMessageError, StorageError; what was written of the group is
        removed then.
        """
        for wanted in self._groups:
            bases = {sizes.base_offset for sizes in wanted}
            members = [item for item in self._sizes if item[0].base_offset in bases]
            if not any(size for _, size in members):
                continue
            group = CleanedGroup([segment for segment, _ in members])
            try:
                self._write_group(group, members)
            except BaseException:
                self.discard(group)
                raise
            if group.changed or len(members) > 1:
                return group
            self.discard(group)  # nothing to win
            self.stats.segments_before += 1
            self.stats.segments_after += 1
        return None

    def _write_group(self, group: CleanedGroup, members: list[tuple[Segment, int]]) -> None:
        assert self._filter is not None, "build_map comes first"
        filled = [segment for segment, size in members if size]
        target = self._new_target(group, group.old[0].base_offset)
        for segment, size in members:
            left = size
            for chunk, headers in self._chunks(segment, size):
                self.stats.bytes_read += len(chunk)
                left -= len(chunk)
                is_end = segment is filled[-1] and left == 0
                last_offset = headers[-1].last_offset if is_end else -1
                target = self._filter_chunk(group, target, chunk, headers, last_offset)
        for segment in group.new:
            segment.finish_indexes()
            for name in segment.file_names:
                if self.log.directory.exists(name):
                    _sync(self.log.directory.open(name))
            segment.close()
        self.stats.segments_before += len(group.old)
        self.stats.segments_after += len(group.new)

    def _filter_chunk(
        self,
        group: CleanedGroup,
        target: Segment,
        chunk: memoryview,
        headers: list[Header],
        last_offset: int,
    ) -> Segment:
        """Appends what stays of a chunk; returns where the next one goes."""
        assert self._filter is not None
        items: list[tuple[Header, bytes | memoryview]] = []
        kept = waiting = 0
        for header, data in self._filter.filter(chunk, headers, last_offset):
            if self._must_roll(target, waiting, header):
                self._append(target, chunk, items)
                self._keep_aborted(target, header.base_offset)
                items, waiting = [], 0
                target = self._new_target(group, header.base_offset)
            items.append((header, data))
            waiting += header.size_bytes
            kept += 1
            group.changed = group.changed or isinstance(data, bytes)
        group.changed = group.changed or kept < len(headers)
        self._append(target, chunk, items)
        self._keep_aborted(target, headers[-1].next_offset)
        return target

    def _keep_aborted(self, target: Segment, end_offset: int) -> None:
        """Writes the transaction index entries whose markers are in `target`."""
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

    def _must_roll(self, target: Segment, waiting: int, header: Header) -> bool:
        """A rewritten batch may be larger than it was; then a group fills more than a segment."""
        size = target.size_bytes + waiting
        if size == 0:
            return False
        return (
            size + header.size_bytes > self._config.segment_bytes
            or target.offset_index.is_full
            or target.time_index.is_full
        )

    def _append(
        self, target: Segment, chunk: memoryview, items: list[tuple[Header, bytes | memoryview]]
    ) -> None:
        if not items:
            return
        before = target.size_bytes
        target.append(_joined(chunk, items), [header for header, _ in items])
        written = target.size_bytes - before
        self.stats.bytes_written += written
        self.io.throttle.spend(written)

    def _chunks(self, segment: Segment, size: int) -> Iterator[tuple[memoryview, list[Header]]]:
        """Whole batches of a segment, about io.buffer.size at a time."""
        file = self.log.directory.open_read_only(segment.log_file)
        try:
            position = 0
            while position < size:
                self.io.check()
                chunk, headers = self._read_chunk(file, position, size)
                self.io.throttle.spend(len(chunk))
                yield chunk, headers
                position += len(chunk)
        finally:
            file.close()

    def _read_chunk(self, file: File, position: int, size: int) -> tuple[memoryview, list[Header]]:
        want = min(max(self._chunk_bytes, HEADER_BYTES), size - position)
        data = file.pread(want, position)
        headers, end = _whole(data)
        if not headers and len(data) >= HEADER_BYTES:
            want = unpack_header(data[:HEADER_BYTES], 0).size_bytes
            if want <= size - position:
                self._chunk_bytes = max(self._chunk_bytes, 2 * want)  # the next one is as large
                data = file.pread(want, position)
                headers, end = _whole(data)
        if not headers:
            raise CorruptMessageError(f"{file.name} ends within the batch at byte {position}")
        return memoryview(data)[:end], headers

    def discard(self, group: CleanedGroup) -> None:
        """Removes a group's `.cleaned` files."""
        for segment in group.new:
            segment.close()
        remove_files(self.log.directory, reversed(group.new_bases), CLEANED_SUFFIX)

    # --- where the log is owned

    def swap(self, group: CleanedGroup) -> None:
        """Puts a finished group in place. CleaningAbortedError where the log changed meanwhile."""
        present = {id(segment) for segment in self.log.segments[:-1]}
        cut = self.log.truncations != self._truncations
        if self.io.must_stop() or cut or any(id(s) not in present for s in group.old):
            self.discard(group)
            raise CleaningAbortedError(f"{self.log.topic_partition} changed while it was cleaned")
        self.log.replace_segments(group.old, group.new_bases, self.now_ms)


def _whole(data: bytes) -> tuple[list[Header], int]:
    """The headers of the whole batches in `data`, and where they end."""
    headers: list[Header] = []
    end, size = 0, len(data)
    while size - end >= HEADER_BYTES:
        header = header_in(data, end)
        if header.end_position > size:
            break
        headers.append(header)
        end = header.end_position
    return headers, end


def _joined(
    chunk: memoryview, items: list[tuple[Header, bytes | memoryview]]
) -> list[bytes | memoryview]:
    """The same bytes in fewer buffers: untouched neighbours become one view of the chunk."""
    joined: list[bytes | memoryview] = []
    begin = end = -1
    for header, data in items:
        whole = isinstance(data, memoryview)
        if whole and header.position == end:
            end = header.end_position
            continue
        if begin >= 0:
            joined.append(chunk[begin:end])
        begin = end = -1
        if whole:
            begin, end = header.position, header.end_position
        else:
            joined.append(data)
    if begin >= 0:
        joined.append(chunk[begin:end])
    return joined


def _sync(file: File) -> None:
    try:
        file.fsync()
    finally:
        file.close()
