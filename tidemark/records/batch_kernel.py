"""The walk from batch to batch, compiled: shape and CRC of every batch of a buffer in one call.

For recovery and the cleaner, which look at all bytes of a log. Reads foreign bytes: every length is
checked before it is followed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidemark.records.crc_kernel import crc_of
from tidemark.records.jit import INT64, UINT8, kernel, readable, writable
from tidemark.records.kernels import Bytes, Ints64, wide

_HEADER_BYTES = 61
_OVERHEAD_BYTES = 12
_CRC_BEGIN = 21
_MAGIC = 2

# What `walk_batches` notes.
END, DAMAGED = range(2)


@kernel(INT64(readable(UINT8), INT64, writable(INT64), writable(INT64)))
def walk_batches(data: Bytes, check_crc: int, positions: Ints64, notes: Ints64) -> int:
    """Notes where whole, undamaged batches begin, from the first byte on; how many there are.

    Stops before a batch that is cut off, before a damaged one, and when `positions` is full.
    """
    at, found = wide(0), 0
    notes[DAMAGED] = 0
    while len(data) - at >= _HEADER_BYTES and found < len(positions):
        length = wide(0)
        for index in range(4):
            length = (length << 8) | wide(data[at + 8 + index])
        if data[at + 16] != _MAGIC or length < _HEADER_BYTES - _OVERHEAD_BYTES or length >> 31:
            notes[DAMAGED] = 1
            break
        end = at + length + _OVERHEAD_BYTES
        if end > len(data):
            break
        if check_crc:
            crc = wide(0)
            for index in range(4):
                crc = (crc << 8) | wide(data[at + 17 + index])
            if crc_of(data, at + _CRC_BEGIN, end) != crc:
                notes[DAMAGED] = 1
                break
        positions[found] = at
        found += 1
        at = end
    notes[END] = at
    return found


def sound_batches(view: memoryview, check_crc: bool) -> tuple[Any, int, bool]:
    """Where the batches begin (int64 array), where the last one ends, and whether a damaged one
    follows.
    """
    positions = np.empty(len(view) // _HEADER_BYTES, np.int64)
    notes = np.zeros(2, np.int64)
    found = walk_batches(np.frombuffer(view, np.uint8), check_crc, positions, notes)
    end, damaged = notes.tolist()
    return positions[:found], end, bool(damaged)
