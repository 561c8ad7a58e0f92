"""Replaces old segments by cleaned ones, so that a crash leaves either the old or the new ones.

    1. `<base>.log.cleaned` and its indexes are written and synced          (any thread)
    2. they become `.swap`, newest segment first, a segment's log last; names synced
       -- the swap is decided: from here on recovery finishes it --
    3. the old segments become `.deleted`, a segment's log last; names synced
    4. `.swap` becomes the final name, oldest segment first, its log last; names synced

Recovery runs `finish_swaps` before the segments are listed. If a `.cleaned` log remains, step 2 was
not finished: the swaps at or above it are removed, then the log itself. Otherwise every `.swap` log
replaces the old logs within its offsets. A cleaned range keeps its last batch, even if it is empty.
So a swap log tells exactly which old segments it replaces. Source: Kafka's LogLoader and
LocalLog.replaceSegments, which lack that last guarantee.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from commitlog.disk.files import Directory
from commitlog.disk.log_directory import LogDirectoryOfflineError
from commitlog.segment.batches import scan_headers
from commitlog.segment.names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    log_name,
    snapshot_name,
)
from commitlog.segment.segment import Segment
from tidemark.errors import FatalError, StorageError

logger = logging.getLogger(__name__)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
_KINDS = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, LOG_SUFFIX)  # the log is last


def swap_files(
    directory: Directory, old: Sequence[Segment], new_bases: Sequence[int]
) -> list[tuple[str, ...]]:
    """Performs steps 2 to 4 for the cleaned segments of `new_bases`; returns the `.deleted` names
    by old segment.

    Raises StorageError if nothing changed or the directory went offline, and FatalError if the swap
    is decided but can not be finished.
    """
    try:
        for base in sorted(new_bases, reverse=True):
            _rename_all(directory, base, CLEANED_SUFFIX, SWAP_SUFFIX)
    except StorageError:
        remove_files(directory, sorted(new_bases, reverse=True), SWAP_SUFFIX)
        remove_files(directory, sorted(new_bases, reverse=True), CLEANED_SUFFIX)
        raise
    directory.fsync()
    try:
        return _replace(directory, old, new_bases)
    except LogDirectoryOfflineError:
        raise  # nothing more is written there; the restart finishes the swap
    except StorageError as error:
        raise FatalError(f"a swap of segments was cut short, a restart ends it: {error}") from error


def _replace(
    directory: Directory, old: Sequence[Segment], new_bases: Sequence[int]
) -> list[tuple[str, ...]]:
    deleted = []
    for segment in old:
        segment.close()
        names = _rename_all(directory, segment.base_offset, "", DELETED_SUFFIX)
        snapshot = snapshot_name(segment.base_offset)
        if segment.base_offset not in new_bases and directory.exists(snapshot):
            directory.rename(snapshot, snapshot + DELETED_SUFFIX)
            names.append(snapshot + DELETED_SUFFIX)
        deleted.append(tuple(names))
    directory.fsync()
    for base in sorted(new_bases):
        _rename_all(directory, base, SWAP_SUFFIX, "")
    directory.fsync()
    return deleted


def with_cleaned(
    segments: Sequence[Segment], old: Sequence[Segment], new_bases: Iterable[int], now_ms: int
) -> list[Segment]:
    """Returns a log's segments after the swap."""
    gone = {id(segment) for segment in old}
    result = [segment for segment in segments if id(segment) not in gone]
    directory, config = segments[0].directory, segments[0].config
    for base in new_bases:
        size = directory.size_of(log_name(base))
        segment = Segment(directory, base, config, size_bytes=size, created_ms=now_ms)
        segment.is_rolled = True
        result.append(segment)
    return sorted(result, key=lambda segment: segment.base_offset)


def _rename_all(directory: Directory, base_offset: int, old: str, new: str) -> list[str]:
    names = []
    for kind in _KINDS:
        name = f"{base_offset:020d}{kind}"
        if directory.exists(name + old):
            directory.rename(name + old, name + new)
            names.append(name + new)
    return names


def remove_files(directory: Directory, base_offsets: Iterable[int], suffix: str) -> None:
    """Removes the files of segments with this suffix, each segment's log last."""
    for base in base_offsets:
        for kind in _KINDS:
            directory.remove(f"{base:020d}{kind}{suffix}")


def finish_swaps(directory: Directory) -> None:
    """Finishes a cleaning that a crash interrupted, or undoes it; may be repeated."""
    cleaned = _bases(directory, LOG_SUFFIX + CLEANED_SUFFIX)
    swaps = _bases(directory, LOG_SUFFIX + SWAP_SUFFIX)
    if cleaned:
        remove_files(directory, [base for base in swaps if base >= cleaned[0]], SWAP_SUFFIX)
        directory.fsync()
        swaps = [base for base in swaps if base < cleaned[0]]
    for base in swaps:
        end = _next_offset(directory, base)
        found = {b for kind in _KINDS for b in _bases(directory, kind)}
        replaced = sorted(b for b in found if base <= b < max(end, base + 1))
        remove_files(directory, replaced, "")
        logger.info("%s: finishing the swap of %d (%s)", directory.path, base, replaced)
    if swaps:
        directory.fsync()
        for base in swaps:
            _rename_all(directory, base, SWAP_SUFFIX, "")
        directory.fsync()
    for name in directory.list():
        if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)):
            directory.remove(name)


def _bases(directory: Directory, ending: str) -> list[int]:
    return sorted(
        int(name[:20])
        for name in directory.list()
        if name.endswith(ending) and name[:20].isdigit() and len(name) == 20 + len(ending)
    )


def _next_offset(directory: Directory, base_offset: int) -> int:
    file = directory.open_read_only(f"{log_name(base_offset)}{SWAP_SUFFIX}")
    try:
        end = base_offset
        for header in scan_headers(file, 0, file.size):
            end = header.next_offset
        return end
    finally:
        file.close()
