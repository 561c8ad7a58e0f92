"""A check of remote segments against their checksums, their metadata and each other; reads only.

A reader checks what it serves. This checks both objects, the sidecar's table against the pin, and
every part, chunk and batch, and indexes against batches. It also checks whether the segments cover
the log's lineage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from commitlog.disk.checkpoints import parse_epochs
from commitlog.disk.files import File
from commitlog.verify import BatchRun, check_batches
from tidemark.errors import TidemarkError
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.history import finished
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.store.index_check import IndexCheck
from tiering.store.inventory import lineage_gaps
from tiering.store.manager import (
    LOG_SUFFIX,
    SIDECAR_SUFFIX,
    IndexType,
    RemoteStorageManager,
    file_name,
    partition_directory,
)
from tiering.store.objects import fetch_part, fetch_table
from tiering.store.sidecar import SegmentTable, pin_of

_WINDOW_BYTES = 4 << 20
_REQUIRED = frozenset(IndexType) - {IndexType.TRANSACTION}


@dataclass(frozen=True, slots=True)
class RemoteFinding:
    """An object, or a partition for a gap, with the byte that is wrong and the reason."""

    path: str
    position: int | None
    reason: str
    segment: RemoteLogSegmentMetadata | None = None

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path}, byte {self.position}"
        return f"{where}: {self.reason}"


def verify_segment(
    storage: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Iterator[RemoteFinding]:
    """Yields what is wrong with a finished segment. Calls `on_bytes` with the bytes of the log read
    since the last call. Errors of the store that may pass are findings, too.
    """
    table, parts, problems = _check_sidecar(storage, segment)
    yield from problems
    log = _CheckedObject(storage, segment, table, on_bytes)
    indexes = IndexCheck(segment.start_offset, parts)
    try:
        yield from _check_log(log, segment, indexes)
        if not log.faults:
            yield from _index_faults(segment, table, indexes)
        if storage.fetch_log_segment(
            segment, segment.segment_size_bytes, segment.segment_size_bytes + 1
        ):
            path, end = _path(segment, LOG_SUFFIX), segment.segment_size_bytes
            yield RemoteFinding(path, end, "it has bytes beyond its end", segment)
    except TidemarkError as error:
        yield RemoteFinding(_path(segment, LOG_SUFFIX), None, str(error), segment)
    yield from log.faults


def verify_coverage(
    storage: RemoteStorageManager,
    cache: RemoteLogMetadataCache,
    bounds: tuple[int, int] | None,
) -> Iterator[RemoteFinding]:
    """Yields the offsets within `bounds` that no finished segment of the newest lineage has.

    `bounds` are the log start and the local log start of the leader. Without them (no leader) they
    are those of the lineage's own segments: only holes between segments are found.
    """
    segments = finished(cache)
    if not segments:
        return
    newest = max(segments, key=lambda one: (one.segment_leader_epochs[-1].epoch, one.end_offset))
    try:
        part = fetch_part(storage, newest, IndexType.LEADER_EPOCH)
        lineage = parse_epochs(part, _path(newest, SIDECAR_SUFFIX))
    except TidemarkError:
        lineage = [(entry.epoch, entry.start_offset) for entry in newest.segment_leader_epochs]
    if bounds is None:
        firsts = (one.start_offset for one in segments)
        bounds = max(min(firsts), lineage[0][1]), newest.next_offset
    for epoch, offset, end in lineage_gaps(cache, lineage, *bounds):
        where = partition_directory(newest.topic_id_partition)
        reason = f"no segment has offsets {offset} to {end - 1} of epoch {epoch}"
        yield RemoteFinding(where, None, reason)


class _CheckedObject:
    """The log of a segment as a file to check: chunks are compared when they are first read."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        segment: RemoteLogSegmentMetadata,
        table: SegmentTable | None,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._storage = storage
        self._segment = segment
        self._table = table
        self._on_bytes = on_bytes
        self._begin = 0
        self._window = b""
        self._checked = 0
        self.faults: list[RemoteFinding] = []

    def pread(self, size: int, position: int) -> bytes:
        """Reads from the window, which is moved where it has not all of the range."""
        end = min(position + size, self._segment.segment_size_bytes)
        if not self._begin <= position <= end <= self._begin + len(self._window):
            self._move(position, end)
        return self._window[position - self._begin : end - self._begin]

    def _move(self, position: int, end: int) -> None:
        end = max(end, min(position + _WINDOW_BYTES, self._segment.segment_size_bytes))
        if self._table is not None:
            position, end = self._table.aligned(position, end)
        self._window = self._storage.fetch_log_segment(self._segment, position, end)
        self._begin, got = position, position + len(self._window)
        if self._table is not None:
            self._check_chunks(self._table)
        self._on_bytes(max(0, got - self._checked))
        self._checked = max(self._checked, got)

    def _check_chunks(self, table: SegmentTable) -> None:
        view = memoryview(self._window)
        for at in range(0, len(view), table.chunk_bytes):
            position = self._begin + at
            if position < self._checked:
                continue
            try:
                table.check_log(position, view[at : at + table.chunk_bytes])
            except (TidemarkError, ValueError):  # ValueError: the object ends within the chunk
                path, reason = _path(self._segment, LOG_SUFFIX), "the checksum does not agree"
                self.faults.append(RemoteFinding(path, position, reason, self._segment))

    def read_rest(self) -> None:
        """Reads what the check of batches did not."""
        while self._checked < self._segment.segment_size_bytes:
            before = self._checked
            self._move(before, before + 1)
            if self._checked == before:
                return


