"""Columns to encoded record batches, and Arrow tables to batches of many partitions.

This is the work of the producer's threads. Nothing here touches the producer's state, so any thread
may run it; the kernels of `tidemark.records` release the interpreter lock meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark import records
from tidemark.client.batch import RECORD_OVERHEAD_BYTES, Batch, Stamp
from tidemark.client.models import Header
from tidemark.errors import InvalidRecordError
from tidemark.records.header import HEADER_BYTES, read_header, signed
from tidemark.surroundings import surroundings

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Columns(NamedTuple):
    """Arrow arrays of the records of one batch, or of many."""

    key: Any
    value: Any
    timestamps: Any
    headers: Any  # None if no record has headers

    def slice(self, start: int, length: int) -> Columns:
        return Columns(*(None if c is None else c.slice(start, length) for c in self))

    def take(self, rows: Any) -> Columns:
        chosen = pa.array(rows)
        return Columns(*(None if c is None else c.take(chosen) for c in self))


class EncodeJob(NamedTuple):
    """A batch's contents as they were when it was closed.

    The batch itself may end while a thread encodes.
    """

    batch: Batch
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[int]
    headers: dict[int, tuple[Header, ...]]
    source: Columns | None
    stamp: Stamp
    transactional: bool = False

    @classmethod
    def of(cls, batch: Batch, *, transactional: bool = False) -> EncodeJob:
        assert batch.stamp is not None
        return cls(
            batch,
            batch.keys,
            batch.values,
            batch.timestamps,
            batch.headers,
            batch.source,
            batch.stamp,
            transactional,
        )


def encode(job: EncodeJob, compression: str) -> bytes:
    """The record batch v2 of a job."""
    columns = job.source
    if columns is None:
        headers = None
        if job.headers:
            headers = pa.array(
                [
                    [{"key": k, "value": v} for k, v in job.headers.get(row, ())]
                    for row in range(len(job.values))
                ],
                HEADERS_TYPE,
            )
        columns = Columns(
            pa.array(job.keys, pa.binary()),
            pa.array(job.values, pa.binary()),
            pa.array(job.timestamps, pa.int64()),
            headers,
        )
    return encode_columns(columns, compression, job.stamp, transactional=job.transactional)


def encode_columns(
    columns: Columns, compression: str, stamp: Stamp, *, transactional: bool
) -> bytes:
    payload: bytes = records.encode_arrow(
        columns.key,
        columns.value,
        columns.timestamps,
        columns.headers,
        compression=compression,
        producer_id=stamp.producer_id,
        producer_epoch=stamp.producer_epoch,
        base_sequence=stamp.base_sequence,
        transactional=transactional,
    )
    return payload


def restamp(payload: bytes, stamp: Stamp) -> bytes:
    """The same batch with another producer id, epoch and sequence, and a matching CRC."""
    header = read_header(payload)._replace(**stamp._asdict())
    return signed(header.packed, memoryview(payload)[HEADER_BYTES:])


def halve(payload: bytes, stamp: Stamp, compression: str) -> list[tuple[bytes, int, Stamp]]:
    """Splits an encoded batch that the node found too large (KIP-126): [(payload, count, stamp),
    ...].
    """
    table = records.decode_arrow(payload)
    transactional = read_header(payload).is_transactional
    middle = table.num_rows // 2
    parts = []
    for start, count in ((0, middle), (middle, table.num_rows - middle)):
        piece = table.slice(start, count)
        columns = Columns(
            piece.column("key"),
            piece.column("value"),
            piece.column("timestamp"),
            piece.column("headers") if piece.column("headers").null_count < count else None,
        )
        part = encode_columns(columns, compression, stamp, transactional=transactional)
        parts.append((part, count, stamp))
    return parts


class EncodedPiece(NamedTuple):
    """A batch's worth of an Arrow table."""

    partition: int
    columns: Columns
    record_count: int
    size_bytes: int


def columns_of(data: Any) -> Columns:
    """Key, value, timestamp and headers of a RecordBatch.

    Raises InvalidRecordError for a column of a wrong type.
    """
    names = set(data.schema.names)
    unknown = names - {"key", "value", "timestamp", "headers", "partition"}
    if "value" not in names or unknown:
        raise InvalidRecordError(
            "send_arrow takes the columns value[, key, timestamp, headers, partition]; "
            f"these are {', '.join(data.schema.names)}"
        )
    try:
        value = _binary(data.column("value"))
        key = _binary(data.column("key")) if "key" in names else pa.nulls(len(value), pa.binary())
        headers = data.column("headers").cast(HEADERS_TYPE) if "headers" in names else None
        timestamps = _timestamps(data.column("timestamp") if "timestamp" in names else None, value)
    except pa.ArrowException as error:
        raise InvalidRecordError(f"send_arrow: {error}") from error
    return Columns(key, value, timestamps, headers)


