"""Tracks which logs changed since each kind of background work last ran.

After every change of its offsets, segments or settings a log adds itself to the set
`Changes.unread`. That is one operation on a set for all kinds of work, and none of them spends
anything on a log that did not change.

Each kind of work has a `ChangeReader` of its own. It takes the changed logs, works on them, and
puts back those it could not finish (`put_back`), so that they come with the next pass.

Any thread may read. No change is missed: a log changes first and adds itself afterwards, and a
reader works on a log only after taking it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from commitlog.log.log import Log
from tidemark.types import OrderedSet


class Changes:
    """Changes of all logs of a node."""

    def __init__(self) -> None:
        self.unread: set[Log] = set()
        self._readers: list[ChangeReader] = []
        self._lock = threading.Lock()

    def reader(self) -> ChangeReader:
        """Returns a new reader. It sees only later changes, so it is made before there are logs."""
        reader = ChangeReader(self)
        self._readers.append(reader)
        return reader

    def note(self, logs: Iterable[Log]) -> None:
        """Marks logs as changed."""
        self.unread.update(logs)

    def take(self, reader: ChangeReader) -> OrderedSet[Log]:
        """Implements `ChangeReader.take`."""
        with self._lock:
            moved = []
            while self.unread:  # one at a time: logs add themselves meanwhile
                moved.append(self.unread.pop())
            moved.sort(key=lambda log: log.topic_partition)  # the same order in every run
            for each in self._readers:
                each.waiting.update(dict.fromkeys(moved))
            taken, reader.waiting = reader.waiting, OrderedSet()
        return taken

    def give_back(self, reader: ChangeReader, logs: Iterable[Log]) -> None:
        """Implements `ChangeReader.put_back`."""
        with self._lock:
            reader.waiting.update(dict.fromkeys(logs))


class ChangeReader:
    """Changes as one kind of work reads them; made by `Changes.reader`."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.waiting: OrderedSet[Log] = OrderedSet()

    def take(self) -> OrderedSet[Log]:
        """Returns the logs that changed since the last call, and those put back."""
        return self._changes.take(self)

    def put_back(self, logs: Iterable[Log]) -> None:
        """Adds unfinished logs to the next `take`."""
        self._changes.give_back(self, logs)
