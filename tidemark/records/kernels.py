"""The loops between Arrow buffers and records, compiled by numba.

Encoding is two passes: `measure` finds each record's size, `write` writes into a buffer of exactly
their sum. Decoding is two passes as well: `scan` walks over the bytes, checks every bound and notes
where fields lie, `fill_*` copy what `scan` found. Only `scan` reads untrusted bytes; it returns a
negative code (see `FAULTS`) and never looks beyond a batch's end. Layout: DefaultRecord (KIP-98).

Integers are int64 throughout: in numba a mix of signed and unsigned becomes a float. A column is
offsets, data, validity bitmap and `first_bit`: where its bitmap begins, or one of two marks.
All kernels live in this one file, since numba's cache notices changes per file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tidemark.records.jit import INT64, UINT8, helper, kernel, readable, writable

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

# What `scan` sums up.
KEY_BYTES, VALUE_BYTES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES, BAD_BATCH = range(6)
TOTALS = 6

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

_COPY_BYTES_MIN = 16  # below it a loop beats the call

_LOW_63 = 0x7FFFFFFFFFFFFFFF


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _memcpy(_context: Any, to: Any, at: Any, source: Any, begin: Any, size: Any) -> Any:
    """memcpy between byte arrays; the caller has checked the bounds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = context.make_array(signature.args[0])(context, builder, args[0])
        origin = context.make_array(signature.args[2])(context, builder, args[2])
        cgutils.raw_memcpy(
            builder,
            builder.gep(target.data, [args[1]]),
            builder.gep(origin.data, [args[3]]),
            args[4],
            itemsize=1,
            align=1,
        )
        return context.get_dummy_value()

    return types.void(to, types.int64, source, types.int64, types.int64), codegen


@helper
def _copy(to: Bytes, at: int, source: Bytes, begin: int, size: int) -> None:
    if size < _COPY_BYTES_MIN:
        for index in range(size):
            to[at + index] = source[begin + index]
    else:
        _memcpy(to, at, source, begin, size)


@helper
def _varint_size(value: int) -> int:
    """Bytes of a zigzag varint."""
    bits = (value << 1) ^ (value >> 63)
    if bits & ~0x7F == 0:
        return 1
    if bits & ~0x3FFF == 0:
        return 2
    if bits & ~0x1FFFFF == 0:
        return 3
    bits = (bits >> 21) & (_LOW_63 >> 20)
    size = 4
    while bits & ~0x7F:
        bits >>= 7
        size += 1
    return size


@helper
def _put_varint(out: Bytes, at: int, value: int) -> int:
    bits = (value << 1) ^ (value >> 63)
    if bits & ~0x7F == 0:
        out[at] = bits
        return at + 1
    if bits & ~0x3FFF == 0:
        out[at] = (bits & 0x7F) | 0x80
        out[at + 1] = bits >> 7
        return at + 2
    while bits & ~0x7F:
        out[at] = (bits & 0x7F) | 0x80
        bits = (bits >> 7) & (_LOW_63 >> 6)
        at += 1
    out[at] = bits
    return at + 1


@helper
def _length(offsets: Ints32, bitmap: Bytes, first_bit: int, index: int) -> int:
    """Bytes of a value, -1 for null."""
    if first_bit == ALL_NULL:
        return -1
    if first_bit >= 0:
        bit = first_bit + index
        if not (bitmap[bit >> 3] >> (bit & 7)) & 1:
            return -1
    return wide(offsets[index + 1]) - wide(offsets[index])


@helper
def _field_size(length: int) -> int:
    return 1 if length < 0 else _varint_size(length) + length


@helper
def _put_field(out: Bytes, at: int, data: Bytes, begin: int, length: int) -> int:
    at = _put_varint(out, at, length)
    if length > 0:
        _copy(out, at, data, begin, length)
        at += length
    return at


_COLUMN = types.Tuple((readable(types.int32), readable(UINT8), readable(UINT8), INT64))
_LIST = types.Tuple((readable(types.int32), readable(UINT8), INT64))


@helper
def _headers_size(headers: Any, keys: Any, values: Any, index: int) -> int:
    offsets, bitmap, first_bit = headers
    if _length(offsets, bitmap, first_bit, index) <= 0:
        return 1
    first, last = wide(offsets[index]), wide(offsets[index + 1])
    size = _varint_size(last - first)
    for item in range(first, last):
        size += _field_size(_length(keys[0], keys[2], keys[3], item))
        size += _field_size(_length(values[0], values[2], values[3], item))
    return size


