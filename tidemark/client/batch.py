"""A batch of records on its way to one partition: filled, closed, stamped, encoded, sent, and
finally acknowledged or failed.

It holds columns instead of records: a send appends to four lists, and the kernels encode them at
once. Waiting for a record is waiting for its batch; an acknowledgement does no work per record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tidemark.client.models import Header
from tidemark.records.header import HEADER_BYTES
from tidemark.types import TopicPartition

# Size of a record in a batch without its key and value: length, attributes, deltas, lengths of key
# and value, header count.
RECORD_OVERHEAD_BYTES = 14


class Stamp(NamedTuple):
    """The producer id, epoch and sequence by which the leader recognises a batch sent twice
    (KIP-98).

    All are -1 without idempotence.
    """

    producer_id: int
    producer_epoch: int
    base_sequence: int


NO_STAMP = Stamp(-1, -1, -1)


class Batch:
    """One record batch. Only the accumulator and the sender change it.

    The records are in the columns `keys`, `values`, `timestamps` (and `headers` by row), or in
    `source`: Arrow arrays of `send_arrow`. Both are dropped once `payload` has the encoded bytes.
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
        self.refusal: BaseException | None = None  # error of the last try
        self.retry_at_ms = 0.0
        self.in_flight = False
        self.done = False
        self.error: BaseException | None = None
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.children: list[Batch] = []
        self.callbacks: list[Callable[[], None]] = []

    def child_of(self, row: int) -> tuple[Batch, int]:
        """The batch that now carries a row, and the row's place in it.

        A batch that was too large has been cut in two.
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
        """The batch itself, or the batches it was cut into."""
        if not self.children:
            return [self]
        return [leaf for child in self.children for leaf in child.leaves()]

    def notify(self) -> None:
        """Calls the waiters: the batch is done, or was cut."""
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()
