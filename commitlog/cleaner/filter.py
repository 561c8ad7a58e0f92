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

Uncompressed data batches go through a kernel, a buffer at once (`tidemark.records.kernels.clean`);
control batches, compressed ones and those of transactions one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from commitlog.cleaner.offset_map import OffsetMap, checked
from commitlog.cleaner.transactions import TransactionWalk
from commitlog.segment.batch_table import BatchTable
from commitlog.types import AbortedTransaction
from tidemark.errors import CorruptMessageError
from tidemark.records.compression import compress, decompress
from tidemark.records.control import end_transaction
from tidemark.records.header import (
    CODEC_MASK,
    COMPRESSION_NAMES,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    crc_is_valid,
    read_header,
    signed,
    whole_header,
)
from tidemark.records.header import BatchHeader as Header
from tidemark.records.kernels import clean as kernels
from tidemark.records.kernels import compact as body_kernels


def check_crc(view: memoryview, header: Header) -> None:
    """CorruptMessageError where the batch is damaged: its log must not be compacted."""
    if not crc_is_valid(view, header.position, header):
        raise crc_error(header.base_offset)


def crc_error(base_offset: int) -> CorruptMessageError:
    return CorruptMessageError(f"the batch at offset {base_offset} fails its CRC check")


def shape_of(header: Header, now_ms: int) -> Any:
    """What the kernels take of a batch whose records lie alone in an array; CorruptMessageError."""
    if header.record_count > header.last_offset_delta + 1:
        raise CorruptMessageError(
            f"batch {header.base_offset} claims more records than it has offsets"
        )
    horizon_is_over = (
        header.attributes & DELETE_HORIZON_FLAG != 0 and now_ms >= header.base_timestamp_ms
    )
    return body_kernels.shape_of(
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp_ms,
        header.record_count,
        horizon_is_over,
    )


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


@dataclass(frozen=True, slots=True)
class LastOfProducer:
    """The newest state of an active producer: its last data batch's offset, else its epoch."""

    last_offset: int | None
    epoch: int


class Filtered(NamedTuple):
    """What is to be written now, until the next buffer is filtered; `changed`: are the bytes that
    stay of this one any others?

    `taken` are the bytes of the buffer that were dealt with, `batches` how many batches those were.
    """

    table: BatchTable
    changed: bool
    taken: int
    batches: int


_NOTHING = np.empty(0, np.uint8)


def _no_batches() -> BatchTable:
    return BatchTable(memoryview(b""), np.empty(0, np.int64))


def _larger(array: Any, size: int, used: int) -> Any:
    """An array of `size` items that begins with the first `used` ones of another."""
    larger = np.empty(size, array.dtype)
    larger[:used] = array[:used]
    return larger