@kernel(INT64(_COLUMN, _COLUMN, _LIST, _COLUMN, _COLUMN, readable(INT64), writable(types.int32)))
def measure(
    keys: Any,
    values: Any,
    headers: Any,
    header_keys: Any,
    header_values: Any,
    timestamps: Ints64,
    sizes: Ints32,
) -> int:
    """Fills `sizes` with each record's bytes after its length; gives the bytes of all records.

    Stops beyond 2^31 - 1, the most that a batch can hold.
    """
    # Taken apart once: a tuple's item costs a reference count each time it is asked for.
    key_offsets, _, key_bitmap, key_bit = keys
    value_offsets, _, value_bitmap, value_bit = values
    total = 0
    base = timestamps[0]
    plain = headers[2] == ALL_NULL
    for index in range(len(timestamps)):
        size = 1 + _varint_size(timestamps[index] - base) + _varint_size(index)
        size += _field_size(_length(key_offsets, key_bitmap, key_bit, index))
        size += _field_size(_length(value_offsets, value_bitmap, value_bit, index))
        size += 1 if plain else _headers_size(headers, header_keys, header_values, index)
        total += _varint_size(size) + size
        if total > 0x7FFFFFFF:
            return total
        sizes[index] = size
    return total


@helper
def _put_headers(out: Bytes, at: int, headers: Any, keys: Any, values: Any, index: int) -> int:
    offsets, bitmap, first_bit = headers
    if _length(offsets, bitmap, first_bit, index) <= 0:
        out[at] = 0
        return at + 1
    first, last = wide(offsets[index]), wide(offsets[index + 1])
    at = _put_varint(out, at, last - first)
    for item in range(first, last):
        length = _length(keys[0], keys[2], keys[3], item)
        at = _put_field(out, at, keys[1], wide(keys[0][item]), length)
        length = _length(values[0], values[2], values[3], item)
        begin = wide(values[0][item]) if length > 0 else 0
        at = _put_field(out, at, values[1], begin, length)
    return at


@kernel(
    INT64(
        _COLUMN,
        _COLUMN,
        _LIST,
        _COLUMN,
        _COLUMN,
        readable(INT64),
        readable(types.int32),
        writable(UINT8),
        INT64,
    )
)
def write(
    keys: Any,
    values: Any,
    headers: Any,
    header_keys: Any,
    header_values: Any,
    timestamps: Ints64,
    sizes: Ints32,
    out: Bytes,
    at: int,
) -> int:
    """Writes the records that `measure` sized into `out` from `at` on; gives where they end."""
    # Taken apart once: a tuple's item costs a reference count each time it is asked for.
    key_offsets, key_data, key_bitmap, key_bit = keys
    value_offsets, value_data, value_bitmap, value_bit = values
    base = timestamps[0]
    plain = headers[2] == ALL_NULL
    for index in range(len(timestamps)):
        at = _put_varint(out, at, wide(sizes[index]))
        out[at] = 0
        at = _put_varint(out, at + 1, timestamps[index] - base)
        at = _put_varint(out, at, index)
        length = _length(key_offsets, key_bitmap, key_bit, index)
        begin = wide(key_offsets[index]) if length > 0 else 0
        at = _put_field(out, at, key_data, begin, length)
        length = _length(value_offsets, value_bitmap, value_bit, index)
        begin = wide(value_offsets[index]) if length > 0 else 0
        at = _put_field(out, at, value_data, begin, length)
        if plain:
            out[at] = 0
            at += 1
        else:
            at = _put_headers(out, at, headers, header_keys, header_values, index)
    return at


@helper
def _get_varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """A 32-bit zigzag varint and where it ends; an end of -1 when it is malformed."""
    bits = wide(0)
    shift = 0
    while at < end and shift < 35:
        byte = wide(data[at])
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            if bits >> 32:
                return 0, -1
            return (bits >> 1) ^ -(bits & 1), at
        shift += 7
    return 0, -1


