"""The sparse indexes of a segment: offset -> position, timestamp -> offset, aborted transactions.

The entries are Kafka's. `.index` has 8 bytes: relative offset of a batch's last record, and its
position, both i32. `.timeindex` has 12 bytes: timestamp i64, relative offset i32 (KIP-33).
`.txnindex` has 34 bytes.

Entries of the active segment are held in memory until `write_out`. After an unclean stop the
segment is scanned and its indexes are rebuilt anyway, so an append needs no further system call. A
segment's indexes are loaded as arrays on first use. Their size is bounded by segment.index.bytes.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from commitlog.disk.files import Directory
from commitlog.types import AbortedTransaction
from tidemark.errors import StorageError

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
TXN_ENTRY = struct.Struct(">hqqqq")
MAX_RELATIVE_OFFSET = 2**31 - 1


class CorruptIndexError(StorageError):
    """An index that contradicts itself or its log; it is rebuilt from the log."""


class _IndexFile:
    """The common part of the two sparse indexes: entries on disk, and entries to be written."""

    entry_bytes = 0

    def __init__(self, directory: Directory, name: str, base_offset: int, max_bytes: int) -> None:
        self.directory = directory
        self.name = name
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.entry_bytes
        self._written = 0  # entries on disk
        self._pending = bytearray()
        self._known_to_exist = False
        self._is_stale = False  # the file has entries from before `_drop_all`
        self._unsynced = True

    def take_unsynced(self) -> bool:
        """Whether the file changed since the last call. The caller then syncs it."""
        unsynced, self._unsynced = self._unsynced, False
        return unsynced

    def _read(self) -> bytes:
        data = self.directory.read(self.name) if self.directory.exists(self.name) else b""
        if len(data) % self.entry_bytes:
            raise CorruptIndexError(f"{self.name} has {len(data)} bytes, no whole entries")
        # Kafka preallocates: a file that was not closed ends with zeros, which are no entries.
        end = len(data)
        zeros = bytes(self.entry_bytes)
        while end and data[end - self.entry_bytes : end] == zeros:
            end -= self.entry_bytes
        if end < len(data):
            raise CorruptIndexError(f"{self.name} was not trimmed by a clean stop")
        self._written = len(data) // self.entry_bytes
        self._known_to_exist = self._known_to_exist or bool(data)
        return data

    @property
    def is_stale(self) -> bool:
        """Whether the file has entries that are dropped already."""
        return self._is_stale

    def write_out(self) -> bool:
        """Writes the waiting entries behind those on disk, and creates the file if needed. False if
        there was nothing to write.
        """
        if self._is_stale and self._is_on_disk():
            self._written = len(self._pending) // self.entry_bytes
            self._pending.clear()
        elif not self._is_stale and not self._pending and self._exists():
            self._known_to_exist = True
            return False
        else:
            self._write_pending()
        self._known_to_exist, self._is_stale, self._unsynced = True, False, True
        return True

    def _exists(self) -> bool:
        return self._known_to_exist or self.directory.exists(self.name)

    def _is_on_disk(self) -> bool:
        """Whether the file already equals the waiting entries. Mostly true if recovery rebuilt the
        index: bytes that are not written again cost no sync.
        """
        size = len(self._pending)
        if not self.directory.exists(self.name) or self.directory.size_of(self.name) != size:
            return False
        return self.directory.read(self.name) == self._pending

    def _write_pending(self) -> None:
        file = self.directory.open(self.name, create=True)
        try:
            file.truncate(self._written * self.entry_bytes)
            file.append(bytes(self._pending))
        finally:
            file.close()
        self._written += len(self._pending) // self.entry_bytes
        self._pending.clear()

    def _drop_all(self) -> None:
        """Drops all entries; the file keeps them until the next write."""
        self._written = 0
        self._pending.clear()
        self._is_stale = self._unsynced = True

    def _waiting(self, count: int, fields: list[tuple[str, str]]) -> Any:
        """Returns room for `count` more waiting entries, as a numpy array to fill."""
        import numpy as np

        begin = len(self._pending)
        self._pending += bytes(count * self.entry_bytes)
        return np.frombuffer(self._pending, np.dtype(fields), count, begin)

    def _forget(self, entries: int) -> None:
        """Keeps the first `entries` entries, in the file and among those waiting."""
        if entries <= self._written:
            self._written = entries
            self._pending.clear()
            self._unsynced = True
            self._is_stale = self._is_stale and entries > 0
            file = self.directory.open(self.name, create=True)
            file.truncate(entries * self.entry_bytes)
            file.close()
        else:
            del self._pending[(entries - self._written) * self.entry_bytes :]


class OffsetIndex(_IndexFile):
    """Relative last offset of a batch -> position of the batch."""

    entry_bytes = OFFSET_ENTRY.size

    def __init__(self, directory: Directory, name: str, base_offset: int, max_bytes: int) -> None:
        super().__init__(directory, name, base_offset, max_bytes)
        self._offsets = array("i")
        self._positions = array("i")

    def load(self) -> None:
        """Reads the file. Raises CorruptIndexError if it is not a valid index."""
        import numpy as np

        entries = np.frombuffer(self._read(), ">i4").astype("i4").reshape(-1, 2)
        if len(entries) and (entries[0].min() < 0 or not (entries[1:] > entries[:-1]).all()):
            raise CorruptIndexError(f"the entries of {self.name} do not rise")
        self._offsets = array("i", entries[:, 0].tobytes())
        self._positions = array("i", entries[:, 1].tobytes())

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self.max_entries

    @property
    def last_entry(self) -> tuple[int, int]:
        """(offset, position) of the last entry; (base offset, 0) if there is none."""
        if not self._offsets:
            return self.base_offset, 0
        return self.base_offset + self._offsets[-1], self._positions[-1]

    def append(self, offset: int, position: int) -> None:
        """Adds an entry; both must be above the last one's."""
        relative, offsets, positions = offset - self.base_offset, self._offsets, self._positions
        if offsets and (relative <= offsets[-1] or position <= positions[-1]):
            raise ValueError(f"{self.name}: entry ({offset}, {position}) does not rise")
        offsets.append(relative)
        positions.append(position)
        self._pending += OFFSET_ENTRY.pack(relative, position)

    def extend(self, offsets: Any, positions: Any) -> None:
        """Adds rising entries, given as int64 arrays."""
        if len(offsets) == 0:
            return
        relative = (offsets - self.base_offset).astype("i4")
        if self._offsets and (
            relative[0] <= self._offsets[-1] or positions[0] <= self._positions[-1]
        ):
            raise ValueError(f"{self.name}: entry {offsets[0]} does not rise")
        self._offsets.frombytes(relative.tobytes())
        self._positions.frombytes(positions.astype("i4").tobytes())
        entries = self._waiting(len(relative), [("offset", ">i4"), ("position", ">i4")])
        entries["offset"], entries["position"] = relative, positions

    def lookup(self, offset: int) -> tuple[int, int]:
        """Returns (offset, position) of the last entry at or below `offset`; (base offset, 0) if
        there is none.
        """
        index = bisect_right(self._offsets, offset - self.base_offset)
        if index == 0:
            return self.base_offset, 0
        return self.base_offset + self._offsets[index - 1], self._positions[index - 1]

    def entry_behind(self, offset: int) -> int:
        """Returns the offset of the first entry above `offset`, which there must be."""
        return (
            self.base_offset + self._offsets[bisect_right(self._offsets, offset - self.base_offset)]
        )

    def window(self, offset: int) -> tuple[int, int, int, int]:
        """As `lookup`, with the bytes from that entry to the next one, and from there to the one
        after. Both are 0 if there is none. The batch of `offset` most likely lies within them.
        """
        positions = self._positions
        index = bisect_right(self._offsets, offset - self.base_offset)
        begin, at = 0, self.base_offset
        if index:
            begin, at = positions[index - 1], at + self._offsets[index - 1]
        if index + 1 < len(positions):
            middle = positions[index]
            return at, begin, middle - begin, positions[index + 1] - middle
        return at, begin, 0, 0

    def truncate(self, offset: int) -> None:
        """Drops the entries at or above `offset`."""
        keep = bisect_right(self._offsets, offset - self.base_offset - 1)
        if keep < len(self._offsets):
            del self._offsets[keep:], self._positions[keep:]
            self._forget(keep)

    def reset(self) -> None:
        """Drops all entries; the next write removes them from disk."""
        self._offsets, self._positions = array("i"), array("i")
        self._drop_all()

    def entries(self) -> Iterator[tuple[int, int]]:
        """Returns all (offset, position)."""
        for relative, position in zip(self._offsets, self._positions, strict=True):
            yield self.base_offset + relative, position


