"""The results of a consumer: raw batches as the node sent them, and records decoded on access."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat, starmap
from typing import Any

from tidemark.client.models import ConsumerRecord
from tidemark.types import TopicPartition

_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0


@dataclass(frozen=True, slots=True)
class RawBatches:
    """Whole record batches v2 of one partition, as stored.

    `buffer` may begin with records below `first_offset`, the offset of the fetch. The next fetch
    begins at `next_offset`. `aborted` has (producer id, first offset) of aborted transactions, for
    read_committed.
    """

    topic_partition: TopicPartition
    buffer: memoryview
    first_offset: int
    next_offset: int
    high_watermark: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...] = ()


def without_aborted(raw: RawBatches) -> memoryview | bytes:
    """The batches without those of aborted transactions, as read_committed requires (KIP-98).

    `raw.aborted` has the begin of each such transaction; its abort marker, a control batch, ends
    it.
    """
    if not raw.aborted:
        return raw.buffer
    from tidemark import records

    waiting = sorted(raw.aborted, key=lambda pair: pair[1], reverse=True)
    aborted: set[int] = set()
    kept: list[memoryview] = []
    for position, header in records.iter_batches(raw.buffer):
        while waiting and waiting[-1][1] <= header.last_offset:
            aborted.add(waiting.pop()[0])
        if header.is_control:
            found = records.decode_batch(raw.buffer, position)  # empty if its marker was compacted
            key = found[0].key or b"" if found else b""
            if len(key) >= _CONTROL_KEY.size and _CONTROL_KEY.unpack_from(key)[1] == _ABORT:
                aborted.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in aborted:
            continue
        kept.append(raw.buffer[position : position + header.size_bytes])
    return b"".join(kept)


def decode(raw: RawBatches, *, check_crcs: bool = True) -> Any:
    """The records as a pyarrow.RecordBatch in RECORDS_SCHEMA, from `first_offset` on.

    Raises CorruptMessageError.
    """
    from tidemark import records
    from tidemark.records.header import verify_crcs

    if check_crcs:  # of what is left out, too
        verify_crcs(raw.buffer)
    return records.decode_arrow(without_aborted(raw), min_offset=raw.first_offset, check_crcs=False)


def kernels_loaded() -> bool:
    """Whether the record kernels are compiled. Until then no event loop should encode or decode."""
    return "tidemark.records.kernels.codec" in sys.modules


class Records:
    """The result of a poll: iterates over ConsumerRecords, decoded column by column on access.

    The Arrow batches themselves are in `batches`. Empty if nothing came in time.
    """

    __slots__ = ("_batches",)

    def __init__(self, batches: Sequence[tuple[TopicPartition, Any]] = ()) -> None:
        self._batches = tuple(batches)

    @property
    def batches(self) -> tuple[tuple[TopicPartition, Any], ...]:
        """(partition, pyarrow.RecordBatch) pairs, in offset order within a partition."""
        return self._batches

    def partitions(self) -> list[TopicPartition]:
        """Partitions that have records here."""
        return list(dict.fromkeys(partition for partition, _ in self._batches))

    def records(self, partition: TopicPartition) -> list[ConsumerRecord]:
        """The records of one partition, by offset."""
        return [
            record
            for owner, batch in self._batches
            if owner == partition
            for record in _rows(owner, batch)
        ]

    def __len__(self) -> int:
        return sum(batch.num_rows for _, batch in self._batches)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return chain.from_iterable(starmap(_rows, self._batches))


def _rows(partition: TopicPartition, batch: Any) -> Iterator[ConsumerRecord]:
    topic, number = partition
    offsets, timestamps, keys, values, headers = (
        batch.column(name) for name in ("offset", "timestamp", "key", "value", "headers")
    )
    if headers.null_count == len(headers) or len(headers.flatten()) == 0:
        columns: Iterator[Any] = repeat(())
    else:
        columns = (
            tuple((h["key"], h["value"]) for h in row) if row else () for row in headers.to_pylist()
        )
    rows = zip(  # as long as the columns; `repeat` is endless
        repeat(topic),
        repeat(number),
        offsets.to_pylist(),
        timestamps.to_pylist(),
        keys.to_pylist(),
        values.to_pylist(),
        columns,
        strict=False,
    )
    return starmap(ConsumerRecord, rows)
