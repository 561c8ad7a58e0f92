"""A disk in memory that loses unsynced data: the fake beside `commitlog.disk.os_files`, covered by
the same contract tests.

`crash()` undoes, in reverse, the newest part of the changes since the last sync: writes and
truncations of each file, and names of each directory. The seed decides how much stays, from nothing
to everything. The last append kept may be torn, or end in zeros, as after a journal that recorded
the size but not the data. The extremes are `crash(keep="nothing")` and `crash(keep="everything")`.
Handles from before the crash are dead.

Fault verbs (vocabulary of RocksDB's fault_injection_fs and TigerBeetle's storage faults):
fail_fsync, fail_reads, fail_writes, set_capacity (disk full), short_writes, flip_bit, cut.
"""

from __future__ import annotations

import errno
import fnmatch
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from commitlog.disk.files import (
    Directory,
    DirectoryLock,
    DiskUsage,
    File,
    fsync_failed,
    storage_error,
    write_atomic,
)
from tidemark.errors import StorageError

Keep = Literal["nothing", "random", "everything"]


@dataclass
class _UnsyncedChange:
    """One change since the last sync, and its undo."""

    undo: Callable[[], None]
    appended: tuple[int, int] | None = None  # (position, size) of an append, which may be torn


@dataclass
class _FileNode:
    data: bytearray = field(default_factory=bytearray)
    journal: list[_UnsyncedChange] = field(default_factory=list)
    modified_ms: int = 0


@dataclass
class _DirectoryNode:
    entries: dict[str, _FileNode | _DirectoryNode] = field(default_factory=dict)
    journal: list[_UnsyncedChange] = field(default_factory=list)
    locks: set[str] = field(default_factory=set)


class MemoryDisk:
    """The shared state of one disk's directories: seeded randomness, faults, and the count of
    crashes.
    """

    def __init__(self, seed: int = 0, capacity_bytes: int = 1 << 40) -> None:
        self.random = random.Random(seed)
        self.root = _DirectoryNode()
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.crashes = 0
        self.lost_changes = 0
        self.torn_appends = 0
        self.fsyncs = 0
        self.on_fsync: Callable[[], object] = lambda: None
        self.cold: set[str] = set()
        """Files whose next read takes as long as an fsync."""
        self.now_ms = 0
        self.failing_fsyncs: list[str] = []
        self.failing_reads: list[str] = []
        self.failing_writes: list[str] = []
        self.short_writes = False

    def matches(self, patterns: list[str], name: str) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

    def crash(self, keep: Keep) -> None:
        self.crashes += 1
        self.failing_fsyncs.clear()
        self.failing_reads.clear()
        self.failing_writes.clear()
        self._crash_directory(self.root, keep)
        self.used_bytes = _used(self.root)

    def _crash_directory(self, node: _DirectoryNode, keep: Keep) -> None:
        node.locks.clear()
        self._take_back(node.journal, keep)
        node.journal.clear()
        for name in sorted(node.entries):
            child = node.entries[name]
            if isinstance(child, _DirectoryNode):
                self._crash_directory(child, keep)
            else:
                self._crash_file(child, keep)

    def _crash_file(self, node: _FileNode, keep: Keep) -> None:
        kept = self._take_back(node.journal, keep)
        if keep == "random" and kept and kept[-1].appended is not None:
            position, size = kept[-1].appended
            whole = self.random.randint(0, size)
            self.torn_appends += whole < size
            if self.random.random() < 0.25:  # the disk has the size, but not the data
                node.data[position + whole :] = bytes(len(node.data) - position - whole)
            else:
                del node.data[position + whole :]
        node.journal.clear()

    def _take_back(self, journal: list[_UnsyncedChange], keep: Keep) -> list[_UnsyncedChange]:
        kept = {"nothing": 0, "everything": len(journal)}.get(keep, -1)
        if kept < 0:
            kept = self.random.randint(0, len(journal))
        for change in reversed(journal[kept:]):
            change.undo()
        self.lost_changes += len(journal) - kept
        return journal[:kept]


