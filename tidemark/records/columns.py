"""Arrow arrays as kernels take them, and Arrow arrays over memory that kernels filled; nothing is
copied.

For the kernels a column is (offsets int32, data, validity bitmap, first bit); see
`tidemark.records.kernels.codec`. Bitmaps are Arrow's: least significant bit first.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.records.kernels.codec import ALL_NULL, NO_NULLS

Column = tuple[Any, Any, Any, int]

_EMPTY_BYTES = np.empty(0, np.uint8)
_EMPTY_OFFSETS = np.zeros(1, np.int32)
_EMPTY_BYTES.flags.writeable = False
_EMPTY_OFFSETS.flags.writeable = False

NULL_COLUMN: Column = (_EMPTY_OFFSETS, _EMPTY_BYTES, _EMPTY_BYTES, ALL_NULL)


def one_array(values: Any, wanted: pa.DataType) -> pa.Array:
    """Returns a single array of the wanted type: chunks combined, other types cast. Raises
    ArrowInvalid.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    return values if values.type == wanted else values.cast(wanted)


def _bytes_of(buffer: pa.Buffer | None) -> Any:
    return _EMPTY_BYTES if buffer is None else np.frombuffer(buffer, np.uint8)


def _offsets_of(array: pa.Array, buffer: pa.Buffer | None) -> Any:
    if buffer is None or buffer.size == 0:
        return _EMPTY_OFFSETS
    return np.frombuffer(buffer, np.int32)[array.offset : array.offset + len(array) + 1]


def binary_column(values: Any) -> Column:
    """Returns the column of a binary or string array of any kind; None is all null."""
    if values is None:
        return NULL_COLUMN
    array = one_array(values, pa.binary())
    if array.null_count == len(array):
        return NULL_COLUMN
    validity, offsets, data = array.buffers()
    first_bit = array.offset if array.null_count else NO_NULLS
    return _offsets_of(array, offsets), _bytes_of(data), _bytes_of(validity), first_bit


def header_columns(values: Any, list_type: pa.DataType) -> tuple[Column, Column, Column]:
    """Returns the columns of the list, its keys and its values. Raises ValueError for a header
    without a key.
    """
    if values is None:
        return NULL_COLUMN, NULL_COLUMN, NULL_COLUMN
    array = one_array(values, list_type)
    if array.null_count == len(array):
        return NULL_COLUMN, NULL_COLUMN, NULL_COLUMN
    used = array.flatten()
    if used.null_count or used.field(0).null_count:
        raise ValueError("a header without a key")
    if len(used) == 0:
        return NULL_COLUMN, NULL_COLUMN, NULL_COLUMN
    validity, offsets = array.buffers()[:2]
    first_bit = array.offset if array.null_count else NO_NULLS
    items = array.values
    return (
        (_offsets_of(array, offsets), _EMPTY_BYTES, _bytes_of(validity), first_bit),
        binary_column(items.field(0)),
        binary_column(items.field(1)),
    )


def size_of(column: Column, first: int, last: int) -> int:
    """Returns the bytes of the values [first:last], including those under null values."""
    begin, end = bounds_of(column, first, last)
    return end - begin


def bounds_of(column: Column, first: int, last: int) -> tuple[int, int]:
    """Returns the range of bytes that the values [first:last] occupy, or of items for lists. The
    range of a column that is all null is empty.
    """
    offsets, _, _, first_bit = column
    return (0, 0) if first_bit == ALL_NULL else (int(offsets[first]), int(offsets[last]))


def binary_array(
    data_type: pa.DataType, count: int, offsets: Any, data: Any, bitmap: Any, nulls: int
) -> pa.Array:
    """Returns a binary or string array over memory that a kernel filled."""
    validity = pa.py_buffer(bitmap) if nulls else None
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(data_type, count, buffers, nulls)


def list_array(data_type: pa.DataType, count: int, offsets: Any, items: pa.Array) -> pa.Array:
    """Returns a list array without nulls."""
    return pa.Array.from_buffers(data_type, count, [None, pa.py_buffer(offsets)], 0, 0, [items])


def empty_lists(data_type: pa.DataType, count: int) -> pa.Array:
    """Returns an array of `count` empty lists."""
    return list_array(data_type, count, np.zeros(count + 1, np.int32), _no_items(data_type))


@functools.cache
def _no_items(data_type: pa.DataType) -> pa.Array:
    return pa.array([], data_type.value_type)


def bitmap_of(count: int) -> Any:
    """Returns a validity bitmap of zeros."""
    return np.zeros((count + 7) // 8, np.uint8)
