"""DiskChunkCache: chunks of remote segments on local disk, behind those in memory; least recently
used, bounded in bytes. For nodes whose memory is short beside what their readers share.

Files are in `remote-log-chunk-cache` under the first usable log directory, one for each chunk of a
segment's table, as `<segment id>_<number>.chunk`. Each is verified against the table when it is
read. So files are not synced, a torn or damaged one is fetched again, and a restart keeps them.

`fetch` blocks and is called in the reader's pool; the lock is never held over IO of chunks.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

from commitlog.disk.files import Directory
from tidemark.errors import CorruptMessageError, StorageError
from tidemark.types import uuid_from_text, uuid_to_text
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.metrics import RemoteMetrics
from tiering.reading.order import damaged
from tiering.store.manager import RemoteStorageManager
from tiering.store.sidecar import SegmentTable

logger = logging.getLogger(__name__)

DIRECTORY_NAME = "remote-log-chunk-cache"
_SUFFIX = ".chunk"
_SKIPPED_AFTER_FAILURE = 1024  # chunks that are not kept after a write failed, on a full disk say

_Key = tuple[UUID, int]


class DiskChunkCache:
    """The chunks of a segment's log, from disk or the store. Several threads may fetch at once.

    Without a capacity nothing is kept, and the files of an earlier process are removed.
    """

    def __init__(
        self,
        directory: Directory,
        capacity_bytes: int,
        storage: RemoteStorageManager,
        metrics: RemoteMetrics,
    ) -> None:
        self._directory = directory
        self._capacity_bytes = capacity_bytes
        self._storage = storage
        self._metrics = metrics
        self._lock = threading.Lock()
        self._files: OrderedDict[_Key, int] = OrderedDict()  # bytes
        self._writing: set[_Key] = set()
        self._skipped = 0
        self.size_bytes = 0
        if capacity_bytes > 0:
            self._directory = directory.subdirectory(DIRECTORY_NAME)
            self._take_over()
        else:
            directory.remove_tree(DIRECTORY_NAME)

    def missing(
        self, segment: RemoteLogSegmentMetadata, table: SegmentTable, start: int, end: int
    ) -> tuple[int, int]:
        """Returns the range of [start, end), whole chunks, that `fetch` asks of the store; without
        IO.
        """
        size = table.chunk_bytes
        with self._lock:
            while start < end and (segment.id, start // size) in self._files:
                start += size
            while end > start and (segment.id, (end - 1) // size) in self._files:
                end = (end - 1) // size * size
        return min(start, end), end

    def fetch(
        self, segment: RemoteLogSegmentMetadata, table: SegmentTable, start: int, end: int
    ) -> bytes:
        """Returns [start, end) of a log, whole chunks, verified. Raises the storage's errors, and
        CorruptMessageError.
        """
        first, last = self.missing(segment, table, start, end)
        before = self._read(segment, table, start, first)
        behind = self._read(segment, table, last, end)
        if before is None or behind is None:
            first, last, before, behind = start, end, b"", b""
        if first == last:
            return before + behind
        content = self._storage.fetch_log_segment(segment, first, last)
        if len(content) != last - first:
            raise damaged(segment, first + len(content), "the object ends there")
        table.check_log(first, content)
        if self._capacity_bytes:
            self._keep(segment, table, first, content)
        return before + content + behind if before or behind else content

    def drop(self, segment: UUID) -> None:
        """Removes the chunks of a segment that was deleted."""
        with self._lock:
            self._forget([key for key in self._files if key[0] == segment])

    def _read(
        self, segment: RemoteLogSegmentMetadata, table: SegmentTable, start: int, end: int
    ) -> bytes | None:
        """Reads kept chunks; None if one of them is not sound any more."""
        pieces = []
        for position in range(start, end, table.chunk_bytes):
            key = segment.id, position // table.chunk_bytes
            wanted = min(position + table.chunk_bytes, segment.segment_size_bytes) - position
            try:
                piece = self._directory.read(_name(key))
                if len(piece) != wanted:
                    raise damaged(segment, position, f"{len(piece)} bytes of a chunk are kept")
                table.check_log(position, piece)
            except (StorageError, CorruptMessageError) as error:
                logger.warning("%s: %s; fetching", self._directory.path, error)
                with self._lock:
                    self._forget([key])
                return None
            pieces.append(piece)
            with self._lock:
                if key in self._files:
                    self._files.move_to_end(key)
        self._metrics.chunk_disk_cache_hits += len(pieces)
        return b"".join(pieces)

    def _keep(
        self, segment: RemoteLogSegmentMetadata, table: SegmentTable, start: int, content: bytes
    ) -> None:
        for position in range(start, start + len(content), table.chunk_bytes):
            key = segment.id, position // table.chunk_bytes
            piece = memoryview(content)[position - start :][: table.chunk_bytes]
            with self._lock:
                if self._skipped:
                    self._skipped -= 1
                    continue
                if key in self._files or key in self._writing:
                    continue
                self._writing.add(key)
            try:
                self._write(_name(key), piece)
            except StorageError as error:  # reads go on without it
                logger.warning(
                    "%s: %s; the next %d chunks are not kept",
                    *(self._directory.path, error, _SKIPPED_AFTER_FAILURE),
                )
                self._remove(key)
                with self._lock:
                    self._skipped = _SKIPPED_AFTER_FAILURE
            else:
                with self._lock:
                    self._add(key, len(piece))
            finally:
                with self._lock:
                    self._writing.discard(key)

    def _write(self, name: str, piece: memoryview) -> None:
        file = self._directory.open(name, create=True)
        try:
            file.truncate(0)
            file.append(piece)
        finally:
            file.close()

    def _add(self, key: _Key, size: int) -> None:
        self._files[key] = size
        self.size_bytes += size
        while self.size_bytes > self._capacity_bytes:
            self._forget([next(iter(self._files))])

    def _forget(self, keys: Iterable[_Key]) -> None:
        for key in keys:
            size = self._files.pop(key, None)
            if size is not None:
                self.size_bytes -= size
                self._remove(key)

    def _remove(self, key: _Key) -> None:
        with suppress(StorageError):  # of a failing disk
            self._directory.remove(_name(key))

    def _take_over(self) -> None:
        """Adopts the files of an earlier process; removes unknown ones."""
        for name in self._directory.list():
            key = _parse_name(name)
            if key is None:
                self._directory.remove_tree(name)
            else:
                self._add(key, self._directory.size_of(name))


def _name(key: _Key) -> str:
    return f"{uuid_to_text(key[0])}_{key[1]}{_SUFFIX}"


def _parse_name(name: str) -> _Key | None:
    identity, number = name[:22], name[23:].removesuffix(_SUFFIX)
    try:
        key = uuid_from_text(identity), int(number)
    except ValueError:
        return None
    return key if _name(key) == name else None
