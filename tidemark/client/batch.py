"""A batch of records on its way to one partition: filled, closed, stamped, encoded, sent, and at
last acknowledged or failed.

Columns instead of records: a send appends to four lists, and the kernels encode them at once.
Whoever waits for a record waits for its batch; nothing is done per record when the acknowledgement
comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tidemark.client.models import Header
from tidemark.records.header import HEADER_BYTES
from tidemark.types import TopicPartition

# What a record costs in a batch beside its key and value: length, attributes, deltas, lengths of
# key and value, header count.
RECORD_OVERHEAD_BYTES = 14


class Stamp(NamedTuple):
    """What makes a batch recognisable to the leader when it is sent twice (KIP-98); -1s without
    idempotence.
    """

    producer_id: int
    producer_epoch: int
    base_sequence: int


NO_STAMP = Stamp(-1, -1, -1)


class Batch:
    """One record batch. Only the accumulator and the sender change it; `done` ends its life.

    Either the columns `keys`, `values`, `timestamps` (and `headers` by row) hold the records, or
    `source` does: Arrow arrays of `send_arrow`. Both are dropped once `payload` has the encoded
    bytes.
    """

    __slots__ = (
        "attempts",
        "base_offset",
        "callbacks",
        "children",
        "closed",
        "count",
        "created_ms",
        "done",
        "encoding",
        "error",
        "headers",
        "in_flight",
        "keys",
        "log_append_time_ms",
        "payload",
        "payload_stamp",
        "refusal",
        "retry_at_ms",
        "size_bytes",
        "source",
        "stamp",
        "timestamps",
        "topic_partition",
        "values",
    )

    def __init__(self, topic_partition: TopicPartition, created_ms: float) -> None:
        self.topic_partition = topic_partition
        self.created_ms = created_ms
        self.count = 0
        self.size_bytes = HEADER_BYTES
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: dict[int, tuple[Header, ...]] = {}
        self.source: Any = None
        self.closed = False
        self.encoding = False
        self.payload: bytes | None = None
        self.payload_stamp = NO_STAMP
        self.stamp: Stamp | None = None
        self.attempts = 0
        self.refusal: BaseException | None = None  # what the last try failed with
        self.retry_at_ms = 0.0
        self.in_flight = False
        self.done = False
        self.error: BaseException | None = None
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.children: list[Batch] = []
        self.callbacks: list[Callable[[], None]] = []

    def child_of(self, row: int) -> tuple[Batch, int]:
        """The batch that now carries a row, and the row's place in it: a batch that was too large
        was cut in two.
        """
        batch = self
        while batch.children:
            for child in batch.children:
                if row < child.count:
                    batch = child
                    break
                row -= child.count
            else:
                raise IndexError(f"row {row} is not in the batch")
        return batch, row

    def leaves(self) -> list[Batch]:
        """The batch itself, or what it was cut into."""
        if not self.children:
            return [self]
        return [leaf for child in self.children for leaf in child.leaves()]

    def notify(self) -> None:
        """Calls those who wait: the batch is done, or was cut."""
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()