def _copy_of(node: _DirectoryNode) -> _DirectoryNode:
    """A copy of a tree after a crash: everything in it is durable."""
    copy = _DirectoryNode()
    for name, child in node.entries.items():
        if isinstance(child, _DirectoryNode):
            copy.entries[name] = _copy_of(child)
        else:
            copy.entries[name] = _FileNode(bytearray(child.data), [], child.modified_ms)
    return copy


def _used(node: _DirectoryNode) -> int:
    total = 0
    for child in node.entries.values():
        total += _used(child) if isinstance(child, _DirectoryNode) else len(child.data)
    return total


class MemoryFile:
    """An open file of a MemoryDisk; after a crash of the disk every call raises."""

    def __init__(self, disk: MemoryDisk, node: _FileNode, name: str, *, writable: bool) -> None:
        self._disk = disk
        self._node = node
        self._name = name
        self._writable = writable
        self._life = disk.crashes
        self._closed = False
        self._sync_failed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return len(self._node.data)

    def _use(self, *, write: bool = False) -> _FileNode:
        if self._closed or self._life != self._disk.crashes:
            raise StorageError(f"{self._name} is closed")
        patterns = self._disk.failing_writes if write else self._disk.failing_reads
        if self._disk.matches(patterns, self._name):
            raise storage_error("use", self._name, OSError(errno.EIO, "Input/output error"))
        if write and not self._writable:
            raise storage_error("write", self._name, OSError(errno.EBADF, "opened for reading"))
        return self._node

    def append(self, *buffers: bytes | memoryview) -> int:
        node = self._use(write=True)
        position, total = len(node.data), sum(map(len, buffers))
        if self._disk.used_bytes + total > self._disk.capacity_bytes:
            full = OSError(errno.ENOSPC, "No space left on device")
            raise storage_error("append to", self._name, full)
        pieces = list(buffers)
        if self._disk.short_writes and total > 1:  # two calls: a crash may come between them
            joined = b"".join(pieces)
            cut = self._disk.random.randint(1, total - 1)
            pieces = [joined[:cut], joined[cut:]]
        for piece in pieces:
            self._extend(node, piece)
        return position

    def _extend(self, node: _FileNode, data: bytes | memoryview) -> None:
        start = len(node.data)
        node.data += data
        self._disk.used_bytes += len(data)
        node.modified_ms = self._disk.now_ms

        def undo() -> None:
            del node.data[start:]

        node.journal.append(_UnsyncedChange(undo, (start, len(data))))

    def is_cached(self, size: int, position: int) -> bool:
        return self._name not in self._disk.cold

    def pread(self, size: int, position: int) -> bytes:
        node = self._use()
        if self._name in self._disk.cold:
            self._disk.cold.discard(self._name)
            self._disk.on_fsync()
        with memoryview(node.data) as view:
            return bytes(view[position : position + size])

    def pread_into(self, buffer: memoryview, position: int) -> int:
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        node = self._use(write=True)
        if position > len(node.data):
            raise ValueError(f"position {position} is beyond the end of {self._name}")
        inside = min(len(data), len(node.data) - position)
        old = bytes(node.data[position : position + inside])
        node.data[position : position + inside] = data[:inside]
        node.modified_ms = self._disk.now_ms

        def undo() -> None:
            node.data[position : position + inside] = old

        node.journal.append(_UnsyncedChange(undo))
        if inside < len(data):
            self._extend(node, data[inside:])

    def truncate(self, size: int) -> None:
        node = self._use(write=True)
        if size >= len(node.data):
            return
        tail = bytes(node.data[size:])
        del node.data[size:]
        self._disk.used_bytes -= len(tail)

        def undo() -> None:
            node.data += tail

        node.journal.append(_UnsyncedChange(undo))

    def fsync(self) -> None:
        node = self._use()
        self._disk.fsyncs += 1
        self._disk.on_fsync()
        if self._sync_failed or self._disk.matches(self._disk.failing_fsyncs, self._name):
            self._sync_failed = True
            raise fsync_failed(self._name, "Input/output error")
        node.journal.clear()

    def close(self) -> None:
        self._closed = True


