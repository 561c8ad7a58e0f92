"""Blocking calls of the store for reads, in daemon threads of which each partition has a share.

A call that hangs holds its thread, whatever became of its caller. So calls of one partition whose
store hangs leave threads to the others (`tiering.slots`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from tidemark.types import TopicIdPartition
from tiering.slots import FairSlots
from tiering.threads import DaemonPool

T = TypeVar("T")


class StorageCalls:
    """The calls of one node's reads; used on one event loop."""

    def __init__(self, threads: int) -> None:
        self._pool = DaemonPool(threads, "remote-log-reader")
        self._slots: FairSlots[TopicIdPartition | None, asyncio.Future[None]] = FairSlots(threads)

    def close(self) -> None:
        """Cancels the calls that wait; those under way end by themselves."""
        for turn in self._slots.drop_all():
            turn.cancel()
        self._pool.shutdown()

    async def run(self, call: Callable[[], T], partition: TopicIdPartition | None = None) -> T:
        """Runs a call in a thread of the partition's share; None is a share of its own."""
        loop = asyncio.get_running_loop()
        if not self._slots.take(partition):
            await self._turn(partition)
        try:
            job = loop.run_in_executor(self._pool, call)
        except RuntimeError:  # closed
            self._free(partition)
            raise
        job.add_done_callback(lambda job: self._ended(partition, job))
        return await asyncio.shield(job)

    async def _turn(self, partition: TopicIdPartition | None) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slots.wait(partition, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the slot came at the same moment
                self._free(partition)
            raise

    def _ended(self, partition: TopicIdPartition | None, job: asyncio.Future[Any]) -> None:
        if not job.cancelled():
            job.exception()  # its caller may have left
        self._free(partition)

    def _free(self, partition: TopicIdPartition | None) -> None:
        self._slots.release(partition)
        while (found := self._slots.next()) is not None:
            key, turn = found
            if turn.done():
                self._slots.release(key)
            else:
                turn.set_result(None)
