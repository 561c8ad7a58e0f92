"""Entries of the index files, each compared with its segment.

The comparisons are those of Kafka's DumpLogSegments. The batch at the position of an offset entry
ends with the entry's offset. The batch of a time entry's offset has the entry's timestamp as its
greatest, and timestamps rise. Deviations are entries of kind "damage" (bytes that are no entry) and
"mismatch" (an entry that contradicts its log). Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from commitlog.disk.files import Directory, File
from commitlog.segment.batches import has_timestamp, scan_headers
from commitlog.segment.indexes import OFFSET_ENTRY, TIME_ENTRY, TXN_ENTRY
from commitlog.segment.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from tidemark.errors import CorruptMessageError
from tidemark.records.header import HEADER_BYTES, read_header
from tidemark.records.header import BatchHeader as Header

Entry = dict[str, Any]


def damage(name: str, position: int, size: int, reason: str) -> Entry:
    """Returns an entry for bytes, from `position` on, that are not what the file should hold."""
    return {
        "kind": "damage",
        "name": name,
        "position": position,
        "size_bytes": size,
        "reason": reason,
    }


def _mismatch(name: str, position: int, reason: str) -> Entry:
    return {"kind": "mismatch", "name": name, "position": position, "reason": reason}


def index_entries(
    directory: Directory, name: str, plain: str, max_message_bytes: int, *, sanity: bool = False
) -> Iterator[Entry]:
    """Yields all entries of an index, and their deviations; `plain` is the name without the
    suffixes of deletion and cleaning.

    `sanity` checks an index as a start does. Then one that was preallocated and never used is
    sound; a time index that was used and not trimmed is not.
    """
    data = directory.read(name)
    base = int(plain[:20]) if plain[:20].isdigit() else 0
    if plain.endswith(TXN_INDEX_SUFFIX):
        yield from _walk(name, data, TXN_ENTRY.size, lambda at: _transaction(name, data, at))
        return
    if plain.endswith(INDEX_SUFFIX) and not data:
        yield {"kind": "empty", "name": f"{directory.path}/{name}"}
        return
    if sanity and not any(data):
        return
    if sanity and plain.endswith(TIME_INDEX_SUFFIX) and not any(data[-TIME_ENTRY.size :]):
        yield damage(name, len(data) - TIME_ENTRY.size, TIME_ENTRY.size, "not trimmed by a stop")
    log = _log_beside(directory, name)
    try:
        if plain.endswith(TIME_INDEX_SUFFIX):
            times = _TimeCheck(directory, name, base, log)
            yield from _walk(name, data, TIME_ENTRY.size, lambda at: times.entry(data, at))
        else:
            yield from _walk(
                name,
                data,
                OFFSET_ENTRY.size,
                lambda at: _offset(name, data, at, base, log, max_message_bytes),
            )
    finally:
        if log is not None:
            log.close()


def _walk(
    name: str, data: bytes, size: int, show: Callable[[int], Iterator[Entry]]
) -> Iterator[Entry]:
    whole = len(data) - len(data) % size
    for start in range(0, whole, size):
        if start and not any(data[start : start + size]):
            break  # the preallocated rest of a file that was not closed
        yield from show(start)
    if whole < len(data):
        yield damage(name, whole, len(data) - whole, "a torn entry")


def _log_beside(directory: Directory, name: str) -> File | None:
    """Opens the segment of an index, preferably one whose name has the same suffix; None if there
    is none.
    """
    suffix = name[name.index(".", 20) :].removeprefix(TIME_INDEX_SUFFIX).removeprefix(INDEX_SUFFIX)
    for candidate in (name[:20] + LOG_SUFFIX + suffix, name[:20] + LOG_SUFFIX):
        if directory.exists(candidate):
            return directory.open_read_only(candidate)
    return None


def _transaction(name: str, data: bytes, start: int) -> Iterator[Entry]:
    version, *fields = TXN_ENTRY.unpack_from(data, start)
    keys = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    entry = {"kind": "transaction", "version": version, **dict(zip(keys, fields, strict=True))}
    yield entry
    if version != 0 or entry["first_offset"] > entry["last_offset"]:
        yield damage(name, start, TXN_ENTRY.size, "no entry of version 0")


def _offset(
    name: str, data: bytes, start: int, base: int, log: File | None, max_message_bytes: int
) -> Iterator[Entry]:
    relative, position = OFFSET_ENTRY.unpack_from(data, start)
    offset = base + relative
    yield {"kind": "offset_index", "offset": offset, "position": position}
    if log is None:
        return
    try:
        header = _header(log, position)
    except CorruptMessageError as error:
        yield _mismatch(name, start, f"Index offset: {offset}, {error}")
        return
    if header.last_offset != offset:
        reason = f"Index offset: {offset}, log offset: {header.last_offset}"
        yield _mismatch(name, start, reason)
    elif header.size_bytes > max_message_bytes:
        reason = f"Index offset: {offset}, its batch has {header.size_bytes} bytes, more than"
        yield _mismatch(name, start, f"{reason} --max-message-size {max_message_bytes}")


def _header(log: File, position: int) -> Header:
    data = log.pread(HEADER_BYTES, position) if 0 <= position < log.size else b""
    if len(data) < HEADER_BYTES:
        raise CorruptMessageError(f"the log has no batch at position {position}")
    return read_header(data, 0, position)


class _TimeCheck:
    """Compares the entries of a time index, in their order, with the segment."""

    def __init__(self, directory: Directory, name: str, base: int, log: File | None) -> None:
        self._name = name
        self._base = base
        self._log = log
        self._previous = -1
        self._offsets: list[tuple[int, int]] = [(base - 1, 0)]
        index = name.replace(TIME_INDEX_SUFFIX, INDEX_SUFFIX)
        if directory.exists(index):
            data = directory.read(index)
            for at in range(0, len(data) - len(data) % OFFSET_ENTRY.size, OFFSET_ENTRY.size):
                relative, position = OFFSET_ENTRY.unpack_from(data, at)
                if base + relative <= self._offsets[-1][0] or position < self._offsets[-1][1]:
                    break
                self._offsets.append((base + relative, position))

    def entry(self, data: bytes, start: int) -> Iterator[Entry]:
        """Yields the entry at `start`, and its deviations."""
        timestamp, relative = TIME_ENTRY.unpack_from(data, start)
        offset = self._base + relative
        yield {"kind": "time_index", "timestamp_ms": timestamp, "offset": offset}
        if start and timestamp <= self._previous:
            reason = f"Index timestamp: {timestamp}, Previously indexed timestamp: {self._previous}"
            yield _mismatch(self._name, start, reason)
        self._previous = timestamp
        if self._log is None:
            return
        try:
            header = self._batch_of(self._log, offset)
        except CorruptMessageError as error:
            yield _mismatch(self._name, start, f"Index timestamp: {timestamp}, {error}")
            return
        if not has_timestamp(header, timestamp):
            reason = f"Index timestamp: {timestamp}, log timestamp: {header.max_timestamp_ms}"
            yield _mismatch(self._name, start, reason)

    def _batch_of(self, log: File, offset: int) -> Header:
        at = max(position for known, position in self._offsets if known <= offset or not position)
        for begin in dict.fromkeys((at, 0)):  # a damaged offset index must not mislead
            try:
                for header in scan_headers(log, begin, log.size):
                    if header.last_offset >= offset:
                        if header.base_offset <= offset:
                            return header
                        break
            except CorruptMessageError:
                continue
        raise CorruptMessageError(f"the log has no batch with offset {offset}")
