"""All that a leader checks of a plain client's batch before it appends it, in one compiled call:
shape, CRC, and the walk over the records.

It is the short way of an append, and says yes only where all is as it mostly is; what is wrong
with any other batch, or that it is right after all, the long way says (`commitlog.log.validation`,
with which this module's answers agree). Reads foreign bytes: every bound is checked.
"""

from __future__ import annotations

from numba import types

from tidemark.records.kernels.batches import big_endian
from tidemark.records.kernels.codec import Bytes
from tidemark.records.kernels.crc import crc_of
from tidemark.records.kernels.jit import INT64, UINT8, kernel, readable
from tidemark.records.kernels.walk import bytes_of, walk

__all__ = ["KEYS_UNKNOWN", "bytes_of", "check"]

_HEADER_BYTES = 61
_OVERHEAD_BYTES = 12
_CRC_BEGIN = 21
_MAGIC = 2
_CODEC_MASK = 0x07
_CODECS = 5
KEYS_UNKNOWN = -1


@kernel(types.UniTuple(INT64, 4)(readable(UINT8), INT64))
def check(data: Bytes, at: int) -> tuple[int, int, int, int]:
    """Of the batch that begins at `at`: where it ends, its least and greatest timestamp, and how
    many records have no key. -1 for the end where the long way has to be gone: the batch is
    damaged or cut off, a control batch, transactional, or not with CreateTime, or its header says
    what a client's does not, or not what its records say.

    A compressed batch is not walked over: its timestamps are the header's, its keys KEYS_UNKNOWN.
    """
    size = len(data) - at
    if at < 0 or size < _HEADER_BYTES or data[at + 16] != _MAGIC:
        return -1, 0, 0, 0
    whole = big_endian(data, at + 8, 4) + _OVERHEAD_BYTES
    attributes = big_endian(data, at + 21, 2)
    if whole < _HEADER_BYTES or whole > size or attributes < 0 or attributes >= _CODECS:
        return -1, 0, 0, 0
    count = big_endian(data, at + 57, 4)
    if big_endian(data, at, 8) != 0 or count <= 0 or count != big_endian(data, at + 23, 4) + 1:
        return -1, 0, 0, 0
    if big_endian(data, at + 43, 8) >= 0 and big_endian(data, at + 53, 4) < 0:
        return -1, 0, 0, 0
    end = at + whole
    if crc_of(data, at + _CRC_BEGIN, end) != big_endian(data, at + 17, 4) & 0xFFFFFFFF:
        return -1, 0, 0, 0
    first, greatest = big_endian(data, at + 27, 8), big_endian(data, at + 35, 8)
    if attributes & _CODEC_MASK:
        return end, min(first, greatest), greatest, KEYS_UNKNOWN
    fault, least, most, keyless = walk(data, at + _HEADER_BYTES, end, count, first)
    if fault != 0 or most != greatest:
        return -1, 0, 0, 0
    return end, least, most, keyless
