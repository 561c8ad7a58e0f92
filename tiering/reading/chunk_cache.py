"""Chunks of remote segments in memory, bounded in bytes, each loaded once.

A load belongs to the cache, not to its first reader. If that reader is cancelled or times out, the
load continues, and the next reader finds the chunks. Failed loads are not kept.

Chunks that a reader has passed are evicted first, then those it entered in their middle, then those
used longest ago. So what is read ahead, and what a reader is in the middle of, stays until it is
read. A chunk entered in its middle is the end of another reader's part, where many share a
partition; it is not counted as read ahead. A chunk that nobody read while twice the capacity was
loaded counts as passed: its reader has left.

Memory: the capacity, and the loads under way, which are a request for each thread of the pool at
most. Readers of parts of one partition fetch each byte once while half of the capacity has a chunk
for each. By default that is 128 MiB, and 128 readers with chunks of 512 KiB.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from tiering.metrics import RemoteMetrics

ChunkKey = tuple[UUID, int]


class ChunkCache:
    """Chunks by (segment id, number); used on one event loop."""

    def __init__(self, capacity_bytes: int, metrics: RemoteMetrics) -> None:
        self._capacity_bytes = capacity_bytes
        self._metrics = metrics
        self._ahead: OrderedDict[ChunkKey, bytes] = OrderedDict()
        self._entered: OrderedDict[ChunkKey, bytes] = OrderedDict()
        self._passed: OrderedDict[ChunkKey, bytes] = OrderedDict()
        self._used_at: dict[ChunkKey, int] = {}  # of those not passed: bytes loaded until then
        self._loading: dict[ChunkKey, asyncio.Task[dict[ChunkKey, bytes]]] = {}
        self._ahead_bytes = 0
        self._loaded_bytes = 0
        self.size_bytes = 0

    def __contains__(self, key: ChunkKey) -> bool:
        kept = (self._ahead, self._entered, self._passed, self._loading)
        return any(key in chunks for chunks in kept)

    @property
    def loads(self) -> int:
        """Number of loads under way."""
        return len(set(self._loading.values()))

    def may_read_ahead(self, chunk_bytes: int, chunks: int) -> bool:
        """Reports whether chunks that are read ahead leave half of the room to readers."""
        loading = len(self._loading) * chunk_bytes
        return self._ahead_bytes + loading + chunk_bytes * chunks <= self._capacity_bytes // 2

    async def get(self, key: ChunkKey, load: Callable[[], Awaitable[Sequence[bytes]]]) -> bytes:
        """Returns the chunk, loading it by `load` if need be; raises its errors."""
        for chunks in (self._ahead, self._entered, self._passed):
            found = chunks.get(key)
            if found is not None:
                self._metrics.chunk_cache_hits += 1
                chunks.move_to_end(key)
                if key in self._used_at:
                    self._used_at[key] = self._loaded_bytes
                return found
        if key not in self._loading:
            self._metrics.chunk_cache_misses += 1
            self.start([key], load)
        return (await asyncio.shield(self._loading[key]))[key]

    def start(
        self, keys: Sequence[ChunkKey], load: Callable[[], Awaitable[Sequence[bytes]]]
    ) -> None:
        """Starts one load of chunks, none of which is here."""
        task = asyncio.ensure_future(self._load(keys, load))
        task.add_done_callback(retrieve)
        self._loading |= dict.fromkeys(keys, task)

    def passed(self, key: ChunkKey, whole: bool = True) -> None:
        """Notes that a reader has read the chunk to its end; not `whole`: from its middle on."""
        chunk = self._ahead.pop(key, None)
        if chunk is not None:
            self._ahead_bytes -= len(chunk)
            self._entered[key] = chunk
            self._used_at[key] = self._loaded_bytes
        if whole and key in self._entered:
            del self._used_at[key]
            self._passed[key] = self._entered.pop(key)

    def drop(self, segment: UUID) -> None:
        """Drops the chunks of a segment that was deleted, or proved corrupt."""
        for key in [key for key in (*self._used_at, *self._passed) if key[0] == segment]:
            self.passed(key)
            self.size_bytes -= len(self._passed.pop(key))

    async def close(self) -> None:
        """Cancels the loads under way and drops all chunks."""
        tasks = set(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for key in list(self._used_at):
            self.passed(key)
        self._passed.clear()
        self.size_bytes = 0

    async def _load(
        self, keys: Sequence[ChunkKey], load: Callable[[], Awaitable[Sequence[bytes]]]
    ) -> dict[ChunkKey, bytes]:
        try:
            chunks = await load()
        finally:
            for key in keys:
                del self._loading[key]
        found = dict(zip(keys, chunks, strict=True))
        for key, chunk in found.items():
            self._loaded_bytes += len(chunk)
            self._ahead[key] = chunk
            self._used_at[key] = self._loaded_bytes
            self._ahead_bytes += len(chunk)
            self.size_bytes += len(chunk)
        self._evict()
        return found

    def _evict(self) -> None:
        left = self._loaded_bytes - 2 * self._capacity_bytes
        for chunks in (self._ahead, self._entered):
            while chunks and self._used_at[next(iter(chunks))] < left:
                self.passed(next(iter(chunks)))
        while self.size_bytes > self._capacity_bytes and len(self._used_at) + len(self._passed) > 1:
            if not self._passed:
                self.passed(next(iter(self._entered or self._ahead)))
            self.size_bytes -= len(self._passed.popitem(last=False)[1])


def retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieves the error of a load without readers, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