@dataclass(slots=True)
class BatchFilter:
    """Filters batches in offset order, buffer by buffer; one per cleaning.

    What stays is held back until it is `hold_bytes`, so that little is not written piece by piece;
    `rest` gives what is left of it.
    """

    offset_map: OffsetMap
    walk: TransactionWalk
    producers: Mapping[int, LastOfProducer]
    now_ms: int
    delete_retention_ms: int
    hold_bytes: int = 0
    kept_aborted: list[AbortedTransaction] = field(default_factory=list)
    _out: Any = field(default_factory=lambda: _NOTHING)
    _keep: Any = field(default_factory=lambda: _NOTHING)
    _positions: Any = field(default_factory=lambda: np.empty(0, np.int64))
    _used: int = 0  # what is held back: bytes of _out, and batches
    _written: int = 0

    def filter(self, view: memoryview, *, keeps_last: bool) -> Filtered:
        """What stays of the whole batches that `view` begins with. With `keeps_last` the batch that
        ends where it ends stays at least as an empty one. `kept_aborted` has the transaction index
        entries that came with it. CorruptMessageError.
        """
        data = np.frombuffer(view, np.uint8)
        self._make_room(len(data))
        horizon_ms = self.now_ms + self.delete_retention_ms
        orders = np.array((self.now_ms, horizon_ms, keeps_last), np.int64)
        state, replacement = np.zeros(kernels.STATE, np.int64), _NOTHING
        state[kernels.USED], state[kernels.WRITTEN] = self._used, self._written
        state[kernels.CHANGED] = self._written > 0  # it goes behind what is held back
        while True:
            result = self.offset_map.filter_batches(
                data, orders, replacement, self._keep, self._out, self._positions, state
            )
            if result == kernels.DONE:
                break
            at = int(state[kernels.AT])
            if result == kernels.FAULT_DAMAGED:
                raise crc_error(read_header(view, at).base_offset)
            if result == kernels.FAULT_ROOM:
                self._enlarge(view, at, len(replacement), int(state[kernels.USED]))
                continue
            checked(result)
            header = whole_header(view, at)
            last = keeps_last and header.end_position == len(view)
            if result == kernels.EMPTY:
                decision, batch = self._emptied(header, last)
            else:
                decision, batch = self._by_hand(view, header, last)
            state[kernels.DECISION], replacement = decision, np.frombuffer(batch, np.uint8)
        taken, batches, self._used, self._written, changed, _ = state.tolist()
        if not changed:
            table = BatchTable(view[:taken], self._positions[: self._written])
            self._used = self._written = 0
        else:
            table = self.rest() if self._used >= self.hold_bytes else _no_batches()
        return Filtered(table, bool(changed), taken, batches)

    def rest(self) -> BatchTable:
        """What was held back, until the next buffer is filtered."""
        table = BatchTable(memoryview(self._out)[: self._used], self._positions[: self._written])
        self._used = self._written = 0
        return table

    def _make_room(self, size: int) -> None:
        """Room for the batches of a buffer of `size` bytes behind what is held back."""
        if len(self._keep) < size // body_kernels.RECORD_BYTES_MIN:
            self._keep = np.empty(size // body_kernels.RECORD_BYTES_MIN, np.uint8)
        most = self.hold_bytes + size + size // 16
        if len(self._out) < most:
            self._out = _larger(self._out, most, self._used)
            self._positions = _larger(self._positions, most // HEADER_BYTES, self._written)

    def _enlarge(self, view: memoryview, at: int, replacement_bytes: int, used: int) -> None:
        """Room in `_out` for whatever becomes of the batch at `at`."""
        header = whole_header(view, at)
        growth = header.record_count * body_kernels.GROWTH_BYTES_MAX
        room = used + max(header.size_bytes, replacement_bytes) + growth + len(view) - at
        self._out = _larger(self._out, room, used)

    def _emptied(self, header: Header, is_last: bool) -> tuple[int, bytes]:
        """A batch none of whose records stay: dropped, or an empty one in its place."""
        of_producer = self._is_last_of_producer(header)
        if not is_last and not of_producer:
            return kernels.DROP, b""
        return kernels.REPLACE, _assembled(
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

    def _is_last_of_producer(self, header: Header) -> bool:
        last = self.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_offset is not None:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.epoch

    # --- batches that are no plain data

    def _by_hand(self, view: memoryview, header: Header, is_last: bool) -> tuple[int, bytes]:
        """The decision on a batch that the kernel leaves out, and what is in its place; a plain one
        of a transaction that was not aborted goes to the kernel after all.
        """
        if header.is_control:
            check_crc(view, header)
            return self._control(view, header, is_last)
        if self.walk.on_data(header) or not header.record_count:
            check_crc(view, header)
            return self._emptied(header, is_last)
        if header.attributes & CODEC_MASK:
            check_crc(view, header)
            return self._compressed(view, header, is_last)
        return kernels.PLAIN, b""

    def _control(self, view: memoryview, header: Header, is_last: bool) -> tuple[int, bytes]:
        end = end_transaction(view, header.position) if header.record_count else None
        may_go, entry = self.walk.on_control(header, end)
        if entry is not None:
            self.kept_aborted.append(entry)
        has_horizon = header.attributes & DELETE_HORIZON_FLAG
        is_over = has_horizon and self.now_ms >= header.base_timestamp_ms
        if (may_go and is_over) or not header.record_count:
            return self._emptied(header, is_last)
        if not may_go or has_horizon:
            return kernels.WHOLE, b""
        body = np.frombuffer(view[header.position + HEADER_BYTES : header.end_position], np.uint8)
        marks = np.ones(header.record_count, np.uint8)
        times = (header.base_timestamp_ms, header.max_timestamp_ms)
        return kernels.REPLACE, self._rewritten(
            header, body, marks, header.record_count, times, True
        )

    def _compressed(self, view: memoryview, header: Header, is_last: bool) -> tuple[int, bytes]:
        body = plain_body(view, header)
        marks = np.empty(min(header.record_count, len(body)), np.uint8)
        outcome = self.offset_map.mark(body, shape_of(header, self.now_ms), marks)
        kept, tombstones, first_time, max_time = outcome.tolist()
        needs_horizon = tombstones > 0 and not header.attributes & DELETE_HORIZON_FLAG
        if not kept:
            return self._emptied(header, is_last)
        if kept == header.record_count and not needs_horizon:
            return kernels.WHOLE, b""
        times = (first_time, max_time)
        return kernels.REPLACE, self._rewritten(header, body, marks, kept, times, needs_horizon)

    # --- rewriting

    def _rewritten(
        self,
        header: Header,
        plain: Any,
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
        shape = shape_of(header, self.now_ms)
        out = np.empty(len(plain) + kept * body_kernels.GROWTH_BYTES_MAX, np.uint8)
        used = body_kernels.rewrite(
            plain, shape, base_time, header.max_timestamp_ms, append_time, marks, out
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
    return signed(changed.packed, body)
