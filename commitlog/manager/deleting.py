"""Removes the files of deleted logs and segments after file.delete.delay.ms."""

from __future__ import annotations

from contextlib import suppress

from commitlog.disk.log_directory import LogDirectory, LogDirectoryOfflineError
from commitlog.manager.registry import LogRegistry


class DeletedLogs:
    """Renamed directories that wait for removal, and logs with deleted segments."""

    def __init__(self, registry: LogRegistry) -> None:
        self._registry = registry
        self._changed = registry.changes.reader()
        self._waiting: list[tuple[int, LogDirectory, str]] = []

    def add(self, due_ms: int, directory: LogDirectory, name: str) -> None:
        """Schedules the removal of the tree `name` in `directory` at `due_ms`."""
        self._waiting.append((due_ms, directory, name))

    def purge(self, now_ms: int) -> int:
        """Removes everything that is due; returns the number of removed logs and segments."""
        due = [entry for entry in self._waiting if entry[0] <= now_ms]
        purged = 0
        for entry in due:
            self._waiting.remove(entry)
            with suppress(LogDirectoryOfflineError):  # continue with the others
                entry[1].remove_tree(entry[2])
                purged += 1
        changed = self._changed.take()
        try:
            for log in tuple(changed):
                with suppress(LogDirectoryOfflineError):  # continue with the others
                    purged += log.deleted_files.purge(now_ms)
                if not log.deleted_files or not self._registry.is_open(log):
                    changed.discard(log)
        finally:
            self._changed.put_back(changed)
        return purged
