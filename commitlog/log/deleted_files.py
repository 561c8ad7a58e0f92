"""Files of segments that left a log. They are renamed to `.deleted` at once, and removed after
file.delete.delay.ms, so that reads in progress still find them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from commitlog.disk.files import Directory
from commitlog.segment.names import DELETED_SUFFIX, snapshot_name
from commitlog.segment.segment import Segment


def rename_deleted(directory: Directory, segment: Segment) -> tuple[str, ...]:
    """Renames a segment's files to `.deleted`, the log first; returns the new names. After a crash
    the renamed log explains the indexes that are left (`commitlog.log.loader`).
    """
    segment.close()
    renamed = []
    for name in (*segment.file_names, snapshot_name(segment.base_offset)):
        if directory.exists(name):
            directory.rename(name, name + DELETED_SUFFIX)
            renamed.append(name + DELETED_SUFFIX)
    return tuple(renamed)


class DeletedFiles:
    """The files renamed to `.deleted`, each with the time of its removal. Thread-safe."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, tuple[str, ...]]] = []

    def add(self, due_ms: int, segments: Iterable[tuple[str, ...]]) -> None:
        """Adds the file names of deleted segments, to be removed from `due_ms` on. The delay of a
        name that is already waiting starts again.
        """
        with self._lock:
            for names in segments:
                self._waiting = [
                    (due, tuple(name for name in waiting if name not in names))
                    for due, waiting in self._waiting
                ]
                self._waiting.append((due_ms, names))

    def restart(self, directory: Directory) -> None:
        """Continues in another directory. The old one is removed with its waiting files."""
        with self._lock:
            self._directory, self._waiting = directory, []

    def __len__(self) -> int:
        """The number of waiting segments."""
        return len(self._waiting)

    def purge(self, now_ms: int) -> int:
        """Removes the files that are due; returns the number of their segments."""
        with self._lock:
            due = [names for due_ms, names in self._waiting if due_ms <= now_ms]
            self._waiting = [entry for entry in self._waiting if entry[0] > now_ms]
            for names in due:
                for name in names:
                    self._directory.remove(name)
        return len(due)
