"""The deletion of one remote segment: DELETE_SEGMENT_STARTED, the files, DELETE_SEGMENT_FINISHED.

Each step may be repeated: a deletion that stopped half way is found by its state and repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tidemark.config import ServerConfig
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.metadata.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tiering.metrics import RemoteMetrics
from tiering.store.manager import RemoteStorageManager


class SegmentDeleter:
    """Deletions of segments, in a bounded pool of their own."""

    def __init__(
        self,
        config: ServerConfig,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        metrics: RemoteMetrics,
        now_ms: Callable[[], int],
        forget: Callable[[RemoteLogSegmentMetadata], None],
    ) -> None:
        self._broker_id = config.node_id
        self._storage = storage
        self._metadata = metadata
        self._metrics = metrics
        self._now_ms = now_ms
        self._forget = forget
        self._pool = ThreadPoolExecutor(
            config.remote_log_manager_expiration_thread_pool_size, "remote-log-expiration"
        )

    def close(self) -> None:
        """Drops deletions that have not begun; those under way continue on their own."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def delete(self, segment: RemoteLogSegmentMetadata) -> None:
        """Deletes the segment in any state. Raises the errors of storage and metadata."""
        self._metrics.remote_delete_requests += 1
        try:
            await self._record(segment, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
            await asyncio.get_running_loop().run_in_executor(
                self._pool, self._storage.delete_log_segment_data, segment
            )
            await self._record(segment, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
        except Exception:
            self._metrics.remote_delete_errors += 1
            raise
        self._forget(segment)

    async def _record(
        self, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
    ) -> None:
        update = segment.update(state, self._now_ms(), self._broker_id)
        await self._metadata.update_remote_log_segment_metadata(update)
