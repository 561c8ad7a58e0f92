"""Room on a disk for the metadata log, kept by a file that is emptied when the disk is full.

The metadata log often shares its disk with partitions. Without a reserve the first change of the
metadata on a full disk ends the process. All nodes of a full cluster would end together.

While the room is given back, `watch` has the partitions' logs in the same directory refuse appends
as a full disk does. Otherwise producers would use it up at once. Retention goes on, and the room is
taken again as soon as there is twice as much space.

The file stays, without a byte, while the room is given back. So after a restart on the full disk
the partitions still take nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from commitlog.disk.files import Directory, DiskError
from commitlog.disk.log_directory import DirectoryState, GuardedDirectory
from tidemark.errors import StorageError

logger = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

RESERVE_FILE = ".metadata-reserve"
RESERVE_BYTES = 16 << 20


class Reserve:
    """The reserve of one directory; any thread."""

    def __init__(self, directory: Directory, size_bytes: int = RESERVE_BYTES) -> None:
        self._directory = directory
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._on_change: Callable[[bool], object] = lambda _: None
        self.is_taken = False
        self._is_given_back = False

    def guard(self) -> Directory:
        """Returns the directory for the metadata log: what a full disk refuses is repeated once the
        room was given back.
        """
        return GuardedDirectory(self._directory, _Reserved(self._directory, self))

    def watch(self, on_change: Callable[[bool], object]) -> None:
        """Calls `on_change` with true when the room is given back, with false when it is taken; at
        once if it was given back before.
        """
        with self._lock:
            self._on_change = on_change
            if self._is_given_back:
                on_change(True)

    def take(self) -> bool:
        """Takes the room, if it is not taken and the disk has twice as much; returns whether it is
        taken.
        """
        with self._lock:
            if self.is_taken:
                return True
            try:
                if not self._is_there():
                    self._is_given_back |= self._directory.exists(RESERVE_FILE)
                    if self._directory.usage().free_bytes < 2 * self._size_bytes:
                        return False
                    self._directory.allocate(RESERVE_FILE, self._size_bytes)
            except StorageError as error:
                logger.debug("no room is kept for the metadata log: %s", error)
                return False
            self.is_taken, self._is_given_back = True, False
            self._on_change(False)
        return True

    def _is_there(self) -> bool:
        """Whether an earlier process left the file."""
        is_named = self._directory.exists(RESERVE_FILE)
        return is_named and self._directory.size_of(RESERVE_FILE) == self._size_bytes

    def give_back(self) -> bool:
        """Gives the room back to the disk; false if it is given back already."""
        with self._lock:
            if not self.is_taken:
                return False
            self.is_taken, self._is_given_back = False, True
            self._on_change(True)
            file = self._directory.open(RESERVE_FILE)
            try:
                file.truncate(0)
            finally:
                file.close()
        logger.error(
            "the disk of %s is full: the %d MiB kept for the metadata log are given back, and"
            " partitions in this directory take no more records until there is space",
            self._directory.path,
            self._size_bytes >> 20,
        )
        return True


class _Reserved(DirectoryState):
    """Repeats what a full disk refuses; fails nothing by itself."""

    def __init__(self, root: Directory, reserve: Reserve) -> None:
        super().__init__(root)
        self._reserve = reserve

    def call(self, method: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(*args, **kwargs)
        except DiskError as error:
            if not error.is_full or not self._reserve.give_back():
                raise
            return method(*args, **kwargs)
