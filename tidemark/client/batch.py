"""A batch of records on its way to one partition: filled, closed, stamped, encoded, sent, and
finally acknowledged or failed.

It holds columns instead of records: a send appends to four lists, and the kernels encode them at
once. Waiting for a record is waiting for its batch; an acknowledgement does no work per record.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from tidemark.client.models import Header
from tidemark.records.header import HEADER_BYTES
from tidemark.types import TopicPartition

logger = logging.getLogger(__name__)

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


def header_bytes(headers: tuple[Header, ...]) -> int:
    """Size of a record's headers."""
    return sum(len(name) + len(content or b"") + 4 for name, content in headers)


class State(IntEnum):
    """State of a batch. `move` allows the transitions of `_NEXT`, and no other."""

    OPEN = 0  # takes records
    CLOSED = 1
    ENCODING = 2
    READY = 3  # encoded: waits to be sent, or to be sent again
    IN_FLIGHT = 4
    CUTTING = 5  # too large for the leader: being cut in two
    CUT = 6  # replaced by its children
    DONE = 7  # acknowledged, or failed


_NEXT: dict[State, frozenset[State]] = {
    State.OPEN: frozenset({State.CLOSED, State.DONE}),
    State.CLOSED: frozenset({State.ENCODING, State.DONE}),
    State.ENCODING: frozenset({State.READY, State.DONE}),
    State.READY: frozenset({State.IN_FLIGHT, State.DONE}),
    State.IN_FLIGHT: frozenset({State.READY, State.CUTTING, State.DONE}),
    State.CUTTING: frozenset({State.CUT, State.DONE}),
    State.CUT: frozenset(),
    State.DONE: frozenset(),
}


class Tries:
    """The sends of a batch so far. `refusal` is the error of the last one, `leader_epoch` what was
    known when it was sent.
    """

    __slots__ = ("count", "leader_epoch", "refusal", "retry_at_ms")

    def __init__(self) -> None:
        self.count = 0
        self.leader_epoch = -1
        self.refusal: BaseException | None = None
        self.retry_at_ms = 0.0


class Batch:
    """One record batch. Only the accumulator changes it.

    The records are in the columns `keys`, `values`, `timestamps` (and `headers` by row), or in
    `source`: Arrow arrays of `send_arrow`. Both are dropped once `payload` has the encoded bytes.
    """

    __slots__ = (
        "base_offset",
        "callbacks",
        "children",
        "count",
        "created_ms",
        "error",
        "flight",
        "headers",
        "keys",
        "log_append_time_ms",
        "payload",
        "payload_stamp",
        "size_bytes",
        "source",
        "stamp",
        "state",
        "timestamps",
        "topic_partition",
        "tries",
        "values",
    )

    def __init__(
        self, topic_partition: TopicPartition, created_ms: float, state: State = State.OPEN
    ) -> None:
        self.state = state
        self.topic_partition = topic_partition
        self.created_ms = created_ms
        self.count = 0
        self.size_bytes = HEADER_BYTES
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: dict[int, tuple[Header, ...]] = {}
        self.source: Any = None
        self.payload: bytes | None = None
        self.payload_stamp = NO_STAMP
        self.stamp: Stamp | None = None
        self.tries = Tries()
        self.flight: object = None  # the request that carries it
        self.error: BaseException | None = None
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.children: list[Batch] = []
        self.callbacks: list[Callable[[], None]] = []

    def move(self, state: State) -> None:
        """Changes the state. Raises AssertionError for a transition that is not legal."""
        if state not in _NEXT[self.state]:
            raise AssertionError(f"a batch can not go from {self.state.name} to {state.name}")
        self.state = state
        if state is not State.IN_FLIGHT:
            self.flight = None

    @property
    def done(self) -> bool:
        """Whether the batch is acknowledged, failed, or replaced by its children."""
        return self.state >= State.CUT

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
            try:
                callback()
            except Exception as error:  # such as a waiter whose event loop is closed
                logger.error("%s: a waiter can not be told: %r", self.topic_partition, error)


class PartitionQueue:
    """The batches of one partition, oldest first; `open` is the last of them while it takes
    records.
    """

    __slots__ = ("batches", "epoch", "next_sequence", "open", "producer_id", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.batches: deque[Batch] = deque()
        self.open: Batch | None = None
        self.producer_id = -1
        self.epoch = -1
        self.next_sequence = 0

    @property
    def head(self) -> Batch | None:
        """The oldest batch."""
        return self.batches[0] if self.batches else None