class TimeIndex(_IndexFile):
    """Greatest timestamp so far -> relative last offset of the batch that has it."""

    entry_bytes = TIME_ENTRY.size

    def __init__(self, directory: Directory, name: str, base_offset: int, max_bytes: int) -> None:
        super().__init__(directory, name, base_offset, max_bytes)
        self._timestamps = array("q")
        self._offsets = array("i")

    def load(self) -> None:
        """Reads the file. Raises CorruptIndexError if it is not a valid index."""
        import numpy as np

        entries = np.frombuffer(self._read(), np.dtype([("timestamp", ">i8"), ("offset", ">i4")]))
        timestamps, offsets = entries["timestamp"].astype("i8"), entries["offset"].astype("i4")
        if len(entries) and (
            timestamps[0] < 0
            or offsets[0] < 0
            or not (timestamps[1:] > timestamps[:-1]).all()
            or not (offsets[1:] >= offsets[:-1]).all()
        ):
            raise CorruptIndexError(f"the entries of {self.name} do not rise")
        self._timestamps = array("q", timestamps.tobytes())
        self._offsets = array("i", offsets.tobytes())

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def is_full(self) -> bool:
        """Whether only the slot is left that a roll needs for its entry."""
        return len(self._timestamps) >= self.max_entries - 1

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) if there is none."""
        if not self._timestamps:
            return -1, self.base_offset
        return self._timestamps[-1], self.base_offset + self._offsets[-1]

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Adds an entry if the timestamp is above the last one's (KIP-33)."""
        if timestamp_ms <= (self._timestamps[-1] if self._timestamps else -1):
            return
        relative = offset - self.base_offset
        if self._offsets and relative < self._offsets[-1]:
            raise ValueError(f"{self.name}: entry ({timestamp_ms}, {offset}) does not rise")
        self._timestamps.append(timestamp_ms)
        self._offsets.append(relative)
        self._pending += TIME_ENTRY.pack(timestamp_ms, relative)

    def extend(self, timestamps: Any, offsets: Any) -> None:
        """Calls `maybe_append` for each pair of two int64 arrays that never fall."""
        if len(timestamps) == 0:
            return
        rises = timestamps > (self._timestamps[-1] if self._timestamps else -1)
        rises[1:] &= timestamps[1:] > timestamps[:-1]
        timestamps, relative = timestamps[rises], offsets[rises] - self.base_offset
        if self._offsets and len(relative) and relative[0] < self._offsets[-1]:
            raise ValueError(f"{self.name}: entry ({timestamps[0]}, {offsets[0]}) does not rise")
        self._timestamps.frombytes(timestamps.tobytes())
        self._offsets.frombytes(relative.astype("i4").tobytes())
        entries = self._waiting(len(relative), [("timestamp", ">i8"), ("offset", ">i4")])
        entries["timestamp"], entries["offset"] = timestamps, relative

    def lookup(self, timestamp_ms: int) -> tuple[int, int]:
        """Returns (timestamp, offset) of the last entry at or below the timestamp; (-1, base
        offset) if there is none.
        """
        index = bisect_right(self._timestamps, timestamp_ms)
        if index == 0:
            return -1, self.base_offset
        return self._timestamps[index - 1], self.base_offset + self._offsets[index - 1]

    def truncate(self, offset: int) -> None:
        """Drops the entries at or above `offset`."""
        keep = bisect_right(self._offsets, offset - self.base_offset - 1)
        if keep < len(self._offsets):
            del self._timestamps[keep:], self._offsets[keep:]
            self._forget(keep)

    def reset(self) -> None:
        """Drops all entries; the next write removes them from disk."""
        self._timestamps, self._offsets = array("q"), array("i")
        self._drop_all()

    def entries(self) -> Iterator[tuple[int, int]]:
        """Returns all (timestamp, offset)."""
        for timestamp, relative in zip(self._timestamps, self._offsets, strict=True):
            yield timestamp, self.base_offset + relative


