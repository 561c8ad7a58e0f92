"""The read of a fetch: whole batches at a position of a segment's file, checked for their order.

No CRC covers base offset, length and leader epoch of a batch. The batches of a read are compared
with each other, with the header behind them, and with the offsets of their segment. That costs no
further read: the header behind the last batch comes with it.
"""

from __future__ import annotations

from commitlog.disk.files import Directory, File
from commitlog.types import CorruptLogError
from tidemark.errors import CorruptMessageError
from tidemark.records.extent import BatchOrderError, Extent, extent_of
from tidemark.records.header import HEADER_BYTES, read_header


def open_records(directory: Directory, name: str, size: int) -> File:
    """Opens a `.log` file of `size` bytes, and creates an empty one. Raises CorruptLogError if the
    file is gone.
    """
    if size and not directory.exists(name):
        raise CorruptLogError(f"{directory.path}/{name}", 0, "the file is gone")
    return directory.open(name, create=True)


def read_extent(
    file: File,
    size: int,
    position: int,
    max_bytes: int,
    max_offset: int | None,
    min_one: bool,
    least_offset: int,
    end_offset: int,
) -> tuple[bytes, Extent]:
    """Reads from `position` of a file of `size` bytes. Returns the bytes, and the extent of the
    whole batches in them: at most `max_bytes`, all below `max_offset`.

    With `min_one` the first batch may be larger. The batches lie in [`least_offset`, `end_offset`).
    Raises BatchOrderError, with a position in the file.
    """
    data = file.pread(max_bytes + HEADER_BYTES, position)
    limit = end_offset if max_offset is None or max_offset > end_offset else max_offset
    try:
        extent = extent_of(data, limit, max_bytes, least_offset)
        if extent.size_bytes or position == size:
            return data, extent
        first = _size_of_first(data, size - position, end_offset)
        if min_one and first > max_bytes:
            data = file.pread(first + HEADER_BYTES, position)
            extent = extent_of(data, limit, first, least_offset)
        return data, extent
    except BatchOrderError as error:
        raise BatchOrderError(str(error), position + error.position) from None


def _size_of_first(data: bytes, left: int, end_offset: int) -> int:
    """Returns the size of the batch that begins with `data`, `left` bytes before the file's end."""
    try:
        header = read_header(data)
    except CorruptMessageError as error:
        raise BatchOrderError(str(error), 0) from None
    if header.size_bytes > left:
        raise BatchOrderError(f"a batch of {header.size_bytes} bytes is cut off", 0)
    if header.last_offset >= end_offset:
        raise BatchOrderError(
            f"offset {header.last_offset} is behind the segment's end, {end_offset}", 0
        )
    return header.size_bytes
