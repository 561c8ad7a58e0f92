"""Makes new logs durable in a thread, many at a time, before their replicas take a role.

A log is made on the event loop and synced here: its files, the directory of all logs, and the
checkpoint that names it. Until then the partition has no leader and no follower on this node, so
requests for it are retried. No record is taken by a log that a crash could make unknown. Logs that
were deleted meanwhile are synced with the same calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor

from commitlog.manager.manager import LogManager
from node.runtime.tasks import OnFatal, cancel_all, spawn
from tidemark.errors import StorageError
from tidemark.types import OrderedSet, TopicPartition

_SLICE = 16  # replicas that take their roles in one turn of the loop


class NewLogs:
    """Partitions whose logs are not durable yet; belongs to the event loop."""

    def __init__(
        self,
        logs: LogManager,
        opened: Callable[[Sequence[TopicPartition], Mapping[TopicPartition, StorageError]], None],
        pool: Executor | None,
        on_fatal: OnFatal,
    ) -> None:
        """Calls `opened` with some partitions at a time, once their logs are durable, and with the
        errors of those that are not. Without a `pool` that is before `save` returns.
        """
        self._logs = logs
        self._opened = opened
        self._pool = pool
        self._on_fatal = on_fatal
        self._waiting: OrderedSet[TopicPartition] = OrderedSet()
        self._task: asyncio.Task[None] | None = None

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._waiting

    def add(self, topic_partition: TopicPartition) -> None:
        """Reports the partition to `opened` after the next `save`."""
        self._waiting.add(topic_partition)

    def save(self) -> None:
        """Makes durable which logs were made, deleted or set aside."""
        if self._pool is not None:
            if self._task is None or self._task.done():
                self._task = spawn("save new logs", self._run(self._pool), self._on_fatal)
            return
        while (work := self._logs.unsaved()) is not None:
            names = tuple(self._waiting)
            self._finish(names, work())

    async def _run(self, pool: Executor) -> None:
        loop = asyncio.get_running_loop()
        while (work := self._logs.unsaved()) is not None:
            names = tuple(self._waiting)
            failed = await loop.run_in_executor(pool, work)
            for first in range(0, len(names), _SLICE):
                self._finish(names[first : first + _SLICE], failed)
                await asyncio.sleep(0)

    def _finish(
        self, names: Sequence[TopicPartition], failed: Mapping[TopicPartition, StorageError]
    ) -> None:
        for name in names:
            self._waiting.discard(name)
        self._opened(names, failed)

    async def stop(self) -> None:
        """Leaves the partitions that wait without a role; waits for the thread."""
        await cancel_all(self._task)
        if self._pool is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
