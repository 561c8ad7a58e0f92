"""Requests under way: at most one per peer and purpose, each with a deadline, and a pause after a
failure.

A response is matched by its correlation id; one that is no longer expected (timed out, answered
twice, from before a change of epoch) finds nothing here and is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorum.raft.config import FOREVER_MS
from quorum.raft.messages import Request

BOOTSTRAP_ID_FIRST = -2
"""Node id of the first bootstrap server whose real id is not known; the next is -3, and so on."""
MEMBERSHIP_ID = -1
"""Node id of requests to the leader about the own membership: they go beside its fetches."""


@dataclass(slots=True, frozen=True)
class Pending:
    correlation_id: int
    node_id: int
    request: Request
    epoch: int
    deadline_ms: int


class RequestManager:
    """Correlation ids, requests under way by peer, and backoff by peer."""

    def __init__(self, retry_backoff_ms: int) -> None:
        self._retry_backoff_ms = retry_backoff_ms
        self._next_id = 0
        self._pending: dict[int, Pending] = {}  # by node id
        self._backoff_until_ms: dict[int, int] = {}

    def register(
        self, node_id: int, request: Request, epoch: int, now_ms: int, timeout_ms: int
    ) -> int:
        """Notes a request that is about to be sent; gives its correlation id."""
        self._next_id += 1
        deadline_ms = now_ms + timeout_ms
        self._pending[node_id] = Pending(self._next_id, node_id, request, epoch, deadline_ms)
        return self._next_id

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        """Nothing under way to the peer, and no pause."""
        return (
            node_id not in self._pending and self._backoff_until_ms.get(node_id, now_ms) <= now_ms
        )

    def is_backing_off(self, node_id: int, now_ms: int) -> bool:
        return self._backoff_until_ms.get(node_id, now_ms) > now_ms

    def ready_at_ms(self, node_id: int) -> int:
        """When a request may go to the peer; never while one is under way (its deadline counts
        then).
        """
        if node_id in self._pending:
            return FOREVER_MS
        return self._backoff_until_ms.get(node_id, 0)

    def complete(self, correlation_id: int) -> Pending | None:
        """Takes the request of a response; None when it is not expected any more."""
        for node_id, pending in self._pending.items():
            if pending.correlation_id == correlation_id:
                del self._pending[node_id]
                return pending
        return None

    def back_off(self, node_id: int, now_ms: int, pause_ms: int | None = None) -> None:
        pause = self._retry_backoff_ms if pause_ms is None else pause_ms
        self._backoff_until_ms[node_id] = now_ms + pause

    def expire(self, now_ms: int) -> None:
        """Gives up requests whose time is over."""
        for node_id in [n for n, p in self._pending.items() if p.deadline_ms <= now_ms]:
            del self._pending[node_id]
            self.back_off(node_id, now_ms)

    def pending_request(self, correlation_id: int) -> Request | None:
        """The request of a correlation id that is still under way."""
        for pending in self._pending.values():
            if pending.correlation_id == correlation_id:
                return pending.request
        return None

    def has_pending(self) -> bool:
        """Something but a request about the own membership."""
        return any(node_id != MEMBERSHIP_ID for node_id in self._pending)

    def next_deadline_ms(self) -> int:
        """When the first request under way runs out of time."""
        return min((p.deadline_ms for p in self._pending.values()), default=FOREVER_MS)

    def reset(self) -> None:
        """Forgets everything: a new epoch or role expects none of the old answers."""
        self._pending.clear()
        self._backoff_until_ms.clear()
