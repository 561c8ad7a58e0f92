"""The file system as a log sees it: the `Directory` and `File` protocols, and their errors.

Two modules implement them: `commitlog.disk.os_files` over the operating system, and
`commitlog.disk.memory_files` in memory, which loses unsynced data on `crash()`. One suite of
contract tests covers both.

The contract:

- Bytes are durable after `File.fsync`. Names (created, renamed, removed) are durable after
  `Directory.fsync` of their directory.
- `File.append` writes all of its buffers or none. If the disk is full, the partial tail is removed
  and StorageError is raised.
- A failed fsync raises FatalError and is never retried, and every later fsync of that file fails.
  The kernel may have dropped the dirty pages, so a second fsync would succeed falsely (RULES.md
  rule 4). In a broker's log directory the directory stops, not the process:
  `commitlog.disk.log_directory`.
- Names are single path components.
"""

from __future__ import annotations

import errno
from typing import NamedTuple, Protocol, runtime_checkable

from tidemark.errors import FatalError, StorageError


class DiskUsage(NamedTuple):
    """Size and free space of the file system that holds a directory, in bytes."""

    total_bytes: int
    free_bytes: int


DISK_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
"""The errno values for no space, or none within the quota. Existing data is unharmed."""


class DiskError(StorageError):
    """A call on a file or directory that the operating system refused; `errno` is its reason."""

    def __init__(self, message: str, errno: int) -> None:
        super().__init__(message)
        self.errno = errno

    @property
    def is_full(self) -> bool:
        """Whether the disk has no space; the rest of it can be trusted."""
        return self.errno in DISK_FULL


class FsyncError(FatalError):
    """A failed fsync: data written since the last one may be lost. It is never retried."""


class DirectoryLock(Protocol):
    """A held lock; a second release does nothing."""

    def release(self) -> None: ...


@runtime_checkable
class File(Protocol):
    """An open file: appended to at its end, read and written by position."""

    @property
    def name(self) -> str:
        """The name for messages."""

    @property
    def size(self) -> int:
        """The number of bytes in the file."""

    def append(self, *buffers: bytes | memoryview) -> int:
        """Writes the buffers one after the other at the end, all or none; returns the position of
        the first byte. Raises StorageError.
        """

    def pread(self, size: int, position: int) -> bytes:
        """Reads `size` bytes from `position`, or fewer at the end of the file. Raises StorageError
        if the disk fails.
        """

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fills `buffer` from `position`; returns the number of bytes read, which is smaller only
        at the end of the file. Raises StorageError if the disk fails.
        """

    def is_cached(self, size: int, position: int) -> bool:
        """Whether a read would most likely not wait for the disk. True where the operating system
        does not tell.
        """

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Overwrites from `position`, which must not lie beyond the end; may extend the file.
        Raises StorageError.
        """

    def truncate(self, size: int) -> None:
        """Truncates the file to `size` bytes; does nothing if it is not longer."""

    def fsync(self) -> None:
        """Makes the bytes durable. Raises FatalError if that fails. May run in one thread while
        another appends.
        """

    def close(self) -> None:
        """Closes the handle without a sync; a second close does nothing."""


@runtime_checkable
class Directory(Protocol):
    """A directory of files and directories."""

    @property
    def path(self) -> str:
        """The name for messages; in the operating system, the real path."""

    def open(self, name: str, *, create: bool = False) -> File:
        """Opens a file for reading and writing; `create` creates a missing one. Raises
        StorageError.
        """

    def open_read_only(self, name: str) -> File:
        """Opens an existing file for reading only."""

    def exists(self, name: str) -> bool:
        """Whether a file or directory of this name exists."""

    def is_directory(self, name: str) -> bool:
        """Whether a directory of this name exists."""

    def size_of(self, name: str) -> int:
        """Returns the number of bytes of a file, without opening it."""

    def modified_ms(self, name: str) -> int:
        """Returns when a file was last written, in ms since the epoch. Kafka uses it where no
        record has a timestamp.
        """

    def list(self) -> list[str]:
        """Returns all names, sorted."""

    def subdirectory(self, name: str, *, create: bool = True) -> Directory:
        """Returns the directory `name` in this one."""

    def remove(self, name: str) -> None:
        """Removes a file; does nothing if it is missing."""

    def remove_tree(self, name: str) -> None:
        """Removes a file, or a directory with its contents; does nothing if it is missing."""

    def allocate(self, name: str, size_bytes: int) -> None:
        """Creates a file of zeros whose blocks the disk has set aside. Raises StorageError if it
        can not; then there is no file.
        """

    def rename(self, old: str, new: str) -> None:
        """Atomically renames a file (replacing `new`) or a directory. Raises StorageError if `old`
        is missing.
        """

    def write_atomic(self, name: str, data: bytes) -> None:
        """Durably replaces a file's content. After a crash it is the old or the new one, never a
        mixture.
        """

    def read(self, name: str) -> bytes:
        """Returns a file's content. Raises StorageError if it is missing."""

    def fsync(self) -> None:
        """Makes the names durable. Raises FatalError if that fails."""

    def lock(self, name: str = ".lock") -> DirectoryLock:
        """Takes an exclusive lock for this process. Raises StorageError if another process holds
        it.
        """

    def usage(self) -> DiskUsage:
        """Returns size and free space of the file system."""


def storage_error(action: str, name: str, error: OSError) -> DiskError:
    """Returns the DiskError for a failed call; its message advises what to do."""
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
    """Returns the error for a failed fsync."""
    return FsyncError(
        f"fsync of {name} failed ({reason}): what was written since the last fsync may be lost, so "
        "nothing is written there any more; check the device, then restart the node, which "
        "recovers its logs"
    )


def write_atomic(directory: Directory, name: str, data: bytes) -> None:
    """Writes a temporary file, syncs it, renames it, and syncs the directory. Every implementation
    of `Directory.write_atomic` takes these steps.
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
