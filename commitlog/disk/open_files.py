"""How many files are open: a bound on descriptors, by closing those that were not used lately.

Every open `OsFile` is known here. Beyond the limit the one that was used longest ago gives its
descriptor back, and opens its path again when it is used next (second-chance order: a use costs a
flag, not a lock). A file in use by another thread is passed over, so the limit may be exceeded by
as many files as threads work on. What was not synced is not lost by closing a descriptor: the
pages stay dirty, and the fsync of any descriptor of the file writes them.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Protocol

DEFAULT_LIMIT = 4096


class Releasable(Protocol):
    """An open file that can do without its descriptor for a while."""

    used: bool

    def release(self) -> bool:
        """Gives the descriptor back; False while the file is in use."""


class OpenFiles:
    """The open files of this process; `open_count`, `opens` and `evictions` are for metrics."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._files: OrderedDict[int, weakref.ref[Releasable]] = OrderedDict()
        self.opens = 0
        self.evictions = 0

    @property
    def open_count(self) -> int:
        """Files that hold a descriptor now."""
        return len(self._files)

    @property
    def limit(self) -> int:
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        """At least 1; what is open beyond it is closed at once."""
        self._limit = max(1, limit)
        with self._lock:
            self._shrink()

    def opened(self, file: Releasable) -> None:
        """A file got a descriptor; others may lose theirs."""
        with self._lock:
            self.opens += 1
            self._files[id(file)] = weakref.ref(file)
            self._shrink()

    def closed(self, file: Releasable) -> None:
        """A file gave its descriptor back."""
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
