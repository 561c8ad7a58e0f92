"""The uploads of a node. Each is known by its segment id until its thread ends, whatever happens to
the partition meanwhile.

A segment's deletion waits for its upload. Nobody can finish an upload whose partition left the
node, so its thread removes what it put.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from contextlib import suppress
from uuid import UUID

from tiering.errors import plugin_errors_typed
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.store.manager import RemoteStorageManager
from tiering.tasks.partition import SegmentFiles
from tiering.threads import DaemonPool

logger = logging.getLogger(__name__)

_FAILED_MAX = 10_000


class Uploads:
    """All uploads under way on this node, in a bounded pool; used on one event loop."""

    def __init__(self, storage: RemoteStorageManager, threads_max: int) -> None:
        self._storage = storage
        self._threads_max = threads_max
        self._pool = DaemonPool(threads_max, "remote-log-copier")
        self._running: dict[UUID, asyncio.Future[bytes | None]] = {}
        self._failed: OrderedDict[UUID, None] = OrderedDict()

    def __contains__(self, segment: UUID) -> bool:
        return segment in self._running

    @property
    def idle(self) -> float:
        """Share of the threads without an upload."""
        return max(0, self._threads_max - len(self._running)) / self._threads_max

    def expect_segments(self) -> None:
        """Says that the tier has segments: one that looks empty is not begun anew."""
        self._storage.expect_segments()

    async def upload(self, metadata: RemoteLogSegmentMetadata, files: SegmentFiles) -> bytes | None:
        """Uploads a segment; raises the errors of the store. If the caller is cancelled, the upload
        is given up.
        """
        await self.ended(metadata.id)
        upload = _Upload(self._storage, metadata, files)
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, upload.run)
        self._running[metadata.id] = future
        future.add_done_callback(lambda _: self._running.pop(metadata.id))
        try:
            return await asyncio.shield(future)
        except Exception:
            self._failed[metadata.id] = None
            while len(self._failed) > _FAILED_MAX:
                self._failed.popitem(last=False)
            raise
        except asyncio.CancelledError:
            if upload.give_up():
                with suppress(RuntimeError):  # the node stops
                    loop.run_in_executor(self._pool, upload.remove)
            raise

    def had_failed(self, segment: UUID) -> bool:
        """Whether a try failed here, so that its request may reach the store later."""
        return segment in self._failed

    async def ended(self, segment: UUID) -> None:
        """Waits until no upload of the segment is under way."""
        while (future := self._running.get(segment)) is not None:
            await asyncio.wait([future])

    def close(self) -> None:
        """Drops uploads that have not begun; those under way continue on their own."""
        self._pool.shutdown()


class _Upload:
    """An upload, in a thread of the pool. It may be given up before and after its end."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogSegmentMetadata,
        files: SegmentFiles,
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._files = files
        self._lock = threading.Lock()
        self._ended = False
        self._given_up = False

    def run(self) -> bytes | None:
        """Uploads the segment, and removes it if nobody wants it any more."""
        try:
            if self._given_up:
                return None
            with plugin_errors_typed(), self._files.open() as data:
                return self._storage.copy_log_segment_data(self._metadata, data)
        finally:
            with self._lock:
                self._ended = True
            if self._given_up:
                self.remove()

    def give_up(self) -> bool:
        """Marks the upload as unwanted; returns whether it has ended, so that its thread does not
        remove it.
        """
        with self._lock:
            self._given_up = True
            return self._ended

    def remove(self) -> None:
        """Deletes the objects. If the store refuses, a later leader does it: the metadata has the
        copy as begun.
        """
        segment = self._metadata.remote_log_segment_id
        try:
            self._storage.delete_log_segment_data(self._metadata)
            logger.info("removed the upload of %s, which nobody waits for", segment)
        except Exception as error:  # a plug-in may raise anything, and nobody waits for it
            logger.warning("the upload of %s, which nobody waits for, stays: %s", segment, error)
