"""Periodic flushes of a node: logs with rolled segments, and logs whose flush.ms is over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from commitlog.disk.log_directory import LogDirectoryOfflineError
from commitlog.log.log import Log
from commitlog.manager.changes import Changes

_NEVER_MS = 2**63 - 1


class FlushPasses:
    """Flushes logs that changed. After an error the remaining logs come with the next pass."""

    def __init__(self, changes: Changes) -> None:
        self._rolled = changes.reader()
        self._unflushed = changes.reader()

    def flush_rolled(self, is_open: Callable[[Log], bool]) -> None:
        """Flushes everything below the active segments."""
        waiting = self._rolled.take()
        try:
            for log in tuple(waiting):
                if is_open(log):
                    with suppress(LogDirectoryOfflineError):  # continue with the others
                        log.flush(log.active_segment.base_offset)
                waiting.discard(log)
        finally:
            self._rolled.put_back(waiting)

    def flush_due(self, now_ms: int, is_open: Callable[[Log], bool]) -> None:
        """Flushes the logs whose flush.ms is over; keeps the others for the next pass."""
        waiting = self._unflushed.take()
        try:
            for log in tuple(waiting):
                flush_ms = log.config.flush_ms
                is_durable = log.recovery_point >= log.log_end_offset
                if is_durable or flush_ms >= _NEVER_MS or not is_open(log):
                    waiting.discard(log)
                elif now_ms - log.durability.last_flush_ms >= flush_ms:
                    with suppress(LogDirectoryOfflineError):  # continue with the others
                        log.flush()
                        log.durability.last_flush_ms = now_ms
                    waiting.discard(log)
        finally:
            self._unflushed.put_back(waiting)
