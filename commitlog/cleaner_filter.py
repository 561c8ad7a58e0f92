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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from crc32c import crc32c

from commitlog.batches import ATTRIBUTES_POSITION, CRC_POSITION, crc_is_valid, end_transaction
from commitlog.cleaner_transactions import TransactionWalk
from commitlog.offset_map import OffsetMap
from commitlog.types import AbortedTransaction
from tidemark.errors import CorruptMessageError
from tidemark.records import compact_kernels as kernels
from tidemark.records.compression import compress, decompress
from tidemark.records.header import (
    COMPRESSION_NAMES,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
)
from tidemark.records.header import BatchHeader as Header

CODEC_MASK = 0x07
_NOTHING = memoryview(b"")


def check_crc(chunk: memoryview, header: Header) -> None:
    """CorruptMessageError where the batch is damaged: its log must not be compacted."""
    if not crc_is_valid(chunk, header):
        raise CorruptMessageError(f"the batch at offset {header.base_offset} fails its CRC check")
    if header.record_count > header.last_offset_delta + 1:
        raise CorruptMessageError(
            f"the batch at offset {header.base_offset} claims {header.record_count} records"
        )


def plain_body(chunk: memoryview, header: Header) -> Any:
    """The plain records of a compressed batch, as uint8 array."""
    name = _codec(header)
    body = decompress(name, chunk[header.position + HEADER_BYTES : header.end_position])
    return np.frombuffer(body, np.uint8)


def _codec(header: Header) -> str:
    number = header.attributes & CODEC_MASK
    if number >= len(COMPRESSION_NAMES):
        raise CorruptMessageError(f"batch {header.base_offset} has the unknown codec {number}")
    return COMPRESSION_NAMES[number]


def row_of(
    header: Header, begin: int, end: int, first_mark: int = 0, drop_deletes: bool = False
) -> tuple[int, ...]:
    """What the kernels take of a batch whose records lie at [begin, end)."""
    return (
        begin,
        end,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp_ms,
        header.record_count,
        first_mark,
        drop_deletes,
    )


@dataclass(slots=True)
class FilterStats:
    """Sums over a cleaning."""

    records_read: int = 0
    records_kept: int = 0
    keyless_dropped: int = 0


@dataclass(slots=True)
class _Fate:
    """What the choice found for one batch; `data` is where `row` points into."""

    kept: int = 0
    tombstones: int = 0
    first_time: int = -1
    max_time: int = -1
    row: Any = None
    data: Any = None
    marks: Any = None
    needs_horizon: bool = False


