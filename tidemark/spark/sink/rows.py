"""Rows of Python objects as Arrow batches: streams of Spark 4.0 write no other way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemark.spark.versions import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ROWS = 10_000  # spark.sql.execution.arrow.maxRecordsPerBatch


def arrow_batches(rows: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Batches of at most 10,000 rows."""
    wanted = arrow_schema(schema)
    left = iter(rows)
    while some := list(islice(left, _ROWS)):
        columns = [
            pa.array(
                map(_plain, column) if pa.types.is_timestamp(field.type) else column, field.type
            )
            for field, column in zip(wanted, zip(*some, strict=True), strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _plain(moment: datetime | None) -> datetime | None:
    """With its time zone: Spark gives local times without one."""
    return None if moment is None else moment.astimezone()
