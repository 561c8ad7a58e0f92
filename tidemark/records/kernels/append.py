"""All checks of a leader on a plain client's batch, in one compiled call: shape, CRC, records.

This is the fast path of an append. It accepts only the usual case. The slow path
(`commitlog.log.validation`) decides on all other batches, and agrees with this module on the usual
ones. Reads foreign bytes: every bound is checked.
"""

from __future__ import annotations

from numba import types

from tidemark.records.header import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    COMPRESSION_NAMES,
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
from tidemark.records.kernels.batches import big_endian
from tidemark.records.kernels.codec import Bytes
from tidemark.records.kernels.crc import crc_of
from tidemark.records.kernels.jit import INT64, UINT8, kernel, readable
from tidemark.records.kernels.walk import bytes_of, walk

__all__ = ["KEYS_UNKNOWN", "bytes_of", "check"]

_CODECS = len(COMPRESSION_NAMES)
KEYS_UNKNOWN = -1


@kernel(types.UniTuple(INT64, 4)(readable(UINT8), INT64))
def check(data: Bytes, at: int) -> tuple[int, int, int, int]:
    """Checks the batch that begins at `at`. Returns its end, its least and greatest timestamp, and
    how many records have no key.

    An end of -1 leaves the batch to the slow path. It is damaged, cut off, a control batch,
    transactional, or not with CreateTime. Or its header has what no client sends, or disagrees with
    its records. A compressed batch is not walked over: its timestamps are the header's, the keys
    KEYS_UNKNOWN.
    """
    size = len(data) - at
    if at < 0 or size < HEADER_BYTES or data[at + MAGIC_AT] != MAGIC:
        return -1, 0, 0, 0
    whole = big_endian(data, at + LENGTH_AT, 4) + OVERHEAD_BYTES
    attributes = big_endian(data, at + ATTRIBUTES_AT, 2)
    if whole < HEADER_BYTES or whole > size or attributes < 0 or attributes >= _CODECS:
        return -1, 0, 0, 0
    count = big_endian(data, at + RECORD_COUNT_AT, 4)
    last_delta = big_endian(data, at + LAST_OFFSET_DELTA_AT, 4)
    if big_endian(data, at, 8) != 0 or count <= 0 or count != last_delta + 1:
        return -1, 0, 0, 0
    producer_id = big_endian(data, at + PRODUCER_ID_AT, 8)
    if producer_id >= 0 and big_endian(data, at + BASE_SEQUENCE_AT, 4) < 0:
        return -1, 0, 0, 0
    end = at + whole
    if crc_of(data, at + ATTRIBUTES_AT, end) != big_endian(data, at + CRC_AT, 4) & 0xFFFFFFFF:
        return -1, 0, 0, 0
    first = big_endian(data, at + BASE_TIMESTAMP_AT, 8)
    greatest = big_endian(data, at + MAX_TIMESTAMP_AT, 8)
    if attributes & CODEC_MASK:
        return end, min(first, greatest), greatest, KEYS_UNKNOWN
    fault, least, most, keyless = walk(data, at + HEADER_BYTES, end, count, first)
    if fault != 0 or most != greatest:
        return -1, 0, 0, 0
    return end, least, most, keyless
