"""KeyedDeadlines by key, of which most are moved before they are due."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeyedDeadlines(Generic[K]):
    """A time in ms for each key. To move one to a later time costs O(1)."""

    def __init__(self) -> None:
        self._at: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: K, at_ms: int) -> None:
        """Sets the deadline of a key, in place of an earlier or later one."""
        before = self._at.get(key)
        self._at[key] = at_ms
        if before is None or at_ms < before:
            self._push(at_ms, key)

    def clear(self, key: K) -> None:
        """Forgets a key, if it is there."""
        self._at.pop(key, None)
        if not self._at:
            self._heap.clear()

    def next_ms(self) -> int | None:
        """The earliest deadline; None without any."""
        heap = self._heap
        while heap:
            at_ms, _, key = heap[0]
            known = self._at.get(key)
            if known == at_ms:
                return at_ms
            heapq.heappop(heap)
            if known is not None and known > at_ms:
                self._push(known, key)
        return None

    def take_due(self, now_ms: int) -> K | None:
        """Removes and returns a key whose time has come; None if there is none."""
        next_ms = self.next_ms()
        if next_ms is None or next_ms > now_ms:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._at[key]
        return key

    def _push(self, at_ms: int, key: K) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_ms, self._count, key))


def earliest_ms(*deadlines: KeyedDeadlines[Any]) -> int | None:
    """The earliest deadline of all; None without any."""
    times = (found.next_ms() for found in deadlines)
    return min((at_ms for at_ms in times if at_ms is not None), default=None)
