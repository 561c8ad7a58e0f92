"""The loops between Arrow buffers and records, compiled by numba.

Encoding is one pass: `write` sizes and writes each record, into a buffer large enough for the worst
case. Decoding is two passes. `scan` walks over the bytes, checks every bound and notes the fields;
`fill_*` copy the fields. Only `scan` reads untrusted bytes. It returns a negative code (see
`FAULTS`) and never reads beyond a batch's end. Layout: DefaultRecord (KIP-98).

Integers are int64 throughout: in numba a mix of signed and unsigned becomes a float. A column is
offsets, data, validity bitmap and `first_bit`: the begin of its bitmap, or one of two marks. Inner
loops use addresses (`tidemark.records.kernels.words`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numba import types

from tidemark.records.kernels.jit import INT64, UINT8, helper, inlined, kernel, readable, writable
from tidemark.records.kernels.words import (
    MAX_VARINT_BYTES,
    MAX_VARLONG_BYTES,
    SLACK_BYTES,
    address_of,
    copy_bytes,
    copy_loosely,
    get_byte,
    get_int32,
    get_varint,
    get_varlong,
    put_byte,
    put_varint,
    varint_size,
)

Ints32 = npt.NDArray[np.int32]
Ints64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

wide = cast(Callable[[Any], int], np.int64)  # numba sees numpy's type, mypy a plain int

NO_NULLS = -1
ALL_NULL = -2

# One row per batch of the table that `scan` reads.
BEGIN, END, BASE_OFFSET, LAST_DELTA, BASE_TIME, APPEND_TIME, HAS_APPEND_TIME, COUNT = range(8)
BATCH_FIELDS = 8

# One row per record that `scan` writes; a length of -1 is null.
KEY_AT, KEY_LENGTH, VALUE_AT, VALUE_LENGTH, HEADERS_AT, HEADER_COUNT = range(6)
FIELDS = 6

# Sums of `scan`.
KEY_BYTES, KEY_NULLS, VALUE_BYTES, VALUE_NULLS = range(4)
HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES, BAD_BATCH = range(4, 8)
TOTALS = 8

FAULT_VARINT = -1
FAULT_RECORD_SIZE = -2
FAULT_FIELD = -3
FAULT_OFFSET = -4
FAULT_HEADERS = -5
FAULT_TIMESTAMP = -6
FAULT_TAIL = -7
FAULTS = {
    FAULT_VARINT: "a malformed varint",
    FAULT_RECORD_SIZE: "a record reaches beyond its batch",
    FAULT_FIELD: "a field reaches beyond its record",
    FAULT_OFFSET: "an offset lies outside the batch",
    FAULT_HEADERS: "malformed headers",
    FAULT_TIMESTAMP: "a timestamp overflows",
    FAULT_TAIL: "bytes are left over after a record or the last record",
}

# Most bytes of a record beside its fields and headers: length, attributes, time, offset, two
# fields' lengths, header count. Then those of a header beside its key and value.
RECORD_EXTRA_BYTES = 5 * MAX_VARINT_BYTES + MAX_VARLONG_BYTES + 1
HEADER_EXTRA_BYTES = 2 * MAX_VARINT_BYTES

WRITE_FULL = -1
WRITE_TIME = -2

_COPY_BYTES_MIN = 16  # for fewer bytes a loop is faster than a call


@helper
def _copy(to: Bytes, at: int, source: Bytes, begin: int, size: int) -> None:
    """Copies source[begin : begin + size] to `to[at:]`, and no byte more."""
    target, origin = address_of(to) + at, address_of(source) + begin
    if size < _COPY_BYTES_MIN:
        for index in range(size):
            put_byte(target + index, get_byte(origin + index))
    else:
        copy_bytes(target, origin, size)


@helper
def _varint_size(value: int) -> int:
    """Returns the size of a zigzag varint."""
    return varint_size(value)


@helper
def _put_varint(out: Bytes, at: int, value: int) -> int:
    """Writes a zigzag varint to out[at:]; returns its end."""
    begin = address_of(out)
    return put_varint(begin + at, value) - begin


@helper
def _get_varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Reads the 32-bit zigzag varint of data[at:end]; returns it with its end, -1 if it is
    malformed.
    """
    begin = address_of(data)
    value, after = get_varint(begin + at, begin + end)
    return value, after - begin if after >= 0 else -1


