"""Which logs changed since each kind of background work looked last, so that a log that nothing
happened to costs none of it anything.

A log adds itself to a set, `fresh`, after every change of its offsets, segments or settings: one
operation on a set, whatever there is to do about the change, and none where it is in there already.
Every kind of work is a `ChangeReader` of its own: it takes what changed, looks at that, and gives
back what it could not settle (`again`), so that it comes once more with the next pass.

Any thread may read. A change is never missed: the log changes first and adds itself then, and what
a reader took it looks at afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from commitlog.log.log import Log


class Changes:
    """The changes of all logs of a node."""

    def __init__(self) -> None:
        self.unread: set[Log] = set()
        self._readers: list[ChangeReader] = []
        self._lock = threading.Lock()

    def reader(self) -> ChangeReader:
        """A new reader; make it before there are logs, it does not hear of earlier changes."""
        reader = ChangeReader(self)
        self._readers.append(reader)
        return reader

    def note(self, logs: Iterable[Log]) -> None:
        """As if these logs had changed."""
        self.unread.update(logs)

    def take(self, reader: ChangeReader) -> set[Log]:
        """For `ChangeReader.take`."""
        with self._lock:
            moved = []
            while self.unread:  # one by one: logs add themselves meanwhile
                moved.append(self.unread.pop())
            for each in self._readers:
                each.waiting.update(moved)
            taken, reader.waiting = reader.waiting, set()
        return taken

    def give_back(self, reader: ChangeReader, logs: Iterable[Log]) -> None:
        """For `ChangeReader.put_back`."""
        with self._lock:
            reader.waiting.update(logs)


class ChangeReader:
    """One kind of work; made by `Changes.reader`."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.waiting: set[Log] = set()

    def take(self) -> set[Log]:
        """The logs that changed since the last call, and those given back."""
        return self._changes.take(self)

    def put_back(self, logs: Iterable[Log]) -> None:
        """These are not settled: they come again with the next `take`."""
        self._changes.give_back(self, logs)
