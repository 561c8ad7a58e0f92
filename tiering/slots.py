"""Slots that keys share (pure): one key whose work hangs never holds all of them.

A key takes another slot while it holds fewer than are free. So a key that is alone gets half, and
each further one half of the rest. The others always find a slot, until many keys hang at once.
What gets no slot waits in turns of keys, oldest first within a key.

Source: dynamic thresholds of shared buffers (Choudhury and Hahne, 1998).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class FairSlots(Generic[K, T]):
    """`free` slots are shared by keys K, for which items T wait."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._held: dict[K, int] = {}
        self._waiting: OrderedDict[K, deque[T]] = OrderedDict()
        self.waiting = 0

    def take(self, key: K) -> bool:
        """Takes a slot, if the key has a share left and nothing of it waits; returns whether."""
        if key in self._waiting or not self._may_take(key):
            return False
        self._take(key)
        return True

    def wait(self, key: K, item: T) -> None:
        """Queues an item, for `next` to return."""
        self._waiting.setdefault(key, deque()).append(item)
        self.waiting += 1

    def waiting_of(self, key: K) -> int:
        """Returns how many items of a key wait."""
        return len(self._waiting.get(key, ()))

    def next(self) -> tuple[K, T] | None:
        """Takes a slot for the item whose turn it is; None if there is none with a share left."""
        for key in self._waiting:
            if self._may_take(key):
                items = self._waiting.pop(key)
                item = items.popleft()
                if items:
                    self._waiting[key] = items  # behind the others
                self.waiting -= 1
                self._take(key)
                return key, item
        return None

    def release(self, key: K) -> None:
        """Frees a slot of the key."""
        self._free += 1
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]

    def longest(self) -> K:
        """Returns the key with most items that wait; at least one does."""
        return max(self._waiting, key=self.waiting_of)

    def drop_newest(self, key: K) -> T:
        """Removes the newest item of a key that waits."""
        items = self._waiting[key]
        item = items.pop()
        if not items:
            del self._waiting[key]
        self.waiting -= 1
        return item

    def drop_all(self) -> list[T]:
        """Removes all items that wait."""
        items = [item for waiting in self._waiting.values() for item in waiting]
        self._waiting.clear()
        self.waiting = 0
        return items

    def _may_take(self, key: K) -> bool:
        return self._held.get(key, 0) < self._free

    def _take(self, key: K) -> None:
        self._free -= 1
        self._held[key] = self._held.get(key, 0) + 1
