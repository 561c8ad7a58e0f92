"""Runs pieces of work in order, urgent ones first, several per turn of the event loop.

Records appended to the log within one turn form one batch. A turn therefore runs several pieces as
long as they are small, then yields to the event loop.

Heartbeats go ahead of everything else: a controller that is busy creating topics must not fence its
cluster meanwhile. The queue is bounded; when it is full, the caller gets a retriable error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tidemark.errors import ThrottlingQuotaExceededError

Work = Callable[[], int]
"""Runs once and returns the number of records it wrote."""

WORK_PER_TURN_MAX = 32
RECORDS_PER_TURN = 100
"""After this many records the rest waits for the next turn."""


class EventQueue:
    """Runs work on the event loop in the order it is added, urgent before normal.

    Work must not raise.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._urgent: deque[Work] = deque()
        self._normal: deque[Work] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._urgent) + len(self._normal)

    def add(self, work: Work, *, urgent: bool = False) -> None:
        """Adds work; raises ThrottlingQuotaExceededError if the queue is full."""
        chosen = self._urgent if urgent else self._normal
        if len(chosen) >= self._limit:
            raise ThrottlingQuotaExceededError(
                f"{len(chosen)} requests wait for the controller: send it again later"
            )
        chosen.append(work)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run_some)

    def _run_some(self) -> None:
        self._scheduled = False
        written = 0
        for _ in range(min(len(self), WORK_PER_TURN_MAX)):
            written += (self._urgent or self._normal).popleft()()
            if written >= RECORDS_PER_TURN:
                break
        if len(self):
            self._schedule()
