"""Whether the batches of an answer are those that were asked for.

No CRC covers their offsets and leader epochs. So they are compared with the request, with each
other, and with the leader's watermark and epoch.
"""

from __future__ import annotations

from tidemark.client.consuming.partition import Position
from tidemark.errors import ApiError, CorruptMessageError, ErrorCode, error_for
from tidemark.records.extent import Extent, extent_of
from tidemark.records.header import read_header
from tidemark.wire import FetchPartitionData


def extent_of_answer(
    buffer: memoryview,
    asked: Position,
    leader_epoch: int,
    high_watermark: int,
    next_offset: int = 0,
) -> Extent:
    """Returns the extent of the batches that answer a fetch from `asked`.

    The first batch holds the offset or a later one, and begins at the offset or later if that was
    the end of a batch. The last one ends below the high watermark. No epoch is older than the one
    before the position, or newer than `leader_epoch` (-1: not known). All of them end at
    `next_offset` (0: not told). Raises CorruptMessageError.
    """
    extent = extent_of(buffer, least_offset=asked.offset if asked.follows_batch else 0)
    if not extent.size_bytes:
        raise CorruptMessageError(f"{len(buffer)} bytes came that are no whole batch")
    first = read_header(buffer)
    if first.last_offset < asked.offset:
        raise CorruptMessageError(
            f"the answer begins with a batch that ends at {first.last_offset}"
        )
    if extent.next_offset > high_watermark >= 0:
        raise CorruptMessageError(
            f"the answer reaches to offset {extent.next_offset - 1}; the high watermark is"
            f" {high_watermark}"
        )
    is_whole = extent.size_bytes == len(buffer)
    is_below = is_whole and extent.next_offset < next_offset
    if next_offset and (is_below or extent.next_offset > next_offset):
        raise CorruptMessageError(
            f"the answer reaches to offset {extent.next_offset - 1}; the leader read up to"
            f" {next_offset - 1}"
        )
    if asked.follows_batch and 0 <= extent.first_epoch < asked.epoch:
        raise CorruptMessageError(
            f"the answer begins in leader epoch {extent.first_epoch}, after epoch {asked.epoch}"
        )
    if extent.last_epoch > leader_epoch >= 0:
        raise CorruptMessageError(
            f"the answer has records of leader epoch {extent.last_epoch}; the leader's is"
            f" {leader_epoch}"
        )
    return extent


def is_news(data: FetchPartitionData) -> bool:
    """Whether the node reads the partition again only when it is named again."""
    return bool(
        len(data.payload)
        or data.error_code
        or data.diverging_epoch is not None
        or data.preferred_read_replica is not None
    )


def error_of(code: int, text: str) -> ApiError:
    """The error of an answer, whatever its number."""
    known = code in ErrorCode.__members__.values()
    text = text.rstrip(": ")
    return error_for(code, text if known else f"of {text}")
