"""The hand-over of polls: loads what was fetched, then moves the positions in one step.

A poll first checks and decodes, which may wait and can be given up at any point: the batches stay
where they are. What it returns is taken in one synchronous step, `Handed.deliver`. So a poll that
is cancelled or fails delivers nothing and moves no position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from tidemark.client.consuming.assignment import Taken
from tidemark.client.consuming.damage import Examined, examine
from tidemark.client.consuming.fetcher import Fetcher
from tidemark.client.consuming.partition import AssignedPartition, Fetched
from tidemark.client.errors import ClientClosedError
from tidemark.client.records import RawBatches, Records, kernels_loaded
from tidemark.types import TopicPartition

T = TypeVar("T")

# Below this size, decoding on the loop costs less than a hop to a thread.
_INLINE_BYTES = 64 << 10
_LOOK_AGAIN_S = 1.0  # of a poll that has something to do before it reads


@dataclass(frozen=True, slots=True)
class Handed(Generic[T]):
    """The result of a poll, of which nothing is delivered yet."""

    result: T
    taken: list[Taken]
    fetcher: Fetcher

    def deliver(self) -> T:
        """Moves the positions past the result, and returns it. On the event loop, without waiting.

        A partition that was sought since keeps the position sought.
        """
        meter = self.fetcher.core.meter
        for one in self.taken:
            meter.consumed(*_amount(one))
        self.fetcher.core.assignment.handed_over(self.taken)
        self.fetcher.schedule()
        return self.result


def _amount(taken: Taken) -> tuple[int, int]:
    """Records and bytes of what the reader gets. Bytes count with the last records of an answer,
    and raw batches have as many records as offsets.
    """
    item = taken.item
    rows, raw = item.rows, item.raw
    of_item = raw.next_offset - raw.first_offset if rows is None else rows.num_rows
    if taken.rows is None or taken.rows >= of_item:
        return of_item, len(raw.buffer)
    return taken.rows, 0


class PollReader:
    """Polls, for the asyncio and the blocking consumer."""

    def __init__(
        self, fetcher: Fetcher, before: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`before` is awaited before a poll looks at records, each time that it does."""
        self._before = before
        self._fetcher = fetcher
        self._assignment = fetcher.core.assignment
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    def close(self) -> None:
        """Ends polls that wait."""
        self._is_closed = True

    async def records(self, timeout_ms: float, max_records: int) -> Handed[Records]:
        async def load() -> None:
            left = max_records
            for partition, items in self._assignment.waiting():
                for item in items:
                    if left <= 0:
                        return
                    if item.is_held:  # unless a seek dropped it meanwhile
                        await self._load(partition, item, decodes=True)
                        left -= item.rows.num_rows if item.rows is not None else 0

        def gather() -> tuple[list[tuple[TopicPartition, Any]], list[Taken]]:
            found: list[tuple[TopicPartition, Any]] = []
            taken: list[Taken] = []
            left = max_records
            for partition, items in self._assignment.waiting():
                for item in items:
                    if item.rows is None or (left <= 0 and not item.is_empty):
                        break
                    rows = item.rows.slice(0, left)
                    taken.append(Taken(partition, item, rows.num_rows))
                    if rows.num_rows:
                        found.append((partition.topic_partition, rows))
                        left -= rows.num_rows
            return found, taken

        handed = await self._poll(timeout_ms, load, gather)
        return Handed(Records(handed.result), handed.taken, self._fetcher)

    async def arrow(self, timeout_ms: float) -> Handed[dict[TopicPartition, Any]]:
        async def load() -> None:
            first = [
                (partition, item)
                for partition, items in self._assignment.waiting()
                for item in [each for each in items if not each.is_empty][:1]
            ]
            await asyncio.gather(
                *(self._load(partition, item, decodes=True) for partition, item in first)
            )

        def gather() -> tuple[dict[TopicPartition, Any], list[Taken]]:
            found: dict[TopicPartition, Any] = {}
            taken: list[Taken] = []
            for partition, items in self._assignment.waiting():
                for item in items:
                    if item.rows is None:
                        break
                    taken.append(Taken(partition, item))
                    if not item.is_empty:
                        found[partition.topic_partition] = item.rows
                        break
            return found, taken

        return await self._poll(timeout_ms, load, gather)

    async def raw(self, timeout_ms: float) -> Handed[list[RawBatches]]:
        async def load() -> None:
            for partition, items in self._assignment.waiting():
                for item in items:
                    if item.is_held:  # unless a seek dropped it meanwhile
                        await self._load(partition, item, decodes=False)

        def gather() -> tuple[list[RawBatches], list[Taken]]:
            found: list[RawBatches] = []
            taken: list[Taken] = []
            for partition, items in self._assignment.waiting():
                assert partition.reader is not None, "there is a position before batches"
                begin = partition.reader.offset  # a poll may have taken the first records
                for item in items:
                    if not item.is_checked:
                        break
                    taken.append(Taken(partition, item))
                    if not item.is_empty:
                        found.append(replace(item.raw, first_offset=begin))
                    begin = item.raw.next_offset
            return found, taken

        return await self._poll(timeout_ms, load, gather)

    async def _poll(
        self,
        timeout_ms: float,
        load: Callable[[], Awaitable[None]],
        gather: Callable[[], tuple[T, list[Taken]]],
    ) -> Handed[T]:
        deadline = self._loop.time() + timeout_ms / 1000
        self.raise_if_closed()
        if self._before is not None:
            await self._before()
        self._raise_error()
        while True:
            seen = self._assignment.version
            await load()
            self.raise_if_closed()
            found, taken = gather()
            if found:
                return Handed(found, taken, self._fetcher)
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                await asyncio.sleep(0)  # a caller that polls with no timeout lets the fetches run
                self._raise_error(got_nothing=True)
                return Handed(found, taken, self._fetcher)
            self._raise_error()
            if self._before is None:
                await self._fetcher.news(seen, left_s)
            else:
                await self._fetcher.news(seen, min(left_s, _LOOK_AGAIN_S))
                self.raise_if_closed()
                await self._before()

    def raise_if_closed(self) -> None:
        """Raises ClientClosedError once the consumer is closed."""
        if self._is_closed:
            raise ClientClosedError("the consumer is closed")

    def _raise_error(self, *, got_nothing: bool = False) -> None:
        error = self._assignment.error_due(self._fetcher.now_ms(), got_nothing=got_nothing)
        if error is not None:
            self._fetcher.schedule()
            raise error

    async def _load(self, partition: AssignedPartition, item: Fetched, *, decodes: bool) -> None:
        """Checks batches, and decodes them if asked to, unless that was done."""
        if item.rows is not None or (item.is_checked and not decodes):
            return
        self._assignment.begin(partition, item)
        self._fetcher.schedule()  # the next fetch overlaps
        check_crcs = self._fetcher.core.settings.check_crcs and not item.is_checked
        work = partial(examine, item.raw, decodes=decodes, check_crcs=check_crcs)
        outcome: Examined
        if len(item.raw.buffer) <= _INLINE_BYTES and (kernels_loaded() or not decodes):
            outcome = work()
        else:
            outcome = await self._loop.run_in_executor(None, work)
        if outcome.error is None:
            self._assignment.examined(partition, item, outcome.rows)
        else:
            self._assignment.damaged(partition, item, outcome.sound, outcome.error)
