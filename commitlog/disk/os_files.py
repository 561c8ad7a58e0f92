"""Files and directories of the operating system; implements `commitlog.disk.files`.

Only this module calls `os` for files of a log (DESIGN.md). So the same log runs over a disk and, in
tests and simulation, in memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import threading
from pathlib import Path

from commitlog.disk.files import (
    Directory,
    DirectoryLock,
    DiskUsage,
    File,
    fsync_failed,
    storage_error,
    write_atomic,
)
from commitlog.disk.open_files import OPEN_FILES
from commitlog.disk.sync_times import SYNC_TIMES
from tidemark.errors import StorageError
from tidemark.surroundings import surroundings

_IOV_MAX = 1024
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)  # of Linux
_PROBED_BYTES = 512 << 10  # most of a file is there, or most of it is not


class OsFile:
    """A file of the operating system.

    Its descriptor may be closed while it is not used (`commitlog.disk.open_files`). So every use
    goes through `_descriptor`, under the file's lock.
    """

    def __init__(self, path: str, flags: int) -> None:
        self._path = path
        self._flags = flags
        self._broken = ""
        self._closed = False
        self._lock = threading.Lock()
        self._fd = -1
        self.used = True
        try:
            self._fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
            self._size = os.fstat(self._fd).st_size
        except OSError as error:
            raise storage_error("open", path, error) from error
        OPEN_FILES.opened(self)

    @property
    def name(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    def _descriptor(self) -> int:
        """Returns the open descriptor; the caller holds the lock while it uses it."""
        self.used = True
        if self._fd < 0:
            if self._closed:
                raise OSError(errno.EBADF, "the file is closed")
            self._fd = os.open(self._path, self._flags & ~os.O_CREAT | os.O_CLOEXEC)
            OPEN_FILES.opened(self)
        return self._fd

    def release(self) -> bool:
        """Closes the descriptor until the next use; False if the file is in use."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._close()
        finally:
            self._lock.release()
        return True

    def append(self, *buffers: bytes | memoryview) -> int:
        if self._broken:
            raise StorageError(self._broken)
        start = self._size
        with self._lock:
            try:
                fd = self._descriptor() if self._fd < 0 else self._fd
                self.used = True
                if len(buffers) > _IOV_MAX:
                    written = _write_all(fd, buffers, start)
                else:
                    written = os.pwritev(fd, buffers, start)
                    if written < sum(map(len, buffers)):
                        written += _write_all(fd, _skip(buffers, written), start + written)
            except OSError as error:
                self._undo(start)
                raise storage_error("append to", self._path, error) from error
            self._size = start + written
        return start

    def _undo(self, size: int) -> None:
        """Removes the rest of a failed append. If that fails too, the file accepts no
        more appends.
        """
        try:
            os.ftruncate(self._descriptor(), size)
        except OSError as error:
            self._broken = (
                f"{self._path} could not be cut back after a failed append ({error.strerror}):"
                " it takes no more writes; check the device, then restart the node"
            )

    def pread(self, size: int, position: int) -> bytes:
        with self._lock:
            try:
                fd = self._descriptor() if self._fd < 0 else self._fd
                self.used = True
                data = os.pread(fd, size, position)
                if len(data) == size or position + len(data) >= self._size:
                    return data
                parts = [data]
                got = len(data)
                while got < size and data:  # the kernel may return fewer bytes before the end
                    data = os.pread(fd, size - got, position + got)
                    parts.append(data)
                    got += len(data)
            except OSError as error:
                raise storage_error("read", self._path, error) from error
        return b"".join(parts)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        with self._lock:
            try:
                fd = self._descriptor()
                got = read = os.preadv(fd, (buffer,), position)
                while read and got < len(buffer):  # the kernel may stop before the end
                    read = os.preadv(fd, (buffer[got:],), position + got)
                    got += read
            except OSError as error:
                raise storage_error("read", self._path, error) from error
        return got

    def is_cached(self, size: int, position: int) -> bool:
        if not _NOWAIT:
            return True
        byte = bytearray(1)
        try:
            with self._lock:
                fd = self._descriptor()
                for at in (*range(position, position + size, _PROBED_BYTES), position + size - 1):
                    os.preadv(fd, (byte,), at, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True  # the file system does not tell, or the read itself will fail
        return True

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        if position > self._size:
            raise ValueError(f"position {position} is beyond the end of {self._path}")
        with self._lock:
            try:
                written = _write_all(self._descriptor(), (data,), position)
            except OSError as error:
                raise storage_error("write", self._path, error) from error
            self._size = max(self._size, position + written)

    def truncate(self, size: int) -> None:
        if size >= self._size:
            return
        with self._lock:
            try:
                os.ftruncate(self._descriptor(), size)
            except OSError as error:
                raise storage_error("truncate", self._path, error) from error
            self._size = size

    def fsync(self) -> None:
        if self._broken:
            raise fsync_failed(self._path, self._broken)
        try:
            with self._lock:
                fd = os.dup(self._descriptor())  # synced without the lock, beside appends
        except FileNotFoundError:
            return  # its name is removed, and its descriptor was closed: nothing to keep
        except OSError as error:
            raise storage_error("open", self._path, error) from error
        try:
            with SYNC_TIMES.timed():
                os.fdatasync(fd)
        except OSError as error:
            self._broken = f"an earlier fsync failed: {error.strerror}"
            raise fsync_failed(self._path, error.strerror or "unknown") from error
        finally:
            os.close(fd)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._fd >= 0:
                OPEN_FILES.closed(self)
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # nothing is lost: important data was synced before
                os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self._close()


def _write_all(fd: int, buffers: tuple[bytes | memoryview, ...], position: int) -> int:
    """Writes all buffers in as many calls as needed: one call may write only a part."""
    start = position
    while buffers:
        written = os.pwritev(fd, buffers[:_IOV_MAX], position)
        if written == 0 and any(map(len, buffers[:_IOV_MAX])):
            raise OSError(errno.EIO, "the file takes no bytes")
        position += written
        buffers = _skip(buffers, written)
    return position - start


def _skip(buffers: tuple[bytes | memoryview, ...], size: int) -> tuple[bytes | memoryview, ...]:
    """Returns the buffers without their first `size` bytes."""
    for index, buffer in enumerate(buffers):
        if size < len(buffer):
            return (memoryview(buffer)[size:], *buffers[index + 1 :])
        size -= len(buffer)
    return ()


class _OsLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)  # closing the descriptor releases the flock


