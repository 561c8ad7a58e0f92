"""The walk from batch to batch, compiled; and the index entries of batches.

One call checks size, magic and CRC of all batches of a buffer. Recovery and the cleaner use it,
which read all bytes of a log. Reads foreign bytes: every length is checked before it is followed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from tidemark.records.header import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    OVERHEAD_BYTES,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
)
from tidemark.records.kernels.codec import Bytes, Ints64, wide
from tidemark.records.kernels.crc import crc_of
from tidemark.records.kernels.jit import INT64, UINT8, helper, kernel, readable, writable

# Notes of `walk_batches`.
END, DAMAGED = range(2)


@helper
def big_endian(data: Bytes, at: int, size: int) -> int:
    """Returns the signed number in `size` bytes."""
    value = wide(0)
    for index in range(size):
        value = (value << 8) | wide(data[at + index])
    shift = 64 - 8 * size
    return (value << shift) >> shift


@kernel(INT64(readable(UINT8), INT64, writable(INT64), writable(INT64)))
def walk_batches(data: Bytes, check_crc: int, positions: Ints64, notes: Ints64) -> int:
    """Notes the positions of the whole, undamaged batches from the first byte on; returns their
    number.

    Stops before a batch that is cut off, before a damaged one, and when `positions` is full.
    """
    at, found = wide(0), 0
    notes[DAMAGED] = 0
    while len(data) - at >= HEADER_BYTES and found < len(positions):
        length = big_endian(data, at + LENGTH_AT, 4)
        if data[at + MAGIC_AT] != MAGIC or length < HEADER_BYTES - OVERHEAD_BYTES:
            notes[DAMAGED] = 1
            break
        end = at + length + OVERHEAD_BYTES
        if end > len(data):
            break
        if check_crc:
            crc = big_endian(data, at + CRC_AT, 4) & 0xFFFFFFFF
            if crc_of(data, at + ATTRIBUTES_AT, end) != crc:
                notes[DAMAGED] = 1
                break
        positions[found] = at
        found += 1
        at = end
    notes[END] = at
    return found


def sound_batches(view: memoryview, check_crc: bool) -> tuple[Any, int, bool]:
    """Returns the positions of the batches (int64 array), the end of the last one, and whether a
    damaged batch follows.
    """
    positions = np.empty(len(view) // HEADER_BYTES, np.int64)
    notes = np.zeros(2, np.int64)
    found = walk_batches(np.frombuffer(view, np.uint8), check_crc, positions, notes)
    end, damaged = notes.tolist()
    return positions[:found], end, bool(damaged)


# Notes of `note_entries` on a batch that an index entry is due for.
LAST_OFFSET, POSITION, TIMESTAMP, TIMESTAMP_OFFSET = range(4)
ENTRY_FIELDS = 4


@kernel(
    INT64(
        readable(UINT8),
        readable(INT64),
        INT64,
        INT64,
        INT64,
        writable(INT64),
        types.Array(INT64, 2, "C"),
    )
)
def note_entries(
    data: Bytes,
    positions: Ints64,
    start: int,
    last_indexed: int,
    interval_bytes: int,
    greatest: Ints64,
    entries: Ints64,
) -> int:
    """Notes the index entries that are due for the batches at `positions`; `data` is at `start` of
    a file. Returns their number, or -1 if a header is not there.

    `greatest` is the greatest timestamp before the batches and its offset; both are updated, and
    its third number becomes the greatest producer id.
    """
    timestamp, timestamp_offset, producer, due = greatest[0], greatest[1], wide(-1), 0
    for row in range(len(positions)):
        at = positions[row]
        if at < 0 or at + HEADER_BYTES > len(data):
            return -1
        last_offset = big_endian(data, at, 8) + big_endian(data, at + LAST_OFFSET_DELTA_AT, 4)
        producer = max(producer, big_endian(data, at + PRODUCER_ID_AT, 8))
        batch_timestamp = big_endian(data, at + MAX_TIMESTAMP_AT, 8)
        if batch_timestamp > timestamp and big_endian(data, at + RECORD_COUNT_AT, 4) > 0:
            timestamp, timestamp_offset = batch_timestamp, last_offset
        if at + start - last_indexed > interval_bytes:
            last_indexed = at + start
            entries[LAST_OFFSET, due] = last_offset
            entries[POSITION, due] = last_indexed
            entries[TIMESTAMP, due] = timestamp
            entries[TIMESTAMP_OFFSET, due] = timestamp_offset
            due += 1
    greatest[0], greatest[1], greatest[2] = timestamp, timestamp_offset, producer
    return due


def entries_of(
    view: memoryview,
    positions: Any,
    start: int,
    last_indexed: int,
    interval_bytes: int,
    greatest: tuple[int, int],
) -> tuple[Any, tuple[int, int], bool]:
    """Returns the entries that are due, one row per field, then the greatest timestamp with its
    offset, then whether a batch has a producer. The arguments are those of `note_entries`.
    """
    entries = np.empty((ENTRY_FIELDS, len(positions)), np.int64)
    most = np.array((*greatest, -1), np.int64)
    data = np.frombuffer(view, np.uint8)
    due = note_entries(data, positions, start, last_indexed, interval_bytes, most, entries)
    if due < 0:
        raise ValueError("there is no batch at a position")
    timestamp, offset, producer = most.tolist()
    return entries[:, :due], (timestamp, offset), producer >= 0
