"""The extent of the whole batches that a buffer begins with, and whether they follow one another.

A batch's CRC covers neither its base offset, nor its length, nor its leader epoch. Its neighbours
contradict a wrong one. Batches do not overlap, and leader epochs do not go back. A gap between two
batches contradicts nothing: compaction leaves gaps.

Pure, and called for each fetch: a few comparisons per batch, no object per batch.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemark.errors import CorruptMessageError
from tidemark.records.header import HEADER_BYTES, MAGIC, ORDER, OVERHEAD_BYTES, BytesLike

_MIN_LENGTH = HEADER_BYTES - OVERHEAD_BYTES


class BatchOrderError(CorruptMessageError):
    """A batch that can not follow the one before it; `position` is where it begins."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class Extent(NamedTuple):
    """Size in bytes, first base offset and next offset of some batches, and the leader epochs of
    the first and the last. Without a batch the size is 0 and the others are -1.
    """

    size_bytes: int
    first_offset: int
    next_offset: int
    first_epoch: int
    last_epoch: int


NOTHING = Extent(0, -1, -1, -1, -1)
_new = tuple.__new__  # `Extent` without the cost of its keywords


def extent_of(
    buffer: BytesLike,
    max_offset: int | None = None,
    max_bytes: int | None = None,
    least_offset: int = 0,
) -> Extent:
    """Returns the extent of the whole batches within the first `max_bytes` of a buffer.

    Ends before a batch whose last offset is `max_offset` or more. A header behind the last batch
    is compared, too: it confirms where that batch ends. The first batch begins at `least_offset` or
    above.

    Of two batches that contradict each other, either may be wrong. So the extent ends before both.
    Raises BatchOrderError if that leaves nothing.
    """
    size = len(buffer)
    room = size if max_bytes is None or max_bytes > size else max_bytes
    end = before = count = 0
    first, following, first_epoch, epoch = -1, least_offset, -1, -1
    before_following = before_epoch = -1
    unpack = ORDER.unpack_from
    while size - end >= HEADER_BYTES:
        base, length, leader_epoch, magic, delta = unpack(buffer, end)
        if (
            base < following
            or leader_epoch < epoch
            or delta < 0
            or length < _MIN_LENGTH
            or magic != MAGIC
        ):
            if not before:
                raise _contradiction(buffer, end, following, epoch)
            return _new(Extent, (before, first, before_following, first_epoch, before_epoch))
        stop = end + length + OVERHEAD_BYTES
        if stop > room or (max_offset is not None and base + delta >= max_offset):
            break
        if count:
            before, before_following, before_epoch = end, following, epoch
        else:
            first, first_epoch, count = base, leader_epoch, 1
        following, epoch, end = base + delta + 1, leader_epoch, stop
    return _new(Extent, (end, first, following, first_epoch, epoch)) if end else NOTHING


def _contradiction(buffer: BytesLike, position: int, floor: int, epoch: int) -> BatchOrderError:
    base, length, leader_epoch, magic, delta = ORDER.unpack_from(buffer, position)
    if magic != MAGIC or length < _MIN_LENGTH or delta < 0:
        problem = f"has magic {magic}, {length} bytes and {delta + 1} offsets: there is no batch"
    elif base < floor:
        problem = f"begins at offset {base}, below {floor}"
    else:
        problem = f"is of leader epoch {leader_epoch}, after epoch {epoch}"
    return BatchOrderError(f"the batch at byte {position} {problem}", position)
