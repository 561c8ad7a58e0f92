"""Reads from the tier for fetches: concurrent, bounded, and never lost half done.

A read belongs to the node, not to its fetch. `take` begins it and returns at once; a fetch that
waits is woken when it is finished. A fetch that is answered or cancelled before leaves the read
going, and the repeated fetch takes its outcome.

At most 64 reads run, of one partition at most its share (`tiering.slots`): one whose store hangs
leaves slots to the others. Beyond that reads wait, and partitions take turns. A read does not begin
above the quota (KIP-956), nor if no fetch asked for it within a request timeout. An outcome that no
fetch took within it is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from commitlog.log.log import Log
from commitlog.types import AbortedTransaction
from node.partition.hosted import HostedPartition, Wakeable
from tidemark.errors import (
    ApiError,
    KafkaStorageError,
    ReplicaNotAvailableError,
    ThrottlingQuotaExceededError,
    TidemarkError,
)
from tidemark.records.extent import extent_of
from tidemark.types import OrderedSet, TopicIdPartition
from tiering.errors import NoTierError
from tiering.slots import FairSlots

logger = logging.getLogger(__name__)

_RUNNING_MAX = 64
_WAITING_MAX = 1024
_KEPT_BYTES_MAX = 64 << 20


class TierRecords(NamedTuple):
    """Batches of the tier, the offset behind them, and for read_committed the aborted transactions
    with records among them, as (producer id, first offset)."""

    records: memoryview
    next_offset: int
    aborted: tuple[tuple[int, int], ...] = ()


class TierReader(Protocol):
    """The calls of the remote log manager that are used here."""

    def fetch_throttle_s(self) -> float: ...

    async def read(
        self, partition: TopicIdPartition, log: Log, offset: int, max_bytes: int
    ) -> memoryview: ...

    async def aborted_transactions(
        self, partition: TopicIdPartition, log: Log, start_offset: int, end_offset: int
    ) -> Sequence[AbortedTransaction]: ...


class _Key(NamedTuple):
    """Identity of a read. Another leader epoch may have another lineage, so other records."""

    partition: TopicIdPartition
    offset: int
    read_committed: bool
    leader_epoch: int


@dataclass(slots=True, eq=False)
class TierRead:
    """A read that waits, runs, or is finished."""

    key: _Key
    log: Log
    max_bytes: int
    asked_at: float
    task: asyncio.Task[None] | None = None
    outcome: TierRecords | ApiError | None = None
    waiters: OrderedSet[Wakeable] = field(default_factory=OrderedSet)

    @property
    def size_bytes(self) -> int:
        return len(self.outcome.records) if isinstance(self.outcome, TierRecords) else 0

    def within(self, room: int, min_one: bool) -> TierRecords | None:
        """Returns the records that fit into `room`; with `min_one` at least those read. Raises the
        error of the read; None if it is not finished or has no room.
        """
        outcome = self.outcome
        if isinstance(outcome, ApiError):
            raise outcome
        if outcome is None or min_one or len(outcome.records) <= room:
            return outcome
        extent = extent_of(outcome.records, max_bytes=room) if room > 0 else None
        if extent is None or not extent.size_bytes:
            return None
        return TierRecords(
            outcome.records[: extent.size_bytes], extent.next_offset, outcome.aborted
        )


class TierReads:
    """`reader` is None on a node without a tier. A fetch waits for the tier `max_wait_ms` at most;
    reads and outcomes that nobody asks for are kept `give_up_ms`.
    """

    def __init__(self, reader: TierReader | None, max_wait_ms: int, give_up_ms: int) -> None:
        self._reader = reader
        self.max_wait_ms = max_wait_ms
        self._give_up_s = give_up_ms / 1000
        self._reads: dict[_Key, TierRead] = {}
        self._slots: FairSlots[TopicIdPartition, TierRead] = FairSlots(_RUNNING_MAX)
        self._finished: OrderedDict[_Key, TierRead] = OrderedDict()
        self._kept_bytes = 0
        self.waiting_max = _WAITING_MAX

    def take(
        self, hosted: HostedPartition, offset: int, max_bytes: int, read_committed: bool
    ) -> TierRead | None:
        """Returns the read from `offset` on, which begins now if there is none. `done` ends it.
        None: it does not begin, because the quota of reads is exceeded.

        Raises ThrottlingQuotaExceededError if too many wait, NoTierError on a node without a tier:
        the offset is not out of range.
        """
        if self._reader is None:
            raise NoTierError(f"offset {offset} of {hosted.topic_partition}")
        core = hosted.core
        key = _Key(core.identity, offset, read_committed, core.leader_epoch)
        found = self._reads.get(key)
        now = asyncio.get_running_loop().time()
        old = now - self._give_up_s
        if found is not None and found.outcome is not None and found.asked_at < old:
            self.done(found)  # its error may have passed long ago
            found = None
        if found is None:
            if self._reader.fetch_throttle_s() > 0:
                return None
            found = TierRead(key, hosted.log, max_bytes, now)
            if self._slots.take(key.partition):
                self._begin(found)
            else:
                self._make_room(key.partition)
                self._slots.wait(key.partition, found)
            self._reads[key] = found
        found.asked_at = now
        return found

    def done(self, read: TierRead) -> None:
        """Forgets a read whose outcome a fetch has taken."""
        if self._finished.pop(read.key, None) is not None:
            self._kept_bytes -= read.size_bytes
        self._reads.pop(read.key, None)

    async def close(self) -> None:
        """Cancels the reads in progress."""
        tasks = [read.task for read in self._reads.values() if read.task is not None]
        self._slots.drop_all()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._reads.clear()
        self._finished.clear()
        self._kept_bytes = 0

    def _make_room(self, partition: TopicIdPartition) -> None:
        """Makes room in the queue: the newest read of the partition with most has to leave."""
        if self._slots.waiting < self.waiting_max:
            return
        longest = self._slots.longest()
        if self._slots.waiting_of(longest) <= self._slots.waiting_of(partition) + 1:
            raise ThrottlingQuotaExceededError(
                f"{self.waiting_max} reads wait for the remote storage; try again"
            )
        self._drop(self._slots.drop_newest(longest))

    def _drop(self, read: TierRead) -> None:
        self._reads.pop(read.key, None)
        _wake(read)

    def _begin(self, read: TierRead) -> None:
        read.task = asyncio.ensure_future(self._run(read))

    async def _run(self, read: TierRead) -> None:
        try:
            read.outcome = await self._outcome(read)
        finally:
            self._slots.release(read.key.partition)
            read.task = None
            self._keep(read)
            self._begin_next()
        _wake(read)

    def _keep(self, read: TierRead) -> None:
        """Keeps an outcome, and drops the oldest ones over the limits."""
        self._finished[read.key] = read
        self._kept_bytes += read.size_bytes
        old = asyncio.get_running_loop().time() - self._give_up_s
        while True:
            oldest = next(iter(self._finished.values()))
            full = self._kept_bytes > _KEPT_BYTES_MAX and oldest is not read
            if not full and oldest.asked_at >= old:
                return
            self.done(oldest)
            if not self._finished:
                return

    def _begin_next(self) -> None:
        old = asyncio.get_running_loop().time() - self._give_up_s
        while (found := self._slots.next()) is not None:
            partition, read = found
            if read.asked_at < old and not read.waiters:
                self._slots.release(partition)
                self._drop(read)
            else:
                self._begin(read)

    async def _outcome(self, read: TierRead) -> TierRecords | ApiError:
        partition, offset, *_ = read.key
        what = f"remote read of {partition.topic_partition} at {offset}"
        try:
            return await self._read(read)
        except ApiError as error:
            logger.debug("%s: %s", what, error)
            return error
        except (TidemarkError, OSError) as error:
            logger.warning("%s: %s", what, error)
            return KafkaStorageError(f"{what}: {error}")
        except Exception as error:
            logger.exception("%s failed", what)
            return ReplicaNotAvailableError(f"{what}: {error!r}; try again")

    async def _read(self, read: TierRead) -> TierRecords:
        assert self._reader is not None, "asked for remote data on a node without a tier"
        partition, offset, read_committed, _ = read.key
        records = await self._reader.read(partition, read.log, offset, read.max_bytes)
        end = extent_of(records).next_offset
        if not read_committed:
            return TierRecords(records, end)
        found = await self._reader.aborted_transactions(partition, read.log, offset, end)
        return TierRecords(records, end, named(found))


def named(aborted: Sequence[AbortedTransaction]) -> tuple[tuple[int, int], ...]:
    """Aborted transactions as an answer names them: (producer id, first offset)."""
    return tuple((one.producer_id, one.first_offset) for one in aborted)


def _wake(read: TierRead) -> None:
    for waiter in read.waiters:
        if not waiter.done():
            waiter.set_result(None)
    read.waiters.clear()
