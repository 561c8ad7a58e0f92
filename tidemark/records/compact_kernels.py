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

from tidemark.records.crc_kernel import crc_of, load_word
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
MAX_TIMESTAMP, ATTRIBUTES, PRODUCER_ID, SKIP = range(8, 12)
ROW_FIELDS = 12

# What `mark` says of a batch.
KEPT, TOMBSTONES, FIRST_TIME, MAX_TIME, KEYLESS = range(5)
OUTCOME_FIELDS = 5

# What becomes of a batch, and the header fields of one that is rewritten. With LogAppendTime every
# record's timestamp is the new greatest one.
ACTION, NEW_BASE_TIME, NEW_MAX_TIME, NEW_ATTRIBUTES, NEW_COUNT, HAS_APPEND_TIME = range(6)
FATE_FIELDS = 6
DROP, WHOLE, REWRITE, SPECIAL = range(4)

# How far `assemble` got.
AT_ROW, USED, WRITTEN = range(3)

FAULT_FULL = -100  # the map takes no more keys

# Worst growth of a record whose timestamp is written anew: a varlong and a longer length.
GROWTH_BYTES_MAX = 14

_ROWS = types.Array(INT64, 2, "C", readonly=True)
_MAP = types.Array(INT64, 2, "C")
_HEADER_BYTES = 61
_BLOCK = 64  # keys that are looked up one right after the other, so that cache misses overlap
DELETE_HORIZON = 0x40
_APPEND_TIME = 0x08
_NO_PLAIN_DATA = 0x37  # a codec, a transaction, control records


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
    """The two 64-bit halves of the hash of `data`."""
    out[0], out[1] = _siphash(data, 0, len(data), key0, key1)


@helper
def _slot_of(table: Ints64, first: int, second: int) -> int:
    """The row of a key, or the free row where it belongs. The table is never full."""
    slots = len(table)
    slot = (((first >> 32) & 0xFFFFFFFF) * slots) >> 32  # less than 2^31 slots
    while table[slot, 2] != 0 and (table[slot, 0] != first or table[slot, 1] != second):
        slot += 1
        if slot == slots:
            slot = 0
    return slot


@helper
def _big_endian(data: Bytes, at: int, size: int) -> int:
    """A signed number of `size` bytes."""
    value = wide(0)
    for index in range(size):
        value = (value << 8) | wide(data[at + index])
    shift = 64 - 8 * size
    return (value << shift) >> shift


@kernel(INT64(readable(UINT8), readable(INT64), INT64, types.Array(INT64, 2, "C")))
def read_rows(data: Bytes, positions: Ints64, now_ms: int, rows: Ints64) -> int:
    """Fills a row for each batch that begins at `positions`: whole batches of `data`, as a walk
    over them has found. Gives how many marks their records need, or a fault.

    SKIP is set where a batch is no plain data: control, compressed, transactional, empty.
    """
    marks = wide(0)
    for row in range(len(positions)):
        at, batch = positions[row], rows[row]
        if at < 0 or at + _HEADER_BYTES > len(data):
            return FAULT_RECORD_SIZE
        batch[BEGIN] = at + _HEADER_BYTES
        batch[END] = at + 12 + _big_endian(data, at + 8, 4)
        if batch[END] < batch[BEGIN] or batch[END] > len(data):
            return FAULT_RECORD_SIZE
        batch[BASE_OFFSET] = _big_endian(data, at, 8)
        attributes = _big_endian(data, at + 21, 2)
        batch[ATTRIBUTES] = attributes
        batch[LAST_DELTA] = _big_endian(data, at + 23, 4)
        batch[BASE_TIME] = _big_endian(data, at + 27, 8)
        batch[MAX_TIMESTAMP] = _big_endian(data, at + 35, 8)
        batch[PRODUCER_ID] = _big_endian(data, at + 43, 8)
        count = _big_endian(data, at + 57, 4)
        batch[COUNT] = count
        if count < 0 or count > batch[LAST_DELTA] + 1 or batch[BASE_OFFSET] < 0:
            return FAULT_OFFSET
        batch[SKIP] = count == 0 or (attributes & _NO_PLAIN_DATA) != 0
        over = (attributes & DELETE_HORIZON) != 0 and now_ms >= batch[BASE_TIME]
        batch[DROP_DELETES] = over
        batch[FIRST_MARK] = marks
        marks += min(count, batch[END] - batch[BEGIN])
    return marks


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


