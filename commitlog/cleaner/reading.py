"""Reads the batches of segments a buffer at a time, for both passes of a cleaning."""

from __future__ import annotations

from collections.abc import Iterator

from commitlog.cleaner.io import CleanerIo
from commitlog.disk.files import File
from tidemark.errors import CorruptMessageError
from tidemark.records.header import HEADER_BYTES, claimed_size


class BatchReader:
    """Reads segments through one buffer of io.buffer.size; it grows if a batch is larger.

    The caller that iterates over `views` reports with `took` how much of each view it has
    processed.
    """

    def __init__(self, io: CleanerIo) -> None:
        self._io = io
        self._buffer = memoryview(b"")
        self._are_large = False  # batches are larger than half of io.buffer.size
        self._taken_bytes = self._taken_batches = 0
        self.reaches_end = False  # whether the view ends at the end of the segment

    def took(self, size_bytes: int, batches: int) -> None:
        """Reports the whole batches of the view; none if the view is too small for its first
        batch.
        """
        self._taken_bytes, self._taken_batches = size_bytes, batches

    def views(self, file: File, size: int) -> Iterator[memoryview]:
        """Yields views that begin with a batch of a segment of `size` bytes; each replaces the one
        before.

        Raises CleaningAbortedError, CorruptMessageError or StorageError.
        """
        position = want = 0
        while position < size:
            self._io.check()
            want = max(want, self._io.buffer_bytes, HEADER_BYTES)
            if self._are_large:  # one batch at a time, so that no part of one is read twice
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