def parse_transactions(data: bytes, name: str) -> list[AbortedTransaction]:
    """Parses the content of a transaction index. Raises CorruptIndexError."""
    if len(data) % TXN_ENTRY.size:
        raise CorruptIndexError(f"{name} has {len(data)} bytes, no whole entries")
    found = []
    for version, *fields in TXN_ENTRY.iter_unpack(data):
        if version != 0 or fields[1] > fields[2]:
            raise CorruptIndexError(f"{name} holds an entry of version {version}")
        found.append(AbortedTransaction(*fields))
    return found


class TransactionIndex:
    """The aborted transactions that ended in a segment. Without any there is no file."""

    def __init__(self, directory: Directory, name: str) -> None:
        self.directory = directory
        self.name = name
        self.is_checked = False  # whether the entries are known to match the batches
        self.is_doubtful = False  # whether a file may be missing
        self.checking: Iterator[None] | None = None  # a check under way, of `txn_recovery`
        self._unsynced = True
        self._has_entries: bool | None = None  # None: the file is not looked at yet

    @property
    def has_entries(self) -> bool:
        """Whether a transaction was aborted; without IO after the first call."""
        if self._has_entries is None:
            exists = self.directory.exists(self.name)
            self._has_entries = exists and self.directory.size_of(self.name) > 0
        return self._has_entries

    def take_unsynced(self) -> bool:
        """Whether the file changed since the last call. The caller then syncs it."""
        unsynced, self._unsynced = self._unsynced, False
        return unsynced

    def entries(self) -> list[AbortedTransaction]:
        """Returns all entries, by last offset. Raises CorruptIndexError if the file is not a valid
        index.
        """
        if not self.directory.exists(self.name):
            return []
        return parse_transactions(self.directory.read(self.name), self.name)

    def append(self, aborted: AbortedTransaction) -> None:
        """Adds an aborted transaction. It is written at once, because it is rare."""
        self._unsynced = self._has_entries = True
        file = self.directory.open(self.name, create=True)
        try:
            file.append(
                TXN_ENTRY.pack(
                    0,
                    aborted.producer_id,
                    aborted.first_offset,
                    aborted.last_offset,
                    aborted.last_stable_offset,
                )
            )
        finally:
            file.close()

    def truncate(self, offset: int) -> None:
        """Drops the transactions whose marker is at or above `offset`."""
        if not self.directory.exists(self.name):
            return
        try:
            keep = sum(entry.last_offset < offset for entry in self.entries())
        except CorruptIndexError:
            keep = 0
        self._unsynced, self._has_entries = True, None
        file = self.directory.open(self.name)
        file.truncate(keep * TXN_ENTRY.size)
        file.close()

    def reset(self) -> None:
        """Removes the file; entries added from now on are known to be right."""
        self.directory.remove(self.name)
        self.is_checked, self._has_entries = True, None
