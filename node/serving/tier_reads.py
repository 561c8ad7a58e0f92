"""Reads from the tier for fetches: concurrent, bounded in time, and never lost half done.

A read from an object store may take longer than a fetch may wait. Then the answer is empty, and the
read continues: the repeated fetch finds its outcome here. At most 64 reads are kept; beyond that
the oldest is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from commitlog.log.log import Log
from node.partition.hosted import HostedPartition
from tidemark.errors import ApiError, KafkaStorageError, TidemarkError
from tidemark.types import TopicIdPartition

logger = logging.getLogger(__name__)

_KEPT_READS = 64

Key = tuple[TopicIdPartition, int, int]
Outcome = bytes | ApiError | None


class TierReader(Protocol):
    """The call of the remote log manager that is used here."""

    async def read(
        self, partition: TopicIdPartition, log: Log, offset: int, max_bytes: int
    ) -> bytes: ...


class TierReads:
    """`reader` is None on a node without a tier."""

    def __init__(self, reader: TierReader | None, max_wait_ms: int, give_up_ms: int) -> None:
        self._reader = reader
        self._max_wait_ms = max_wait_ms
        self._give_up_ms = give_up_ms
        self._reads: OrderedDict[Key, asyncio.Task[bytes]] = OrderedDict()

    @property
    def enabled(self) -> bool:
        return self._reader is not None

    async def read_many(
        self, wanted: Sequence[tuple[HostedPartition, int, int]], has_other_data: bool
    ) -> list[Outcome]:
        """Returns per (partition, offset, max_bytes) the bytes, an error, or None if it is not
        finished.

        Waits for all reads, at most `remote.fetch.max.wait.ms`. Without other data it then waits
        for the first outcome, at most a request timeout.
        """
        tasks = [self._task(hosted, offset, max_bytes) for hosted, offset, max_bytes in wanted]
        await asyncio.wait(tasks, timeout=self._max_wait_ms / 1000)
        if not has_other_data and not any(task.done() for task in tasks):
            await asyncio.wait(
                tasks, timeout=self._give_up_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
        return [
            self._outcome((hosted.core.identity, offset, max_bytes), task)
            for (hosted, offset, max_bytes), task in zip(wanted, tasks, strict=True)
        ]

    def _task(self, hosted: HostedPartition, offset: int, max_bytes: int) -> asyncio.Task[bytes]:
        assert self._reader is not None, "asked for remote data on a node without a tier"
        key = (hosted.core.identity, offset, max_bytes)
        found = self._reads.get(key)
        if found is None:
            while len(self._reads) >= _KEPT_READS:
                _, oldest = self._reads.popitem(last=False)
                oldest.cancel()
            read = self._reader.read(hosted.core.identity, hosted.log, offset, max_bytes)
            found = asyncio.ensure_future(read)
            found.add_done_callback(_look_at)
            self._reads[key] = found
        return found

    def _outcome(self, key: Key, task: asyncio.Task[bytes]) -> Outcome:
        if not task.done():
            return None
        self._reads.pop(key, None)
        if task.cancelled():
            return None
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, ApiError):
            return error
        if isinstance(error, TidemarkError | OSError):
            return KafkaStorageError(f"remote read of {key[0].topic_partition}: {error}")
        raise error

    async def close(self) -> None:
        """Cancels the reads in progress."""
        reads, self._reads = list(self._reads.values()), OrderedDict()
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)


def _look_at(task: asyncio.Task[bytes]) -> None:
    """Retrieves the outcome, so that asyncio does not report one that no fetch came back for."""
    if not task.cancelled() and task.exception() is not None:
        logger.debug("remote read failed: %s", task.exception())