class _MemoryLock:
    def __init__(self, node: _DirectoryNode, name: str) -> None:
        self._node = node
        self._name = name
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._node.locks.discard(self._name)


class MemoryDirectory:
    """A directory of a MemoryDisk. `MemoryDirectory(seed=7)` is the root of a new disk."""

    def __init__(
        self,
        path: str = "memory",
        *,
        seed: int = 0,
        disk: MemoryDisk | None = None,
        node: _DirectoryNode | None = None,
    ) -> None:
        self.disk = disk or MemoryDisk(seed)
        self._node = node if node is not None else self.disk.root
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def path_of(self, name: str) -> str:
        return f"{self._path}/{name}"

    # --- the protocol

    def open(self, name: str, *, create: bool = False) -> File:
        node = self._node.entries.get(name)
        if node is None and create:
            node = _FileNode(modified_ms=self.disk.now_ms)
            self._bind(name, node)
        return self._open(name, node, writable=True)

    def open_read_only(self, name: str) -> File:
        return self._open(name, self._node.entries.get(name), writable=False)

    def _open(self, name: str, node: object, *, writable: bool) -> File:
        if not isinstance(node, _FileNode):
            missing = OSError(errno.ENOENT, "No such file")
            raise storage_error("open", self.path_of(name), missing)
        return MemoryFile(self.disk, node, self.path_of(name), writable=writable)

    def exists(self, name: str) -> bool:
        return name in self._node.entries

    def is_directory(self, name: str) -> bool:
        return isinstance(self._node.entries.get(name), _DirectoryNode)

    def size_of(self, name: str) -> int:
        return len(self._file(name).data)

    def modified_ms(self, name: str) -> int:
        return self._file(name).modified_ms

    def list(self) -> list[str]:
        return sorted(self._node.entries)

    def subdirectory(self, name: str, *, create: bool = True) -> Directory:
        node = self._node.entries.get(name)
        if node is None and create:
            node = _DirectoryNode()
            self._bind(name, node)
        if not isinstance(node, _DirectoryNode):
            raise StorageError(f"{self.path_of(name)} is not a directory")
        return MemoryDirectory(self.path_of(name), disk=self.disk, node=node)

    def remove(self, name: str) -> None:
        node = self._node.entries.get(name)
        if isinstance(node, _DirectoryNode):
            is_directory = OSError(errno.EISDIR, "Is a directory")
            raise storage_error("remove", self.path_of(name), is_directory)
        if node is not None:
            self.disk.used_bytes -= len(node.data)
            self._unbind(name)

    def remove_tree(self, name: str) -> None:
        node = self._node.entries.get(name)
        if isinstance(node, _DirectoryNode):
            self.disk.used_bytes -= _used(node)
            self._unbind(name)
        else:
            self.remove(name)

    def allocate(self, name: str, size_bytes: int) -> None:
        self.remove(name)
        try:
            self.open(name, create=True).append(bytes(size_bytes))
        except StorageError:
            self.remove(name)
            raise

    def rename(self, old: str, new: str) -> None:
        entries = self._node.entries
        if old not in entries:
            missing = OSError(errno.ENOENT, "No such file")
            raise storage_error("rename", self.path_of(old), missing)
        moved, replaced = entries.pop(old), entries.get(new)
        entries[new] = moved
        if isinstance(replaced, _FileNode):
            self.disk.used_bytes -= len(replaced.data)

        def undo() -> None:
            del entries[new]
            entries[old] = moved
            if replaced is not None:
                entries[new] = replaced

        self._node.journal.append(_UnsyncedChange(undo))

    def write_atomic(self, name: str, data: bytes) -> None:
        write_atomic(self, name, data)

    def read(self, name: str) -> bytes:
        file = self.open_read_only(name)
        return file.pread(file.size, 0)

    def fsync(self) -> None:
        self.disk.fsyncs += 1
        self.disk.on_fsync()
        if self.disk.matches(self.disk.failing_fsyncs, self._path):
            raise fsync_failed(self._path, "Input/output error")
        self._node.journal.clear()

    def lock(self, name: str = ".lock") -> DirectoryLock:
        if name in self._node.locks:
            raise StorageError(
                f"{self._path} is locked by another process; stop it, or give each node its own "
                "log.dirs"
            )
        self._node.locks.add(name)
        return _MemoryLock(self._node, name)

    def usage(self) -> DiskUsage:
        free = max(0, self.disk.capacity_bytes - self.disk.used_bytes)
        return DiskUsage(self.disk.capacity_bytes, free)

    # --- faults

    def crash(self, keep: Keep = "random") -> None:
        """Simulates a loss of power: the whole disk loses unsynced bytes and names. Ends all
        faults.
        """
        self.disk.crash(keep)

    def after_crash(self, keep: Keep = "random") -> MemoryDirectory:
        """Simulates a loss of power, as `crash`. Returns the root of the disk that comes back; code
        of the dead process still holds this one, and changes nothing there any more.
        """
        self.disk.crash(keep)
        disk = MemoryDisk(0, self.disk.capacity_bytes)
        disk.random = self.disk.random
        disk.root = _copy_of(self.disk.root)
        disk.used_bytes = self.disk.used_bytes
        disk.now_ms = self.disk.now_ms
        disk.lost_changes, disk.torn_appends = self.disk.lost_changes, self.disk.torn_appends
        return MemoryDirectory(self._path, disk=disk)

    def fail_fsync(self, pattern: str = "*") -> None:
        """Makes fsyncs of files and directories with matching paths fail until the next crash."""
        self.disk.failing_fsyncs.append(pattern)

    def fail_reads(self, pattern: str = "*") -> None:
        """Makes reads of matching files fail with an input/output error until the next crash."""
        self.disk.failing_reads.append(pattern)

    def fail_writes(self, pattern: str = "*") -> None:
        """Makes writes to matching files fail with an input/output error until the next crash."""
        self.disk.failing_writes.append(pattern)

    def set_capacity(self, capacity_bytes: int) -> None:
        """Limits the disk to this many bytes; an append beyond them fails as on a full disk."""
        self.disk.capacity_bytes = capacity_bytes

    def set_short_writes(self, enabled: bool = True) -> None:
        """Splits each append into two writes; a crash may come between them."""
        self.disk.short_writes = enabled

    def flip_bit(self, name: str, position: int, bit: int = 0) -> None:
        """Silently corrupts a durable byte."""
        self._file(name).data[position] ^= 1 << bit

    def cut(self, name: str, size: int) -> None:
        """Silently removes a file's end."""
        node = self._file(name)
        self.disk.used_bytes -= max(0, len(node.data) - size)
        del node.data[size:]
        node.journal.clear()

    # --- names

    def _file(self, name: str) -> _FileNode:
        node = self._node.entries.get(name)
        if not isinstance(node, _FileNode):
            missing = OSError(errno.ENOENT, "No such file")
            raise storage_error("read", self.path_of(name), missing)
        return node

    def _bind(self, name: str, node: _FileNode | _DirectoryNode) -> None:
        entries = self._node.entries
        entries[name] = node

        def undo() -> None:
            del entries[name]

        self._node.journal.append(_UnsyncedChange(undo))

    def _unbind(self, name: str) -> None:
        entries = self._node.entries
        node = entries.pop(name)

        def undo() -> None:
            entries[name] = node

        self._node.journal.append(_UnsyncedChange(undo))
