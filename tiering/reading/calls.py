"""Blocking calls of the store for reads, in daemon threads of which each partition has a share.

A call that hangs holds its thread, whatever became of its caller. So calls of one partition whose
store hangs leave threads to the others (`tiering.reading.places`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from tidemark.types import TopicIdPartition
from tiering.reading.places import FairPlaces
from tiering.threads import DaemonPool

T = TypeVar("T")


class StorageCalls:
    """The calls of one node's reads; used on one event loop."""

    def __init__(self, threads: int) -> None:
        self._pool = DaemonPool(threads, "remote-log-reader")
        self._threads = FairPlaces(threads)

    def close(self) -> None:
        """Cancels the calls that wait; those under way end by themselves."""
        self._threads.close()
        self._pool.shutdown()

    async def run(self, call: Callable[[], T], partition: TopicIdPartition | None = None) -> T:
        """Runs a call in a thread of the partition's share; None is a share of its own."""
        await self._threads.take(partition)
        try:
            job = asyncio.get_running_loop().run_in_executor(self._pool, call)
        except RuntimeError:  # closed
            self._threads.free(partition)
            raise
        job.add_done_callback(lambda job: self._ended(partition, job))
        return await asyncio.shield(job)

    def _ended(self, partition: TopicIdPartition | None, job: asyncio.Future[Any]) -> None:
        if not job.cancelled():
            job.exception()  # its caller may have left
        self._threads.free(partition)
