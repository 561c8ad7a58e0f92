"""What is left of a log's batches after compaction: whole ones, rewritten ones, empty ones, none.

The rules (Kafka's Cleaner and MemoryRecords.filterTo; KIP-534 for the delete horizon):
- A record stays when it is the last of its key, or lies above what the offset map speaks for.
- A tombstone that is the last of its key stays until the horizon of its batch: the first pass that
  meets it writes the horizon (now + delete.retention.ms) into the batch's base timestamp, a later
  pass drops it. The markers of transactions without records go the same way.
- Records of aborted transactions go.
- An empty batch stays where it is the last of an active producer (its sequence or epoch must not be
  forgotten), and as the last of the range, so that the offsets of the log stay contiguous.
- A batch that stays whole is not touched. A rewritten one keeps its offsets, codec, producer fields
  and leader epoch, and was checked by its CRC before: damage is never signed anew.

Uncompressed data batches go through kernels, a chunk at once (`tidemark.records.compact_kernels`);
control batches, compressed ones and those of transactions one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from crc32c import crc32c

from commitlog.batch_table import BatchTable
from commitlog.batches import (
    ATTRIBUTES_POSITION,
    CONTROL_FLAG,
    CRC_POSITION,
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    Header,
    crc_is_valid,
    end_transaction,
)
from commitlog.cleaner.offset_map import OffsetMap
from commitlog.cleaner.transactions import TransactionWalk
from commitlog.types import AbortedTransaction
from tidemark.errors import CorruptMessageError
from tidemark.records import compact_kernels as kernels
from tidemark.records.compression import compress, decompress
from tidemark.records.header import CODEC_MASK, COMPRESSION_NAMES
from tidemark.records.kernels import FAULTS


def check_crc(view: memoryview, header: Header) -> None:
    """CorruptMessageError where the batch is damaged: its log must not be compacted."""
    if not crc_is_valid(view, header):
        raise crc_error(header.base_offset)


def crc_error(base_offset: int) -> CorruptMessageError:
    return CorruptMessageError(f"the batch at offset {base_offset} fails its CRC check")


def rows_of(table: BatchTable, now_ms: int) -> tuple[Any, Any, int]:
    """The bytes, the kernels' rows and the number of marks of some batches; CorruptMessageError."""
    data = np.frombuffer(table.view, np.uint8)
    rows, marks = kernels.rows_of(data, table.positions, now_ms)
    if marks < 0:
        raise CorruptMessageError(f"a batch to be compacted has {FAULTS[marks]}")
    return data, rows, marks


def plain_body(view: memoryview, header: Header) -> Any:
    """The plain records of a compressed batch, as uint8 array."""
    name = _codec(header)
    body = decompress(name, view[header.position + HEADER_BYTES : header.end_position])
    return np.frombuffer(body, np.uint8)


def _codec(header: Header) -> str:
    number = header.attributes & CODEC_MASK
    if number >= len(COMPRESSION_NAMES):
        raise CorruptMessageError(f"batch {header.base_offset} has the unknown codec {number}")
    return COMPRESSION_NAMES[number]


@dataclass(slots=True)
class FilterStats:
    """Sums over a cleaning."""

    records_read: int = 0
    records_kept: int = 0
    keyless_dropped: int = 0


@dataclass(frozen=True, slots=True)
class LastOfProducer:
    """The newest state of an active producer: its last data batch's offset, else its epoch."""

    last_offset: int | None
    epoch: int


@dataclass(frozen=True, slots=True)
class Filtered:
    """What stays of a chunk, until the next one is filtered; `changed`: is it other bytes?"""

    table: BatchTable
    changed: bool


@dataclass(slots=True)
class _Chunk:
    """A chunk under way: the kernels' view of its batches, and batches that are written by hand."""

    table: BatchTable
    data: Any
    rows: Any
    fates: Any
    by_hand: dict[int, bytes] = field(default_factory=dict)

    def set(self, row: int, action: int) -> None:
        self.fates[row, kernels.ACTION] = action


