"""Filter of a log's batches: what compaction leaves of each, whole, rewritten, empty or nothing.

The rules (Kafka's Cleaner and MemoryRecords.filterTo; KIP-534 for the delete horizon):

- A record stays if it is the last of its key, or is above the end of the offset map.
- A tombstone that is the last of its key stays until the horizon of its batch. The first pass
  writes the horizon (now + delete.retention.ms) into the batch's base timestamp; a later pass drops
  the tombstone. Markers of transactions without records are dropped in the same way.
- Records of aborted transactions are dropped.
- An empty batch stays if it is the last of an active producer, whose sequence or epoch must be
  kept. It also stays as the last of the range, so that the offsets of the log are contiguous.
- A batch that stays whole is not touched. A rewritten one keeps its offsets, codec, producer fields
  and leader epoch. Its CRC was checked before: damage is never signed with a new CRC.

A kernel filters uncompressed data batches, a buffer at once (`tidemark.records.kernels.clean`).
Control batches, compressed ones and those of transactions are filtered one by one.
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
    """Raises CorruptMessageError if the batch is damaged: its log must not be compacted."""
    if not crc_is_valid(view, header.position, header):
        raise crc_error(header.base_offset)


def crc_error(base_offset: int) -> CorruptMessageError:
    return CorruptMessageError(f"the batch at offset {base_offset} fails its CRC check")


def shape_of(header: Header, now_ms: int) -> Any:
    """Returns the fields of a batch for kernels that get its records alone. Raises
    CorruptMessageError.
    """
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
    """Returns the decompressed records of a batch as an uint8 array."""
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
    """Newest state of an active producer: the offset of its last data batch, or else its epoch."""

    last_offset: int | None
    epoch: int


class Filtered(NamedTuple):
    """Batches to write now, valid until the next buffer is filtered.

    `changed`: whether bytes that stay of this buffer differ from those in it. `taken` is the number
    of bytes of the buffer that were filtered, `batches` the number of batches in them.
    """

    table: BatchTable
    changed: bool
    taken: int
    batches: int


_NOTHING = np.empty(0, np.uint8)


def _no_batches() -> BatchTable:
    return BatchTable(memoryview(b""), np.empty(0, np.int64))


def _larger(array: Any, size: int, used: int) -> Any:
    """Returns an array of `size` items that begins with the first `used` items of `array`."""
    larger = np.empty(size, array.dtype)
    larger[:used] = array[:used]
    return larger


@dataclass(slots=True)
class BatchFilter:
    """Filters batches in offset order, buffer by buffer; one per cleaning.

    Output is held back until it has `hold_bytes`, to avoid many small writes; `rest` returns the
    last of it.
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
    _used: int = 0  # held back: bytes of _out, and _written batches
    _written: int = 0

    def filter(self, view: memoryview, *, keeps_last: bool) -> Filtered:
        """Filters the whole batches at the beginning of `view`. Raises CorruptMessageError.

        With `keeps_last` a batch that ends at the end of `view` stays at least as an empty one.
        `kept_aborted` gets the transaction index entries that stay with the batches.
        """
        data = np.frombuffer(view, np.uint8)
        self._make_room(len(data))
        horizon_ms = self.now_ms + self.delete_retention_ms
        orders = np.array((self.now_ms, horizon_ms, keeps_last), np.int64)
        state, replacement = np.zeros(kernels.STATE, np.int64), _NOTHING
        state[kernels.USED], state[kernels.WRITTEN] = self._used, self._written
        state[kernels.CHANGED] = self._written > 0  # output must follow what is held back
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
            if batch == view[at : header.end_position]:
                decision = kernels.WHOLE  # it was emptied by an earlier cleaning
            state[kernels.DECISION], replacement = decision, np.frombuffer(batch, np.uint8)
        taken, batches, self._used, self._written, changed, _ = state.tolist()
        if not changed:
            table = BatchTable(view[:taken], self._positions[: self._written])
            self._used = self._written = 0
        else:
            table = self.rest() if self._used >= self.hold_bytes else _no_batches()
        return Filtered(table, bool(changed), taken, batches)

    def rest(self) -> BatchTable:
        """Returns the output that was held back, valid until the next buffer is filtered."""
        table = BatchTable(memoryview(self._out)[: self._used], self._positions[: self._written])
        self._used = self._written = 0
        return table

    def _make_room(self, size: int) -> None:
        """Makes room for the batches of a buffer of `size` bytes after the output held back."""
        if len(self._keep) < size // body_kernels.RECORD_BYTES_MIN:
            self._keep = np.empty(size // body_kernels.RECORD_BYTES_MIN, np.uint8)
        most = self.hold_bytes + size + size // 16
        if len(self._out) < most:
            self._out = _larger(self._out, most, self._used)
            self._positions = _larger(self._positions, most // HEADER_BYTES, self._written)

    def _enlarge(self, view: memoryview, at: int, replacement_bytes: int, used: int) -> None:
        """Makes room in `_out` for any outcome of the batch at `at`."""
        header = whole_header(view, at)
        growth = header.record_count * body_kernels.GROWTH_BYTES_MAX
        room = used + max(header.size_bytes, replacement_bytes) + growth + len(view) - at
        self._out = _larger(self._out, room, used)

    def _emptied(self, header: Header, is_last: bool) -> tuple[int, bytes]:
        """Returns the decision on a batch without remaining records: it is dropped, or replaced by
        an empty one.
        """
        of_producer = self._is_last_of_producer(header)
        if not is_last and not of_producer:
            return kernels.DROP, b""
        return kernels.REPLACE, _assembled(
            header,
            b"",
            count=0,
            base_time=-1,
            # The producer expires by this timestamp. Otherwise it has the lowest one that a time
            # index takes: of a segment without any, Kafka's search by timestamp uses the file's
            # time, and ends there without a record.
            max_time=header.max_timestamp_ms if of_producer else 0,
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
        """Returns the decision on a batch that the kernel does not filter, and its replacement.

        A plain batch of a transaction that was not aborted is passed to the kernel after all.
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
        """Returns a batch with its marked records; `times` are their first and greatest
        timestamps.
        """
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
    """Returns the batch with other records; offsets, epochs and producer fields stay."""
    changed = header._replace(
        batch_length=HEADER_BYTES - OVERHEAD_BYTES + len(body),
        attributes=attributes,
        base_timestamp_ms=base_time,
        max_timestamp_ms=max_time,
        record_count=count,
    )
    return signed(changed.packed, body)