@helper
def _get_varlong(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """A 64-bit zigzag varint and where it ends; an end of -1 when it is malformed."""
    bits = wide(0)
    shift = 0
    while at < end and shift < 70:
        byte = wide(data[at])
        at += 1
        if shift == 63 and byte > 1:
            return 0, -1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((bits >> 1) & _LOW_63) ^ -(bits & 1), at
        shift += 7
    return 0, -1


@helper
def _scan_headers(data: Bytes, at: int, end: int, count: int, totals: Ints64, add: int) -> int:
    """Steps over `count` headers and adds up their bytes; where they end, or a fault."""
    for _ in range(count):
        length, at = _get_varint(data, at, end)
        if at < 0 or length < 0 or length > end - at:
            return FAULT_HEADERS
        at += length
        totals[HEADER_KEY_BYTES] += length * add
        length, at = _get_varint(data, at, end)
        if at < 0 or length < -1 or length > end - at:
            return FAULT_HEADERS
        if length > 0:
            at += length
            totals[HEADER_VALUE_BYTES] += length * add
    return at


@helper
def _scan_fields(data: Bytes, at: int, end: int, fields: Any) -> int:
    """Notes key, value and header count of the record that ends at `end`.

    Gives where its headers begin, or a fault.
    """
    length, at = _get_varint(data, at, end)
    if at < 0:
        return FAULT_VARINT
    if length < -1 or length > end - at:
        return FAULT_FIELD
    fields[KEY_AT] = at
    fields[KEY_LENGTH] = length
    at += max(length, 0)
    length, at = _get_varint(data, at, end)
    if at < 0:
        return FAULT_VARINT
    if length < -1 or length > end - at:
        return FAULT_FIELD
    fields[VALUE_AT] = at
    fields[VALUE_LENGTH] = length
    at += max(length, 0)
    length, at = _get_varint(data, at, end)
    if at < 0:
        return FAULT_VARINT
    if length < 0 or length > end - at:
        return FAULT_HEADERS
    fields[HEADERS_AT] = at
    fields[HEADER_COUNT] = length
    return at


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

    `offsets`, `timestamps` and `fields` hold as many rows as the batches claim records. Gives the
    number of records noted, or a fault, and then the batch in totals[BAD_BATCH].
    """
    found = 0
    for row in range(len(batches)):
        batch = batches[row]
        totals[BAD_BATCH] = row
        at, batch_end = batch[BEGIN], batch[END]
        for _ in range(batch[COUNT]):
            size, at = _get_varint(data, at, batch_end)
            if at < 0:
                return FAULT_VARINT
            end = at + size
            if size < 1 or end > batch_end:
                return FAULT_RECORD_SIZE
            time_delta, at = _get_varlong(data, at + 1, end)  # after the attributes
            if at < 0:
                return FAULT_VARINT
            delta, at = _get_varint(data, at, end)
            if at < 0:
                return FAULT_VARINT
            if delta < 0 or delta > batch[LAST_DELTA]:
                return FAULT_OFFSET
            at = _scan_fields(data, at, end, fields[found])
            if at < 0:
                return at
            timestamp = batch[BASE_TIME] + time_delta
            if ((batch[BASE_TIME] ^ timestamp) & (time_delta ^ timestamp)) < 0:
                return FAULT_TIMESTAMP
            offset = batch[BASE_OFFSET] + delta
            wanted = 1 if min_offset <= offset < max_offset else 0
            count = wide(fields[found, HEADER_COUNT])
            if count > 0:
                at = _scan_headers(data, at, end, count, totals, wanted)
                if at < 0:
                    return at
            if at != end:
                return FAULT_TAIL
            if wanted:
                offsets[found] = offset
                timestamps[found] = batch[APPEND_TIME] if batch[HAS_APPEND_TIME] else timestamp
                totals[KEY_BYTES] += max(fields[found, KEY_LENGTH], 0)
                totals[VALUE_BYTES] += max(fields[found, VALUE_LENGTH], 0)
                totals[HEADERS] += count
                found += 1
        if at != batch_end:
            return FAULT_TAIL
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
    """Copies the keys (`column` KEY_AT) or values (VALUE_AT) that `scan` noted; gives the nulls.

    `bitmap` comes in as zeros, `out` has exactly the bytes that `scan` counted.
    """
    at = 0
    nulls = 0
    for index in range(count):
        offsets[index] = at
        length = wide(fields[index, column + 1])
        if length < 0:
            nulls += 1
            continue
        bitmap[index >> 3] |= 1 << (index & 7)
        _copy(out, at, data, wide(fields[index, column]), length)
        at += length
    offsets[count] = at
    return nulls


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
    """Copies the headers of the noted records; gives the null values. `scan` checked the bounds."""
    item = key_end = value_end = nulls = 0
    everything = len(data)
    for index in range(count):
        list_offsets[index] = item
        at = wide(fields[index, HEADERS_AT])
        for _ in range(fields[index, HEADER_COUNT]):
            length, at = _get_varint(data, at, everything)
            key_offsets[item] = key_end
            _copy(keys, key_end, data, at, length)
            key_end += length
            at += length
            length, at = _get_varint(data, at, everything)
            value_offsets[item] = value_end
            if length < 0:
                nulls += 1
            else:
                bitmap[item >> 3] |= 1 << (item & 7)
                _copy(values, value_end, data, at, length)
                value_end += length
                at += length
            item += 1
    list_offsets[count] = item
    key_offsets[item] = key_end
    value_offsets[item] = value_end
    return nulls


@kernel(types.void(_COLUMN, INT64, INT64, writable(types.int32)))
def partition_keys(keys: Any, partitions: int, null_partition: int, out: Ints32) -> None:
    """Kafka's partition of each key by murmur2; `null_partition` for a null key."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    offsets, data, bitmap, first_bit = keys
    for index in range(len(out)):
        length = _length(offsets, bitmap, first_bit, index)
        if length < 0:
            out[index] = null_partition
            continue
        at = wide(offsets[index])
        value = (0x9747B28C ^ length) & mask
        for _ in range(length >> 2):
            word = wide(data[at]) | wide(data[at + 1]) << 8
            word |= wide(data[at + 2]) << 16 | wide(data[at + 3]) << 24
            word = (word * multiplier) & mask
            word = ((word ^ (word >> 24)) * multiplier) & mask
            value = ((value * multiplier) & mask) ^ word
            at += 4
        left = length & 3
        if left:
            for byte in range(left):
                value ^= wide(data[at + byte]) << (8 * byte)
            value = (value * multiplier) & mask
        value = ((value ^ (value >> 13)) * multiplier) & mask
        value ^= value >> 15
        out[index] = (value & 0x7FFFFFFF) % partitions
