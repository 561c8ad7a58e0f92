"""The two passes of a cleaning over a buffer of whole batches, one compiled call each: the map of
keys, and the choice of records.

Both finish one batch after the other, while it lies in the processor's cache: size, magic, CRC and
records. The second pass also writes the new batch with its CRC. Compressed batches, control batches
and those of transactions are left to the caller. Reads foreign bytes: every bound is checked
(`tidemark.records.kernels.compact`).
"""

from __future__ import annotations

import numpy as np

from tidemark.records.header import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_AT,
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    OVERHEAD_BYTES,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
)
from tidemark.records.kernels.batches import big_endian
from tidemark.records.kernels.codec import FAULT_OFFSET, _copy, wide
from tidemark.records.kernels.compact import (
    _BLOCK,
    _MAP,
    FAULT_FULL,
    GROWTH_BYTES_MAX,
    NEVER,
    RECORD_BYTES_MIN,
    Bytes,
    Ints64,
    _mark_records,
    _put_hashes,
    _put_records,
    _rewrite_records,
)
from tidemark.records.kernels.crc import CRC_BEGIN, crc_more
from tidemark.records.kernels.jit import INT64, UINT8, helper, kernel, readable, writable

_NO_PLAIN_DATA = CODEC_MASK | TRANSACTIONAL_FLAG | CONTROL_FLAG

FAULT_DAMAGED = -101  # wrong size, magic or CRC
FAULT_ROOM = -102  # `out` is too small; a call with a larger one continues here

# Notes of `map_batches`: end of the whole batches, their number, how many are left to the caller,
# and the entries of the map.
END, BATCHES, SPECIALS, ENTRIES = range(4)
NOTES = 4

# Orders to `filter_batches`. KEEPS_LAST: a batch that ends where the data ends stays, if need be as
# an empty one. HORIZON: the time that tombstones without one are given.
NOW, HORIZON, KEEPS_LAST = range(3)
ORDERS = 3

# State of `filter_batches`: position in the data, batches seen; bytes and batches of `out`; whether
# `out` differs from the data; and the caller's decision on the batch at AT.
AT, SEEN, USED, WRITTEN, CHANGED, DECISION = range(6)
STATE = 6
UNDECIDED, PLAIN, WHOLE, DROP, REPLACE, REWRITE = range(6)  # REWRITE is the kernel's own

# Reasons why `filter_batches` returns.
DONE, SPECIAL, EMPTY = range(10, 13)


@helper
def _whole_end(data: Bytes, at: int) -> int:
    """Returns the end of the batch at `at`; 0 if the data cuts it off, or FAULT_DAMAGED."""
    if len(data) - at < HEADER_BYTES:
        return 0
    length = big_endian(data, at + LENGTH_AT, 4)
    if data[at + MAGIC_AT] != MAGIC or length < HEADER_BYTES - OVERHEAD_BYTES:
        return FAULT_DAMAGED
    end = at + length + OVERHEAD_BYTES
    return end if end <= len(data) else 0


