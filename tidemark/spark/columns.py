"""The columns of the source, made of record batches: those that a query names, and no others.

`topic`, `partition` and `timestampType` are the same in all rows of a batch; with `offset` they
follow from the headers of record batches. A query that names no other column decodes nothing but
the batches at the borders of a slice, and batches with gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import ConfigError
from tidemark.records import decode_arrow, iter_batches
from tidemark.records.header import BatchHeader, check_counts
from tidemark.spark.offsets import OffsetRange

_OF_RECORDS = frozenset(("key", "value", "offset", "timestamp", "headers"))
_BY_HEADERS = frozenset(("topic", "partition", "timestampType", "offset"))
_TIMESTAMP_TYPES = {"CreateTime": 0, "LogAppendTime": 1}
_MICROS = pa.timestamp("us", tz="UTC")


class SliceColumns:
    """Makes Arrow batches of exactly `schema`, as Spark requires, for the records of one slice."""

    def __init__(self, offsets: OffsetRange, schema: pa.Schema) -> None:
        self._offsets = offsets
        self._schema = schema
        self._decoded = tuple(sorted(_OF_RECORDS.intersection(schema.names)))
        self._by_headers = _BY_HEADERS.issuperset(schema.names)
        self._constants: dict[tuple[str, Any], pa.Array] = {}

    def batches(self, buffer: memoryview, position: int) -> Iterator[pa.RecordBatch]:
        """Arrow batches of the records from `position` to the slice's end; CRCs are checked."""
        for timestamp_type, run in by_timestamp_type(buffer):
            if self._by_headers:
                columns, rows = self._of_headers(run, position)
            else:
                found = self._decode(run, position, self._decoded)
                rows = found.num_rows
                columns = dict(zip(found.schema.names, found.columns, strict=True))
            if rows:
                yield self._batch(columns, rows, timestamp_type)

    def _decode(
        self, buffer: memoryview, position: int, columns: tuple[str, ...]
    ) -> pa.RecordBatch:
        end = self._offsets.end
        return decode_arrow(  # the consumer has checked the CRCs
            buffer, min_offset=position, max_offset=end, check_crcs=False, columns=columns
        )

    def _of_headers(self, buffer: memoryview, position: int) -> tuple[dict[str, Any], int]:
        """The offsets, if they are wanted, and the number of records."""
        wants_offsets, end = bool(self._decoded), self._offsets.end
        parts: list[Any] = []
        rows = 0
        for at, header in iter_batches(buffer):
            check_counts(header)
            if header.is_control or header.last_offset < position or header.base_offset >= end:
                continue
            whole = position <= header.base_offset and header.last_offset < end
            if whole and not wants_offsets:
                rows += header.record_count
            elif whole and _is_dense(header):
                rows += header.record_count
                parts.append(np.arange(header.base_offset, header.last_offset + 1))
            else:
                one = self._decode(buffer[at : at + header.size_bytes], position, ("offset",))
                rows += one.num_rows
                parts.append(one.column("offset").to_numpy())
        if not wants_offsets:
            return {}, rows
        return {"offset": pa.array(np.concatenate(parts) if parts else [], pa.int64())}, rows

    def _batch(self, found: dict[str, Any], rows: int, timestamp_type: int) -> pa.RecordBatch:
        arrays = []
        for field in self._schema:
            if field.name == "topic":
                array = self._constant("topic", self._offsets.topic, field.type, rows)
            elif field.name == "partition":
                array = self._constant("partition", self._offsets.partition, field.type, rows)
            elif field.name == "timestampType":
                array = self._constant("timestampType", timestamp_type, field.type, rows)
            elif field.name == "timestamp":
                array = self._micros(found["timestamp"])
            elif field.name == "headers":
                array = found["headers"].cast(field.type)
            else:
                array = found[field.name]
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, value: Any, kind: pa.DataType, rows: int) -> pa.Array:
        """`rows` times `value`, of an array that is kept for the next batches."""
        known = self._constants.get((name, value))
        if known is None or len(known) < rows:
            known = pa.repeat(pa.scalar(value, kind), rows)
            self._constants[name, value] = known
        return known.slice(0, rows)

    def _micros(self, millis: pa.Array) -> pa.Array:
        """Spark's timestamps, in us. Raises ConfigError for one that they can not hold."""
        try:
            return pc.multiply_checked(millis, 1000).view(_MICROS)
        except pa.ArrowInvalid:
            raise ConfigError(
                f"{self._offsets.topic_partition}: a record's timestamp, of up to "
                f"{pc.max(millis).as_py()} ms, is beyond Spark's; leave the column out by the "
                "option columns"
            ) from None


def _is_dense(header: BatchHeader) -> bool:
    """Whether compaction has taken no record out of the batch."""
    return header.record_count == header.last_offset - header.base_offset + 1


def by_timestamp_type(buffer: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Runs of record batches with the same timestamp type; nearly always one run."""
    begin, end, current = 0, 0, None
    for at, header in iter_batches(buffer):
        kind = _TIMESTAMP_TYPES[header.timestamp_type]
        if current is not None and kind != current:
            yield current, buffer[begin:at]
            begin = at
        current, end = kind, at + header.size_bytes
    if current is not None:
        yield current, buffer[begin:end]
