"""Flushes of flush.messages: in a thread, many produces in one.

Kafka flushes within the append. Here the records count once they are flushed: only then are they
sent to followers and committed, and is a produce with acks=1 answered.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from node.partition.hosted import HostedPartition
from node.runtime.clock import Clock
from node.runtime.tasks import OnFatal, cancel_all, spawn
from tidemark.errors import FatalError, StorageError

logger = logging.getLogger(__name__)

_RETRY_S = 1.0


class LogFlushes:
    """Flushes of one broker's logs after appends as leader; one at a time for each log."""

    def __init__(self, pool: Executor | None, clock: Clock, on_fatal: OnFatal) -> None:
        """Without a `pool` a flush is over when `begin` returns."""
        self._pool = pool
        self._clock = clock
        self._on_fatal = on_fatal
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, hosted: HostedPartition) -> None:
        """Has the log flushed if that is due. Raises FatalError and StorageError without a pool."""
        if hosted.is_flushing or not hosted.is_flush_due:
            return
        if self._pool is None:
            hosted.log.flush()
            return
        hosted.begin_flush()
        task = spawn(
            f"flush {hosted.topic_partition}", self._flush(hosted, self._pool), self._on_fatal
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush(self, hosted: HostedPartition, pool: Executor) -> None:
        loop = asyncio.get_running_loop()
        while hosted.is_flush_due and hosted.is_leader and not hosted.is_gone:
            end, since = hosted.log.log_end_offset, hosted.core.leading_since_epoch
            try:
                await loop.run_in_executor(pool, hosted.log.flush)
            except FatalError:
                hosted.flush_failed()
                raise
            except (StorageError, OSError) as error:
                logger.error("flush of %s failed: %s", hosted.topic_partition, error)
                hosted.flush_failed()
                await asyncio.sleep(_RETRY_S)
                continue
            if hosted.is_leader and hosted.core.leading_since_epoch == since:
                hosted.flushed(end, self._clock.mono_ms())
        hosted.end_flush(self._clock.mono_ms())

    async def stop(self) -> None:
        """Waits for the threads; to be called when nothing is appended any more."""
        await cancel_all(*self._tasks)
        if self._pool is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
