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

ChunkKey = tuple[int, int]
"""A segment's id as a number, whose hash costs no Python call, and the number of the chunk."""


class _Chunk:
    """A chunk in memory, and the order of eviction it is in. `used_at` are the bytes loaded until
    then.
    """

    __slots__ = ("content", "order", "used_at")

    def __init__(self, content: bytes, order: OrderedDict[ChunkKey, _Chunk], used_at: int) -> None:
        self.content = content
        self.order = order
        self.used_at = used_at


class ChunkCache:
    """Chunks by (segment id, number); used on one event loop."""

    def __init__(self, capacity_bytes: int, metrics: RemoteMetrics) -> None:
        self._capacity_bytes = capacity_bytes
        self._metrics = metrics
        self._chunks: dict[ChunkKey, _Chunk] = {}
        self._ahead: OrderedDict[ChunkKey, _Chunk] = OrderedDict()
        self._entered: OrderedDict[ChunkKey, _Chunk] = OrderedDict()
        self._passed: OrderedDict[ChunkKey, _Chunk] = OrderedDict()
        self._loading: dict[ChunkKey, asyncio.Task[dict[ChunkKey, bytes]]] = {}
        self._ahead_bytes = 0
        self._loaded_bytes = 0
        self.loads = 0
        """Number of loads under way."""
        self.size_bytes = 0

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._chunks or key in self._loading

    def room_ahead(self, chunk_bytes: int, share: float = 1.0) -> int:
        """Returns how many more chunks may be read ahead, which leaves half of the room to readers.
        Within a `share` of that alone: what is read far ahead leaves the rest to what is near.
        """
        used = self._ahead_bytes + len(self._loading) * chunk_bytes
        return max(0, int(share * self._capacity_bytes / 2) - used) // chunk_bytes

    def peek(self, key: ChunkKey) -> bytes | None:
        """Returns the chunk if it is in memory."""
        found = self._chunks.get(key)
        if found is None:
            return None
        self._metrics.chunk_cache_hits += 1
        found.order.move_to_end(key)
        found.used_at = self._loaded_bytes
        return found.content

    async def get(self, key: ChunkKey, load: Callable[[], Awaitable[Sequence[bytes]]]) -> bytes:
        """Returns the chunk, loading it by `load` if need be; raises its errors."""
        found = self.peek(key)
        if found is not None:
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
        self.loads += 1

    def passed(self, key: ChunkKey, whole: bool = True) -> None:
        """Notes that a reader has read the chunk to its end; not `whole`: from its middle on."""
        chunk = self._chunks.get(key)
        if chunk is None or chunk.order is self._passed:
            return
        if chunk.order is self._ahead:
            self._ahead_bytes -= len(chunk.content)
            chunk.used_at = self._loaded_bytes
        elif not whole:
            return
        self._move(key, chunk, self._passed if whole else self._entered)

    def drop(self, segment: UUID) -> None:
        """Drops the chunks of a segment that was deleted, or proved corrupt."""
        for key in [key for key in self._chunks if key[0] == segment.int]:
            self.passed(key)
            self._remove(key)

    async def close(self) -> None:
        """Cancels the loads under way and drops all chunks."""
        tasks = set(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for key in list(self._chunks):
            self.passed(key)
            self._remove(key)

    async def _load(
        self, keys: Sequence[ChunkKey], load: Callable[[], Awaitable[Sequence[bytes]]]
    ) -> dict[ChunkKey, bytes]:
        try:
            chunks = await load()
        finally:
            self.loads -= 1
            for key in keys:
                del self._loading[key]
        found = dict(zip(keys, chunks, strict=True))
        for key, content in found.items():
            self._loaded_bytes += len(content)
            self._ahead_bytes += len(content)
            self.size_bytes += len(content)
            chunk = _Chunk(content, self._ahead, self._loaded_bytes)
            self._ahead[key] = self._chunks[key] = chunk
        self._evict()
        return found

    def _move(self, key: ChunkKey, chunk: _Chunk, order: OrderedDict[ChunkKey, _Chunk]) -> None:
        del chunk.order[key]
        chunk.order = order
        order[key] = chunk

    def _remove(self, key: ChunkKey) -> None:
        self.size_bytes -= len(self._chunks.pop(key).content)
        del self._passed[key]

    def _evict(self) -> None:
        left = self._loaded_bytes - 2 * self._capacity_bytes
        for chunks in (self._ahead, self._entered):
            while chunks and chunks[next(iter(chunks))].used_at < left:
                self.passed(next(iter(chunks)))
        while self.size_bytes > self._capacity_bytes and len(self._chunks) > 1:
            if not self._passed:
                self.passed(next(iter(self._entered or self._ahead)))
            self._remove(next(iter(self._passed)))


def retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieves the error of a load without readers, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
