"""Requests in flight: at most one per peer and purpose, each with a deadline, and a backoff after a
failure.

A response is matched by its correlation id. A response that is no longer expected (timed out,
duplicated, from before a change of epoch) matches nothing and is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorum.raft.config import FOREVER_MS
from quorum.raft.messages import Request

BOOTSTRAP_ID_FIRST = -2
"""Node id of the first bootstrap server whose real id is not known; the next is -3, and so on."""
MEMBERSHIP_ID = -1
"""Node id of membership requests to the leader: they are in flight beside fetches."""


@dataclass(slots=True, frozen=True)
class Pending:
    correlation_id: int
    node_id: int
    request: Request
    epoch: int
    deadline_ms: int


class RequestManager:
    """Correlation ids, and for each peer the request in flight and the backoff."""

    def __init__(self, retry_backoff_ms: int) -> None:
        self._retry_backoff_ms = retry_backoff_ms
        self._next_id = 0
        self._pending: dict[int, Pending] = {}  # by node id
        self._backoff_until_ms: dict[int, int] = {}

    def register(
        self, node_id: int, request: Request, epoch: int, now_ms: int, timeout_ms: int
    ) -> int:
        """Registers a request about to be sent, and returns its correlation id."""
        self._next_id += 1
        deadline_ms = now_ms + timeout_ms
        self._pending[node_id] = Pending(self._next_id, node_id, request, epoch, deadline_ms)
        return self._next_id

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        """True if the peer has no request in flight and no backoff."""
        return (
            node_id not in self._pending and self._backoff_until_ms.get(node_id, now_ms) <= now_ms
        )

    def is_backing_off(self, node_id: int, now_ms: int) -> bool:
        return self._backoff_until_ms.get(node_id, now_ms) > now_ms

    def ready_at_ms(self, node_id: int) -> int:
        """When the peer may get a request. FOREVER_MS while one is in flight: its own deadline
        counts then.
        """
        if node_id in self._pending:
            return FOREVER_MS
        return self._backoff_until_ms.get(node_id, 0)

    def complete(self, correlation_id: int) -> Pending | None:
        """Removes and returns the request of a response; None if the response is not expected."""
        for node_id, pending in self._pending.items():
            if pending.correlation_id == correlation_id:
                del self._pending[node_id]
                return pending
        return None

    def back_off(self, node_id: int, now_ms: int, pause_ms: int | None = None) -> None:
        pause = self._retry_backoff_ms if pause_ms is None else pause_ms
        self._backoff_until_ms[node_id] = now_ms + pause

    def expire(self, now_ms: int) -> None:
        """Drops requests past their deadline, and backs off their peers."""
        for node_id in [n for n, p in self._pending.items() if p.deadline_ms <= now_ms]:
            del self._pending[node_id]
            self.back_off(node_id, now_ms)

    def pending_request(self, correlation_id: int) -> Request | None:
        """The request with this correlation id, if it is in flight."""
        for pending in self._pending.values():
            if pending.correlation_id == correlation_id:
                return pending.request
        return None

    def has_pending(self) -> bool:
        """True if any request but a membership request is in flight."""
        return any(node_id != MEMBERSHIP_ID for node_id in self._pending)

    def next_deadline_ms(self) -> int:
        """The earliest deadline of the requests in flight."""
        return min((p.deadline_ms for p in self._pending.values()), default=FOREVER_MS)

    def reset(self) -> None:
        """Drops all requests and backoffs: a new epoch or role expects no earlier response."""
        self._pending.clear()
        self._backoff_until_ms.clear()
