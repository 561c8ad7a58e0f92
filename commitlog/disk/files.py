"""The file system as a log sees it: the `Directory` and `File` protocols, and their errors.

Two modules implement them: `commitlog.disk.os_files` over the operating system, and
`commitlog.disk.memory_files` in memory, which loses on `crash()` what was not synced. One suite of
contract tests holds both.

The contract:
- Bytes are durable after `File.fsync`; names (created, renamed, removed) are durable after
  `Directory.fsync` of their directory.
- `File.append` writes all of its buffers or none: when the disk is full the partial tail is cut off
  again and StorageError is raised.
- A failed fsync raises FatalError and is never retried: the kernel may have dropped the dirty pages
  already, a second fsync would lie (RULES.md rule 4). Every later fsync of that
  file fails too. (In a broker's log directory it is the directory that stops, not the process:
  `commitlog.disk.log_directory`.)
- Names are single path components.
"""

from __future__ import annotations

import errno
from typing import NamedTuple, Protocol, runtime_checkable

from tidemark.errors import FatalError, StorageError


class DiskUsage(NamedTuple):
    """Bytes of the file system that holds a directory."""

    total_bytes: int
    free_bytes: int


DISK_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
"""Of an OSError: no room, or none within the quota. What was there is there."""


class DiskError(StorageError):
    """The operating system refused a call on a file or directory; `errno` says why."""

    def __init__(self, message: str, errno: int) -> None:
        super().__init__(message)
        self.errno = errno

    @property
    def is_full(self) -> bool:
        """The disk has no room; everything else of it can be trusted."""
        return self.errno in DISK_FULL


class FsyncError(FatalError):
    """An fsync failed: what was written since the last one may be lost, and is never retried."""


class DirectoryLock(Protocol):
    """A held lock; releasing twice is harmless."""

    def release(self) -> None: ...


@runtime_checkable
class File(Protocol):
    """An open file: appended to at its end, read and written by position."""

    @property
    def name(self) -> str:
        """A name for messages."""

    @property
    def size(self) -> int:
        """Bytes in the file."""

    def append(self, *buffers: bytes | memoryview) -> int:
        """Writes the buffers one after the other at the end; returns the position of the first
        byte. All or nothing: StorageError.
        """

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file. StorageError when
        the disk fails.
        """

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fills `buffer` from `position`; returns how many bytes that were, fewer than asked for
        only at the end of the file. StorageError when the disk fails.
        """

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Overwrites from `position` (which must not lie beyond the end); may extend the file.
        StorageError.
        """

    def truncate(self, size: int) -> None:
        """Cuts the file to `size` bytes; a file that is not longer stays as it is."""

    def fsync(self) -> None:
        """Makes the bytes durable; FatalError when that fails. May be called from a thread while
        another appends.
        """

    def close(self) -> None:
        """Gives the handle back without syncing; closing twice is harmless."""


@runtime_checkable
class Directory(Protocol):
    """A directory of files and directories."""

    @property
    def path(self) -> str:
        """What messages call it; a real path for the operating system's directories."""

    def open(self, name: str, *, create: bool = False) -> File:
        """Opens a file for reading and writing; `create` makes it where there is none. StorageError
        where it can not.
        """

    def open_read_only(self, name: str) -> File:
        """Opens an existing file for reading alone."""

    def exists(self, name: str) -> bool:
        """Is there a file or directory of this name?"""

    def is_directory(self, name: str) -> bool:
        """Is there a directory of this name?"""

    def size_of(self, name: str) -> int:
        """Bytes of a file, without opening it."""

    def modified_ms(self, name: str) -> int:
        """When a file was last written, in ms since the epoch (Kafka's fallback where no record has
        a timestamp).
        """

    def list(self) -> list[str]:
        """All names, sorted."""

    def subdirectory(self, name: str, *, create: bool = True) -> Directory:
        """The directory `name` within this one."""

    def remove(self, name: str) -> None:
        """Removes a file; one that is not there is no error."""

    def remove_tree(self, name: str) -> None:
        """Removes a file or a directory with all that is in it; one that is not there is no
        error.
        """

    def rename(self, old: str, new: str) -> None:
        """Renames a file (replacing `new`) or a directory, atomically; StorageError where `old` is
        missing.
        """

    def write_atomic(self, name: str, data: bytes) -> None:
        """Replaces a file's content durably: after a crash it is the old or the new one, never a
        mixture.
        """

    def read(self, name: str) -> bytes:
        """A whole file; StorageError where there is none."""

    def fsync(self) -> None:
        """Makes the names durable; FatalError when that fails."""

    def lock(self, name: str = ".lock") -> DirectoryLock:
        """Takes an exclusive lock for this process; StorageError when another one holds it."""

    def usage(self) -> DiskUsage:
        """Size and free space of the file system."""


def storage_error(action: str, name: str, error: OSError) -> DiskError:
    """The DiskError for a failed call, saying what to do."""
    if error.errno in DISK_FULL:
        advice = (
            "the disk is full; nothing of this write was kept. Free space, lower retention.bytes "
            "or local.retention.bytes,"
            " or give the node another log directory"
        )
    elif error.errno == errno.EIO:
        advice = "the disk reports an input/output error; check the device, then restart the node"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = "check owner and mode of the directory, and that it is mounted for writing"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        advice = "too many open files; raise the limit (ulimit -n)"
    else:
        advice = error.strerror or type(error).__name__
    return DiskError(f"can not {action} {name}: {advice}", error.errno or errno.EIO)


def fsync_failed(name: str, reason: str) -> FsyncError:
    """The error for a failed fsync."""
    return FsyncError(
        f"fsync of {name} failed ({reason}): what was written since the last fsync may be lost, so "
        "nothing is written there any more; check the device, then restart the node, which "
        "recovers its logs"
    )


def write_atomic(directory: Directory, name: str, data: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the directory; the steps every implementation of
    `Directory.write_atomic` takes.
    """
    temporary = name + ".tmp"
    directory.remove(temporary)
    file = directory.open(temporary, create=True)
    try:
        file.append(data)
        file.fsync()
    finally:
        file.close()
    directory.rename(temporary, name)
    directory.fsync()
