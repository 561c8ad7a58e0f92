"""RemoteIndexCache: what a reader needs of the sidecars of remote segments, on local disk; least
recently used, bounded in bytes.

Files are in `remote-log-index-cache` under the first usable log directory, as `<start
offset>_<segment id>.sidecar`. A file is the beginning of the segment's sidecar: the table, the
offset index and the time index. So it has the checksums of all that it holds, which every load
verifies, and those of the log's chunks. The metadata pins the table.

Files can always be fetched again, so they are not synced. A missing, torn or damaged file is
fetched anew; a restart keeps the others. The parsed entries of the segments in use are kept in
memory, bounded too. Source: Kafka's RemoteIndexCache.

`load` blocks and is called in the reader's pool; the lock is never held over IO.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass
from uuid import UUID

from commitlog.disk.files import Directory
from tidemark.errors import CorruptMessageError, StorageError
from tidemark.types import uuid_from_text, uuid_to_text
from tiering.errors import CorruptRemoteObjectError
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.metrics import RemoteMetrics
from tiering.reading.remote_indexes import RemoteIndexes
from tiering.store.manager import SIDECAR_SUFFIX, IndexType, RemoteStorageManager
from tiering.store.sidecar import HEAD_BYTES, SegmentTable, decode_table, pin_of, table_bytes

logger = logging.getLogger(__name__)

DIRECTORY_NAME = "remote-log-index-cache"
_TEMPORARY = ".tmp"
_IN_MEMORY_BYTES_MAX = 64 << 20
# With Kafka's index.interval.bytes of 4096 both indexes have 20 bytes for each 4 KiB of a log.
_LOG_BYTES_OF_INDEX_BYTE = 4096 // 20
_INDEX_BYTES_LEAST = 64 << 10
_KINDS = (IndexType.OFFSET, IndexType.TIMESTAMP)


@dataclass(frozen=True, slots=True)
class CheckedIndexes:
    """The verified indexes of a segment, and the table with the checksums of its log."""

    table: SegmentTable
    indexes: RemoteIndexes
    size_bytes: int


class RemoteIndexCache:
    """Indexes by segment. Several threads may load at once."""

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
        self._files: OrderedDict[UUID, tuple[int, int]] = OrderedDict()  # start offset, bytes
        self._parsed: OrderedDict[UUID, CheckedIndexes] = OrderedDict()
        self._parsed_bytes = 0
        self.size_bytes = 0
        self._take_over()

    def __len__(self) -> int:
        return len(self._files)

    def peek(self, segment: RemoteLogSegmentMetadata) -> CheckedIndexes | None:
        """Returns the segment's indexes if they are in memory; without IO."""
        with self._lock:
            found = self._parsed.get(segment.id)
            if found is not None:
                self._parsed.move_to_end(segment.id)
                if segment.id in self._files:
                    self._files.move_to_end(segment.id)
            return found

    def load(self, segment: RemoteLogSegmentMetadata) -> CheckedIndexes:
        """Returns the segment's indexes from memory, disk, or the remote storage, whose errors it
        raises.
        """
        found = self.peek(segment)
        if found is not None:
            return found
        parsed = self._from_disk(segment)
        if parsed is None:
            parsed = self._from_storage(segment)
        with self._lock:
            evicted = self._remember(segment, parsed)
        self._remove(evicted)
        return parsed

    def remove(self, identity: UUID) -> None:
        """Removes a segment that was deleted, or whose indexes do not fit; blocks."""
        with self._lock:
            self._forget_parsed(identity)
            forgotten = self._forget_files(identity)
        self._remove(forgotten)

    def _from_disk(self, segment: RemoteLogSegmentMetadata) -> CheckedIndexes | None:
        name = _name(segment.start_offset, segment.id)
        if not self._directory.exists(name):
            return None
        try:
            return _parse(segment, self._directory.read(name))
        except (StorageError, CorruptMessageError) as error:
            self._metrics.index_cache_refetches += 1
            logger.warning("cached indexes: %s; fetching", error)
            return None

    def _from_storage(self, segment: RemoteLogSegmentMetadata) -> CheckedIndexes:
        try:
            content, parsed = self._fetch(segment)
        except CorruptMessageError as error:  # once more: the transport may have damaged it
            logger.warning("%s; fetching again", error)
            try:
                content, parsed = self._fetch(segment)
            except CorruptMessageError:
                self._metrics.remote_fetch_corrupt += 1
                raise
        try:
            self._write(_name(segment.start_offset, segment.id), content)
        except StorageError as error:  # the cache is optional: a full disk must not stop reads
            logger.warning("can not keep indexes of %s: %s", segment.remote_log_segment_id, error)
        return parsed

    def _fetch(self, segment: RemoteLogSegmentMetadata) -> tuple[bytes, CheckedIndexes]:
        """Fetches the beginning of the sidecar: the table, and the indexes behind it.

        The table tells where they end, but to wait for it takes another request. So the first one
        asks for as much as indexes usually have at most; an object may end before.
        """
        fetch = self._storage.fetch_sidecar
        pin = pin_of(segment)
        size = pin.table_bytes if pin else table_bytes(fetch(segment, 0, HEAD_BYTES), segment)
        usual = max(_INDEX_BYTES_LEAST, segment.segment_size_bytes // _LOG_BYTES_OF_INDEX_BYTE)
        content = fetch(segment, 0, size + usual)
        table = decode_table(content, segment)
        end = max(size, _end(table))
        if end > size + usual:
            content += fetch(segment, size + usual, end)
        content = content[:end]
        return content, _parse(segment, content, table)

    def _write(self, name: str, content: bytes) -> None:
        temporary = f"{name}.{threading.get_ident()}{_TEMPORARY}"
        file = self._directory.open(temporary, create=True)
        try:
            file.truncate(0)
            file.append(content)
        finally:
            file.close()
        self._directory.rename(temporary, name)

    def _remember(self, segment: RemoteLogSegmentMetadata, parsed: CheckedIndexes) -> list[str]:
        """Returns the files to remove, without the lock."""
        evicted: list[str] = []
        if segment.id not in self._files:
            self._files[segment.id] = (segment.start_offset, parsed.size_bytes)
            self.size_bytes += parsed.size_bytes
        self._files.move_to_end(segment.id)
        while self.size_bytes > self._capacity_bytes and len(self._files) > 1:
            evicted += self._forget_files(next(iter(self._files)))
        self._forget_parsed(segment.id)
        self._parsed[segment.id] = parsed
        self._parsed_bytes += parsed.size_bytes
        limit = min(self._capacity_bytes, _IN_MEMORY_BYTES_MAX)
        while self._parsed_bytes > limit and len(self._parsed) > 1:
            self._forget_parsed(next(iter(self._parsed)))
        return evicted

    def _forget_parsed(self, identity: UUID) -> None:
        parsed = self._parsed.pop(identity, None)
        if parsed is not None:
            self._parsed_bytes -= parsed.size_bytes

    def _forget_files(self, identity: UUID) -> list[str]:
        known = self._files.pop(identity, None)
        if known is None:
            return []
        self.size_bytes -= known[1]
        return [_name(known[0], identity)]

    def _remove(self, names: list[str]) -> None:
        """Removes files; a failing disk keeps them, and fails no read."""
        for name in names:
            try:
                self._directory.remove(name)
            except StorageError as error:
                logger.warning("indexes stay on disk: %s", error)

    def _take_over(self) -> None:
        """Adopts the files of an earlier process; removes half-written and unknown ones."""
        for name in self._directory.list():
            parsed = _parse_name(name)
            if parsed is None:
                self._directory.remove_tree(name)
                continue
            start_offset, identity = parsed
            size = self._directory.size_of(name)
            self._files[identity] = (start_offset, size)
            self.size_bytes += size
        while self.size_bytes > self._capacity_bytes:
            self._remove(self._forget_files(next(iter(self._files))))


def _name(start_offset: int, identity: UUID) -> str:
    return f"{start_offset}_{uuid_to_text(identity)}{SIDECAR_SUFFIX}"


def _parse_name(name: str) -> tuple[int, UUID] | None:
    stem, _, suffix = name.rpartition(".")
    start, _, identity = stem.partition("_")
    if f".{suffix}" != SIDECAR_SUFFIX or not start.isdigit():
        return None
    try:
        return int(start), uuid_from_text(identity)
    except ValueError:
        return None


def _end(table: SegmentTable) -> int:
    """Returns the position behind the indexes in the sidecar."""
    return max(part.position + part.length for part in map(table.part, _KINDS))


def _parse(
    segment: RemoteLogSegmentMetadata, content: bytes, table: SegmentTable | None = None
) -> CheckedIndexes:
    """Verifies and parses the beginning of a sidecar, whose `table` may be decoded before. Raises
    CorruptMessageError.
    """
    table = table or decode_table(content, segment)
    if len(content) != max(_end(table), table_bytes(content, segment)):
        raise table.corrupt("sidecar's beginning", len(content))
    parts = []
    for kind in _KINDS:
        part = table.part(kind)
        parts.append(table.check_part(kind, content[part.position : part.position + part.length]))
    try:
        indexes = RemoteIndexes.parse(segment.start_offset, segment.segment_size_bytes, *parts)
    except CorruptMessageError as error:
        raise CorruptRemoteObjectError(f"{segment.remote_log_segment_id}: {error}") from error
    return CheckedIndexes(table, indexes, len(content))