@helper
def _get_varlong(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Reads a 64-bit varint as `_get_varint` does."""
    begin = address_of(data)
    value, after = get_varlong(begin + at, begin + end)
    return value, after - begin if after >= 0 else -1


_COLUMN = types.Tuple((readable(types.int32), readable(UINT8), readable(UINT8), INT64))


@inlined
def _located(column: Any) -> tuple[int, int, int, int, int]:
    """Returns a column by addresses: offsets, data, end of the data, bitmap; and first_bit."""
    offsets, data, bitmap, first_bit = column
    begin = address_of(data)
    return address_of(offsets), begin, begin + len(data), address_of(bitmap), first_bit


@inlined
def _length(column: Any, index: int) -> int:
    """Returns the bytes of a value, or the items of a list; -1 for null. The column is
    `_located`.
    """
    offsets, _, _, bitmap, first_bit = column
    if first_bit == ALL_NULL:
        return -1
    if first_bit >= 0:
        bit = first_bit + index
        if not (get_byte(bitmap + (bit >> 3)) >> (bit & 7)) & 1:
            return -1
    return get_int32(offsets + 4 * index + 4) - get_int32(offsets + 4 * index)


@inlined
def _field_size(length: int) -> int:
    return 1 if length < 0 else varint_size(length) + length


@inlined
def _put_field(to: int, column: Any, index: int, length: int) -> int:
    """Writes a value of a `_located` column, its length first; returns its end."""
    offsets, data, data_end, _, _ = column
    to = put_varint(to, length)
    if length > 0:
        at = data + get_int32(offsets + 4 * index)
        copy_loosely(to, at, length, data_end - at)
        to += length
    return to


@helper
def _headers_size(lists: Any, keys: Any, values: Any, index: int) -> int:
    count = _length(lists, index)
    if count <= 0:
        return 1
    first = get_int32(lists[0] + 4 * index)
    size = varint_size(count)
    for item in range(first, first + count):
        size += _field_size(_length(keys, item)) + _field_size(_length(values, item))
    return size


@helper
def _put_headers(to: int, lists: Any, keys: Any, values: Any, index: int) -> int:
    count = _length(lists, index)
    if count <= 0:
        put_byte(to, 0)
        return to + 1
    first = get_int32(lists[0] + 4 * index)
    to = put_varint(to, count)
    for item in range(first, first + count):
        to = _put_field(to, keys, item, _length(keys, item))
        to = _put_field(to, values, item, _length(values, item))
    return to


@kernel(INT64(_COLUMN, _COLUMN, _COLUMN, _COLUMN, _COLUMN, readable(INT64), writable(UINT8)))
def write(
    key: Any,
    value: Any,
    header_lists: Any,
    header_keys: Any,
    header_values: Any,
    timestamps: Ints64,
    out: Bytes,
) -> int:
    """Writes the records into `out` from its first byte on; returns their end.

    Returns WRITE_FULL unless there is room for them, for the longest varint of a length, and for
    SLACK_BYTES. Returns WRITE_TIME if a time is 2^63 ms or more from the first.
    """
    keys, values, lists = _located(key), _located(value), _located(header_lists)
    names, contents = _located(header_keys), _located(header_values)
    plain = header_lists[3] == ALL_NULL
    base = timestamps[0]
    begin = to = address_of(out)
    last = begin + len(out) - SLACK_BYTES - MAX_VARINT_BYTES
    for index in range(len(timestamps)):
        delta = timestamps[index] - base
        if ((base ^ timestamps[index]) & (timestamps[index] ^ delta)) < 0:
            return WRITE_TIME
        key_length, value_length = _length(keys, index), _length(values, index)
        size = 1 + varint_size(delta) + varint_size(index)
        size += _field_size(key_length) + _field_size(value_length)
        size += 1 if plain else _headers_size(lists, names, contents, index)
        if size > last - to:
            return WRITE_FULL
        to = put_varint(to, size)
        put_byte(to, 0)  # attributes: no bit is in use
        to = put_varint(put_varint(to + 1, delta), index)
        to = _put_field(to, keys, index, key_length)
        to = _put_field(to, values, index, value_length)
        if plain:
            put_byte(to, 0)
            to += 1
        else:
            to = _put_headers(to, lists, names, contents, index)
    return to - begin


@helper
def _skip_headers(at: int, end: int, count: int) -> tuple[int, int, int]:
    """Skips the `count` headers at an address. Returns their end or a fault, and the bytes of their
    keys and of their values.
    """
    keys = values = 0
    for _ in range(count):
        length, at = get_varint(at, end)
        if at < 0 or length < 0 or length > end - at:
            return FAULT_HEADERS, 0, 0
        at += length
        keys += length
        length, at = get_varint(at, end)
        if at < 0 or length < -1 or length > end - at:
            return FAULT_HEADERS, 0, 0
        if length > 0:
            at += length
            values += length
    return at, keys, values


@helper
def _scan_headers(data: Bytes, at: int, end: int, count: int, totals: Ints64, add: int) -> int:
    """Skips `count` headers and adds up their bytes; returns their end, or a fault."""
    begin = address_of(data)
    at, keys, values = _skip_headers(begin + at, begin + end, count)
    if at < 0:
        return at
    totals[HEADER_KEY_BYTES] += keys * add
    totals[HEADER_VALUE_BYTES] += values * add
    return at - begin


@inlined
def _get_head(at: int, batch_end: int) -> tuple[int, int, int, int]:
    """Reads the begin of the record at an address. Returns the position of its key's length or a
    fault, the record's end, time delta and offset delta.
    """
    size, at = get_varint(at, batch_end)
    if at < 0:
        return FAULT_VARINT, 0, 0, 0
    end = at + size
    if size < 1 or end > batch_end:
        return FAULT_RECORD_SIZE, 0, 0, 0
    time_delta, at = get_varlong(at + 1, end)  # after the attributes
    if at < 0:
        return FAULT_VARINT, 0, 0, 0
    delta, at = get_varint(at, end)
    if at < 0:
        return FAULT_VARINT, 0, 0, 0
    return at, end, time_delta, delta


@inlined
def _get_field(at: int, end: int) -> tuple[int, int]:
    """Reads the key or value at an address. Returns its length (-1 for null), and its begin or a
    fault.
    """
    length, at = get_varint(at, end)
    if at < 0:
        return 0, FAULT_VARINT
    if length < -1 or length > end - at:
        return 0, FAULT_FIELD
    return length, at


@inlined
def _get_fields(at: int, end: int) -> tuple[int, int, int, int, int, int]:
    """Reads the fields of a record from its key's length on; the record ends at an address. Returns
    the begin of its headers or a fault, their number, then begin and length of key and value.
    """
    key_length, key_at = _get_field(at, end)
    if key_at < 0:
        return key_at, 0, 0, 0, 0, 0
    value_length, value_at = _get_field(key_at + max(key_length, 0), end)
    if value_at < 0:
        return value_at, 0, 0, 0, 0, 0
    count, at = get_varint(value_at + max(value_length, 0), end)
    if at < 0:
        return FAULT_VARINT, 0, 0, 0, 0, 0
    if count < 0 or count > end - at:
        return FAULT_HEADERS, 0, 0, 0, 0, 0
    return at, count, key_at, key_length, value_at, value_length


@kernel(
    INT64(
        readable(UINT8),
        types.Array(INT64, 2, "C", readonly=True),
        INT64,
        INT64,
        writable(INT64),
        writable(INT64),
        types.Array(types.int32, 2, "C"),
        writable(INT64),
    )
)
def scan(
    data: Bytes,
    batches: Ints64,
    min_offset: int,
    max_offset: int,
    offsets: Ints64,
    timestamps: Ints64,
    fields: Ints32,
    totals: Ints64,
) -> int:
    """Checks all records of `batches` and notes those with min_offset <= offset < max_offset.

    `offsets`, `timestamps` and `fields` have a row for each record that the batches claim. Returns
    the number of records noted; or a fault, with the batch in totals[BAD_BATCH].
    """
    begin = address_of(data)
    found = key_bytes = key_nulls = value_bytes = value_nulls = headers = 0
    for row in range(len(batches)):
        totals[BAD_BATCH] = row
        at, batch_end = begin + batches[row, BEGIN], begin + batches[row, END]
        base_offset, last_delta = batches[row, BASE_OFFSET], batches[row, LAST_DELTA]
        base_time, append_time = batches[row, BASE_TIME], batches[row, APPEND_TIME]
        has_append_time = batches[row, HAS_APPEND_TIME]
        for _ in range(batches[row, COUNT]):
            at, end, time_delta, delta = _get_head(at, batch_end)
            if at < 0:
                return at
            if delta < 0 or delta > last_delta:
                return FAULT_OFFSET
            timestamp = base_time + time_delta
            if ((base_time ^ timestamp) & (time_delta ^ timestamp)) < 0:
                return FAULT_TIMESTAMP
            headers_at, count, key_at, key_length, value_at, value_length = _get_fields(at, end)
            if headers_at < 0:
                return headers_at
            offset = base_offset + delta
            wanted = min_offset <= offset < max_offset
            at = headers_at
            if count > 0:
                at, header_keys, header_values = _skip_headers(headers_at, end, count)
                if at < 0:
                    return at
                totals[HEADER_KEY_BYTES] += header_keys * wanted
                totals[HEADER_VALUE_BYTES] += header_values * wanted
            if at != end:
                return FAULT_TAIL
            if wanted:
                offsets[found] = offset
                timestamps[found] = append_time if has_append_time else timestamp
                fields[found, KEY_AT], fields[found, KEY_LENGTH] = key_at - begin, key_length
                fields[found, VALUE_AT], fields[found, VALUE_LENGTH] = (
                    value_at - begin,
                    value_length,
                )
                fields[found, HEADERS_AT], fields[found, HEADER_COUNT] = headers_at - begin, count
                key_nulls += key_length < 0
                key_bytes += max(key_length, 0)
                value_nulls += value_length < 0
                value_bytes += max(value_length, 0)
                headers += count
                found += 1
        if at != batch_end:
            return FAULT_TAIL
    totals[KEY_BYTES], totals[KEY_NULLS] = key_bytes, key_nulls
    totals[VALUE_BYTES], totals[VALUE_NULLS] = value_bytes, value_nulls
    totals[HEADERS] = headers
    return found


@kernel(
    INT64(
        readable(UINT8),
        types.Array(types.int32, 2, "C", readonly=True),
        INT64,
        INT64,
        writable(types.int32),
        writable(UINT8),
        writable(UINT8),
    )
)
def fill_column(
    data: Bytes,
    fields: Ints32,
    count: int,
    column: int,
    offsets: Ints32,
    out: Bytes,
    bitmap: Bytes,
) -> int:
    """Copies the keys (`column` KEY_AT) or values (VALUE_AT) that `scan` noted; returns their
    bytes.

    `out` has SLACK_BYTES more than `scan` counted. `bitmap` begins as zeros, and is empty if
    nothing is null.
    """
    source, target, size = address_of(data), address_of(out), len(data)
    with_nulls = len(bitmap) > 0
    at = 0
    for index in range(count):
        offsets[index] = at
        begin, length = wide(fields[index, column]), wide(fields[index, column + 1])
        if length > 0:
            copy_loosely(target + at, source + begin, length, size - begin)
            at += length
        if with_nulls and length >= 0:
            bitmap[index >> 3] |= 1 << (index & 7)
    offsets[count] = at
    return at


@kernel(
    INT64(
        readable(UINT8),
        types.Array(types.int32, 2, "C", readonly=True),
        INT64,
        writable(types.int32),
        writable(types.int32),
        writable(UINT8),
        writable(types.int32),
        writable(UINT8),
        writable(UINT8),
    )
)
def fill_headers(
    data: Bytes,
    fields: Ints32,
    count: int,
    list_offsets: Ints32,
    key_offsets: Ints32,
    keys: Bytes,
    value_offsets: Ints32,
    values: Bytes,
    bitmap: Bytes,
) -> int:
    """Copies the headers of the noted records; returns the number of null values. `scan` checked
    the bounds.

    `keys` and `values` have SLACK_BYTES more than `scan` counted; `bitmap` begins as zeros.
    """
    begin, end = address_of(data), address_of(data) + len(data)
    key_begin, value_begin = address_of(keys), address_of(values)
    key_to, value_to, item, nulls = key_begin, value_begin, 0, 0
    for index in range(count):
        list_offsets[index] = item
        at = begin + fields[index, HEADERS_AT]
        for _ in range(fields[index, HEADER_COUNT]):
            length, at = get_varint(at, end)
            key_offsets[item] = key_to - key_begin
            copy_loosely(key_to, at, length, end - at)
            key_to += length
            at += length
            length, at = get_varint(at, end)
            value_offsets[item] = value_to - value_begin
            if length < 0:
                nulls += 1
            else:
                bitmap[item >> 3] |= 1 << (item & 7)
                copy_loosely(value_to, at, length, end - at)
                value_to += length
                at += length
            item += 1
    list_offsets[count] = item
    key_offsets[item] = key_to - key_begin
    value_offsets[item] = value_to - value_begin
    return nulls


@kernel(types.void(_COLUMN, INT64, INT64, writable(types.int32)))
def partition_keys(keys: Any, partitions: int, null_partition: int, out: Ints32) -> None:
    """Computes Kafka's partition of each key by murmur2; `null_partition` for a null key."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    column = _located(keys)
    for index in range(len(out)):
        length = _length(column, index)
        if length < 0:
            out[index] = null_partition
            continue
        at = column[1] + get_int32(column[0] + 4 * index)
        value = (0x9747B28C ^ length) & mask
        for _ in range(length >> 2):
            word = get_byte(at) | get_byte(at + 1) << 8
            word |= get_byte(at + 2) << 16 | get_byte(at + 3) << 24
            word = (word * multiplier) & mask
            word = ((word ^ (word >> 24)) * multiplier) & mask
            value = ((value * multiplier) & mask) ^ word
            at += 4
        left = length & 3
        if left:
            for byte in range(left):
                value ^= get_byte(at + byte) << (8 * byte)
            value = (value * multiplier) & mask
        value = ((value ^ (value >> 13)) * multiplier) & mask
        value ^= value >> 15
        out[index] = (value & 0x7FFFFFFF) % partitions
