"""A log directory goes offline with its first disk error, and nothing in it is touched afterwards.
Errors that the disk did not cause leave it online. (`test_files` covers it while it is online.)
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.files import Directory, storage_error
from commitlog.disk.log_directory import LogDirectory, LogDirectoryOfflineError
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.os_files import OsDirectory
from tidemark.errors import StorageError


def watched(disk: MemoryDirectory | OsDirectory) -> tuple[LogDirectory, list[str]]:
    """A log directory with a file `a`, and the calls of its listener."""
    directory = LogDirectory(disk)
    directory.write_atomic("a", b"0123")
    told: list[str] = []
    directory.state.watch(lambda: told.append(directory.failure))
    return directory, told


@pytest.mark.parametrize("operation", ["append", "pwrite", "truncate", "pread", "fsync", "names"])
def test_the_first_disk_error_of_any_kind_takes_it_offline(operation: str) -> None:
    disk = MemoryDirectory("disk")
    directory, told = watched(disk)
    file = directory.subdirectory("log").open("b", create=True)
    file.append(b"before")
    disk.fail_writes()
    disk.fail_reads()
    disk.fail_fsync()
    work: dict[str, Callable[[], object]] = {
        "append": lambda: file.append(b"x"),
        "pwrite": lambda: file.pwrite(b"x", 0),
        "truncate": lambda: file.truncate(1),
        "pread": lambda: file.pread(1, 0),
        "fsync": file.fsync,
        "names": directory.fsync,
    }
    with pytest.raises(LogDirectoryOfflineError, match="log directory disk is offline: "):
        work[operation]()
    assert not directory.is_online
    assert told == [directory.failure]
    assert "put/output error" in told[0]


def test_nothing_is_touched_afterwards_and_the_first_reason_stays() -> None:
    disk = MemoryDirectory("disk")
    directory, told = watched(disk)
    below = directory.subdirectory("log")
    file = below.open("b", create=True)
    before = (disk.disk.fsyncs, disk.disk.used_bytes, disk.list())
    directory.state.fail("pulled out")
    directory.state.fail("again")
    for work in (
        lambda: file.append(b"x"),
        lambda: file.pread(1, 0),
        lambda: file.pread_into(memoryview(bytearray(1)), 0),
        file.fsync,
        lambda: below.open("c", create=True),
        lambda: below.open_read_only("b"),
        lambda: directory.exists("a"),
        lambda: directory.is_directory("log"),
        lambda: directory.size_of("a"),
        lambda: directory.modified_ms("a"),
        directory.list,
        lambda: directory.subdirectory("new"),
        lambda: directory.remove("a"),
        lambda: directory.remove_tree("log"),
        lambda: directory.rename("a", "z"),
        lambda: directory.write_atomic("n", b""),
        lambda: directory.read("a"),
        directory.fsync,
        directory.lock,
        directory.usage,
    ):
        with pytest.raises(LogDirectoryOfflineError, match="pulled out"):
            work()
    file.close()
    assert (disk.disk.fsyncs, disk.disk.used_bytes, disk.list()) == before
    assert told == ["pulled out"]


@pytest.mark.parametrize(
    ("number", "fails"),
    [
        (errno.EIO, True),
        (errno.EROFS, True),
        (errno.EACCES, True),
        (errno.ENOTDIR, True),
        (errno.ENOENT, False),
        (errno.EBADF, False),
        (errno.EMFILE, False),
        (errno.ENFILE, False),
        (errno.ENOSPC, False),
        (errno.EDQUOT, False),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_what_is_not_the_disks_fault_leaves_it_online(number: int, fails: bool, raw: bool) -> None:
    directory, told = watched(MemoryDirectory())

    def refuse() -> None:
        error = OSError(number, "refused")
        raise error if raw else storage_error("use", "it", error)

    with pytest.raises((StorageError, OSError)):
        directory.state.call(refuse)
    assert (directory.is_online, len(told)) == (not fails, int(fails))
    if number in (errno.ENOSPC, errno.EDQUOT):
        directory.state.watch(lambda: None, lambda: True)
        with pytest.raises(LogDirectoryOfflineError):
            directory.state.call(refuse)


def test_a_directory_that_is_gone_as_a_whole_is_offline(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    directory, told = watched(OsDirectory(path))
    with pytest.raises(StorageError):
        directory.read("missing")
    assert told == []
    shutil.rmtree(path)
    with pytest.raises(LogDirectoryOfflineError):
        directory.read("a")
    assert len(told) == 1


def test_one_that_was_of_no_use_at_start_is_never_looked_at(tmp_path: Path) -> None:
    path = str(tmp_path / "missing")
    directory: Any = LogDirectory(OsDirectory.unseen(path), failure="not mounted")
    assert isinstance(directory, Directory)
    with pytest.raises(LogDirectoryOfflineError, match="not mounted"):
        directory.subdirectory("t-0")
    assert not Path(path).exists()
