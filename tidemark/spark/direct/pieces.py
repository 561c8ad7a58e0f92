"""Byte ranges of objects that hold the records of a slice, and how they make slices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tidemark.spark.offsets import OffsetRange
from tidemark.types import TopicPartition


class ObjectPiece(NamedTuple):
    """Whole batches in [start_position, end_position) of an object, which hold the records in
    [start, end).

    The first of them begins at `base_offset`, at or below `start`, and the last may end at or above
    `end`. The id is that of the segment.
    """

    url: str
    start_position: int
    end_position: int
    start: int
    end: int
    base_offset: int
    segment_id: bytes

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position


class Aborted(NamedTuple):
    """The offsets of an aborted transaction, up to and with its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class ReadLease(NamedTuple):
    """A hold on the objects of [start, end) of one partition, for `lease_ms` from `granted_ms` on,
    in ms since 1970. It ends by itself unless a task renews it.
    """

    id: str
    start: int
    end: int
    lease_ms: int
    granted_ms: int


class Waiting(NamedTuple):
    """The lease of a partition of the same plan, which may have no task yet."""

    topic: str
    partition: int
    topic_id: bytes
    lease: ReadLease


class DirectRead(NamedTuple):
    """The pieces of a slice by offset, without a hole, and the aborted transactions in them.

    Whoever reads the slice renews its lease, and those of partitions that wait.
    """

    pieces: tuple[ObjectPiece, ...]
    aborted: tuple[Aborted, ...] = ()
    lease: ReadLease | None = None
    waiting: tuple[Waiting, ...] = ()


def with_waiting(slices: Sequence[OffsetRange], most: int = 500) -> list[OffsetRange]:
    """The slices of a plan, each with the leases of the next partitions, at most so many.

    Spark begins tasks in the order of slices, so others before them are being read, or were.
    """
    known: dict[TopicPartition, Waiting] = {}
    for each in slices:
        if each.direct is not None and each.direct.lease is not None:
            topic_id = each.topic_id.bytes if each.topic_id is not None else b""
            waiting = Waiting(each.topic, each.partition, topic_id, each.direct.lease)
            known.setdefault(each.topic_partition, waiting)
    leases = tuple(known.values())
    behind = {where: leases[place : place + most] for place, where in enumerate(known, 1)}
    return [
        each
        if each.direct is None
        else replace(
            each, direct=each.direct._replace(waiting=behind.get(each.topic_partition, ()))
        )
        for each in slices
    ]


def direct_slices(
    whole: OffsetRange,
    pieces: Sequence[ObjectPiece],
    aborted: Iterable[Aborted],
    lease: ReadLease | None,
    split_bytes: int,
) -> list[OffsetRange]:
    """The slices of a range: pieces up to about `split_bytes` together, then what only brokers
    have.
    """
    known = tuple(aborted)
    slices, begin, size_bytes = [], 0, 0
    for index, piece in enumerate(pieces):
        if index > begin and size_bytes + piece.size_bytes > split_bytes:
            slices.append(_slice(whole, pieces[begin:index], known, lease))
            begin, size_bytes = index, 0
        size_bytes += piece.size_bytes
    if pieces:
        slices.append(_slice(whole, pieces[begin:], known, lease))
    tail = pieces[-1].end if pieces else whole.start
    return slices if tail >= whole.end else [*slices, replace(whole, start=tail)]


def _slice(
    whole: OffsetRange,
    pieces: Sequence[ObjectPiece],
    aborted: tuple[Aborted, ...],
    lease: ReadLease | None,
) -> OffsetRange:
    start, end = pieces[0].start, pieces[-1].end
    within = tuple(one for one in aborted if one.first_offset < end and one.last_offset >= start)
    return replace(whole, start=start, end=end, direct=DirectRead(tuple(pieces), within, lease))


def is_sound(start: int, end: int, pieces: Sequence[ObjectPiece], tail: int) -> bool:
    """Whether an answer's pieces have all of [start, tail), which is within [start, end)."""
    position = start
    for piece in pieces:
        if piece.start != position or piece.end <= position:
            return False
        if not 0 <= piece.start_position < piece.end_position or piece.base_offset > piece.start:
            return False
        position = piece.end
    return position == tail <= end
