"""Retries replicas whose logs could not be made because the disk is full.

Nothing of them is damaged, so they are not reported as lost: they are made when there is space.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from commitlog.disk.files import DISK_FULL
from node.runtime.tasks import OnFatal, cancel_all, spawn
from tidemark.types import TopicIdPartition

logger = logging.getLogger(__name__)

_PAUSE_S = 5.0
_REMINDER_S = 60.0


def is_full(error: Exception) -> bool:
    """Whether an error tells of a full disk."""
    return getattr(error, "errno", None) in DISK_FULL


class ReplicasWithoutSpace:
    """Replicas that wait for space; belongs to the event loop."""

    def __init__(
        self, retry: Callable[[TopicIdPartition], Awaitable[bool]], on_fatal: OnFatal
    ) -> None:
        """`retry` makes a replica again; it returns false if the disk is still full."""
        self._retry = retry
        self._on_fatal = on_fatal
        self._waiting: set[TopicIdPartition] = set()
        self._task: asyncio.Task[None] | None = None

    def __contains__(self, identity: TopicIdPartition) -> bool:
        return identity in self._waiting

    def add(self, identity: TopicIdPartition) -> None:
        """Retries the replica from now on."""
        self._waiting.add(identity)
        if self._task is None or self._task.done():
            self._task = spawn("wait for space", self._run(), self._on_fatal)

    async def _run(self) -> None:
        untold_s = _REMINDER_S
        while self._waiting:
            if untold_s >= _REMINDER_S:
                untold_s = 0.0
                logger.error("%d replicas wait for space: the disk is full", len(self._waiting))
            await asyncio.sleep(_PAUSE_S)
            untold_s += _PAUSE_S
            for identity in sorted(self._waiting):
                if not await self._retry(identity):
                    break  # nor is there space for the others
                self._waiting.discard(identity)

    async def stop(self) -> None:
        """Ends the retries."""
        await cancel_all(self._task)
