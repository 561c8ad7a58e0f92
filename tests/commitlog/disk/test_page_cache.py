"""A file tells whether a read would wait for the disk, as far as the operating system does."""

from __future__ import annotations

import os
from pathlib import Path

from commitlog.disk.os_files import OsDirectory


def test_a_file_that_was_written_is_cached_and_one_whose_pages_were_dropped_is_not(
    tmp_path: Path,
) -> None:
    size = 1 << 20
    file = OsDirectory(str(tmp_path)).open("log", create=True)
    file.append(b"x" * size)
    file.fsync()
    assert file.is_cached(size, 0)
    descriptor = os.open(tmp_path / "log", os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(descriptor, [bytearray(1)], size - 1, os.RWF_NOWAIT)
            is_told = False  # the file system keeps its pages, or does not tell
        except BlockingIOError:
            is_told = True
    finally:
        os.close(descriptor)
    assert file.is_cached(size, 0) is not is_told
    file.pread(size, 0)
    assert file.is_cached(size, 0)
    file.close()
