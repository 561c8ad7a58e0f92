"""Tells a read that would wait for the disk, and does it in another thread first.

Only the operating system knows what its page cache holds. A read of a part that was just written,
or follows one just read, is taken for cached without asking: most fetches cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from commitlog.segment.segment import Segment
from tidemark.errors import StorageError

HOT_BYTES = 16 << 20
"""The end of an active segment that is taken for cached."""

_PIECE_BYTES = 1 << 20


def uncached(
    segment: Segment, offset: int, max_bytes: int, is_active: bool
) -> Callable[[], None] | None:
    """Returns work that brings the batches from `offset` on into the page cache, for any thread;
    None if they are there.
    """
    if is_active and segment.size_bytes <= HOT_BYTES:
        return None
    if not segment._loaded:
        return partial(_load, segment, segment.file_names[1:], 0, 0)
    known = segment._positions.get(offset)
    position = segment.offset_index.lookup(offset)[1] if known is None else known
    if is_active and segment.size_bytes - position <= HOT_BYTES:
        return None
    size = min(max_bytes, segment.size_bytes - position)
    if segment.file.is_cached(size, position):
        return None
    return partial(_load, segment, (), size, position)


def _load(segment: Segment, names: tuple[str, ...], size: int, position: int) -> None:
    """Reads files, and a part of the log file. An error is left to the read that follows."""
    with suppress(StorageError, OSError):
        for name in names:
            if segment.directory.exists(name):
                segment.directory.read(name)
        if size:
            file = segment.directory.open_read_only(segment.log_file)
            try:
                for start in range(position, position + size, _PIECE_BYTES):
                    file.pread(min(_PIECE_BYTES, position + size - start), start)
            finally:
                file.close()
