"""A record by its timestamp in a batch just read: shape, CRC and walk in one compiled call.

This is the fast path of a look-up by timestamp, and answers only in the usual case. For all other
batches (compressed, damaged, too large) the slow path decides (`tidemark.records.facts`), which
agrees with this module on the usual ones. Reads foreign bytes: every bound is checked.
"""

from __future__ import annotations

from numba import types

from tidemark.records.header import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CRC_AT,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    MIN_RECORD_BYTES,
    OVERHEAD_BYTES,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_FLAG,
)
from tidemark.records.kernels.batches import big_endian
from tidemark.records.kernels.codec import Bytes, wide
from tidemark.records.kernels.crc import crc_of
from tidemark.records.kernels.jit import INT64, UINT8, kernel, readable
from tidemark.records.kernels.walk import seek

_NO_PLAIN_DATA = CODEC_MASK | TIMESTAMP_TYPE_FLAG  # timestamps not the records' own


@kernel(types.UniTuple(INT64, 2)(readable(UINT8), INT64, INT64))
def find(data: Bytes, least_time: int, least_offset: int) -> tuple[int, int]:
    """Returns (offset, timestamp) of the first record at or above both bounds in the batch that
    `data` begins with. (-1, 0) if there is none, or the batch is not plain, whole and sound.
    """
    if len(data) < HEADER_BYTES:
        return -1, 0
    base, end = big_endian(data, 0, 8), big_endian(data, LENGTH_AT, 4) + OVERHEAD_BYTES
    last_delta = big_endian(data, LAST_OFFSET_DELTA_AT, 4)
    count = big_endian(data, RECORD_COUNT_AT, 4)
    if data[MAGIC_AT] != MAGIC or end < HEADER_BYTES or end > len(data):
        return -1, 0
    if base < 0 or last_delta < 0 or base + last_delta < 0 or not 0 < count <= last_delta + 1:
        return -1, 0
    if count > (end - HEADER_BYTES) // MIN_RECORD_BYTES:
        return -1, 0
    flags = big_endian(data, ATTRIBUTES_AT, 2) & _NO_PLAIN_DATA
    if flags or big_endian(data, MAX_TIMESTAMP_AT, 8) < least_time:
        return -1, 0
    if crc_of(data, wide(ATTRIBUTES_AT), end) != big_endian(data, CRC_AT, 4) & 0xFFFFFFFF:
        return -1, 0
    base_time = big_endian(data, BASE_TIMESTAMP_AT, 8)
    least_delta = max(wide(0), least_offset - base)
    delta, timestamp = seek(
        data, HEADER_BYTES, end, count, base_time, last_delta, least_time, least_delta
    )
    if delta < 0:
        return -1, 0
    return base + delta, timestamp