@helper
def _put_hashes(hashes: Ints64, count: int, table: Ints64, entries: int, entries_max: int) -> int:
    """Puts hashes with their offsets + 1 into the map; the number of entries, or FAULT_FULL."""
    for index in range(count):
        first, second = hashes[index, 0], hashes[index, 1]
        slot = _slot_of(table, first, second)
        if table[slot, 2] == 0:
            if entries >= entries_max:
                return FAULT_FULL
            table[slot, 0] = first
            table[slot, 1] = second
            entries += 1
        # plain batches of a chunk may come after later, compressed ones
        table[slot, 2] = max(table[slot, 2], hashes[index, 2])
    return entries


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

    Gives the number of entries after it; FAULT_FULL beyond `entries_max`, or another fault. Rows
    with SKIP are left out.
    """
    hashes = np.empty((_BLOCK, 3), np.int64)
    waiting = 0
    for row in range(len(rows)):
        batch = rows[row]
        if batch[SKIP]:
            continue
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
                hashes[waiting, 0] = first
                hashes[waiting, 1] = second
                hashes[waiting, 2] = offset + 1
                waiting += 1
                if waiting == _BLOCK:
                    entries = _put_hashes(hashes, waiting, table, entries, entries_max)
                    if entries < 0:
                        return entries
                    waiting = 0
            at = end
        if at != batch_end:
            return FAULT_TAIL
    return _put_hashes(hashes, waiting, table, entries, entries_max)


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


@kernel(INT64(_MAP, INT64, writable(UINT8)))
def note_live(table: Ints64, first_offset: int, live: Bytes) -> int:
    """Sets the bits of the last offsets of all keys, bit 0 being `first_offset`; how many."""
    noted = 0
    for row in range(len(table)):
        bit = table[row, 2] - 1 - first_offset
        if table[row, 2] != 0 and 0 <= bit < 8 * len(live):
            live[bit >> 3] |= 1 << (bit & 7)
            noted += 1
    return noted


@kernel(
    INT64(
        readable(UINT8),
        _ROWS,
        INT64,
        INT64,
        INT64,
        _MAP,
        readable(UINT8),
        INT64,
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
    live: Bytes,
    live_from: int,
    keep: Bytes,
    outcomes: Ints64,
) -> int:
    """Marks in `keep` (from the row's FIRST_MARK on) the records that stay; 0, or a fault.

    A record stays when the map does not reach it (its offset is above `latest_offset`), or when it
    is the last of its key and no tombstone whose time is over (the row's DROP_DELETES). Rows with
    SKIP are left out. From `live_from` on the bits of `note_live` say it without the key.
    """
    for row in range(len(rows)):
        batch = rows[row]
        if batch[SKIP]:
            continue
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
                bit = offset - live_from
                if 0 <= bit < 8 * len(live):
                    is_last = (live[bit >> 3] >> (bit & 7)) & 1 != 0
                else:
                    first, second = _siphash(data, key_at, length, key0, key1)
                    is_last = offset >= table[_slot_of(table, first, second), 2] - 1
                stays = is_last and (value >= 0 or batch[DROP_DELETES] == 0)
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


@kernel(INT64(readable(UINT8), _ROWS, _ROWS))
def first_damaged(data: Bytes, rows: Ints64, fates: Ints64) -> int:
    """The first batch that does not stay WHOLE and fails its CRC; -1 where there is none."""
    for row in range(len(rows)):
        if fates[row, ACTION] != WHOLE:
            begin, end = rows[row, BEGIN] - _HEADER_BYTES, rows[row, END]
            if begin < 0 or end > len(data):
                return row
            crc = _big_endian(data, begin + 17, 4) & 0xFFFFFFFF
            if crc_of(data, begin + 21, end) != crc:
                return row
    return -1


@kernel(INT64(_ROWS, _ROWS, INT64, INT64, types.Array(INT64, 2, "C")))
def decide(rows: Ints64, outcomes: Ints64, horizon_ms: int, last_offset: int, fates: Ints64) -> int:
    """What becomes of the batches that `mark` looked at; how many of all do not stay WHOLE.

    `horizon_ms` is written where tombstones stay that have no horizon yet. A batch without records
    left is SPECIAL where it may have to stay as an empty one: it ends at `last_offset`, or has a
    producer. Rows with SKIP keep the fate that they have.
    """
    changed = 0
    for row in range(len(rows)):
        batch, outcome, fate = rows[row], outcomes[row], fates[row]
        if not batch[SKIP]:
            attributes = batch[ATTRIBUTES]
            has_horizon = attributes & DELETE_HORIZON
            append_time = attributes & _APPEND_TIME
            needs_horizon = outcome[TOMBSTONES] > 0 and not has_horizon
            fate[NEW_COUNT] = outcome[KEPT]
            fate[NEW_ATTRIBUTES] = attributes
            fate[HAS_APPEND_TIME] = append_time
            fate[NEW_MAX_TIME] = batch[MAX_TIMESTAMP] if append_time else outcome[MAX_TIME]
            if outcome[KEPT] == 0:
                ends = batch[BASE_OFFSET] + batch[LAST_DELTA] == last_offset
                fate[ACTION] = SPECIAL if ends or batch[PRODUCER_ID] >= 0 else DROP
            elif outcome[KEPT] == batch[COUNT] and not needs_horizon:
                fate[ACTION] = WHOLE
            else:
                fate[ACTION] = REWRITE
            if needs_horizon:
                fate[NEW_BASE_TIME] = horizon_ms
                fate[NEW_ATTRIBUTES] = attributes | DELETE_HORIZON
            elif has_horizon:
                fate[NEW_BASE_TIME] = batch[BASE_TIME]
            elif append_time:
                fate[NEW_BASE_TIME] = batch[MAX_TIMESTAMP]
            else:
                fate[NEW_BASE_TIME] = outcome[FIRST_TIME]
        changed += fate[ACTION] != WHOLE
    return changed


@helper
def _rewrite(
    data: Bytes,
    batch: Ints64,
    new_base_time: int,
    append_time: int,
    has_append_time: int,
    keep: Bytes,
    out: Bytes,
    used: int,
) -> int:
    """Copies the marked records to out[used:]; where they end, or a fault."""
    at, batch_end = batch[BEGIN], batch[END]
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
    return _rewrite(data, batch, new_base_time, append_time, has_append_time, keep, out, 0)


@helper
def _put_big_endian(out: Bytes, at: int, value: int, size: int) -> None:
    for index in range(size):
        out[at + index] = (value >> (8 * (size - 1 - index))) & 0xFF


@kernel(
    INT64(
        readable(UINT8),
        _ROWS,
        _ROWS,
        readable(UINT8),
        writable(UINT8),
        writable(INT64),
        writable(INT64),
    )
)
def assemble(
    data: Bytes,
    rows: Ints64,
    fates: Ints64,
    keep: Bytes,
    out: Bytes,
    positions: Ints64,
    state: Ints64,
) -> int:
    """Writes what is left of uncompressed batches, one behind the other, to `out`; 0, or a fault.

    Goes on where `state` says (row, bytes of `out` used, batches written), and ends behind the last
    row or at one that is SPECIAL. `positions` gets where each batch begins. A row's records begin
    61 bytes behind its batch. Rewritten batches keep their header but for the fields in `fates`
    and the CRC.
    """
    row, used, written = state[AT_ROW], state[USED], state[WRITTEN]
    while row < len(rows) and fates[row, ACTION] != SPECIAL:
        batch, fate = rows[row], fates[row]
        row += 1
        if fate[ACTION] == DROP:
            continue
        begin = batch[BEGIN] - _HEADER_BYTES
        size = batch[END] - begin if fate[ACTION] == WHOLE else wide(_HEADER_BYTES)
        if begin < 0 or batch[END] > len(data) or used + size > len(out):
            return FAULT_RECORD_SIZE
        positions[written] = used
        written += 1
        _copy(out, used, data, begin, size)
        if fate[ACTION] == WHOLE:
            used += size
            continue
        end = _rewrite(
            data,
            batch,
            fate[NEW_BASE_TIME],
            fate[NEW_MAX_TIME],
            fate[HAS_APPEND_TIME],
            keep,
            out,
            used + _HEADER_BYTES,
        )
        if end < 0:
            return end
        _put_big_endian(out, used + 8, end - used - 12, 4)
        _put_big_endian(out, used + 21, fate[NEW_ATTRIBUTES], 2)
        _put_big_endian(out, used + 27, fate[NEW_BASE_TIME], 8)
        _put_big_endian(out, used + 35, fate[NEW_MAX_TIME], 8)
        _put_big_endian(out, used + 57, fate[NEW_COUNT], 4)
        _put_big_endian(out, used + 17, crc_of(out, used + 21, end), 4)
        used = end
    state[AT_ROW], state[USED], state[WRITTEN] = row, used, written
    return 0


def rows_of(data: Any, positions: Any, now_ms: int) -> tuple[Any, int]:
    """The rows of the whole batches of `data` that begin at `positions` (an int64 array), and how
    many marks they need; or a fault in place of that number.
    """
    rows = np.empty((len(positions), ROW_FIELDS), np.int64)
    return rows, read_rows(data, positions, now_ms, rows)


def plain_row(row: Any, size: int) -> Any:
    """The row of a compressed batch whose plain records, `size` bytes, lie alone in an array."""
    plain = row.copy().reshape(1, ROW_FIELDS)
    plain[0, BEGIN], plain[0, END] = 0, size
    plain[0, FIRST_MARK] = plain[0, SKIP] = 0
    return plain