@dataclass(frozen=True, slots=True)
class LastOfProducer:
    """The newest state of an active producer: its last data batch's offset, else its epoch."""

    last_offset: int | None
    epoch: int


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

    def filter(
        self, chunk: memoryview, headers: list[Header], last_offset: int
    ) -> Iterator[tuple[Header, bytes | memoryview]]:
        """What stays of a chunk's batches: header and bytes. The batch that ends at `last_offset`
        stays at least as an empty one. `kept_aborted` has the transaction index entries that came
        with it. CorruptMessageError.
        """
        fates = self._fates(chunk, headers)
        for header, fate in zip(headers, fates, strict=True):
            self.stats.records_read += header.record_count
            self.stats.records_kept += fate.kept
            if fate.kept == header.record_count and fate.kept and not fate.needs_horizon:
                yield header, chunk[header.position : header.end_position]
                continue
            check_crc(chunk, header)
            if fate.kept:
                yield self._rewritten(chunk, header, fate)
            elif header.last_offset == last_offset or self._is_last_of_producer(header):
                yield _assembled(
                    header,
                    _NOTHING,
                    count=0,
                    base_time=-1,
                    max_time=header.max_timestamp_ms,
                    attributes=header.attributes
                    & (TIMESTAMP_TYPE_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG),
                )

    def _is_last_of_producer(self, header: Header) -> bool:
        last = self.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_offset is not None:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.epoch

    # --- the choice

    def _fates(self, chunk: memoryview, headers: list[Header]) -> list[_Fate]:
        fates: list[_Fate] = []
        rows: list[tuple[int, ...]] = []
        plain: list[_Fate] = []
        first_mark = 0
        for header in headers:
            fate = _Fate()
            fates.append(fate)
            if header.is_control:
                self._control(chunk, header, fate)
            elif not self.walk.on_data(header) and header.record_count:
                drop = self._horizon_is_over(header)
                if header.attributes & CODEC_MASK:
                    check_crc(chunk, header)
                    fate.data = plain_body(chunk, header)
                    row = row_of(header, 0, len(fate.data), 0, drop)
                    count = min(header.record_count, len(fate.data))
                    self._mark(fate.data, count, [row], [fate], [header])
                else:
                    begin, end = header.position + HEADER_BYTES, header.end_position
                    rows.append(row_of(header, begin, end, first_mark, drop))
                    first_mark += min(header.record_count, end - begin)
                    plain.append(fate)
        if rows:
            data = np.frombuffer(chunk, np.uint8)
            for fate in plain:
                fate.data = data
            chosen = [h for h, f in zip(headers, fates, strict=True) if f.data is data]
            self._mark(data, first_mark, rows, plain, chosen)
        return fates

    def _horizon_is_over(self, header: Header) -> bool:
        has_horizon = header.attributes & DELETE_HORIZON_FLAG
        return bool(has_horizon) and self.now_ms >= header.base_timestamp_ms

    def _mark(
        self,
        data: Any,
        count: int,
        rows: list[tuple[int, ...]],
        fates: list[_Fate],
        headers: list[Header],
    ) -> None:
        marks = np.zeros(count, np.uint8)
        table = kernels.rows_array(rows)
        outcomes = self.offset_map.mark(data, table, marks)
        for fate, header, row, outcome in zip(
            fates, headers, table, outcomes.tolist(), strict=True
        ):
            fate.kept, fate.tombstones, fate.first_time, fate.max_time, keyless = outcome
            self.stats.keyless_dropped += keyless
            fate.row, fate.marks = row, marks
            fate.needs_horizon = fate.tombstones > 0 and not header.attributes & DELETE_HORIZON_FLAG

    def _control(self, chunk: memoryview, header: Header, fate: _Fate) -> None:
        check_crc(chunk, header)
        end = end_transaction(chunk, header.position) if header.record_count else None
        may_go, entry = self.walk.on_control(header, end)
        if entry is not None:
            self.kept_aborted.append(entry)
        if may_go and self._horizon_is_over(header):
            return
        fate.kept = header.record_count
        fate.needs_horizon = may_go and not header.attributes & DELETE_HORIZON_FLAG
        fate.max_time = header.max_timestamp_ms
        fate.data = np.frombuffer(chunk, np.uint8)
        row = row_of(header, header.position + HEADER_BYTES, header.end_position)
        fate.row = kernels.rows_array([row])[0]
        fate.marks = np.ones(max(1, header.record_count), np.uint8)

    # --- rewriting

    def _rewritten(self, chunk: memoryview, header: Header, fate: _Fate) -> tuple[Header, bytes]:
        append_time = bool(header.attributes & TIMESTAMP_TYPE_FLAG)
        attributes = header.attributes
        if fate.needs_horizon:
            base_time = self.now_ms + self.delete_retention_ms
            attributes |= DELETE_HORIZON_FLAG
        elif attributes & DELETE_HORIZON_FLAG:
            base_time = header.base_timestamp_ms
        else:
            base_time = header.max_timestamp_ms if append_time else fate.first_time
        max_time = header.max_timestamp_ms if append_time else fate.max_time
        size = int(fate.row[kernels.END] - fate.row[kernels.BEGIN])
        out = np.empty(size + fate.kept * kernels.GROWTH_BYTES_MAX, np.uint8)
        used = kernels.rewrite(
            fate.data, fate.row, base_time, header.max_timestamp_ms, append_time, fate.marks, out
        )
        if used < 0:
            raise CorruptMessageError(f"batch {header.base_offset} can not be rewritten")
        body: bytes | memoryview = out[:used].data
        if attributes & CODEC_MASK:
            body = compress(_codec(header), body)
        return _assembled(
            header,
            body,
            count=fate.kept,
            base_time=base_time,
            max_time=max_time,
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
) -> tuple[Header, bytes]:
    """The batch with other records: offsets, epochs and producer fields are the old ones'."""
    fields = (
        header.base_offset,
        HEADER_BYTES - OVERHEAD_BYTES + len(body),
        header.partition_leader_epoch,
        header.magic,
        0,
        attributes,
        header.last_offset_delta,
        base_time,
        max_time,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    head = bytearray(HEADER.pack(*fields))
    crc = crc32c(body, crc32c(memoryview(head)[ATTRIBUTES_POSITION:]))
    head[CRC_POSITION:ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
    changed = Header(*fields[:4], crc, *fields[5:], header.position)
    return changed, b"".join((head, body))