class OsDirectory:
    """A directory of the operating system; created with its parents if it is missing."""

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self._path = str(path)
        try:
            if create:
                Path(self._path).mkdir(parents=True, exist_ok=True)
            elif not os.path.isdir(self._path):  # noqa: PTH112 - asked for each log, as below
                raise StorageError(f"{self._path} is not a directory")
        except OSError as error:
            raise storage_error("create directory", self._path, error) from error

    @classmethod
    def unseen(cls, path: str) -> OsDirectory:
        """Returns the directory of this path without a check: it may be missing or broken."""
        found = cls.__new__(cls)
        found._path = path
        return found

    @property
    def path(self) -> str:
        return self._path

    def path_of(self, name: str) -> str:
        """Returns the path of one of its files."""
        return f"{self._path}/{name}"

    def open(self, name: str, *, create: bool = False) -> File:
        return OsFile(self.path_of(name), os.O_RDWR | (os.O_CREAT if create else 0))

    def open_read_only(self, name: str) -> File:
        return OsFile(self.path_of(name), os.O_RDONLY)

    def exists(self, name: str) -> bool:
        return os.path.exists(f"{self._path}/{name}")  # noqa: PTH110 - asked for each log

    def is_directory(self, name: str) -> bool:
        return os.path.isdir(f"{self._path}/{name}")  # noqa: PTH112

    def size_of(self, name: str) -> int:
        try:
            return os.stat(f"{self._path}/{name}").st_size  # noqa: PTH116
        except OSError as error:
            raise storage_error("read the size of", self.path_of(name), error) from error

    def modified_ms(self, name: str) -> int:
        try:
            return Path(self.path_of(name)).stat().st_mtime_ns // 1_000_000
        except OSError as error:
            raise storage_error("read the time of", self.path_of(name), error) from error

    def list(self) -> list[str]:
        try:
            return sorted(os.listdir(self._path))  # noqa: PTH208 - no Path for each of the names
        except OSError as error:
            raise storage_error("list", self._path, error) from error

    def subdirectory(self, name: str, *, create: bool = True) -> Directory:
        return OsDirectory(self.path_of(name), create=create)

    def allocate(self, name: str, size_bytes: int) -> None:
        path = self.path_of(name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                os.posix_fallocate(fd, 0, size_bytes)
            finally:
                os.close(fd)
        except OSError as error:
            self.remove(name)
            raise storage_error("allocate", path, error) from error

    def remove(self, name: str) -> None:
        try:
            Path(self.path_of(name)).unlink(missing_ok=True)
        except OSError as error:
            raise storage_error("remove", self.path_of(name), error) from error

    def remove_tree(self, name: str) -> None:
        if not self.is_directory(name):
            self.remove(name)
            return
        try:
            shutil.rmtree(self.path_of(name))
        except OSError as error:
            raise storage_error("remove", self.path_of(name), error) from error

    def rename(self, old: str, new: str) -> None:
        try:
            Path(self.path_of(old)).rename(self.path_of(new))
        except OSError as error:
            raise storage_error("rename", self.path_of(old), error) from error

    def write_atomic(self, name: str, data: bytes) -> None:
        write_atomic(self, name, data)

    def read(self, name: str) -> bytes:
        try:
            with open(f"{self._path}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
                return file.read()
        except OSError as error:
            raise storage_error("read", self.path_of(name), error) from error

    def fsync(self) -> None:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise storage_error("open", self._path, error) from error
        try:
            with SYNC_TIMES.timed():
                os.fsync(fd)
        except OSError as error:
            raise fsync_failed(self._path, error.strerror or "unknown") from error
        finally:
            os.close(fd)

    def lock(self, name: str = ".lock") -> DirectoryLock:
        path = self.path_of(name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise storage_error("open", path, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise StorageError(
                f"{self._path} is locked by another process; stop it, or give each node its own "
                "log.dirs"
            ) from error
        return _OsLock(fd)

    def usage(self) -> DiskUsage:
        try:
            total, _, free = shutil.disk_usage(self._path)
        except OSError as error:
            raise storage_error("read the usage of", self._path, error) from error
        return DiskUsage(total, free)


def open_directory(path: str, *, create: bool = True) -> Directory:
    """The directory at `path` on this machine, or on the disks of the surroundings.

    Raises StorageError if it cannot be made, or without `create` if it is missing.
    """
    elsewhere = surroundings().open_directory
    if elsewhere is not None:
        found: Directory = elsewhere(path, create=create)
        return found
    return OsDirectory(path, create=create)