@dataclass(slots=True)
class BatchFilter:
    """Filters batches in offset order, chunk by chunk; one per cleaning."""

    offset_map: OffsetMap
    walk: TransactionWalk
    producers: Mapping[int, LastOfProducer]
    now_ms: int
    delete_retention_ms: int
    stats: FilterStats = field(default_factory=FilterStats)
    kept_aborted: list[AbortedTransaction] = field(default_factory=list)
    _out: Any = field(default_factory=lambda: np.empty(0, np.uint8))

    def filter(self, table: BatchTable, last_offset: int) -> Filtered:
        """What stays of a chunk's batches. The batch that ends at `last_offset` stays at least as
        an empty one. `kept_aborted` has the transaction index entries that came with it.
        CorruptMessageError.
        """
        data, rows, mark_count = rows_of(table, self.now_ms)
        chunk = _Chunk(table, data, rows, np.zeros((len(rows), kernels.FATE_FIELDS), np.int64))
        if rows[:, kernels.SKIP].any():
            self._by_hand(chunk, last_offset)
        marks = np.empty(mark_count, np.uint8)
        outcomes = self.offset_map.mark(data, rows, marks)
        self._count(rows, outcomes)
        horizon_ms = self.now_ms + self.delete_retention_ms
        if not kernels.decide(rows, outcomes, horizon_ms, last_offset, chunk.fates):
            return Filtered(table, False)
        actions = chunk.fates[:, kernels.ACTION].tolist()
        damaged = kernels.first_damaged(data, rows, chunk.fates)
        if damaged >= 0:  # it is never signed anew, and never dropped
            raise crc_error(int(rows[damaged, kernels.BASE_OFFSET]))
        for row, action in enumerate(actions):
            if action == kernels.SPECIAL and row not in chunk.by_hand:
                self._leave_empty(chunk, row, last_offset)
        return Filtered(self._assemble(chunk, marks), True)

    def _count(self, rows: Any, outcomes: Any) -> None:
        self.stats.records_read += int(rows[:, kernels.COUNT].sum())
        kept, keyless = outcomes[:, (kernels.KEPT, kernels.KEYLESS)].sum(axis=0).tolist()
        self.stats.records_kept += kept
        self.stats.keyless_dropped += keyless

    def _leave_empty(self, chunk: _Chunk, row: int, last_offset: int) -> None:
        """A batch none of whose records stay: dropped, or an empty one in its place."""
        header = chunk.table.header(row)
        of_producer = self._is_last_of_producer(header)
        if header.last_offset == last_offset or of_producer:
            chunk.by_hand[row] = _assembled(
                header,
                b"",
                count=0,
                base_time=-1,
                # A producer expires by it. Else it would stand in the time index for no record, and
                # Kafka's search by timestamp ends where an entry leads to nothing.
                max_time=header.max_timestamp_ms if of_producer else -1,
                attributes=header.attributes
                & (TIMESTAMP_TYPE_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG),
            )
            chunk.set(row, kernels.SPECIAL)
        else:
            chunk.set(row, kernels.DROP)

    def _is_last_of_producer(self, header: Header) -> bool:
        last = self.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_offset is not None:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.epoch

    # --- batches that are no plain data

    def _by_hand(self, chunk: _Chunk, last_offset: int) -> None:
        """Decides on the batches that the kernels leave out; plain ones of transactions that
        were not aborted go to the kernels after all.
        """
        view = chunk.table.view
        for row in np.nonzero(chunk.rows[:, kernels.SKIP])[0].tolist():
            header = chunk.table.header(row)
            if header.is_control:
                check_crc(view, header)
                self._control(chunk, row, header, last_offset)
            elif self.walk.on_data(header) or not header.record_count:
                check_crc(view, header)
                self._leave_empty(chunk, row, last_offset)
            elif header.attributes & CODEC_MASK:
                check_crc(view, header)
                self._compressed(chunk, row, header, last_offset)
            else:
                chunk.rows[row, kernels.SKIP] = 0

    def _control(self, chunk: _Chunk, row: int, header: Header, last_offset: int) -> None:
        view = chunk.table.view
        end = end_transaction(view, header.position) if header.record_count else None
        may_go, entry = self.walk.on_control(header, end)
        if entry is not None:
            self.kept_aborted.append(entry)
        has_horizon = header.attributes & DELETE_HORIZON_FLAG
        is_over = has_horizon and self.now_ms >= header.base_timestamp_ms
        if (may_go and is_over) or not header.record_count:
            self._leave_empty(chunk, row, last_offset)
            return
        self.stats.records_kept += header.record_count
        if not may_go or has_horizon:
            chunk.set(row, kernels.WHOLE)
            return
        marks = np.ones(header.record_count, np.uint8)
        plain = chunk.rows[row].copy()
        plain[kernels.FIRST_MARK] = 0
        times = (header.base_timestamp_ms, header.max_timestamp_ms)
        chunk.by_hand[row] = self._rewritten(
            header, chunk.data, plain, marks, header.record_count, times, True
        )
        chunk.set(row, kernels.SPECIAL)

    def _compressed(self, chunk: _Chunk, row: int, header: Header, last_offset: int) -> None:
        body = plain_body(chunk.table.view, header)
        plain = kernels.plain_row(chunk.rows[row], len(body))
        marks = np.empty(min(header.record_count, len(body)), np.uint8)
        outcome = self.offset_map.mark(body, plain, marks)
        kept, tombstones, first_time, max_time, keyless = outcome[0].tolist()
        self.stats.records_kept += kept
        self.stats.keyless_dropped += keyless
        needs_horizon = tombstones > 0 and not header.attributes & DELETE_HORIZON_FLAG
        if not kept:
            self._leave_empty(chunk, row, last_offset)
        elif kept == header.record_count and not needs_horizon:
            chunk.set(row, kernels.WHOLE)
        else:
            times = (first_time, max_time)
            chunk.by_hand[row] = self._rewritten(
                header, body, plain[0], marks, kept, times, needs_horizon
            )
            chunk.set(row, kernels.SPECIAL)

    # --- rewriting

    def _assemble(self, chunk: _Chunk, marks: Any) -> BatchTable:
        """The batches that stay, one behind the other."""
        rows, fates = chunk.rows, chunk.fates
        growth = int(fates[:, kernels.NEW_COUNT].sum()) * kernels.GROWTH_BYTES_MAX
        room = len(chunk.table.view) + growth + sum(map(len, chunk.by_hand.values()))
        if room > len(self._out):
            self._out = np.empty(room + room // 4, np.uint8)
        positions = np.empty(len(rows), np.int64)
        state = np.zeros(3, np.int64)
        while state[kernels.AT_ROW] < len(rows):
            fault = kernels.assemble(chunk.data, rows, fates, marks, self._out, positions, state)
            if fault < 0:
                raise CorruptMessageError(f"a batch can not be rewritten: {FAULTS[fault]}")
            row, used, written = state.tolist()
            if row < len(rows):
                batch = chunk.by_hand[row]
                self._out[used : used + len(batch)] = np.frombuffer(batch, np.uint8)
                positions[written] = used
                state[:] = row + 1, used + len(batch), written + 1
        _, used, written = state.tolist()
        return BatchTable(memoryview(self._out)[:used], positions[:written])

    def _rewritten(
        self,
        header: Header,
        data: Any,
        row: Any,
        marks: Any,
        kept: int,
        times: tuple[int, int],
        needs_horizon: bool,
    ) -> bytes:
        """A batch with its marked records; `times` are the first and the greatest of them."""
        append_time = bool(header.attributes & TIMESTAMP_TYPE_FLAG)
        attributes = header.attributes
        first_time, max_time = times
        if needs_horizon:
            base_time = self.now_ms + self.delete_retention_ms
            attributes |= DELETE_HORIZON_FLAG
        elif attributes & DELETE_HORIZON_FLAG:
            base_time = header.base_timestamp_ms
        else:
            base_time = header.max_timestamp_ms if append_time else first_time
        size = int(row[kernels.END] - row[kernels.BEGIN])
        out = np.empty(size + kept * kernels.GROWTH_BYTES_MAX, np.uint8)
        used = kernels.rewrite(
            data, row, base_time, header.max_timestamp_ms, append_time, marks, out
        )
        if used < 0:
            raise CorruptMessageError(f"batch {header.base_offset} can not be rewritten")
        body: bytes | memoryview = out[:used].data
        if attributes & CODEC_MASK:
            body = compress(_codec(header), body)
        return _assembled(
            header,
            body,
            count=kept,
            base_time=base_time,
            max_time=header.max_timestamp_ms if append_time else max_time,
            attributes=attributes,
        )


def _assembled(
    header: Header,
    body: bytes | memoryview,
    *,
    count: int,
    base_time: int,
    max_time: int,
    attributes: int,
) -> bytes:
    """The batch with other records: offsets, epochs and producer fields are the old ones'."""
    changed = header._replace(
        batch_length=HEADER_BYTES - OVERHEAD_BYTES + len(body),
        attributes=attributes,
        base_timestamp_ms=base_time,
        max_timestamp_ms=max_time,
        record_count=count,
    )
    batch = bytearray(changed.packed)
    batch += body
    crc = crc32c(memoryview(batch)[ATTRIBUTES_POSITION:])
    batch[CRC_POSITION:ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
    return bytes(batch)