def _binary(column: Any) -> Any:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _timestamps(column: Any, value: Any) -> Any:
    """Timestamps as int64 ms; a missing one is the current time."""
    now_ms = surroundings().wall_ms()
    if column is None:
        return pa.array(np.full(len(value), now_ms, np.int64))
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    column = column.cast(pa.int64())
    return column.fill_null(now_ms) if column.null_count else column


def split(
    data: Any, partition_count: int, batch_size: int, sticky: int, partition: int | None = None
) -> list[EncodedPiece]:
    """The batches of a RecordBatch, in the order of its rows within each partition.

    A row goes to `partition` if given, else to its `partition` column, else by murmur2 of its key.
    Rows without a key fill one partition after another from `sticky` on, a batch's worth each.
    Raises InvalidRecordError.
    """
    columns = columns_of(data)
    if len(columns.value) == 0:
        return []
    sizes = row_sizes(columns)
    if partition is None:
        chosen = _partitions(data, columns, sizes, partition_count, batch_size, sticky)
    else:
        chosen = np.full(len(columns.value), partition, np.int32)
    low, high = int(chosen.min()), int(chosen.max())
    if low < 0 or high >= partition_count:
        raise InvalidRecordError(
            f"partition {low if low < 0 else high} is not in 0..{partition_count - 1}"
        )
    found: list[EncodedPiece] = []
    for number, rows in _rows_by_partition(chosen):
        found += _cut(number, columns, sizes, rows, batch_size)
    return found


def row_sizes(columns: Columns) -> Any:
    """Bytes per record, as an array."""
    sizes = np.full(len(columns.value), RECORD_OVERHEAD_BYTES, np.int64)
    for column in (columns.key, columns.value):
        if column.null_count < len(column):
            sizes += pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    if columns.headers is not None:
        sizes += columns.headers.nbytes // max(1, len(sizes))
    return sizes


def _partitions(
    data: Any, columns: Columns, sizes: Any, count: int, batch_size: int, sticky: int
) -> Any:
    if columns.key.null_count == len(columns.key):
        chosen = (sticky + np.cumsum(sizes) // batch_size) % count
    else:
        chosen = np.asarray(records.partitions_for_keys(columns.key, count))
        if columns.key.null_count:
            keyless = columns.key.is_null().to_numpy(zero_copy_only=False)
            blocks = np.cumsum(np.where(keyless, sizes, 0)) // batch_size
            chosen = np.where(keyless, (sticky + blocks) % count, chosen)
    if "partition" in data.schema.names:
        asked = data.column("partition").cast(pa.int32())
        known = asked.is_valid().to_numpy(zero_copy_only=False)
        given = asked.fill_null(0).to_numpy(zero_copy_only=False)
        chosen = np.where(known, given, chosen)
    return chosen.astype(np.int32)


def _rows_by_partition(chosen: Any) -> Iterator[tuple[int, Any]]:
    """(partition, its rows in order); the rows are a slice if they are contiguous."""
    if chosen[0] == chosen[-1] and (chosen == chosen[0]).all():
        yield int(chosen[0]), slice(0, len(chosen))
        return
    order = np.argsort(chosen, kind="stable")
    numbers, starts = np.unique(chosen[order], return_index=True)
    ends = [*starts[1:], len(chosen)]
    for number, start, end in zip(numbers, starts, ends, strict=True):
        rows = order[start:end]
        if rows[-1] - rows[0] + 1 == len(rows):
            yield int(number), slice(int(rows[0]), int(rows[-1]) + 1)
        else:
            yield int(number), rows


def _cut(
    number: int, columns: Columns, sizes: Any, rows: Any, batch_size: int
) -> Iterator[EncodedPiece]:
    """Pieces of at most `batch_size` bytes; a single record may be larger."""
    ends = np.cumsum(sizes[rows])
    start, before = 0, 0
    contiguous = isinstance(rows, slice)
    while start < len(ends):
        end = int(np.searchsorted(ends, before + batch_size, side="right"))
        end = max(end, start + 1)
        if contiguous:
            part = columns.slice(rows.start + start, end - start)
        else:
            part = columns.take(rows[start:end])
        size = int(ends[end - 1]) - before
        yield EncodedPiece(number, part, end - start, size)
        start, before = end, int(ends[end - 1])
