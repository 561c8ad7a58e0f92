"""The log directories of partitions, and how many of them each directory has."""

from __future__ import annotations

import threading
from collections import UserDict

from commitlog.disk.log_directory import LogDirectory
from tidemark.types import TopicPartition


class Homes(UserDict[TopicPartition, LogDirectory]):
    """A directory for each partition; several threads may change it."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[LogDirectory, int] = {}
        self._lock = threading.Lock()

    def count(self, directory: LogDirectory) -> int:
        """Returns the number of partitions in a directory, at once."""
        return self._counts.get(directory, 0)

    def __setitem__(self, key: TopicPartition, home: LogDirectory) -> None:
        with self._lock:
            self._subtract(self.data.get(key))
            self.data[key] = home
            self._counts[home] = self._counts.get(home, 0) + 1

    def __delitem__(self, key: TopicPartition) -> None:
        with self._lock:
            self._subtract(self.data.pop(key))

    def _subtract(self, home: LogDirectory | None) -> None:
        if home is not None:
            self._counts[home] -= 1
