"""DiskChunkCache: chunks of remote segments on local disk, behind those in memory; least recently
used, bounded in bytes. For nodes whose memory is short beside what their readers share.

Files are in `remote-log-chunk-cache` under the first usable log directory, one for each chunk of a
segment's table, as `<segment id>_<number>.chunk`. Each is verified against the table when it is
read. So files are not synced, a torn or damaged one is fetched again, and a restart keeps them.

`open`, `fetch` and `drop` block and are called in pools; `missing` is called on the event loop. So
the lock is never held over IO, also not while files are removed. The disk never fails a read.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
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

    Without a capacity nothing is kept. `open` adopts the files of an earlier process. It removes
    those that no process uses any more: without a capacity, and those in `former`, directories
    that were the first usable one before.
    """

    def __init__(
        self,
        directory: Directory,
        capacity_bytes: int,
        storage: RemoteStorageManager,
        metrics: RemoteMetrics,
        former: Sequence[Directory] = (),
    ) -> None:
        self._parent = directory
        self._directory: Directory | None = None
        self._former = former
        self._capacity_bytes = capacity_bytes
        self._storage = storage
        self._metrics = metrics
        self._opening = threading.Lock()  # never released
        self._lock = threading.Lock()
        self._files: OrderedDict[_Key, int] = OrderedDict()  # bytes
        self._of_segment: dict[UUID, set[_Key]] = {}
        self._busy: set[_Key] = set()  # written or removed now
        self._skipped = 0
        self.size_bytes = 0

    def open(self) -> None:
        """Takes over what is on the disk; once. `fetch` does it where nobody did before, and asks
        the store meanwhile where another thread does.
        """
        if not self._opening.acquire(blocking=False):
            return
        unused = self._former if self._capacity_bytes else (*self._former, self._parent)
        for parent in unused:
            _remove_tree(parent, DIRECTORY_NAME)
        if self._capacity_bytes:
            try:
                directory = self._parent.subdirectory(DIRECTORY_NAME)
                self._take_over(directory)
                self._directory = directory
            except StorageError as error:
                logger.warning("no chunks are kept on disk: %s", error)

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
        self.open()
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
        if self._directory is not None:
            self._keep(self._directory, segment, table, first, content)
        return before + content + behind if before or behind else content

    def drop(self, segment: UUID) -> None:
        """Removes the chunks of a segment that was deleted."""
        with self._lock:
            keys = self._forget(self._of_segment.get(segment, ()))
        self._remove(keys)

    def _read(
        self, segment: RemoteLogSegmentMetadata, table: SegmentTable, start: int, end: int
    ) -> bytes | None:
        """Reads kept chunks; None if one of them is not sound any more."""
        pieces: list[bytes] = []
        directory = self._directory
        if directory is None:
            return b"" if start == end else None
        for position in range(start, end, table.chunk_bytes):
            key = segment.id, position // table.chunk_bytes
            wanted = min(position + table.chunk_bytes, segment.segment_size_bytes) - position
            try:
                piece = directory.read(_name(key))
                if len(piece) != wanted:
                    raise damaged(segment, position, f"{len(piece)} bytes of a chunk are kept")
                table.check_log(position, piece)
            except (StorageError, CorruptMessageError) as error:
                logger.warning("%s: %s; fetching", directory.path, error)
                with self._lock:
                    keys = self._forget([key])
                self._remove(keys)
                return None
            pieces.append(piece)
            with self._lock:
                if key in self._files:
                    self._files.move_to_end(key)
        self._metrics.chunk_disk_cache_hits += len(pieces)
        return b"".join(pieces)

    def _keep(
        self,
        directory: Directory,
        segment: RemoteLogSegmentMetadata,
        table: SegmentTable,
        start: int,
        content: bytes,
    ) -> None:
        for position in range(start, start + len(content), table.chunk_bytes):
            key = segment.id, position // table.chunk_bytes
            piece = memoryview(content)[position - start :][: table.chunk_bytes]
            with self._lock:
                if self._skipped:
                    self._skipped -= 1
                    continue
                if key in self._files or key in self._busy:
                    continue
                self._busy.add(key)
            try:
                _write(directory, _name(key), piece)
            except StorageError as error:  # reads go on without it
                logger.warning(
                    "%s: %s; the next %d chunks are not kept",
                    *(directory.path, error, _SKIPPED_AFTER_FAILURE),
                )
                with self._lock:
                    self._skipped = _SKIPPED_AFTER_FAILURE
                self._remove([key])
            else:
                with self._lock:
                    self._add(key, len(piece))
                    evicted = self._evict()
                self._remove(evicted)
            finally:
                with self._lock:
                    self._busy.discard(key)

    def _add(self, key: _Key, size: int) -> None:
        self._files[key] = size
        self._of_segment.setdefault(key[0], set()).add(key)
        self.size_bytes += size

    def _evict(self) -> list[_Key]:
        evicted: list[_Key] = []
        while self.size_bytes > self._capacity_bytes:
            evicted += self._forget([next(iter(self._files))])
        return evicted

    def _forget(self, keys: Iterable[_Key]) -> list[_Key]:
        """Returns those of `keys` that were kept; the caller removes their files, without the
        lock. Until then they are busy.
        """
        forgotten = [key for key in keys if key in self._files]
        for key in forgotten:
            self.size_bytes -= self._files.pop(key)
            of_segment = self._of_segment[key[0]]
            of_segment.discard(key)
            if not of_segment:
                del self._of_segment[key[0]]
        self._busy.update(forgotten)
        return forgotten

    def _remove(self, keys: Iterable[_Key]) -> None:
        for key in keys:
            try:
                if self._directory is not None:
                    _remove_tree(self._directory, _name(key))
            finally:
                with self._lock:
                    self._busy.discard(key)

    def _take_over(self, directory: Directory) -> None:
        """Adopts the files of an earlier process; removes unknown ones."""
        for name in directory.list():
            key = _parse_name(name)
            if key is None or directory.is_directory(name):
                _remove_tree(directory, name)
                continue
            try:
                size = directory.size_of(name)
            except StorageError:  # a link that leads nowhere, say
                _remove_tree(directory, name)
                continue
            with self._lock:
                self._add(key, size)
                evicted = self._evict()
                self._busy.difference_update(evicted)
            for key in evicted:
                _remove_tree(directory, _name(key))


def _write(directory: Directory, name: str, piece: memoryview) -> None:
    file = directory.open(name, create=True)
    try:
        file.truncate(0)
        file.append(piece)
    finally:
        file.close()


def _remove_tree(directory: Directory, name: str) -> None:
    try:
        directory.remove_tree(name)
    except StorageError as error:  # of a failing disk
        logger.debug("%s stays: %s", name, error)


def _name(key: _Key) -> str:
    return f"{uuid_to_text(key[0])}_{key[1]}{_SUFFIX}"


def _parse_name(name: str) -> _Key | None:
    identity, number = name[:22], name[23:].removesuffix(_SUFFIX)
    try:
        key = uuid_from_text(identity), int(number)
    except ValueError:
        return None
    return key if _name(key) == name else None
