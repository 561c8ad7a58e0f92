"""Record batches to Arrow and back, at memory speed: no Python object per record.

`encode_arrow` encodes columns as one batch; `decode_arrow` decodes all batches of a buffer into one
Arrow batch. The loops are in `tidemark.records.kernels.codec`.

Loading numba takes part of a second, so the first records of a process take the plain path
(`tidemark.records.plain`). A command that reads ten records never loads it. Both paths give the
same bytes and the same errors.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.errors import CorruptMessageError, MessageTooLargeError, RecordListTooLargeError
from tidemark.records.header import (
    CREATE_TIME,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    BytesLike,
    check_counts,
    iter_batches,
    verify_crc,
)
from tidemark.records.plain import (
    MAX_BATCH_BYTES,
    BatchOptions,
    Record,
    assemble,
    decode_batch,
    decompressed,
    encode_batch,
)

HEADER_TYPE = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
HEADERS_TYPE = pa.list_(HEADER_TYPE)

RECORDS_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),  # ms
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)

_MAX_BODY_BYTES = MAX_BATCH_BYTES - HEADER_BYTES

# Number of records that a process handles without numba; beyond it, loading numba pays.
PLAIN_RECORDS_MAX = 2_000


class _PlainBudget:
    """The count of records that took the plain path. No record takes it once kernels are loaded or
    the budget is spent. While a thread loads them, no other waits for it before that.
    """

    def __init__(self) -> None:
        self.left = PLAIN_RECORDS_MAX

    def take(self, count: int) -> bool:
        if count > self.left or _kernels.cache_info().currsize:
            return False
        self.left -= count
        return True


_budget = _PlainBudget()


def takes_plain_path(count: int) -> bool:
    """Returns whether `count` more records take the plain path, and counts them if so."""
    return _budget.take(count)


@functools.cache
def _kernels() -> tuple[Any, Any]:
    """Returns the kernels and the column helpers, which the first call compiles or loads from the
    cache.
    """
    from tidemark.records import columns
    from tidemark.records.kernels import codec as kernels

    return kernels, columns


def warm_up() -> list[str]:
    """Loads the kernels; returns the names of those that no cache had. Compiling all of them takes
    20 s of a core.
    """
    _kernels()
    from tidemark.records.kernels import append as append_kernel
    from tidemark.records.kernels import batches as batch_kernel
    from tidemark.records.kernels import clean as clean_kernels
    from tidemark.records.kernels import jit

    assert append_kernel.KEYS_UNKNOWN and clean_kernels.ORDERS and batch_kernel.DAMAGED
    return jit.compiled_here


def encode_arrow(
    key: Any,
    value: Any,
    timestamps: Any,
    headers: Any = None,
    *,
    base_offset: int = 0,
    compression: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    partition_leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: str = CREATE_TIME,
    max_timestamp_ms: int | None = None,
) -> bytes:
    """Encodes Arrow columns of equal length as one batch.

    `key` and `value` are binary or string arrays, or None for all null. `timestamps` are an int64
    or timestamp array in ms, `headers` list<struct<key, value>> or None. The options are those of
    `encode_batch`. Raises ValueError for columns that do not fit together, MessageTooLargeError
    beyond 2^31 - 1 bytes, UnsupportedCompressionTypeError.
    """
    count = len(timestamps)
    for column in (key, value, headers):
        if column is not None and len(column) != count:
            raise ValueError(f"a column of {len(column)} values beside {count} timestamps")
    if count == 0:
        raise ValueError("a batch without records")
    times = _timestamps(timestamps)
    options = BatchOptions(
        base_offset,
        compression,
        producer_id,
        producer_epoch,
        base_sequence,
        partition_leader_epoch,
        transactional,
        control,
        timestamp_type,
    )
    body = (
        _encode_plain(key, value, times, headers)
        if _budget.take(count)
        else _encode_columns(key, value, times, headers)
    )
    return assemble(
        body,
        options,
        count=count,
        last_offset_delta=count - 1,
        base_timestamp_ms=int(times[0]),
        max_timestamp_ms=int(times.max()) if max_timestamp_ms is None else max_timestamp_ms,
    )


def _timestamps(values: Any) -> Any:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        if values.null_count:
            raise ValueError("a null timestamp")
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("ms", tz=values.type.tz), safe=False)
        values = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(values, dtype=np.int64)


def _encode_plain(key: Any, value: Any, times: Any, headers: Any) -> BytesLike:
    def listed(column: Any, wanted: pa.DataType) -> list[Any]:
        return [None] * len(times) if column is None else column.cast(wanted).to_pylist()

    records = [
        Record(index, timestamp, item_key, item_value, _header_pairs(item_headers))
        for index, (timestamp, item_key, item_value, item_headers) in enumerate(
            zip(
                times.tolist(),
                listed(key, pa.binary()),
                listed(value, pa.binary()),
                listed(headers, HEADERS_TYPE),
                strict=True,
            )
        )
    ]
    return memoryview(encode_batch(records))[HEADER_BYTES:]


def _header_pairs(headers: list[Any] | None) -> tuple[tuple[str, bytes | None], ...]:
    if not headers:
        return ()
    if any(header is None or header["key"] is None for header in headers):
        raise ValueError("a header without a key")
    return tuple((header["key"], header["value"]) for header in headers)


def _encode_columns(key: Any, value: Any, times: Any, headers: Any) -> BytesLike:
    kernels, columns = _kernels()
    keys, values = columns.binary_column(key), columns.binary_column(value)
    lists, header_keys, header_values = columns.header_columns(headers, HEADERS_TYPE)
    first, last = columns.bounds_of(lists, 0, len(times))
    most = (
        columns.size_of(keys, 0, len(times))
        + columns.size_of(values, 0, len(times))
        + columns.size_of(header_keys, first, last)
        + columns.size_of(header_values, first, last)
        + kernels.RECORD_EXTRA_BYTES * len(times)
        + kernels.HEADER_EXTRA_BYTES * (last - first)
    )
    room = min(most, _MAX_BODY_BYTES + kernels.MAX_VARINT_BYTES) + kernels.SLACK_BYTES
    out = np.empty(room, np.uint8)
    end = kernels.write(keys, values, lists, header_keys, header_values, times, out)
    if end == kernels.WRITE_TIME:
        raise ValueError("timestamps of one batch are 2^63 ms or more apart")
    if end == kernels.WRITE_FULL or end > _MAX_BODY_BYTES:
        raise MessageTooLargeError(f"a batch of more than {MAX_BATCH_BYTES} bytes")
    body: BytesLike = out.data[:end]
    return body


def decode_arrow(
    buffer: BytesLike,
    *,
    min_offset: int = 0,
    max_offset: int | None = None,
    check_crcs: bool = True,
    columns: Collection[str] | None = None,
) -> pa.RecordBatch:
    """Decodes the records of all whole data batches of a buffer, in RECORDS_SCHEMA.

    Of its columns only those named in `columns` are made; the records are checked as ever. Control
    batches and a torn tail are skipped; only records with min_offset <= offset < max_offset
    are returned. Raises CorruptMessageError for malformed bytes, RecordListTooLargeError if the
    plain records exceed 2 GiB.
    """
    last = 2**63 - 1 if max_offset is None else max_offset
    batches = []
    for position, header in iter_batches(buffer):
        if check_crcs:  # before a field that may be wrong leaves the batch out
            verify_crc(buffer, position, header)
        check_counts(header)
        if header.is_control or header.last_offset < min_offset or header.base_offset >= last:
            continue
        batches.append((position, header))
    count = sum(header.record_count for _, header in batches)
    schema = RECORDS_SCHEMA if columns is None else _part_of_schema(frozenset(columns))
    if _budget.take(count):
        return _decode_plain(buffer, batches, min_offset, last, schema)
    return _decode_columns(buffer, batches, min_offset, last, schema)


@functools.cache
def _part_of_schema(columns: frozenset[str]) -> pa.Schema:
    strange = columns.difference(RECORDS_SCHEMA.names)
    if strange or not columns:
        raise ValueError(f"columns are some of {RECORDS_SCHEMA.names}, not {sorted(columns)}")
    return pa.schema([field for field in RECORDS_SCHEMA if field.name in columns])


def _decode_plain(
    buffer: BytesLike,
    batches: list[tuple[int, BatchHeader]],
    min_offset: int,
    max_offset: int,
    schema: pa.Schema,
) -> pa.RecordBatch:
    records = [
        record
        for position, _ in batches
        for record in decode_batch(buffer, position, check_crc=False)
        if min_offset <= record.offset < max_offset
    ]
    rows: dict[str, list[Any]] = {
        "offset": [record.offset for record in records],
        "timestamp": [record.timestamp_ms for record in records],
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "headers": [
            [{"key": k, "value": v} for k, v in record.headers]
            for record in (records if "headers" in schema.names else ())
        ],
    }
    arrays = [pa.array(rows[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batch_table(
    buffer: BytesLike, batches: list[tuple[int, BatchHeader]]
) -> tuple[Any, BytesLike]:
    """Returns one row per batch for `scan`, and the bytes that it walks over."""
    rows = []
    bodies: list[BytesLike] = []
    compressed = any(header.compression != "none" for _, header in batches)
    at = 0
    view = memoryview(buffer)
    for position, header in batches:
        begin, end = position + HEADER_BYTES, position + header.size_bytes
        if compressed:
            body = decompressed(header, view[begin:end])
            bodies.append(body)
            begin, end = at, at + len(body)
            at = end
        if end > MAX_BATCH_BYTES:
            raise RecordListTooLargeError("more than 2 GiB of records: decode fewer batches")
        append_time = header.timestamp_type == LOG_APPEND_TIME
        rows.append(
            (
                begin,
                end,
                header.base_offset,
                header.last_offset_delta,
                header.base_timestamp_ms,
                header.max_timestamp_ms,
                append_time,
                header.record_count,
            )
        )
    source = buffer
    if compressed:
        source = bodies[0] if len(bodies) == 1 else b"".join(bodies)
    return np.array(rows, np.int64).reshape(len(rows), 8), source


def _decode_columns(
    buffer: BytesLike,
    batches: list[tuple[int, BatchHeader]],
    min_offset: int,
    max_offset: int,
    schema: pa.Schema,
) -> pa.RecordBatch:
    kernels, columns = _kernels()
    table, source = _batch_table(buffer, batches)
    data = np.frombuffer(source, np.uint8)
    claimed = sum(header.record_count for _, header in batches)
    offsets, timestamps = np.empty(claimed, np.int64), np.empty(claimed, np.int64)
    fields = np.empty((claimed, kernels.FIELDS), np.int32)
    notes = np.zeros(kernels.TOTALS, np.int64)
    count = kernels.scan(data, table, min_offset, max_offset, offsets, timestamps, fields, notes)
    totals = notes.tolist()
    if count < 0:
        base_offset = batches[totals[kernels.BAD_BATCH]][1].base_offset
        raise CorruptMessageError(f"batch {base_offset}: {kernels.FAULTS[count]}")
    key_bytes, key_nulls, value_bytes, value_nulls = totals[: kernels.HEADERS]
    make = {
        "offset": lambda: pa.array(offsets[:count]),
        "timestamp": lambda: pa.array(timestamps[:count]),
        "key": lambda: _column(data, fields, count, kernels.KEY_AT, key_bytes, key_nulls),
        "value": lambda: _column(data, fields, count, kernels.VALUE_AT, value_bytes, value_nulls),
        "headers": lambda: (
            _headers(data, fields, count, totals)
            if totals[kernels.HEADERS]
            else columns.empty_lists(HEADERS_TYPE, count)
        ),
    }
    arrays = [make[name]() for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(data: Any, fields: Any, count: int, column: int, size: int, nulls: int) -> pa.Array:
    kernels, columns = _kernels()
    offsets = np.empty(count + 1, np.int32)
    out = np.empty(size + kernels.SLACK_BYTES, np.uint8)
    bitmap = columns.bitmap_of(count if nulls else 0)
    kernels.fill_column(data, fields, count, column, offsets, out, bitmap)
    return columns.binary_array(pa.binary(), count, offsets, out[:size], bitmap, nulls)


def _headers(data: Any, fields: Any, count: int, totals: Any) -> pa.Array:
    kernels, columns = _kernels()
    items, key_bytes, value_bytes = totals[kernels.HEADERS : kernels.BAD_BATCH]
    list_offsets = np.zeros(count + 1, np.int32)
    key_offsets, value_offsets = np.zeros(items + 1, np.int32), np.zeros(items + 1, np.int32)
    keys = np.empty(key_bytes + kernels.SLACK_BYTES, np.uint8)
    values = np.empty(value_bytes + kernels.SLACK_BYTES, np.uint8)
    bitmap = columns.bitmap_of(items)
    nulls = kernels.fill_headers(
        data, fields, count, list_offsets, key_offsets, keys, value_offsets, values, bitmap
    )
    structs = pa.StructArray.from_arrays(
        [
            _texts(items, key_offsets, keys[:key_bytes]),
            columns.binary_array(
                pa.binary(), items, value_offsets, values[:value_bytes], bitmap, nulls
            ),
        ],
        fields=list(HEADER_TYPE),
    )
    return columns.list_array(HEADERS_TYPE, count, list_offsets, structs)


def _texts(count: int, offsets: Any, data: Any) -> pa.Array:
    """Returns a string array; invalid UTF-8 is decoded as Java does it."""
    _, columns = _kernels()
    texts: pa.Array = columns.binary_array(pa.string(), count, offsets, data, None, 0)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raw = columns.binary_array(pa.binary(), count, offsets, data, None, 0).to_pylist()
        texts = pa.array([text.decode("utf-8", "replace") for text in raw], pa.string())
    return texts
