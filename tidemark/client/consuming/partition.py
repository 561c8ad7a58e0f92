"""One assigned partition of a consumer: the reader's position, the fetched batches, the next fetch.

The phase says which of its four lives a partition leads. Each carries its own data, so no flag
outlives the state it belongs to:

- Ready: the next fetch, or look-up of a position, may be sent from a time on.
- Asked: a request is under way.
- Draining: the position moves as soon as the batches fetched before are handed over.
- Halted: an error waits for the reader, behind the batches fetched before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from tidemark.client.records import RawBatches
from tidemark.errors import TidemarkError
from tidemark.records.extent import Extent
from tidemark.records.header import iter_batches
from tidemark.types import TopicPartition

UNKNOWN_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Position:
    """The offset of a next record.

    `epoch` is the leader epoch of the record before it, -1 if unknown (KIP-320). `topic_id` is
    that of the topic it was confirmed in, empty before. `follows_batch` is true at the end of a
    fetched batch: the next one begins there or later.
    """

    offset: int
    epoch: int = UNKNOWN_EPOCH
    topic_id: bytes = b""
    follows_batch: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """A position that is looked up: an OffsetSpec, and since when it is asked for."""

    where: int
    since_ms: float


Target = Position | Reset


@dataclass(frozen=True, slots=True)
class Ready:
    """May be asked for from `not_before_ms` on; earlier, if another node than `leader` leads."""

    attempts: int = 0
    not_before_ms: float = 0.0
    leader: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A fetch or look-up is under way, after so many failed ones."""

    request_id: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Draining:
    """Moves to `to` when nothing is buffered any more."""

    to: Target


@dataclass(frozen=True, slots=True)
class Halted:
    """Has an error for the reader.

    `until_seek`: the partition stays halted, and the error is raised again. Otherwise it is
    fetched again once the error was raised. `is_told`: the error was raised, and no poll has
    delivered a record since.
    """

    error: TidemarkError
    until_seek: bool
    attempts: int = 0
    is_told: bool = False


Phase = Ready | Asked | Draining | Halted


@dataclass(frozen=True, slots=True)
class Preference:
    """Until when fetches go to the replica that the leader named (KIP-392).

    With `node` None they go to the leader and ask for no other: a named replica failed.
    """

    node: int | None
    until_ms: float


class Fetched:
    """Batches of one answer, on their way to the reader.

    `rows` are the decoded records that are left, or None. `is_begun` batches no longer count as
    fetched ahead, if they are the first: the next fetch overlaps with their decoding. `is_held`
    ends when they are handed over or forgotten.
    """

    __slots__ = ("extent", "is_begun", "is_checked", "is_held", "raw", "rows")

    def __init__(self, raw: RawBatches, extent: Extent) -> None:
        self.raw = raw
        self.extent = extent
        self.rows: Any = None
        self.is_begun = False
        self.is_checked = False
        self.is_held = True

    @property
    def is_empty(self) -> bool:
        """Whether it was decoded and has no record for the reader."""
        return self.rows is not None and not self.rows.num_rows

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the batch that holds the offset before `offset`."""
        if self.extent.first_epoch == self.extent.last_epoch:
            return self.extent.last_epoch
        epoch = self.extent.first_epoch
        for _, header in iter_batches(self.raw.buffer):
            if header.base_offset >= offset:
                break
            epoch = header.partition_leader_epoch
        return epoch


class AssignedPartition:
    """An assigned partition.

    `reader` is the position of the reader, None until it is known. `target` is the position of the
    next fetch, at the end of what is buffered. `held_bytes` is the size of that. Only the core
    changes it.
    """

    __slots__ = (
        "buffered",
        "held_bytes",
        "high_watermark",
        "is_paused",
        "phase",
        "preference",
        "reader",
        "target",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.reader: Position | None = None
        self.target: Target | None = None
        self.phase: Phase = Ready()
        self.is_paused = False
        self.preference: Preference | None = None
        self.buffered: deque[Fetched] = deque()
        self.held_bytes = 0
        self.high_watermark = -1

    @property
    def lag(self) -> int:
        """Offsets between the reader and the high watermark of the last records; 0: unknown."""
        return max(0, self.high_watermark - self.reader.offset) if self.reader is not None else 0

    @property
    def ahead_bytes(self) -> int:
        """Bytes fetched ahead of the reader."""
        if self.buffered and self.buffered[0].is_begun:
            return self.held_bytes - len(self.buffered[0].raw.buffer)
        return self.held_bytes
