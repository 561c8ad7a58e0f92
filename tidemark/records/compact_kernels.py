"""The loops of log compaction, compiled by numba: a map of keys to their last offsets, and the
choice and rewriting of records.

A map is an int64 table of (hash, hash, offset + 1) rows, 24 bytes each, open addressing with linear
probing; a row with a last column of 0 is free. The hash is SipHash-2-4 with 128 bits (Aumasson and
Bernstein, 2012): keyed, so that nobody who may choose keys can make two of them meet.

Batches come as rows of `ROW_FIELDS`; bodies are plain (decompressed) records. Every bound is
checked, a fault is a negative code of `kernels.FAULTS`. The varint helpers are those of `kernels`;
numba's cache notices changes per file, so a change there asks for a touch here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from tidemark.records.jit import INT64, UINT8, helper, kernel, readable, writable
from tidemark.records.kernels import (
    FAULT_FIELD,
    FAULT_OFFSET,
    FAULT_RECORD_SIZE,
    FAULT_TAIL,
    FAULT_VARINT,
    _copy,
    _get_varint,
    _get_varlong,
    _put_varint,
    _varint_size,
    wide,
)

Ints64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# What the kernels take of a batch.
BEGIN, END, BASE_OFFSET, LAST_DELTA, BASE_TIME, COUNT, FIRST_MARK, DROP_DELETES = range(8)
ROW_FIELDS = 8

# What `mark` says of a batch.
KEPT, TOMBSTONES, FIRST_TIME, MAX_TIME, KEYLESS = range(5)
OUTCOME_FIELDS = 5

FAULT_FULL = -100  # the map takes no more keys

# Worst growth of a record whose timestamp is written anew: a varlong and a longer length.
GROWTH_BYTES_MAX = 14

_ROWS = types.Array(INT64, 2, "C", readonly=True)
_MAP = types.Array(INT64, 2, "C")
_LOW_63 = 0x7FFFFFFFFFFFFFFF


@helper
def _rotate(value: int, count: int) -> int:
    return (value << count) | ((value >> (64 - count)) & ((wide(1) << count) - 1))


@helper
def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 += v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 += v3
    v3 = _rotate(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@helper
def _siphash(data: Bytes, at: int, size: int, key0: int, key1: int) -> tuple[int, int]:
    """SipHash-2-4-128 of data[at : at + size]; int64 arithmetic wraps as the hash wants it."""
    v0 = wide(0x736F6D6570736575) ^ key0
    v1 = wide(0x646F72616E646F6D) ^ key1 ^ 0xEE
    v2 = wide(0x6C7967656E657261) ^ key0
    v3 = wide(0x7465646279746573) ^ key1
    for _ in range(size >> 3):
        word = wide(0)
        for byte in range(8):
            word |= wide(data[at + byte]) << (8 * byte)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        at += 8
    word = wide(size & 0xFF) << 56
    for byte in range(size & 7):
        word |= wide(data[at + byte]) << (8 * byte)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= 0xEE
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= 0xDD
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@kernel(types.void(readable(UINT8), INT64, INT64, writable(INT64)))
def siphash(data: Bytes, key0: int, key1: int, out: Ints64) -> None:
    """The two 64-bit halves of the hash of `data`."""
    out[0], out[1] = _siphash(data, 0, len(data), key0, key1)


@helper
def _slot_of(table: Ints64, first: int, second: int) -> int:
    """The row of a key, or the free row where it belongs. The table is never full."""
    slots = len(table)
    slot = (first & _LOW_63) % slots
    while table[slot, 2] != 0 and (table[slot, 0] != first or table[slot, 1] != second):
        slot += 1
        if slot == slots:
            slot = 0
    return slot


@helper
def _record_head(data: Bytes, at: int, batch_end: int) -> tuple[int, int, int, int, int]:
    """(where the record ends or a fault, time delta, offset delta, key at, key length)."""
    size, at = _get_varint(data, at, batch_end)
    if at < 0:
        return FAULT_VARINT, 0, 0, 0, 0
    end = at + size
    if size < 1 or end > batch_end:
        return FAULT_RECORD_SIZE, 0, 0, 0, 0
    time_delta, at = _get_varlong(data, at + 1, end)  # after the attributes
    if at < 0:
        return FAULT_VARINT, 0, 0, 0, 0
    delta, at = _get_varint(data, at, end)
    if at < 0:
        return FAULT_VARINT, 0, 0, 0, 0
    length, at = _get_varint(data, at, end)
    if at < 0:
        return FAULT_VARINT, 0, 0, 0, 0
    if length < -1 or length > end - at:
        return FAULT_FIELD, 0, 0, 0, 0
    return end, time_delta, delta, at, length


@kernel(INT64(readable(UINT8), _ROWS, INT64, INT64, INT64, _MAP, INT64, INT64))
def put_keys(
    data: Bytes,
    rows: Ints64,
    start_offset: int,
    key0: int,
    key1: int,
    table: Ints64,
    entries: int,
    entries_max: int,
) -> int:
    """Puts the keys of all records at or above `start_offset` into the map, with their offsets.

    Gives the number of entries after it; FAULT_FULL beyond `entries_max`, or another fault.
    """
    for row in range(len(rows)):
        batch = rows[row]
        at, batch_end = batch[BEGIN], batch[END]
        for _ in range(batch[COUNT]):
            end, _time, delta, key_at, length = _record_head(data, at, batch_end)
            if end < 0:
                return end
            if delta < 0 or delta > batch[LAST_DELTA]:
                return FAULT_OFFSET
            offset = batch[BASE_OFFSET] + delta
            if length >= 0 and offset >= start_offset:
                first, second = _siphash(data, key_at, length, key0, key1)
                slot = _slot_of(table, first, second)
                if table[slot, 2] == 0:
                    if entries >= entries_max:
                        return FAULT_FULL
                    table[slot, 0] = first
                    table[slot, 1] = second
                    entries += 1
                # plain batches of a chunk may come after later, compressed ones
                table[slot, 2] = max(table[slot, 2], offset + 1)
            at = end
        if at != batch_end:
            return FAULT_TAIL
    return entries


@kernel(INT64(_MAP, _MAP))
def rehash(table: Ints64, larger: Ints64) -> int:
    """Moves all entries into a larger, empty table; gives their number."""
    entries = 0
    for row in range(len(table)):
        if table[row, 2] != 0:
            slot = _slot_of(larger, table[row, 0], table[row, 1])
            for column in range(3):
                larger[slot, column] = table[row, column]
            entries += 1
    return entries


@kernel(
    INT64(
        readable(UINT8),
        _ROWS,
        INT64,
        INT64,
        INT64,
        _MAP,
        writable(UINT8),
        types.Array(INT64, 2, "C"),
    )
)
def mark(
    data: Bytes,
    rows: Ints64,
    latest_offset: int,
    key0: int,
    key1: int,
    table: Ints64,
    keep: Bytes,
    outcomes: Ints64,
) -> int:
    """Marks in `keep` (from the row's FIRST_MARK on) the records that stay; 0, or a fault.

    A record stays when the map does not reach it (its offset is above `latest_offset`), or when it
    is the last of its key and no tombstone whose time is over (the row's DROP_DELETES).
    """
    for row in range(len(rows)):
        batch = rows[row]
        outcome = outcomes[row]
        at, batch_end = batch[BEGIN], batch[END]
        kept = 0
        for index in range(batch[COUNT]):
            end, time_delta, delta, key_at, length = _record_head(data, at, batch_end)
            if end < 0:
                return end
            if delta < 0 or delta > batch[LAST_DELTA]:
                return FAULT_OFFSET
            offset = batch[BASE_OFFSET] + delta
            stays = offset > latest_offset
            value, after = _get_varint(data, key_at + max(length, 0), end)
            if after < 0:
                return FAULT_VARINT
            if length < 0:
                outcome[KEYLESS] += 1
            elif not stays:
                first, second = _siphash(data, key_at, length, key0, key1)
                found = table[_slot_of(table, first, second), 2] - 1
                stays = offset >= found and (value >= 0 or batch[DROP_DELETES] == 0)
            keep[batch[FIRST_MARK] + index] = 1 if stays else 0
            if stays:
                timestamp = batch[BASE_TIME] + time_delta
                if kept == 0:
                    outcome[FIRST_TIME] = timestamp
                if kept == 0 or timestamp > outcome[MAX_TIME]:
                    outcome[MAX_TIME] = timestamp
                if value < 0:
                    outcome[TOMBSTONES] += 1
                kept += 1
            at = end
        if at != batch_end:
            return FAULT_TAIL
        outcome[KEPT] = kept
    return 0


@kernel(
    INT64(readable(UINT8), readable(INT64), INT64, INT64, INT64, readable(UINT8), writable(UINT8))
)
def rewrite(
    data: Bytes,
    batch: Ints64,
    new_base_time: int,
    append_time: int,
    has_append_time: int,
    keep: Bytes,
    out: Bytes,
) -> int:
    """Copies the marked records with timestamps relative to `new_base_time`; bytes, or a fault.

    With `has_append_time` every record's timestamp is `append_time` (LogAppendTime). Offset deltas
    stay: the base offset does.
    """
    at, batch_end = batch[BEGIN], batch[END]
    used = 0
    for index in range(batch[COUNT]):
        size, inside = _get_varint(data, at, batch_end)
        if inside < 0 or size < 1 or inside + size > batch_end:
            return FAULT_RECORD_SIZE
        end = inside + size
        if keep[batch[FIRST_MARK] + index]:
            delta, rest = _get_varlong(data, inside + 1, end)
            if rest < 0:
                return FAULT_VARINT
            timestamp = append_time if has_append_time else batch[BASE_TIME] + delta
            delta = timestamp - new_base_time
            new_size = 1 + _varint_size(delta) + end - rest
            if used + 5 + new_size > len(out):
                return FAULT_RECORD_SIZE
            used = _put_varint(out, used, new_size)
            out[used] = data[inside]
            used = _put_varint(out, used + 1, delta)
            _copy(out, used, data, rest, end - rest)
            used += end - rest
        at = end
    return used


def rows_array(rows: list[tuple[int, ...]]) -> Any:
    """Rows for the kernels."""
    return np.array(rows, np.int64).reshape(len(rows), ROW_FIELDS)
