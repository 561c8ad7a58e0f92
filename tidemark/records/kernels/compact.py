"""The loops of log compaction over the records of one batch.

They are the map of keys to their last offsets, the choice of records, and their rewriting. The map
is an int64 table of (hash, hash, offset + 1) rows, 24 bytes each. Addressing is open with linear
probing; a last column of 0 marks a free row. The hash is SipHash-2-4 with 128 bits (Aumasson and
Bernstein, 2012). It is keyed, so that no one who chooses keys can make two of them collide.

A body is the plain (decompressed) records of a batch. `tidemark.records.kernels.clean` handles
whole batches with the helpers here. They update a CRC along the way, a strip of STRIP_BYTES at a
time: the bytes they read are in the nearest cache then. Every bound is checked; a fault is a
negative code of `tidemark.records.kernels.codec.FAULTS`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from tidemark.records.kernels.codec import (
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
from tidemark.records.kernels.crc import LONG_LANE_BYTES, crc_more, load_word
from tidemark.records.kernels.jit import INT64, UINT8, helper, kernel, readable, writable

Ints64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# A batch whose records lie alone in an array, as kernels take it.
BASE_OFFSET, LAST_DELTA, BASE_TIME, COUNT, DROP_DELETES = range(5)
SHAPE_FIELDS = 5

# Outcome of `mark` for a batch.
KEPT, TOMBSTONES, FIRST_TIME, MAX_TIME = range(4)
OUTCOME_FIELDS = 4

# A question to the map; `LATEST` is the last offset that the map covers.
KEY0, KEY1, LATEST, LIVE_FROM = range(4)
QUESTION_FIELDS = 4

FAULT_FULL = -100  # the map is full

# Most that a record grows by when its timestamp is rewritten: a varlong and a longer length.
GROWTH_BYTES_MAX = 14
RECORD_BYTES_MIN = 6  # no record is shorter: length, attributes, two deltas, two lengths

STRIP_BYTES = 3 * LONG_LANE_BYTES  # a whole step of `crc_more`, and room for it in the cache
NEVER = 1 << 62  # value of `summed` if no CRC is wanted

_MAP = types.Array(INT64, 2, "C")
_BLOCK = 64  # keys that are looked up in a row, so that cache misses overlap


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
    """Computes SipHash-2-4-128 of data[at : at + size]; int64 arithmetic wraps as the hash needs
    it.
    """
    v0 = wide(0x736F6D6570736575) ^ key0
    v1 = wide(0x646F72616E646F6D) ^ key1 ^ 0xEE
    v2 = wide(0x6C7967656E657261) ^ key0
    v3 = wide(0x7465646279746573) ^ key1
    for _ in range(size >> 3):
        word = load_word(data, at)
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
    """Computes the two 64-bit halves of the hash of `data`."""
    out[0], out[1] = _siphash(data, 0, len(data), key0, key1)


@helper
def _slot_of(table: Ints64, first: int, second: int) -> int:
    """Returns the row of a key, or the free row for it. The table is never full."""
    slots = len(table)
    slot = (((first >> 32) & 0xFFFFFFFF) * slots) >> 32  # less than 2^31 slots
    while table[slot, 2] != 0 and (table[slot, 0] != first or table[slot, 1] != second):
        slot += 1
        if slot == slots:
            slot = 0
    return slot


@helper
def _record_head(data: Bytes, at: int, batch_end: int) -> tuple[int, int, int, int, int]:
    """Reads the begin of a record. Returns its end or a fault, time delta, offset delta, key's
    begin and length.
    """
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


@helper
def _sum_strip(crc: int, data: Bytes, summed: int, at: int, end: int) -> tuple[int, int]:
    """Advances the CRC from `summed` beyond `at`; returns it and its new end."""
    strips = (at - summed) // STRIP_BYTES + 1
    upto = min(end, summed + strips * STRIP_BYTES)
    return crc_more(crc, data, summed, upto), upto


@helper
def _put_hashes(hashes: Ints64, count: int, table: Ints64, entries: int, entries_max: int) -> int:
    """Adds hashes with their offsets + 1 to the map; returns the number of entries, or
    FAULT_FULL.
    """
    for index in range(count):
        first, second = hashes[index, 0], hashes[index, 1]
        slot = _slot_of(table, first, second)
        if table[slot, 2] == 0:
            if entries >= entries_max:
                return FAULT_FULL
            table[slot, 0] = first
            table[slot, 1] = second
            entries += 1
        # plain batches of a chunk may be added after later, compressed ones
        table[slot, 2] = max(table[slot, 2], hashes[index, 2])
    return entries


@helper
def _put_records(
    data: Bytes,
    at: int,
    batch_end: int,
    base_offset: int,
    last_delta: int,
    count: int,
    crc: int,
    summed: int,
    start_offset: int,
    key0: int,
    key1: int,
    table: Ints64,
    entries: int,
    entries_max: int,
    hashes: Ints64,
    waiting: int,
) -> tuple[int, int, int, int, int]:
    """Adds the keys of a batch's records to the map. Returns 0 or a fault, the entries, the number
    of keys that wait in `hashes`, the CRC and its end.
    """
    for _ in range(count):
        if at >= summed:
            crc, summed = _sum_strip(crc, data, summed, at, batch_end)
        end, _time, delta, key_at, length = _record_head(data, at, batch_end)
        if end < 0:
            return end, entries, waiting, crc, summed
        if delta < 0 or delta > last_delta:
            return FAULT_OFFSET, entries, waiting, crc, summed
        if length >= 0 and base_offset + delta >= start_offset:
            first, second = _siphash(data, key_at, length, key0, key1)
            hashes[waiting, 0] = first
            hashes[waiting, 1] = second
            hashes[waiting, 2] = base_offset + delta + 1
            waiting += 1
            if waiting == _BLOCK:
                entries = _put_hashes(hashes, waiting, table, entries, entries_max)
                if entries < 0:
                    return entries, 0, 0, crc, summed
                waiting = 0
        at = end
    if at != batch_end:
        return FAULT_TAIL, entries, waiting, crc, summed
    return 0, entries, waiting, crc, summed


@kernel(INT64(readable(UINT8), readable(INT64), INT64, INT64, INT64, _MAP, INT64, INT64))
def put_keys(
    body: Bytes,
    shape: Ints64,
    start_offset: int,
    key0: int,
    key1: int,
    table: Ints64,
    entries: int,
    entries_max: int,
) -> int:
    """Adds the keys of all records at or above `start_offset` to the map, with their offsets.

    Returns the new number of entries; FAULT_FULL beyond `entries_max`, or another fault.
    """
    hashes = np.empty((_BLOCK, 3), np.int64)
    fault, entries, waiting, _, _ = _put_records(
        body,
        0,
        len(body),
        shape[BASE_OFFSET],
        shape[LAST_DELTA],
        shape[COUNT],
        0,
        NEVER,
        start_offset,
        key0,
        key1,
        table,
        entries,
        entries_max,
        hashes,
        0,
    )
    if fault < 0:
        return fault
    return _put_hashes(hashes, waiting, table, entries, entries_max)


@kernel(INT64(_MAP, _MAP))
def rehash(table: Ints64, larger: Ints64) -> int:
    """Moves all entries into a larger, empty table; returns their number."""
    entries = 0
    for row in range(len(table)):
        if table[row, 2] != 0:
            slot = _slot_of(larger, table[row, 0], table[row, 1])
            for column in range(3):
                larger[slot, column] = table[row, column]
            entries += 1
    return entries


@kernel(INT64(_MAP, INT64, writable(UINT8)))
def note_live(table: Ints64, first_offset: int, live: Bytes) -> int:
    """Sets the bits of the last offsets of all keys, bit 0 being `first_offset`; returns their
    number.
    """
    noted = 0
    for row in range(len(table)):
        bit = table[row, 2] - 1 - first_offset
        if table[row, 2] != 0 and 0 <= bit < 8 * len(live):
            live[bit >> 3] |= 1 << (bit & 7)
            noted += 1
    return noted


@helper
def _is_last(
    data: Bytes,
    key_at: int,
    length: int,
    offset: int,
    question: Ints64,
    table: Ints64,
    live: Bytes,
) -> bool:
    """Returns whether the map has no later record of this key. From LIVE_FROM on the bits answer
    that without the key.
    """
    bit = offset - question[LIVE_FROM]
    if 0 <= bit < 8 * len(live):
        return bool((live[bit >> 3] >> (bit & 7)) & 1 != 0)
    first, second = _siphash(data, key_at, length, question[KEY0], question[KEY1])
    return bool(offset >= table[_slot_of(table, first, second), 2] - 1)


@helper
def _mark_records(
    data: Bytes,
    at: int,
    batch_end: int,
    base_offset: int,
    last_delta: int,
    base_time: int,
    count: int,
    drop_deletes: bool,
    crc_from: int,
    crc: int,
    question: Ints64,
    table: Ints64,
    live: Bytes,
    keep: Bytes,
) -> tuple[int, int, int, int, int, int]:
    """Marks in `keep` the records that stay. Returns their number or a fault, the tombstones among
    them, their first and greatest timestamp, the CRC and its end.

    The CRC is computed from `crc_from` on as soon as a record is dropped. Its end is NEVER if none
    is.
    """
    kept, tombstones, first_time, max_time, summed = 0, 0, wide(0), wide(0), wide(NEVER)
    if count > len(keep):
        return FAULT_RECORD_SIZE, 0, 0, 0, 0, 0
    for index in range(count):
        if at >= summed:
            crc, summed = _sum_strip(crc, data, summed, at, batch_end)
        end, time_delta, delta, key_at, length = _record_head(data, at, batch_end)
        if end < 0:
            return end, 0, 0, 0, 0, 0
        if delta < 0 or delta > last_delta:
            return FAULT_OFFSET, 0, 0, 0, 0, 0
        value, after = _get_varint(data, key_at + max(length, 0), end)
        if after < 0:
            return FAULT_VARINT, 0, 0, 0, 0, 0
        offset = base_offset + delta
        stays = offset > question[LATEST]
        if not stays and length >= 0:
            stays = _is_last(data, key_at, length, offset, question, table, live)
            stays = stays and (value >= 0 or not drop_deletes)
        keep[index] = 1 if stays else 0
        if stays:
            timestamp = base_time + time_delta
            if kept == 0:
                first_time = timestamp
            if kept == 0 or timestamp > max_time:
                max_time = timestamp
            if value < 0:
                tombstones += 1
            kept += 1
        elif summed == NEVER and crc_from >= 0:
            crc, summed = _sum_strip(crc, data, crc_from, at, batch_end)
        at = end
    if at != batch_end:
        return FAULT_TAIL, 0, 0, 0, 0, 0
    return kept, tombstones, first_time, max_time, crc, summed


@kernel(
    INT64(
        readable(UINT8),
        readable(INT64),
        readable(INT64),
        _MAP,
        readable(UINT8),
        writable(UINT8),
        writable(INT64),
    )
)
def mark(
    body: Bytes,
    shape: Ints64,
    question: Ints64,
    table: Ints64,
    live: Bytes,
    keep: Bytes,
    outcome: Ints64,
) -> int:
    """Marks in `keep` the records that stay; returns 0, or a fault.

    A record stays if its offset is above LATEST, so that the map does not cover it. Else it stays
    if it is the last of its key and no tombstone whose time is over (DROP_DELETES).
    """
    kept, tombstones, first_time, max_time, _, _ = _mark_records(
        body,
        0,
        len(body),
        shape[BASE_OFFSET],
        shape[LAST_DELTA],
        shape[BASE_TIME],
        shape[COUNT],
        shape[DROP_DELETES] != 0,
        -1,
        0,
        question,
        table,
        live,
        keep,
    )
    if kept < 0:
        return kept
    outcome[KEPT], outcome[TOMBSTONES] = kept, tombstones
    outcome[FIRST_TIME], outcome[MAX_TIME] = first_time, max_time
    return 0


@helper
def _rewrite_record(
    data: Bytes, inside: int, end: int, shift: int, is_fixed: bool, out: Bytes, used: int
) -> int:
    """Copies a record with another timestamp delta: `shift`, added to its own unless `is_fixed`.
    Returns its end, or a fault.
    """
    delta, rest = _get_varlong(data, inside + 1, end)
    if rest < 0:
        return FAULT_VARINT
    delta = shift if is_fixed else shift + delta
    new_size = 1 + _varint_size(delta) + end - rest
    if used + 5 + new_size > len(out):
        return FAULT_RECORD_SIZE
    used = _put_varint(out, used, new_size)
    out[used] = data[inside]
    used = _put_varint(out, used + 1, delta)
    _copy(out, used, data, rest, end - rest)
    return used + end - rest


@helper
def _rewrite_records(
    data: Bytes,
    at: int,
    batch_end: int,
    count: int,
    shift: int,
    is_fixed: bool,
    keep: Bytes,
    out: Bytes,
    used: int,
    crc: int,
    summed: int,
) -> tuple[int, int, int]:
    """Copies the marked records to out[used:]. Returns their end or a fault, the CRC and its end.
    Timestamp deltas change by `shift`, or become `shift` (`is_fixed`).
    """
    for index in range(count):
        size, inside = _get_varint(data, at, batch_end)
        if inside < 0 or size < 1 or inside + size > batch_end:
            return FAULT_RECORD_SIZE, 0, 0
        end = inside + size
        if keep[index]:
            if shift == 0 and not is_fixed:
                if used + end - at > len(out):
                    return FAULT_RECORD_SIZE, 0, 0
                _copy(out, used, data, at, end - at)
                used += end - at
            else:
                used = _rewrite_record(data, inside, end, shift, is_fixed, out, used)
                if used < 0:
                    return used, 0, 0
            if used - summed >= STRIP_BYTES:
                crc, summed = crc_more(crc, out, summed, summed + STRIP_BYTES), summed + STRIP_BYTES
        at = end
    return used, crc, summed


@kernel(
    INT64(readable(UINT8), readable(INT64), INT64, INT64, INT64, readable(UINT8), writable(UINT8))
)
def rewrite(
    body: Bytes,
    shape: Ints64,
    new_base_time: int,
    append_time: int,
    has_append_time: int,
    keep: Bytes,
    out: Bytes,
) -> int:
    """Copies the marked records with timestamps relative to `new_base_time`; returns bytes, or a
    fault.

    With `has_append_time` every record's timestamp is `append_time` (LogAppendTime). Offset deltas
    stay, since the base offset does.
    """
    old_time = append_time if has_append_time else shape[BASE_TIME]
    used, _, _ = _rewrite_records(
        body,
        0,
        len(body),
        shape[COUNT],
        old_time - new_base_time,
        has_append_time != 0,
        keep,
        out,
        0,
        0,
        NEVER,
    )
    return used


def shape_of(
    base_offset: int, last_delta: int, base_time: int, count: int, drop_deletes: bool
) -> Any:
    """Returns a batch as the kernels take it."""
    return np.array((base_offset, last_delta, base_time, count, drop_deletes), np.int64)