@helper
def _is_possible(data: Bytes, at: int, end: int) -> bool:
    """Returns whether a batch can have these offsets and so many records."""
    count = big_endian(data, at + RECORD_COUNT_AT, 4)
    last_delta = big_endian(data, at + LAST_OFFSET_DELTA_AT, 4)
    return (
        big_endian(data, at, 8) >= 0
        and 0 <= count <= last_delta + 1
        and (count <= (end - at - HEADER_BYTES) // RECORD_BYTES_MIN)
    )


@helper
def _is_special(data: Bytes, at: int) -> bool:
    flags = big_endian(data, at + ATTRIBUTES_AT, 2) & _NO_PLAIN_DATA
    return flags != 0 or big_endian(data, at + RECORD_COUNT_AT, 4) == 0


@helper
def _crc_fits(data: Bytes, at: int, end: int, crc: int, summed: int) -> bool:
    """Returns whether the batch's CRC is right; `crc` covers the bytes up to `summed`."""
    crc = crc_more(crc, data, summed, end) ^ CRC_BEGIN
    return crc == big_endian(data, at + CRC_AT, 4) & 0xFFFFFFFF


@kernel(
    INT64(
        readable(UINT8),
        INT64,
        INT64,
        INT64,
        _MAP,
        INT64,
        INT64,
        writable(INT64),
        writable(INT64),
    )
)
def map_batches(
    data: Bytes,
    start_offset: int,
    key0: int,
    key1: int,
    table: Ints64,
    entries: int,
    entries_max: int,
    specials: Ints64,
    notes: Ints64,
) -> int:
    """Checks the CRC of every whole batch, and maps the keys of all plain records at or above
    `start_offset`. Returns 0, or a fault.

    The positions of the batches left to the caller go into `specials`. After FAULT_FULL, a call
    with a larger map starts over. Only FAULT_DAMAGED means a wrong CRC; the map is useless then.
    """
    hashes = np.empty((_BLOCK, 3), np.int64)
    at, batches, left, waiting = wide(0), 0, 0, wide(0)
    entries, key0 = wide(entries), wide(key0)
    notes[END] = notes[BATCHES] = notes[SPECIALS] = 0
    while True:
        end = _whole_end(data, at)
        if end <= 0:
            break
        fault, crc, summed = wide(0), wide(CRC_BEGIN), at + ATTRIBUTES_AT
        if not _is_special(data, at) and _is_possible(data, at, end):
            fault, entries, waiting, crc, summed = _put_records(
                data,
                at + HEADER_BYTES,
                end,
                big_endian(data, at, 8),
                big_endian(data, at + LAST_OFFSET_DELTA_AT, 4),
                big_endian(data, at + RECORD_COUNT_AT, 4),
                crc,
                summed,
                start_offset,
                key0,
                key1,
                table,
                entries,
                entries_max,
                hashes,
                waiting,
            )
        if not _crc_fits(data, at, end, crc, summed):
            notes[END] = at
            return FAULT_DAMAGED
        if fault < 0:
            return fault
        if _is_special(data, at):
            specials[left] = at
            left += 1
        elif not _is_possible(data, at, end):
            return FAULT_OFFSET
        batches += 1
        at = end
    notes[END], notes[BATCHES], notes[SPECIALS] = at, batches, left
    if end < 0:
        return FAULT_DAMAGED
    entries = _put_hashes(hashes, waiting, table, entries, entries_max)
    if entries < 0:
        return FAULT_FULL
    notes[ENTRIES] = entries
    return 0


@helper
def _put_big_endian(out: Bytes, at: int, value: int, size: int) -> None:
    for index in range(size):
        out[at + index] = (value >> (8 * (size - 1 - index))) & 0xFF


@helper
def _put_batch(
    data: Bytes,
    at: int,
    end: int,
    kept: int,
    tombstones: int,
    first_time: int,
    max_time: int,
    horizon_ms: int,
    keep: Bytes,
    out: Bytes,
    used: int,
) -> int:
    """Writes the marked records of a plain batch to out[used:], which has room for them. Returns
    their end, or a fault. The header keeps all but times, attributes, count and CRC.
    """
    attributes = big_endian(data, at + ATTRIBUTES_AT, 2)
    base_time = big_endian(data, at + BASE_TIMESTAMP_AT, 8)
    has_append_time = attributes & TIMESTAMP_TYPE_FLAG != 0
    if has_append_time:  # every record has the greatest timestamp
        first_time = max_time = big_endian(data, at + MAX_TIMESTAMP_AT, 8)
    new_base_time = first_time
    if attributes & DELETE_HORIZON_FLAG:
        new_base_time = base_time
    elif tombstones:
        new_base_time = horizon_ms
        attributes |= DELETE_HORIZON_FLAG
    _copy(out, used, data, at, HEADER_BYTES)
    _put_big_endian(out, used + ATTRIBUTES_AT, attributes, 2)
    _put_big_endian(out, used + BASE_TIMESTAMP_AT, new_base_time, 8)
    _put_big_endian(out, used + MAX_TIMESTAMP_AT, max_time, 8)
    _put_big_endian(out, used + RECORD_COUNT_AT, kept, 4)
    written, crc, summed = _rewrite_records(
        data,
        at + HEADER_BYTES,
        end,
        big_endian(data, at + RECORD_COUNT_AT, 4),
        (max_time if has_append_time else base_time) - new_base_time,
        has_append_time,
        keep,
        out,
        used + HEADER_BYTES,
        wide(CRC_BEGIN),
        used + ATTRIBUTES_AT,
    )
    if written < 0:
        return written
    _put_big_endian(out, used + LENGTH_AT, written - used - OVERHEAD_BYTES, 4)
    crc = crc_more(crc, out, summed, written) ^ CRC_BEGIN
    _put_big_endian(out, used + CRC_AT, crc, 4)
    return written


@helper
def _decide(
    data: Bytes,
    at: int,
    end: int,
    orders: Ints64,
    question: Ints64,
    table: Ints64,
    live: Bytes,
    keep: Bytes,
) -> tuple[int, int, int, int, int]:
    """Decides on a plain batch: WHOLE, DROP, REWRITE, EMPTY or a fault. Then come number,
    tombstones, first and greatest timestamp of the records that stay.
    """
    if not _is_possible(data, at, end):
        return FAULT_OFFSET, 0, 0, 0, 0
    base_time = big_endian(data, at + BASE_TIMESTAMP_AT, 8)
    count = big_endian(data, at + RECORD_COUNT_AT, 4)
    has_horizon = big_endian(data, at + ATTRIBUTES_AT, 2) & DELETE_HORIZON_FLAG != 0
    kept, tombstones, first_time, max_time, crc, summed = _mark_records(
        data,
        at + HEADER_BYTES,
        end,
        big_endian(data, at, 8),
        big_endian(data, at + LAST_OFFSET_DELTA_AT, 4),
        base_time,
        count,
        has_horizon and orders[NOW] >= base_time,
        at + ATTRIBUTES_AT,
        wide(CRC_BEGIN),
        question,
        table,
        live,
        keep,
    )
    if kept < 0:
        return kept, 0, 0, 0, 0
    if kept == count and (tombstones == 0 or has_horizon):
        return WHOLE, kept, 0, 0, 0
    if summed == NEVER:
        summed = at + ATTRIBUTES_AT
    if not _crc_fits(data, at, end, crc, summed):  # damage is neither signed nor dropped
        return FAULT_DAMAGED, 0, 0, 0, 0
    if kept:
        return REWRITE, kept, tombstones, first_time, max_time
    ends_range = orders[KEEPS_LAST] != 0 and end == len(data)
    if ends_range or big_endian(data, at + PRODUCER_ID_AT, 8) >= 0:
        return EMPTY, 0, 0, 0, 0
    return DROP, 0, 0, 0, 0


@helper
def _begin_out(data: Bytes, out: Bytes, size: int, state: Ints64) -> bool:
    """Makes `out` differ from the data from here on, with room for `size` more bytes; False if
    there is no room.
    """
    used = state[USED]
    if used + size > len(out):
        return False
    if state[CHANGED] == 0:
        _copy(out, 0, data, 0, used)
        state[CHANGED] = 1
    return True


@kernel(
    INT64(
        readable(UINT8),
        readable(INT64),
        readable(INT64),
        _MAP,
        readable(UINT8),
        readable(UINT8),
        writable(UINT8),
        writable(UINT8),
        writable(INT64),
        writable(INT64),
    )
)
def filter_batches(
    data: Bytes,
    orders: Ints64,
    question: Ints64,
    table: Ints64,
    live: Bytes,
    replacement: Bytes,
    keep: Bytes,
    out: Bytes,
    positions: Ints64,
    state: Ints64,
) -> int:
    """Writes what remains of the whole batches to `out`, once that is CHANGED, that is, differs
    from the data. Returns DONE after the last one, or a fault with its place in `state`.

    Returns also for a batch that the caller must decide on: SPECIAL, or EMPTY, whose CRC is right
    and no record of which stays. The next call obeys DECISION: PLAIN (the records are plain),
    WHOLE, DROP, or REPLACE by `replacement`. `positions` gets the begin of each batch. A batch that
    does not stay whole has a right CRC, else FAULT_DAMAGED is returned.
    """
    while True:
        at, used, decision = state[AT], state[USED], state[DECISION]
        kept = tombstones = first_time = max_time = wide(0)
        end = _whole_end(data, at)
        if end <= 0:
            return end if end < 0 else DONE
        if decision == UNDECIDED and _is_special(data, at):
            return SPECIAL
        if decision <= PLAIN:
            decision, kept, tombstones, first_time, max_time = _decide(
                data, at, end, orders, question, table, live, keep
            )
            if decision < 0 or decision == EMPTY:
                return decision
        if decision != WHOLE or state[CHANGED] != 0:
            size = max(end - at, len(replacement)) + kept * GROWTH_BYTES_MAX
            if not _begin_out(data, out, size, state):
                return FAULT_ROOM
        if decision == WHOLE:
            if state[CHANGED] != 0:
                _copy(out, used, data, at, end - at)
            state[USED] = used + end - at
        elif decision == REPLACE:
            _copy(out, used, replacement, 0, len(replacement))
            state[USED] = used + len(replacement)
        elif decision == REWRITE:
            written = _put_batch(
                data,
                at,
                end,
                kept,
                tombstones,
                first_time,
                max_time,
                orders[HORIZON],
                keep,
                out,
                used,
            )
            if written < 0:
                return written
            state[USED] = written
        if decision != DROP:
            positions[state[WRITTEN]] = used
            state[WRITTEN] += 1
        state[DECISION] = UNDECIDED
        state[SEEN] += 1
        state[AT] = end
