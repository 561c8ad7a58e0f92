"""Arrow batches of Spark as tables for `send_arrow`: few and large ones, each of one topic.

Spark's batches have 10,000 rows at most. A table is split over the partitions of its topic, and
each part becomes a record batch. Therefore several of Spark's batches go into one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemark.errors import InvalidRecordError

if TYPE_CHECKING:
    from typing import Any

_TABLE_BYTES = 8 << 20
_SENT = ("key", "value", "headers", "partition", "timestamp")


def tables(batches: Iterable[pa.RecordBatch], topic: str | None) -> Iterator[tuple[str, pa.Table]]:
    """Topics with their rows, in the order of the rows of each topic.

    All rows go to `topic`; None: each to that of its column. Raises InvalidRecordError for a row
    without a topic.
    """
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        gathered.append(batch)
        size += batch.nbytes
        if size >= _TABLE_BYTES:
            yield from _by_topic(pa.Table.from_batches(gathered), topic)
            gathered, size = [], 0
    if gathered:
        yield from _by_topic(pa.Table.from_batches(gathered), topic)


def _by_topic(table: pa.Table, topic: str | None) -> Iterator[tuple[str, pa.Table]]:
    rows = table.select([name for name in _SENT if name in table.schema.names])
    if topic is not None:
        yield topic, rows
        return
    topics = table["topic"].combine_chunks().dictionary_encode()
    if topics.null_count:
        raise InvalidRecordError(
            f"{topics.null_count} rows have no topic: fill the column topic, or give the option"
        )
    names = topics.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], rows
        return
    codes: Any = topics.indices.to_numpy()
    rows = rows.take(pa.array(np.argsort(codes, kind="stable")))
    begin = 0
    for name, count in zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True):
        yield name, rows.slice(begin, count)
        begin += count
