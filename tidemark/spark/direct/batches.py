"""Checks that bytes of an object are the record batches that a plan means. Pure.

The CRC of a batch covers neither its base offset, nor its length, nor its leader epoch. A log with
a tier is not compacted: its batches follow one another without a gap. So each header confirms the
one before it. A log that was compacted once has gaps, which the brokers can explain, and not the
bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from tidemark.errors import CorruptMessageError
from tidemark.records import iter_batches
from tidemark.records.header import (
    HEADER_BYTES,
    MAGIC,
    MAX_OFFSET,
    ORDER,
    OVERHEAD_BYTES,
    verify_crcs,
)
from tidemark.spark.direct.pieces import Aborted, ObjectPiece


class PieceCheck:
    """The position of a reader in the batches of one piece, and of the newest epoch there may be
    (-1: any).
    """

    def __init__(self, piece: ObjectPiece, epoch_max: int = -1) -> None:
        self.piece = piece
        self._epoch = 0
        self._epoch_max = epoch_max
        self.next_offset = piece.base_offset
        """The offset after the last batch, of the first one before it is read."""

    def whole_batches(self, buffer: memoryview) -> int:
        """Returns the size in bytes of the whole batches that the buffer begins with.

        Raises CorruptMessageError if they do not follow those before, or a CRC is wrong.
        """
        end, size, following, epoch = 0, len(buffer), self.next_offset, self._epoch
        while size - end >= HEADER_BYTES:
            base, length, leader_epoch, magic, delta = ORDER.unpack_from(buffer, end)
            stop = end + length + OVERHEAD_BYTES
            if (
                magic != MAGIC
                or delta < 0
                or stop - end < HEADER_BYTES
                or leader_epoch < epoch
                or leader_epoch > self._epoch_max >= 0
                or base != following
            ):
                raise CorruptMessageError(
                    f"there is no batch with offset {following} in byte {end}: magic {magic}, "
                    f"offset {base}, epoch {leader_epoch}, {length} bytes"
                )
            if stop > size:
                break
            following, epoch, end = base + delta + 1, leader_epoch, stop
        verify_crcs(buffer[:end])
        self.next_offset, self._epoch = following, epoch
        return end

    def finish(self) -> None:
        """Raises CorruptMessageError unless the piece's records were all there."""
        if self.next_offset < self.piece.end:
            raise CorruptMessageError(
                f"the batches end before offset {max(self.next_offset, self.piece.start)}, and "
                f"have to reach {self.piece.end - 1}"
            )


class AbortedBatches:
    """Finds batches of aborted transactions, which read_committed leaves out (KIP-98)."""

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first, last in sorted(aborted):
            self._spans.setdefault(producer_id, []).append((first, last))

    def removed(self, buffer: memoryview) -> memoryview | bytes:
        """The whole batches of a buffer without those of aborted transactions."""
        if not self._spans:
            return buffer
        kept = [
            buffer[position : position + header.size_bytes]
            for position, header in iter_batches(buffer)
            if not (header.is_transactional and self._has(header.producer_id, header.base_offset))
        ]
        return b"".join(kept)

    def _has(self, producer_id: int, offset: int) -> bool:
        spans = self._spans.get(producer_id, [])
        row = bisect_right(spans, (offset, MAX_OFFSET)) - 1
        return row >= 0 and offset <= spans[row][1]
