"""A bound on open descriptors: those not used recently are closed.

Every open `OsFile` is registered here. Beyond the limit the least recently used one closes its
descriptor, and reopens its path at its next use. The order is second-chance: a use costs a flag,
not a lock. A file in use by another thread is skipped, so the limit may be exceeded by the number
of working threads. Closing a descriptor loses no unsynced data: the pages stay dirty, and the fsync
of any descriptor of the file writes them.
"""

from __future__ import annotations

import contextlib
import resource
import threading
import weakref
from collections import OrderedDict
from typing import Protocol

DEFAULT_LIMIT = 4096
"""The limit where nobody set one, and the process has none."""


class Releasable(Protocol):
    """An open file that can close its descriptor for a while."""

    used: bool

    def release(self) -> bool:
        """Closes the descriptor; False while the file is in use."""


class OpenFiles:
    """The open files of this process; `open_count`, `opens` and `evictions` are metrics."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._files: OrderedDict[int, weakref.ref[Releasable]] = OrderedDict()
        self.opens = 0
        self.evictions = 0

    @property
    def open_count(self) -> int:
        """The number of files that hold a descriptor."""
        return len(self._files)

    @property
    def limit(self) -> int:
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        """Sets the limit, at least 1; closes files beyond it at once."""
        self._limit = max(1, limit)
        with self._lock:
            self._shrink()

    def opened(self, file: Releasable) -> None:
        """Registers a file with a new descriptor; others may lose theirs."""
        with self._lock:
            self.opens += 1
            self._files[id(file)] = weakref.ref(file)
            self._shrink()

    def closed(self, file: Releasable) -> None:
        """Removes a file whose descriptor is closed."""
        with self._lock:
            self._files.pop(id(file), None)

    def _shrink(self) -> None:
        chances = 2 * len(self._files)
        while len(self._files) > self._limit and chances:
            chances -= 1
            key, reference = self._files.popitem(last=False)
            file = reference()
            if file is None:
                continue
            if file.used:
                file.used = False
            elif file.release():
                self.evictions += 1
                continue
            self._files[key] = reference


OPEN_FILES = OpenFiles()


def share_of_process() -> int:
    """Returns three quarters of the files that this process may open; the others are for
    connections. Raises its soft limit to the hard one, as a JVM does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # the soft limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return DEFAULT_LIMIT if soft == resource.RLIM_INFINITY else max(1, soft * 3 // 4)
