"""Group commit: one fsync covers all records appended during the previous one.

An idle log is synced at once. A log is busy if records were waiting when the last fsync ended. It
first waits for more of them: as long as the last fsync took, at most
controller.quorum.append.linger.ms. So a fast disk is rarely idle while records wait, and a slow
disk shares each costly fsync among twice as many. A single writer that waits for each commit is
delayed only by the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from quorum.replica.metadata_log import ReplicatedLog

BOUNDS_INTERVAL_S = 5.0
"""Shortest time between two writes of the log's bounds, in seconds: a busy log pays for it once
among thousands of flushes."""


class Flusher:
    """Runs at most one fsync at a time, on the executor, and reports the durable end offset."""

    def __init__(
        self,
        log: ReplicatedLog,
        executor: Executor,
        linger_ms: int,
        on_flushed: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._executor = executor
        self._linger_s = linger_ms / 1000
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._wanted = False
        self._bounds_due_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Requests that everything in the log now becomes durable soon."""
        self._wanted = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="raft-flush")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._wanted:
                self._wanted = False
                started_s = loop.time()
                end_offset, pending = self._log.prepare_flush()
                if pending is not None:
                    await loop.run_in_executor(self._executor, pending.run)
                    self._log.complete_flush(pending)
                took_s = loop.time() - started_s
                self._on_flushed(end_offset)
                if started_s >= self._bounds_due_s:
                    self._bounds_due_s = started_s + BOUNDS_INTERVAL_S
                    await loop.run_in_executor(self._executor, self._log.bounds.save)
                if self._wanted:
                    await asyncio.sleep(min(self._linger_s, took_s))
        except Exception as error:  # reported: the process must stop
            self._on_failure(error)
        finally:
            self._task = None

    async def idle(self) -> None:
        """Waits until no fsync runs; needed before the log is truncated or restarted."""
        while self._task is not None:
            await asyncio.wait({self._task})
