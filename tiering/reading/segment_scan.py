"""Walking over record batches in the bytes of a remote segment (pure).

Only the fixed places of a batch's header are looked at: base offset (0), length (8), last offset
delta (23). Nothing is decoded.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidemark.errors import CorruptMessageError

HEADER_BYTES = 61
_BASE_AND_LENGTH = struct.Struct(">qi")
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23
_SMALLEST_LENGTH = HEADER_BYTES - 12


class BatchBounds(NamedTuple):
    """A batch's offsets (inclusive) and its bytes in all."""

    base_offset: int
    last_offset: int
    size_bytes: int


def batch_bounds(buffer: bytes | memoryview, position: int) -> BatchBounds:
    """The bounds of the batch at `position`; CorruptMessageError for impossible ones."""
    base_offset, length = _BASE_AND_LENGTH.unpack_from(buffer, position)
    (delta,) = _LAST_DELTA.unpack_from(buffer, position + _LAST_DELTA_AT)
    if length < _SMALLEST_LENGTH or base_offset < 0 or delta < 0:
        raise CorruptMessageError(f"no record batch at position {position} of a remote segment")
    return BatchBounds(base_offset, base_offset + delta, 12 + length)
