"""Ranges of objects, read ahead by a few threads, as chunks of whole and checked batches.

A store answers one request slowly and several at once well. So up to `AHEAD` ranges are under way
or wait, each in a buffer of its own, which is used again. A batch that a range cuts is put before
the next range, for which a buffer leaves room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import NamedTuple

from tidemark.spark.direct.batches import PieceCheck
from tidemark.spark.direct.objects import DEADLINE_S, Objects, ObjectUnreadableError
from tidemark.spark.direct.pieces import ObjectPiece

RANGE_BYTES = 8 << 20
AHEAD = 3
_ROOM_BYTES = 1 << 20  # before a range: as large as most batches may be


class Chunk(NamedTuple):
    """Whole batches of a piece, the offset after them, and the buffer that is free once they are
    decoded.
    """

    piece: ObjectPiece
    content: memoryview
    next_offset: int
    buffer: bytearray


class Buffers:
    """Buffers of a slice, each for one range and the room before it; those given back are used
    again.
    """

    def __init__(self) -> None:
        self._free: SimpleQueue[bytearray] = SimpleQueue()
        self.made = 0

    def take(self, size_bytes: int) -> bytearray:
        """A buffer for a range of this size."""
        try:
            while len(found := self._free.get_nowait()) < _ROOM_BYTES + size_bytes:
                continue
        except Empty:
            self.made += 1
            return bytearray(_ROOM_BYTES + size_bytes)
        return found

    def give(self, buffer: bytearray) -> None:
        self._free.put(buffer)


class RangesAhead:
    """The ranges of pieces in their order, each in a buffer behind `_ROOM_BYTES`."""

    def __init__(
        self, pieces: Sequence[ObjectPiece], buffers: Buffers, deadline_s: float = DEADLINE_S
    ) -> None:
        """Each range is read within `deadline_s`, or not at all."""
        self._deadline_s = deadline_s
        self._todo = iter(
            [
                (piece, position, min(RANGE_BYTES, piece.end_position - position))
                for piece in pieces
                for position in range(piece.start_position, piece.end_position, RANGE_BYTES)
            ]
        )
        self._buffers = buffers
        self._threads = ThreadPoolExecutor(AHEAD, thread_name_prefix="tidemark-object")
        self._idle: SimpleQueue[Objects] = SimpleQueue()
        self._all: list[Objects] = []
        self._reads: deque[tuple[ObjectPiece, int, Future[bytearray]]] = deque()
        self._is_closed = False

    def __iter__(self) -> Iterator[tuple[ObjectPiece, int, bytearray]]:
        """Yields piece, size and buffer of each range. Raises the errors of `Objects.read`."""
        self._read_on()
        while self._reads:
            piece, size, read = self._reads.popleft()
            try:
                buffer = read.result()
            except CancelledError:
                raise ObjectUnreadableError("the read was ended") from None
            self._read_on()
            yield piece, size, buffer

    def close(self) -> None:
        """Begins no further read; those under way fail soon, without a wait for them."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for objects in self._all:
            objects.abort()
        self._close_idle()

    def _read_on(self) -> None:
        while len(self._reads) < AHEAD and not self._is_closed:
            found = next(self._todo, None)
            if found is None:
                return
            piece, _, size = found
            self._reads.append((piece, size, self._threads.submit(self._read, *found)))

    def _read(self, piece: ObjectPiece, position: int, size: int) -> bytearray:
        try:
            objects = self._idle.get_nowait()
        except Empty:
            objects = Objects(deadline_s=self._deadline_s)
            self._all.append(objects)
        try:
            if self._is_closed:  # which may not have seen these objects
                raise ObjectUnreadableError("the read was ended")
            buffer = self._buffers.take(size)
            into = memoryview(buffer)[_ROOM_BYTES : _ROOM_BYTES + size]
            objects.read(piece.url, position, into)
            return buffer
        finally:
            self._idle.put(objects)
            if self._is_closed:
                self._close_idle()

    def _close_idle(self) -> None:
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return


def chunks_of(ranges: RangesAhead, epoch_max: int, buffers: Buffers) -> Iterator[Chunk]:
    """Chunks of whole batches in the order of their offsets.

    Raises ObjectUnreadableError, and CorruptMessageError for bytes that contradict the plan.
    """
    check, rest = None, b""
    for piece, size, buffer in ranges:
        if check is None or check.piece is not piece:
            if check is not None:
                check.finish()
            check, rest = PieceCheck(piece, epoch_max), b""
        if check.next_offset >= piece.end:
            buffers.give(buffer)
            continue
        view = _joined(rest, buffer, size)
        end = check.whole_batches(view)
        rest = bytes(view[end:])
        yield Chunk(piece, view[:end], check.next_offset, buffer)
    if check is not None:
        check.finish()


def _joined(rest: bytes, buffer: bytearray, size: int) -> memoryview:
    """The rest of the range before, and the range behind it, in the range's buffer if there is
    room.
    """
    begin, end = _ROOM_BYTES - len(rest), _ROOM_BYTES + size
    if begin < 0:
        return memoryview(rest + memoryview(buffer)[_ROOM_BYTES:end])
    buffer[begin:_ROOM_BYTES] = rest
    return memoryview(buffer)[begin:end]