def _check_sidecar(
    storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata
) -> tuple[SegmentTable | None, dict[IndexType, bytes], list[RemoteFinding]]:
    """Returns the table (None if it can not be trusted), the sound parts, and what is wrong."""
    path = _path(segment, SIDECAR_SUFFIX)
    sound: dict[IndexType, bytes] = {}
    problems: list[RemoteFinding] = []
    try:
        if pin_of(segment) is None:
            problems.append(RemoteFinding(path, None, "its metadata has no pin", segment))
        table = fetch_table(storage, segment)
        content = storage.fetch_sidecar(segment, 0)
    except TidemarkError as error:
        return None, {}, [*problems, RemoteFinding(path, None, str(error), segment)]
    for kind in sorted(_REQUIRED - table.parts.keys(), key=lambda kind: kind.value):
        problems.append(RemoteFinding(path, None, f"it has no part {kind.value}", segment))
    for kind, part in table.parts.items():
        try:
            of_part = content[part.position : part.position + part.length]
            sound[kind] = table.check_part(kind, of_part)
        except TidemarkError:
            reason = f"the checksum of the part {kind.value} does not agree"
            problems.append(RemoteFinding(path, part.position, reason, segment))
    return table, sound, problems


def _index_faults(
    segment: RemoteLogSegmentMetadata, table: SegmentTable | None, indexes: IndexCheck
) -> Iterator[RemoteFinding]:
    for kind, position, reason in indexes.faults():
        begin = 0 if table is None else table.parts[kind].position
        path = _path(segment, SIDECAR_SUFFIX)
        yield RemoteFinding(path, begin + position, reason, segment)


def _check_log(
    log: _CheckedObject, segment: RemoteLogSegmentMetadata, indexes: IndexCheck
) -> Iterator[RemoteFinding]:
    path = _path(segment, LOG_SUFFIX)
    run = BatchRun(
        segment.start_offset, on_batches=lambda batches: indexes.take(run.position, batches)
    )
    for _ in check_batches(cast(File, log), segment.segment_size_bytes, run):
        pass
    is_whole = run.position == segment.segment_size_bytes
    for position, reason in run.faults:
        yield RemoteFinding(path, position, reason, segment)
    if not is_whole and not run.faults:
        reason = f"it ends here; its metadata says {segment.segment_size_bytes} bytes"
        yield RemoteFinding(path, run.position, reason, segment)
    if is_whole and run.next_offset != segment.next_offset:
        last = run.next_offset - 1
        reason = f"its last offset is {last}; its metadata says {segment.end_offset}"
        yield RemoteFinding(path, None, reason, segment)
    entries = segment.segment_leader_epochs
    known = {entry.epoch for entry in entries}
    log_start = entries[0].start_offset  # records below it were deleted before the copy
    ends = [*run.ends[1:], run.next_offset]
    for (epoch, offset), end in zip(run.starts, ends, strict=False):
        if epoch not in known and end > log_start:
            reason = f"offset {offset} has leader epoch {epoch}, which its metadata does not name"
            yield RemoteFinding(path, None, reason, segment)
    log.read_rest()


def _path(segment: RemoteLogSegmentMetadata, suffix: str) -> str:
    return f"{partition_directory(segment.topic_id_partition)}/{file_name(segment, suffix)}"
