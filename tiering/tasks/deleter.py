"""The deletion of one remote segment: DELETE_SEGMENT_STARTED, the objects, DELETE_SEGMENT_FINISHED.

Each step may be repeated: a deletion that stopped half way is found by its state and repeated. A
deletion waits for an upload of the segment that is under way on this node. A request of an upload
that timed out may reach the store later than the deletion. So the objects of a copy that was never
finished, or that another try finished on this node, are deleted once more after `LATE_WRITE_MS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from tidemark.config import ServerConfig
from tidemark.errors import TidemarkError
from tidemark.surroundings import surroundings
from tiering.errors import plugin_errors_typed
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.metadata.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tiering.metrics import RemoteMetrics
from tiering.store.manager import RemoteStorageManager
from tiering.tasks.uploads import Uploads
from tiering.threads import DaemonPool

T = TypeVar("T")

logger = logging.getLogger(__name__)

LATE_WRITE_MS = 900_000
"""Time within which a request that timed out reaches the store, if it ever does."""
_LATE_MAX = 10_000


class SegmentDeleter:
    """Deletions of segments, in a bounded pool of their own."""

    def __init__(
        self,
        config: ServerConfig,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        uploads: Uploads,
        metrics: RemoteMetrics,
        now_ms: Callable[[], int],
        forget: Callable[[RemoteLogSegmentMetadata], Callable[[], None]],
        mono_ms: Callable[[], int] | None = None,
    ) -> None:
        self._broker_id = config.node_id
        self._storage = storage
        self._metadata = metadata
        self._uploads = uploads
        self._metrics = metrics
        self._now_ms = now_ms
        self._mono_ms = mono_ms or surroundings().mono_ms
        self._forget = forget
        self._pool = DaemonPool(
            config.remote_log_manager_expiration_thread_pool_size, "remote-log-expiration"
        )
        self._late: deque[tuple[int, RemoteLogSegmentMetadata]] = deque(maxlen=_LATE_MAX)
        self._sweeping: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Drops deletions that have not begun; those under way continue on their own."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._pool.shutdown()

    async def run(self, call: Callable[[], T]) -> T:
        """Runs another blocking call that a deletion waits for, in a thread of the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def delete(self, segment: RemoteLogSegmentMetadata) -> None:
        """Deletes the segment in any state, and what is cached of it. Raises the errors of storage
        and metadata.
        """
        topic = segment.topic_id_partition.topic
        self._metrics.count("remote_delete_requests", topic)
        try:
            await self._record(segment, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
            await self.delete_objects(segment)
            await self._record(segment, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
        except Exception:
            self._metrics.count("remote_delete_errors", topic)
            raise
        forget_on_disk = self._forget(segment)
        await asyncio.get_running_loop().run_in_executor(self._pool, forget_on_disk)

    async def delete_objects(self, segment: RemoteLogSegmentMetadata) -> None:
        """Deletes the objects alone, when no upload puts them any more."""
        await self._uploads.ended(segment.id)
        await self._delete_now(segment)
        if segment.custom_metadata is None or self._uploads.had_failed(segment.id):
            self._late.append((self._mono_ms() + LATE_WRITE_MS, segment))
            if self._sweeping is None or self._sweeping.done():
                self._sweeping = asyncio.ensure_future(self._sweep())

    async def delete_late_writes(self) -> None:
        """Deletes again the objects of the unfinished copies whose time has come."""
        while self._late and self._late[0][0] <= self._mono_ms():
            _, segment = self._late.popleft()
            try:
                await self._delete_now(segment)
            except (TidemarkError, OSError) as error:
                self._late.append((self._mono_ms() + LATE_WRITE_MS, segment))
                logger.warning("late objects of %s: %s", segment.remote_log_segment_id, error)

    async def _sweep(self) -> None:
        while self._late:
            await asyncio.sleep(max(0, self._late[0][0] - self._mono_ms()) / 1000)
            await self.delete_late_writes()

    async def _delete_now(self, segment: RemoteLogSegmentMetadata) -> None:
        def delete() -> None:
            with plugin_errors_typed():
                self._storage.delete_log_segment_data(segment)

        await asyncio.get_running_loop().run_in_executor(self._pool, delete)

    async def _record(
        self, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
    ) -> None:
        update = segment.update(state, self._now_ms(), self._broker_id)
        await self._metadata.update_remote_log_segment_metadata(update)
