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
from typing import NamedTuple, Protocol

from commitlog.log.log import Log
from commitlog.types import AbortedTransaction
from node.partition.hosted import HostedPartition
from tidemark.errors import ApiError, KafkaStorageError, TidemarkError
from tidemark.records.extent import extent_of
from tidemark.types import TopicIdPartition

logger = logging.getLogger(__name__)

_KEPT_READS = 64

Key = tuple[TopicIdPartition, int, int, bool]


class TierRecords(NamedTuple):
    """Batches of the tier, the offset behind them, and for read_committed the aborted transactions
    with records among them, as (producer id, first offset)."""

    records: bytes
    next_offset: int
    aborted: tuple[tuple[int, int], ...] = ()


Outcome = TierRecords | ApiError | None


class TierReader(Protocol):
    """The calls of the remote log manager that are used here."""

    async def read(
        self, partition: TopicIdPartition, log: Log, offset: int, max_bytes: int
    ) -> bytes: ...

    async def aborted_transactions(
        self, partition: TopicIdPartition, log: Log, start_offset: int, end_offset: int
    ) -> Sequence[AbortedTransaction]: ...


class TierReads:
    """`reader` is None on a node without a tier."""

    def __init__(self, reader: TierReader | None, max_wait_ms: int, give_up_ms: int) -> None:
        self._reader = reader
        self._max_wait_ms = max_wait_ms
        self._give_up_ms = give_up_ms
        self._reads: OrderedDict[Key, asyncio.Task[TierRecords]] = OrderedDict()

    @property
    def enabled(self) -> bool:
        return self._reader is not None

    async def read_many(
        self,
        wanted: Sequence[tuple[HostedPartition, int, int]],
        has_other_data: bool,
        read_committed: bool = False,
    ) -> list[Outcome]:
        """Returns per (partition, offset, max_bytes) the records, an error, or None if it is not
        finished.

        Waits for all reads, at most `remote.fetch.max.wait.ms`. Without other data it then waits
        for the first outcome, at most a request timeout.
        """
        keys = [(hosted.core.identity, at, size, read_committed) for hosted, at, size in wanted]
        tasks = [
            self._task(key, hosted.log) for key, (hosted, *_) in zip(keys, wanted, strict=True)
        ]
        await asyncio.wait(tasks, timeout=self._max_wait_ms / 1000)
        if not has_other_data and not any(task.done() for task in tasks):
            await asyncio.wait(
                tasks, timeout=self._give_up_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
        return [self._outcome(key, task) for key, task in zip(keys, tasks, strict=True)]

    def _task(self, key: Key, log: Log) -> asyncio.Task[TierRecords]:
        found = self._reads.get(key)
        if found is None:
            while len(self._reads) >= _KEPT_READS:
                _, oldest = self._reads.popitem(last=False)
                oldest.cancel()
            found = asyncio.ensure_future(self._read(key, log))
            found.add_done_callback(_look_at)
            self._reads[key] = found
        return found

    async def _read(self, key: Key, log: Log) -> TierRecords:
        assert self._reader is not None, "asked for remote data on a node without a tier"
        partition, offset, max_bytes, read_committed = key
        records = await self._reader.read(partition, log, offset, max_bytes)
        end = extent_of(records).next_offset
        if not read_committed:
            return TierRecords(records, end)
        found = await self._reader.aborted_transactions(partition, log, offset, end)
        return TierRecords(records, end, named(found))

    def _outcome(self, key: Key, task: asyncio.Task[TierRecords]) -> Outcome:
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


def named(aborted: Sequence[AbortedTransaction]) -> tuple[tuple[int, int], ...]:
    """Aborted transactions as an answer names them: (producer id, first offset)."""
    return tuple((one.producer_id, one.first_offset) for one in aborted)


def _look_at(task: asyncio.Task[TierRecords]) -> None:
    """Retrieves the outcome, so that asyncio does not report one that no fetch came back for."""
    if not task.cancelled() and task.exception() is not None:
        logger.debug("remote read failed: %s", task.exception())
