"""An entry of log.dirs and its state: online, or offline with the reason (KIP-112).

All file access of logs goes through here. So the first disk error is noticed wherever it happens:
append, read, roll, fsync, checkpoint, recovery, cleaning, removal. After it nothing in the
directory is read or written: every call raises LogDirectoryOfflineError without touching the disk.
This is Kafka's LogDirFailureChannel without a channel. No caller has to report, and no running
thread can write after a failed fsync.

Online -> offline is the only transition; a restart is the way back. A directory
does not fail by a missing file (unless the whole directory is missing) or a closed file. Nor does
it by the process's limit of open files or by damaged contents. A full disk fails it unless
`fails_when_full` returns false.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar
from uuid import UUID

from commitlog.disk.files import (
    DISK_FULL,
    Directory,
    DirectoryLock,
    DiskError,
    DiskUsage,
    File,
    FsyncError,
    storage_error,
)
from tidemark.errors import StorageError, TidemarkError

logger = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

_NOT_THE_DISK = frozenset(
    (errno.EBADF, errno.EMFILE, errno.ENFILE, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG)
)


class LogDirectoryOfflineError(StorageError):
    """The log directory failed: its logs can not be used until the node restarts."""


def offline_error(path: str, failure: str) -> LogDirectoryOfflineError:
    """Returns the error of every call to the directory at `path`, which failed."""
    return LogDirectoryOfflineError(f"log directory {path} is offline: {failure}")


class DirectoryState:
    """Online, or offline with a reason; shared by a log directory and everything opened in it."""

    def __init__(self, root: Directory) -> None:
        self._root = root
        self._lock = threading.Lock()
        self.failure = ""
        self.refuses_appends = False
        """Whether appends fail as on a full disk (`commitlog.disk.reserve`)."""
        self._on_failure: Callable[[], object] = lambda: None
        self._fails_when_full: Callable[[], bool] = lambda: False

    def watch(
        self, on_failure: Callable[[], object], fails_when_full: Callable[[], bool] = lambda: False
    ) -> None:
        """Registers `on_failure`, called once when the directory goes offline, in the thread that
        noticed it. `fails_when_full` decides at each such error whether a full disk counts as
        failed.
        """
        self._on_failure = on_failure
        self._fails_when_full = fails_when_full

    def call(self, method: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Calls the disk. Raises LogDirectoryOfflineError if that fails, or if an earlier
        call did.
        """
        if self.failure:
            raise self.offline()
        try:
            return method(*args, **kwargs)
        except (FsyncError, DiskError, OSError) as error:
            if not self._is_failure(error):
                raise
            self.fail(str(error))
            raise self.offline() from error

    def offline(self) -> LogDirectoryOfflineError:
        return offline_error(self._root.path, self.failure)

    def fail(self, reason: str) -> None:
        """Takes the directory offline until a restart; keeps the first reason."""
        with self._lock:
            if self.failure:
                return
            self.failure = reason
        logger.error(
            "log directory %s fails, nothing in it is touched any more: %s",
            self._root.path,
            reason,
        )
        self._on_failure()

    def _is_failure(self, error: FsyncError | DiskError | OSError) -> bool:
        if isinstance(error, FsyncError):
            return True
        if error.errno == errno.ENOENT:
            try:
                self._root.usage()
            except (TidemarkError, OSError):
                return True
            return False
        if error.errno in DISK_FULL:
            return self._fails_when_full()
        return error.errno not in _NOT_THE_DISK


class GuardedFile:
    """A file of a log directory."""

    __slots__ = ("_inner", "_state")

    def __init__(self, inner: File, state: DirectoryState) -> None:
        self._inner = inner
        self._state = state

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def size(self) -> int:
        return self._inner.size

    def append(self, *buffers: bytes | memoryview) -> int:
        if self._state.refuses_appends:
            raise storage_error("append to", self.name, OSError(errno.ENOSPC, "reserved"))
        return self._state.call(self._inner.append, *buffers)

    def pread(self, size: int, position: int) -> bytes:
        return self._state.call(self._inner.pread, size, position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        return self._state.call(self._inner.pread_into, buffer, position)

    def is_cached(self, size: int, position: int) -> bool:
        return self._inner.is_cached(size, position)

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        self._state.call(self._inner.pwrite, data, position)

    def truncate(self, size: int) -> None:
        self._state.call(self._inner.truncate, size)

    def fsync(self) -> None:
        self._state.call(self._inner.fsync)

    def close(self) -> None:
        self._inner.close()


class GuardedDirectory:
    """A log directory, or a directory in it."""

    def __init__(self, inner: Directory, state: DirectoryState) -> None:
        self.inner = inner
        self.state = state

    @property
    def path(self) -> str:
        return self.inner.path

    def open(self, name: str, *, create: bool = False) -> File:
        return GuardedFile(self.state.call(self.inner.open, name, create=create), self.state)

    def open_read_only(self, name: str) -> File:
        return GuardedFile(self.state.call(self.inner.open_read_only, name), self.state)

    def exists(self, name: str) -> bool:
        return self.state.call(self.inner.exists, name)

    def is_directory(self, name: str) -> bool:
        return self.state.call(self.inner.is_directory, name)

    def size_of(self, name: str) -> int:
        return self.state.call(self.inner.size_of, name)

    def modified_ms(self, name: str) -> int:
        return self.state.call(self.inner.modified_ms, name)

    def list(self) -> list[str]:
        return self.state.call(self.inner.list)

    def subdirectory(self, name: str, *, create: bool = True) -> Directory:
        inner = self.state.call(self.inner.subdirectory, name, create=create)
        return GuardedDirectory(inner, self.state)

    def remove(self, name: str) -> None:
        self.state.call(self.inner.remove, name)

    def remove_tree(self, name: str) -> None:
        self.state.call(self.inner.remove_tree, name)

    def allocate(self, name: str, size_bytes: int) -> None:
        self.state.call(self.inner.allocate, name, size_bytes)

    def rename(self, old: str, new: str) -> None:
        self.state.call(self.inner.rename, old, new)

    def write_atomic(self, name: str, data: bytes) -> None:
        self.state.call(self.inner.write_atomic, name, data)

    def read(self, name: str) -> bytes:
        return self.state.call(self.inner.read, name)

    def fsync(self) -> None:
        self.state.call(self.inner.fsync)

    def lock(self, name: str = ".lock") -> DirectoryLock:
        return self.state.call(self.inner.lock, name)

    def usage(self) -> DiskUsage:
        return self.state.call(self.inner.usage)


class LogDirectory(GuardedDirectory):
    """An entry of log.dirs. `directory_id` is that of its meta.properties, None if unknown."""

    def __init__(
        self, inner: Directory, directory_id: UUID | None = None, *, failure: str = ""
    ) -> None:
        """`failure`: the reason why it could not be used at start; then it is offline from the
        beginning.
        """
        super().__init__(inner, DirectoryState(inner))
        self.state.failure = failure
        self.directory_id = directory_id

    @property
    def is_online(self) -> bool:
        return not self.state.failure

    @property
    def failure(self) -> str:
        """The reason why it is offline; empty while it is online."""
        return self.state.failure
