"""The batches of segments, a buffer at a time: what both passes of a cleaning read."""

from __future__ import annotations

from collections.abc import Iterator

from commitlog.cleaner.io import CleanerIo
from commitlog.disk.files import File
from tidemark.errors import CorruptMessageError
from tidemark.records.header import HEADER_BYTES, claimed_size


class BatchReader:
    """Reads segments through one buffer of io.buffer.size; it grows where a batch is larger.

    Whoever walks over `views` says with `took` how much of each one it has dealt with.
    """

    def __init__(self, io: CleanerIo) -> None:
        self._io = io
        self._buffer = memoryview(b"")
        self._are_large = False  # batches of more than half of io.buffer.size
        self._taken_bytes = self._taken_batches = 0
        self.reaches_end = False  # does the view end where the segment ends?

    def took(self, size_bytes: int, batches: int) -> None:
        """The whole batches of the view; none where it is too small for its first one."""
        self._taken_bytes, self._taken_batches = size_bytes, batches

    def views(self, file: File, size: int) -> Iterator[memoryview]:
        """Bytes of a segment, `size` in all, that begin with a batch. The next view takes the
        place of the one before. CleaningAbortedError, CorruptMessageError, StorageError.
        """
        position = want = 0
        while position < size:
            self._io.check()
            want = max(want, self._io.buffer_bytes, HEADER_BYTES)
            if self._are_large:  # just one then, so that no part of a batch is read twice
                want = max(want, claimed_size(memoryview(file.pread(HEADER_BYTES, position)), 0))
            view = self._read(file, position, min(want, size - position))
            self._taken_bytes = self._taken_batches = want = 0
            self.reaches_end = position + len(view) == size
            yield view
            if self._taken_batches:
                position += self._taken_bytes
                self._are_large = 2 * self._taken_bytes > (
                    self._io.buffer_bytes * self._taken_batches
                )
                self._io.throttle.spend(self._taken_bytes)
                continue
            want = claimed_size(view, 0) if len(view) >= HEADER_BYTES else 0
            if not len(view) < want <= size - position:
                raise CorruptMessageError(f"{file.name} ends within the batch at byte {position}")

    def _read(self, file: File, position: int, size: int) -> memoryview:
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        return self._buffer[: file.pread_into(self._buffer[:size], position)]
