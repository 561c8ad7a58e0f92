"""One segment of a log: its `.log` file, its indexes, and reads by position, offset and timestamp.

Files are opened and indexes loaded on first use. Index entries follow Kafka's rules (KIP-33 as
Kafka 4 writes them). An entry (a batch's last offset -> its position) is due before a batch more
than index.interval.bytes behind the last indexed one is appended. A time entry (greatest timestamp
so far -> last offset of its batch) comes with it if that timestamp rose. A roll or close adds a
last time entry.

An entry is used only if the batch at its position has that very last offset (or timestamp).
Otherwise both indexes are rebuilt. So a damaged index costs time, but never gives a wrong answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar

from commitlog.disk.files import Directory, File
from commitlog.segment.batches import (
    Cut,
    finds_timestamp,
    has_records,
    indexed_ms,
    scan_batches,
    scan_headers,
)
from commitlog.segment.indexes import (
    MAX_RELATIVE_OFFSET,
    CorruptIndexError,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from commitlog.segment.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from commitlog.segment.reading import open_records, read_extent
from commitlog.types import CorruptLogError, FetchResult
from tidemark.config import TopicConfig
from tidemark.errors import CorruptMessageError
from tidemark.records.extent import BatchOrderError
from tidemark.records.header import (
    CODEC_MASK,
    HEADER_BYTES,
    MAX_OFFSET,
    OVERHEAD_BYTES,
    TIMESTAMP_TYPE_FLAG,
    claimed_size,
    read_header,
)
from tidemark.records.header import BatchHeader as Header

if TYPE_CHECKING:
    from commitlog.segment.batch_table import BatchTable

logger = logging.getLogger(__name__)

_KNOWN_POSITIONS_MAX = 64  # in each of two generations
_RECOVERY_CHUNK_BYTES = 2 << 20  # larger chunks do not fit the processor's caches

_FEW_BATCHES = 8
_NOT_PLAIN = CODEC_MASK | TIMESTAMP_TYPE_FLAG
_FIND_BYTES = 4096 + HEADER_BYTES  # the batches between two index entries, if they are small


class Segment:
    """A segment; `next_offset`, timestamps and indexes are known after `load`."""

    rebuilds: ClassVar[int] = 0  # of all segments; facts derived from one before may be wrong

    def __init__(
        self,
        directory: Directory,
        base_offset: int,
        config: TopicConfig,
        *,
        size_bytes: int = 0,
        created_ms: int = 0,
        suffix: str = "",
    ) -> None:
        """`suffix` ends its file names while it does not belong to the log (`.cleaned`)."""
        self.directory = directory
        self.base_offset = base_offset
        self.config = config
        self.created_ms = created_ms
        self.is_rolled = False
        self.has_producers = size_bytes > 0  # whether a batch may have a producer id
        self._size = size_bytes
        stem = f"{base_offset:020d}"
        self.log_file = stem + LOG_SUFFIX + suffix
        limit = config.segment_index_bytes
        self.offset_index = OffsetIndex(directory, stem + INDEX_SUFFIX + suffix, base_offset, limit)
        self.time_index = TimeIndex(
            directory, stem + TIME_INDEX_SUFFIX + suffix, base_offset, limit
        )
        self.txn_index = TransactionIndex(directory, stem + TXN_INDEX_SUFFIX + suffix)
        self._file: File | None = None
        self._loaded = size_bytes == 0
        self._next_offset = base_offset
        self._max_timestamp_ms = -1
        self._max_timestamp_offset = base_offset
        self._first_timestamp_ms: int | None = None
        self._fault: tuple[int, str] | None = None
        self._last_indexed = 0  # position of the last indexed batch
        self._positions: dict[int, int] = {}  # offset at which a batch begins -> its position
        self._older_positions: dict[int, int] = {}  # the generation before
        self.cuts = 0  # truncations; tells copies made before from those made after

    @classmethod
    def create(
        cls,
        directory: Directory,
        base_offset: int,
        config: TopicConfig,
        now_ms: int,
        suffix: str = "",
    ) -> Segment:
        """Creates an empty segment; existing files of its name are emptied."""
        segment = cls(directory, base_offset, config, created_ms=now_ms, suffix=suffix)
        for name in segment.file_names[1:]:
            directory.remove(name)
        segment.file.truncate(0)
        segment.txn_index.is_checked = True
        return segment

    # --- what it is

    @property
    def file(self) -> File:
        """The open `.log` file."""
        if self._file is None:
            self._file = open_records(self.directory, self.log_file, self._size)
        return self._file

    @property
    def size_bytes(self) -> int:
        return self._size

    @property
    def next_offset(self) -> int:
        """The offset after the last record; the base offset of an empty segment."""
        self.load()
        return self._next_offset

    @property
    def max_timestamp_ms(self) -> int:
        """The greatest timestamp of its records; -1 if there is none."""
        self.load()
        return self._max_timestamp_ms

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the first batch that has the greatest timestamp."""
        self.load()
        return self._max_timestamp_offset

    @property
    def retention_timestamp_ms(self) -> int:
        """The time for retention: the greatest timestamp, or else when the file was last
        written.
        """
        if self.max_timestamp_ms >= 0:
            return self.max_timestamp_ms
        return self.directory.modified_ms(self.log_file)

    @property
    def first_timestamp_ms(self) -> int:
        """The greatest timestamp of the first batch, where segment.ms begins; -1 if empty."""
        if self._first_timestamp_ms is None:
            if self._size < HEADER_BYTES:
                return -1
            self._first_timestamp_ms = self.header_at(0).max_timestamp_ms
        return self._first_timestamp_ms

    @property
    def file_names(self) -> tuple[str, str, str, str]:
        return self.log_file, self.offset_index.name, self.time_index.name, self.txn_index.name

    # --- append

    def should_roll(
        self, size_bytes: int, max_timestamp_ms: int, last_offset: int, now_ms: int, jitter_ms: int
    ) -> bool:
        """Whether batches of this size, timestamp and last offset need a new segment."""
        if last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if self._size == 0:
            return False
        if self._size + size_bytes > self.config.segment_bytes:
            return True
        if self.offset_index.is_full or self.time_index.is_full:
            return True
        first = self._first_timestamp_ms
        if first is None:
            first = self.first_timestamp_ms
        waited = max_timestamp_ms - first if first >= 0 else now_ms - self.created_ms
        limit_ms = self.config.segment_ms
        if self.config.is_compacted:  # else its records could not be compacted in time
            limit_ms = min(limit_ms, self.config.max_compaction_lag_ms)
        return waited > limit_ms - jitter_ms

    def append(self, buffers: list[bytes | memoryview], headers: list[Header]) -> None:
        """Appends whole batches; `headers` are theirs, with the offsets assigned to them.

        Positions in `headers` are ignored. Raises StorageError if the disk is full; then nothing of
        the append is kept.
        """
        if not self._loaded:
            self.load()
        position = self.file.append(*buffers)
        for header in headers:
            self._index(header, position)
            position += header.batch_length + OVERHEAD_BYTES
        self._size = position
        if self._first_timestamp_ms is None and headers:
            self._first_timestamp_ms = headers[0].max_timestamp_ms

    def append_table(self, table: BatchTable) -> None:
        """Appends exactly the batches of a table; as `append`."""
        self.load()
        position = self.file.append(table.view)
        self._index_table(table, position)
        self._size = position + len(table.view)
        if self._first_timestamp_ms is None:
            self._first_timestamp_ms = table.header(0).max_timestamp_ms

    def _index(self, header: Header, position: int) -> None:
        """Applies a batch at the end: greatest timestamp, and index entries if they are due."""
        base_offset, max_timestamp_ms = header.base_offset, header.max_timestamp_ms
        last_offset = base_offset + header.last_offset_delta
        if max_timestamp_ms > self._max_timestamp_ms and header.record_count:
            self._max_timestamp_ms = max_timestamp_ms
            self._max_timestamp_offset = last_offset
        if position - self._last_indexed > self.config.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self._max_timestamp_ms, self._max_timestamp_offset)
            self._last_indexed = position
        self._next_offset = last_offset + 1
        if header.producer_id >= 0:
            self.has_producers = True
        self._remember(base_offset, position)

    def _remember(self, offset: int, position: int) -> None:
        if len(self._positions) >= _KNOWN_POSITIONS_MAX:
            self._older_positions, self._positions = self._positions, {}
        self._positions[offset] = position

    def _forget_positions(self) -> None:
        self._positions, self._older_positions = {}, {}

    def on_rolled(self) -> None:
        """Ends appends: adds the last time entry, and writes the indexes."""
        self.finish_indexes()
        self.is_rolled = True
        self._forget_positions()

    def finish_indexes(self) -> bool:
        """Adds the last time entry (KIP-33) and writes the waiting entries; False if there was
        nothing to write. The files of an empty segment are created without a sync: only Kafka
        misses them.

        A segment of which compaction left empty batches alone gets the least time entry. Without
        one, Kafka searches it up to the time of its file.
        """
        self.load()
        if self._max_timestamp_ms < 0 and self._size and not has_records(self.file, self._size):
            self._max_timestamp_ms, self._max_timestamp_offset = 0, self._next_offset - 1
        self.time_index.maybe_append(self._max_timestamp_ms, self._max_timestamp_offset)
        indexes = (self.offset_index, self.time_index)
        is_worth_a_sync = self._size > 0 or any(index.is_stale for index in indexes)
        written = [index.write_out() for index in indexes]
        return is_worth_a_sync and any(written)

    def write_indexes(self) -> list[str]:
        """Writes the waiting index entries; returns the names of index files to sync: those that
        changed since the last call.
        """
        if self._loaded:
            self.offset_index.write_out()
            self.time_index.write_out()
        indexes = (self.offset_index, self.time_index, self.txn_index)
        return [index.name for index in indexes if index.take_unsynced()]

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- load, recover, rebuild

    def load(self) -> None:
        """Loads the indexes and finds the end; rebuilds missing or damaged indexes."""
        if self._loaded:
            return
        self._loaded, names = True, (self.offset_index.name, self.time_index.name)
        try:
            for name in names:
                if not self.directory.exists(name):
                    self.txn_index.is_doubtful = True
                    raise CorruptIndexError(f"{name} is missing")
            if not self._size and not any(self.directory.size_of(name) for name in names):
                self._reset()  # an idle log needs no open file at start
                return
            self.offset_index.load()
            self.time_index.load()
            self._learn_end()
        except (CorruptIndexError, CorruptMessageError) as error:
            logger.warning("%s: %s; rebuilding the indexes", self.directory.path, error)
            is_cut = self.offset_index.last_entry[1] + HEADER_BYTES > self._size
            self.rebuild_indexes()
            if is_cut and self._size and self._fault is None:
                self._fault = self._size, "its index has entries behind its end"

    def _learn_end(self) -> None:
        """Compares the last entries with their batches, and reads the headers behind them.

        Raises CorruptIndexError if an entry does not fit, or if one is missing.
        """
        offset, indexed = self.offset_index.last_entry
        if indexed and (
            indexed + HEADER_BYTES > self._size or self.header_at(indexed).last_offset != offset
        ):
            raise CorruptIndexError(f"{self.offset_index.name} does not fit its log")
        timestamp, timestamp_offset = self.time_index.last_entry
        entry = self.offset_index.lookup(timestamp_offset)
        if timestamp >= 0 and not finds_timestamp(
            self.file, self._size, entry, timestamp, timestamp_offset
        ):
            raise CorruptIndexError(f"{self.time_index.name} does not fit its log")
        self._max_timestamp_ms, self._max_timestamp_offset = timestamp, timestamp_offset
        self._last_indexed = indexed
        self._next_offset, end = self.base_offset, 0
        start = min(indexed, self.offset_index.lookup(timestamp_offset)[1])
        for header in scan_headers(self.file, start, self._size):
            if header.position - indexed > self.config.index_interval_bytes:
                raise CorruptIndexError(f"{self.offset_index.name} lacks entries")
            if indexed_ms(header) > self._max_timestamp_ms:
                if self.is_rolled or (indexed and header.position <= indexed):
                    raise CorruptIndexError(f"{self.time_index.name} lacks entries")
                self._max_timestamp_ms = indexed_ms(header)
                self._max_timestamp_offset = header.last_offset
            self._next_offset, end = header.next_offset, header.end_position
        self._fault = None if end == self._size else (end, "a batch is cut off")

    @property
    def fault(self) -> tuple[int, str] | None:
        """Position and problem of damage that was found in the file; perhaps a torn append."""
        self.load()
        return self._fault

    def _reset(self) -> None:
        self._loaded = True
        self.offset_index.reset()
        self.time_index.reset()
        self._next_offset = self.base_offset
        self._max_timestamp_ms, self._max_timestamp_offset = -1, self.base_offset
        self._first_timestamp_ms = None
        self._last_indexed, self._fault = 0, None
        self._forget_positions()

    def rebuild_indexes(self) -> None:
        """Rebuilds the indexes from the batch headers; writes those of a rolled segment at once."""
        Segment.rebuilds += 1
        self._reset()
        end, problem, last = 0, "a batch is cut off", self.base_offset + MAX_RELATIVE_OFFSET
        try:
            for header in scan_headers(self.file, 0, self._size):
                if not self.base_offset <= header.base_offset <= header.last_offset <= last:
                    raise CorruptMessageError(f"offset {header.base_offset} is not of its segment")
                self._index(header, header.position)
                end = header.end_position
        except CorruptMessageError as error:
            logger.error("%s/%s: %s", self.directory.path, self.log_file, error)
            problem = str(error)
        self._forget_positions()
        if end != self._size:
            self._fault = end, problem
        elif self.is_rolled:
            self.finish_indexes()

    def recover(
        self,
        on_batches: Callable[[BatchTable], None],
        end_offset: int = MAX_OFFSET,
        epoch: int = -1,
    ) -> int:
        """Checks every batch's CRC, rebuilds the indexes, and ends at the first bad byte. All
        batches lie below `end_offset`; leader epochs begin at `epoch` and do not go back.

        Calls `on_batches` with the valid batches of each buffer; the bytes are gone after the call.
        Returns the number of bytes behind the end; `cut_tail` removes them.
        """
        from commitlog.segment.batch_table import BatchTable, sound_batches

        self._size = self.file.size
        self._reset()
        self.has_producers = False
        end, floor, is_sound, have = 0, self.base_offset, True, 0
        reach = min(MAX_RELATIVE_OFFSET, end_offset - 1 - self.base_offset)
        view = memoryview(bytearray(min(_RECOVERY_CHUNK_BYTES, self._size)))
        while is_sound and self._size - end >= HEADER_BYTES:
            got = view[: have + self.file.pread_into(view[have:], end + have)]
            positions, stop, is_damaged = sound_batches(got)
            if not len(positions):
                wanted = 0 if is_damaged or len(got) < HEADER_BYTES else claimed_size(got, 0)
                if not len(view) < wanted <= self._size - end:
                    break
                view, have = memoryview(bytearray(wanted)), 0  # one batch is larger than the chunk
                continue
            table = BatchTable(got[:stop], positions)
            count = table.in_order(self.base_offset, floor, reach, epoch)
            if count < len(positions):
                stop, is_damaged = int(positions[count]), True
                table.keep(count)
            if count:
                self._index_table(table, end)
                on_batches(table)
                epoch = table.header(-1).partition_leader_epoch
            end, floor, is_sound = end + stop, self._next_offset, not is_damaged
            have = len(got) - stop
            view[:have] = got[stop:]  # do not read the incomplete batch twice
        cut = self._size - end
        self._size = end
        if not cut and self.is_rolled:
            self.finish_indexes()
        return cut

    def cut_tail(self) -> None:
        """Truncates the file to the end that `recover` found."""
        self.file.truncate(self._size)

    def _index_table(self, table: BatchTable, start: int) -> None:
        """Applies batches whose view begins at `start` of the file, as `_index` does one by one.
        Columns are faster from a few batches on.
        """
        if len(table) <= _FEW_BATCHES:
            for row, position in enumerate(table.positions.tolist()):
                self._index(table.header(row), start + position)
            return
        greatest = self._max_timestamp_ms, self._max_timestamp_offset
        interval_bytes = self.config.index_interval_bytes
        due = table.index_entries(start, self._last_indexed, interval_bytes, greatest)
        self.offset_index.extend(due.last_offsets, due.positions)
        self.time_index.extend(due.timestamps, due.timestamp_offsets)
        if len(due.positions):
            self._last_indexed = int(due.positions[-1])
        self._max_timestamp_ms, self._max_timestamp_offset = due.greatest
        self._next_offset = table.next_offset
        self.has_producers = self.has_producers or table.has_producers

    def truncate_to(self, cut: Cut) -> int:
        """Removes the batches from a cut on (`commitlog.segment.cutting`); returns their bytes. A
        crash can bring them back until the file is synced.
        """
        self.cuts += 1
        self.offset_index.truncate(cut.offset)
        self.time_index.truncate(cut.offset)
        self.txn_index.truncate(cut.offset)
        removed, self._size = self._size - cut.position, cut.position
        self.file.truncate(cut.position)
        if self._fault is not None and self._fault[0] >= cut.position:
            self._fault = None
        self._forget_positions()
        self._next_offset = cut.next_offset
        greatest, since = (
            self.time_index.last_entry,
            (cut.max_timestamp_ms, cut.max_timestamp_offset),
        )
        self._max_timestamp_ms, self._max_timestamp_offset = (
            since if cut.max_timestamp_ms > greatest[0] else greatest
        )
        self._last_indexed = self.offset_index.last_entry[1]
        if not self._size:
            self._first_timestamp_ms = None
        return removed

    # --- read

    def header_at(self, position: int) -> Header:
        """Returns the header at a position. Raises CorruptMessageError if there can be none."""
        data = self.file.pread(HEADER_BYTES, position)
        if len(data) < HEADER_BYTES:
            raise CorruptMessageError(f"{self.log_file} ends within the batch at {position}")
        return read_header(data, 0, position)

    def headers(self, offset: int | None = None) -> Iterator[Header]:
        """Yields the headers from the batch that holds `offset` (default: the first) on."""
        if not self._size:
            return iter(())
        position = 0 if offset is None else self.position_of(offset)
        return scan_headers(self.file, position, self._size)

    def position_of(self, offset: int) -> int:
        """Returns the position of the first batch whose last offset is at or above `offset`, or the
        size.
        """
        self.load()
        known = self._positions.get(offset)
        if known is None:
            known = self._older_positions.get(offset)
        if known is not None:
            return known
        try:
            return self._find(offset)
        except (CorruptIndexError, CorruptMessageError) as error:
            if self._fault is None:
                logger.warning("%s: %s; rebuilding the indexes", self.directory.path, error)
                self.rebuild_indexes()
                return self._find(offset)
            raise self._damage(*self._fault) from error

    def _find(self, offset: int) -> int:
        if offset >= self._next_offset or not self._size:
            if self._fault is not None and self._fault[0] < self._size:
                raise self._damage(*self._fault)
            return self._size
        for header, _, _ in self.scan_from(offset):
            if header.last_offset >= offset:
                return header.position
        raise CorruptIndexError(f"{self.offset_index.name} points behind offset {offset}")

    def _damage(self, position: int, problem: str) -> CorruptLogError:
        return CorruptLogError(f"{self.directory.path}/{self.log_file}", position, problem)

    def scan_from(
        self, offset: int, scratch: memoryview | None = None
    ) -> Iterator[tuple[Header, bytes | memoryview, int]]:
        """Yields as `scan_batches`, from the index entry at or below `offset` on. The next batches
        are read into `scratch` if it is large enough.

        If index entries are far apart, there is one batch for each. The first batch only proves
        that the index fits: its header alone is read. Raises CorruptMessageError if it does not.
        """
        entry_offset, start, gap, next_gap = self.offset_index.window(offset)
        is_large = gap > 2 * self.config.index_interval_bytes
        if scratch is not None:
            size = next_gap if is_large else gap + next_gap
            scratch = scratch[: size if HEADER_BYTES < size <= len(scratch) else _FIND_BYTES]
        first = entry_offset if start else None
        chunk_bytes = HEADER_BYTES if is_large else _FIND_BYTES
        floor = 0 if start else self.base_offset
        return scan_batches(self.file, start, self._size, chunk_bytes, scratch, first, floor)

    def batch_after(self, last_offset: int, max_timestamp_ms: int) -> tuple[int, int, int] | None:
        """Returns (position, size, last offset) of the batch behind the one with this last offset
        and greatest timestamp. None if the index alone, by three entries in a row, does not give
        them, for compressed batches and LogAppendTime. `scan_from` then finds batch or damage.
        """
        offset, position, gap, next_gap = self.offset_index.window(last_offset)
        if offset != last_offset or next_gap < HEADER_BYTES:
            return None
        header = self.header_at(position)
        if header.last_offset != last_offset or header.max_timestamp_ms != max_timestamp_ms:
            return None
        if header.attributes & _NOT_PLAIN:  # most likely the next one is not plain either
            return None
        place = position + gap, next_gap, self.offset_index.entry_behind(last_offset)
        return place if header.size_bytes == gap else None

    def read(
        self,
        offset: int,
        max_bytes: int,
        max_offset: int | None = None,
        min_one: bool = True,
        end_offset: int = MAX_OFFSET,
    ) -> FetchResult:
        """Returns whole batches from the one that holds `offset` on: at most `max_bytes`, below
        `max_offset`.

        With `min_one` the first batch is returned even if it is larger than `max_bytes`. The
        records of the segment end below `end_offset`. Raises CorruptLogError.
        """
        known = self._positions.get(offset)
        position = self.position_of(offset) if known is None else known
        least = self.base_offset if known is None else offset
        try:
            data, (end, first, following, first_epoch, epoch) = read_extent(
                self.file, self._size, position, max_bytes, max_offset, min_one, least, end_offset
            )
        except BatchOrderError as error:
            raise self._damage(error.position, str(error)) from None
        if end == 0:
            incomplete = position < self._size and max_offset is None
            return FetchResult(b"", offset, offset, self.base_offset, position, incomplete)
        self._remember(following, position + end)
        records = data if end == len(data) else memoryview(data)[:end]
        found = (records, first, following, self.base_offset, position, False, first_epoch, epoch)
        return tuple.__new__(FetchResult, found)  # without the cost of its keywords

    def read_batch(self, header: Header) -> bytes:
        """Returns the bytes of one batch."""
        return self.file.pread(header.size_bytes, header.position)
