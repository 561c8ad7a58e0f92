"""A leader's walk over a batch's records before an append, compiled by numba.

It notes only the least and greatest timestamp and whether a key is null, and checks every bound of
records, fields and headers. It costs a few nanoseconds a record. The decoder's `scan`
(`tidemark.records.kernels.codec`, which defines the fault codes) also notes the place of each
field.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from tidemark.records.header import NO_TIMESTAMP_MS
from tidemark.records.kernels.codec import (
    FAULT_FIELD,
    FAULT_HEADERS,
    FAULT_OFFSET,
    FAULT_RECORD_SIZE,
    FAULT_TAIL,
    FAULT_TIMESTAMP,
    FAULT_VARINT,
    FAULTS,
    TOTALS,
    Bytes,
    _get_varint,
    _get_varlong,
    _scan_headers,
    wide,
)
from tidemark.records.kernels.jit import INT64, UINT8, kernel, readable

__all__ = ["FAULTS", "FAULT_OFFSET", "NONE_FOUND", "bytes_of", "seek", "walk"]

NONE_FOUND = -200  # returned by `seek` if no record fits; no fault


@kernel(types.UniTuple(INT64, 4)(readable(UINT8), INT64, INT64, INT64, INT64))
def walk(
    data: Bytes, at: int, batch_end: int, count: int, base_time: int
) -> tuple[int, int, int, int]:
    """Walks over `count` records in data[at:batch_end]. Returns 0 or a fault of `codec.FAULTS`, the
    least and the greatest timestamp, and how many records have no key.

    A record without a timestamp counts as the least one only if none has one. FAULT_OFFSET is
    returned also if offsets do not rise by one from the first. Timestamps are the records' own: the
    base's plus their deltas.
    """
    totals = np.empty(0, np.int64)  # sums of headers, which are not needed
    least, most, keyless = 0x7FFFFFFFFFFFFFFF, -0x7FFFFFFFFFFFFFFF, 0
    for index in range(count):
        if at < batch_end and data[at] < 0x80:
            byte = wide(data[at])
            size = (byte >> 1) ^ -(byte & 1)
            at += 1
        else:
            size, at = _get_varint(data, at, batch_end)
            if at < 0:
                return FAULT_VARINT, 0, 0, 0
        end = at + size
        if size < 1 or end > batch_end:
            return FAULT_RECORD_SIZE, 0, 0, 0
        delta, at = _get_varlong(data, at + 1, end)  # after the attributes
        if at < 0:
            return FAULT_VARINT, 0, 0, 0
        timestamp = base_time + delta
        if ((base_time ^ timestamp) & (delta ^ timestamp)) < 0:
            return FAULT_TIMESTAMP, 0, 0, 0
        most = max(most, timestamp)
        if timestamp != NO_TIMESTAMP_MS:
            least = min(least, timestamp)
        offset, at = _get_varint(data, at, end)
        if at < 0:
            return FAULT_VARINT, 0, 0, 0
        if offset != index:
            return FAULT_OFFSET, 0, 0, 0
        length, at = _get_varint(data, at, end)
        if at < 0:
            return FAULT_VARINT, 0, 0, 0
        if length < -1 or length > end - at:
            return FAULT_FIELD, 0, 0, 0
        if length < 0:
            keyless += 1
        else:
            at += length
        length, at = _get_varint(data, at, end)
        if at < 0:
            return FAULT_VARINT, 0, 0, 0
        if length < -1 or length > end - at:
            return FAULT_FIELD, 0, 0, 0
        at += max(length, 0)
        headers, at = _get_varint(data, at, end)
        if at < 0:
            return FAULT_VARINT, 0, 0, 0
        if headers < 0 or headers > end - at:
            return FAULT_HEADERS, 0, 0, 0
        if headers:
            if len(totals) == 0:
                totals = np.zeros(TOTALS, np.int64)
            at = _scan_headers(data, at, end, headers, totals, 0)
            if at < 0:
                return at, 0, 0, 0
        if at != end:
            return FAULT_TAIL, 0, 0, 0
    if at != batch_end:
        return FAULT_TAIL, 0, 0, 0
    return 0, min(least, most), most, keyless


@kernel(types.UniTuple(INT64, 2)(readable(UINT8), INT64, INT64, INT64, INT64, INT64, INT64, INT64))
def seek(
    data: Bytes,
    at: int,
    batch_end: int,
    count: int,
    base_time: int,
    last_delta: int,
    least_time: int,
    least_delta: int,
) -> tuple[int, int]:
    """Returns (offset delta, timestamp) of the first record at or above both bounds.

    Returns (NONE_FOUND, 0) if there is none, or a fault of `codec.FAULTS` and 0. Bytes after the
    record are not read.
    """
    for _ in range(count):
        size, at = _get_varint(data, at, batch_end)
        if at < 0:
            return FAULT_VARINT, 0
        end = at + size
        if size < 1 or end > batch_end:
            return FAULT_RECORD_SIZE, 0
        time_delta, at = _get_varlong(data, at + 1, end)  # after the attributes
        if at < 0:
            return FAULT_VARINT, 0
        timestamp = base_time + time_delta
        if ((base_time ^ timestamp) & (time_delta ^ timestamp)) < 0:
            return FAULT_TIMESTAMP, 0
        delta, at = _get_varint(data, at, end)
        if at < 0:
            return FAULT_VARINT, 0
        if delta < 0 or delta > last_delta:
            return FAULT_OFFSET, 0
        if timestamp >= least_time and delta >= least_delta:
            return delta, timestamp
        at = end
    return NONE_FOUND, 0


def bytes_of(data: Any) -> Bytes:
    """Returns the bytes of a buffer as kernels take them, without a copy."""
    return np.frombuffer(data, np.uint8)
