"""Chunks of remote segments in memory: least recently used, bounded in bytes, each loaded once.

A load belongs to the cache, not to its first reader. If that reader is cancelled or times out, the
load continues, and the next reader finds the chunk. Failed loads are not kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from tiering.metrics import RemoteMetrics

ChunkKey = tuple[UUID, int]


class ChunkCache:
    """Chunks by (segment id, number); used on one event loop."""

    def __init__(self, capacity_bytes: int, metrics: RemoteMetrics) -> None:
        self._capacity_bytes = capacity_bytes
        self._metrics = metrics
        self._chunks: OrderedDict[ChunkKey, bytes] = OrderedDict()
        self._loading: dict[ChunkKey, asyncio.Task[bytes]] = {}
        self.size_bytes = 0

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._chunks or key in self._loading

    @property
    def loading(self) -> int:
        """Number of loads under way."""
        return len(self._loading)

    async def get(self, key: ChunkKey, load: Callable[[], Awaitable[bytes]]) -> bytes:
        """Returns the chunk, loading it by `load` if need be; raises its errors."""
        found = self._chunks.get(key)
        if found is not None:
            self._metrics.chunk_cache_hits += 1
            self._chunks.move_to_end(key)
            return found
        self._metrics.chunk_cache_misses += key not in self._loading
        return await asyncio.shield(self.start(key, load))

    def start(self, key: ChunkKey, load: Callable[[], Awaitable[bytes]]) -> asyncio.Task[bytes]:
        """Starts a load, or returns the one under way."""
        task = self._loading.get(key)
        if task is None:
            task = asyncio.ensure_future(self._load(key, load))
            task.add_done_callback(retrieve)
            self._loading[key] = task
        return task

    def drop(self, segment: UUID) -> None:
        """Drops the chunks of a segment that was deleted, or proved corrupt."""
        for key in [key for key in self._chunks if key[0] == segment]:
            self.size_bytes -= len(self._chunks.pop(key))

    async def close(self) -> None:
        """Cancels the loads under way and drops all chunks."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._chunks.clear()
        self.size_bytes = 0

    async def _load(self, key: ChunkKey, load: Callable[[], Awaitable[bytes]]) -> bytes:
        try:
            chunk = await load()
        finally:
            del self._loading[key]
        self._chunks[key] = chunk
        self.size_bytes += len(chunk)
        while self.size_bytes > self._capacity_bytes and len(self._chunks) > 1:
            self.size_bytes -= len(self._chunks.popitem(last=False)[1])
        return chunk


def retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieves the error of a load without readers, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
