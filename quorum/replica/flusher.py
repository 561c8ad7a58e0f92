"""Group commit: however many records are appended while an fsync runs, the next fsync covers them
all.

An idle log is synced at once. A busy one (records were waiting already when the last fsync ended)
waits a moment for company: as long as its last fsync took, and controller.quorum.append.linger.ms
at most. So a fast disk is never idle for long while somebody waits, and a slow one (whose fsyncs
are dear) shares each among twice as many; a single writer, which waits for each commit, is not
held up by more than the disk itself does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from quorum.replica.metadata_log import ReplicatedLog


class Flusher:
    """At most one fsync of the log at a time, on the executor; reports the durable end offset."""

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
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Everything in the log now is to be durable soon."""
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
                if self._wanted:
                    await asyncio.sleep(min(self._linger_s, took_s))
        except Exception as error:  # handed on: the process must stop
            self._on_failure(error)
        finally:
            self._task = None

    async def idle(self) -> None:
        """Returns when no fsync is running: before the log is cut or begun anew."""
        while self._task is not None:
            await asyncio.wait({self._task})
