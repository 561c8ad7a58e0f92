"""The waits of a producer's partition queues, so that a step costs what moved. Pure.

A queue is looked at after a change: a batch was closed, encoded, answered or lost. What it waits
for then decides where it is found again: a time (`Timers`), room at its leader (`ReadyQueues`), or
nothing but another change.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from tidemark.client.batch import Batch, State
from tidemark.types import TopicPartition


class Queue(Protocol):
    """The batches of one partition, oldest first."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def head(self) -> Batch | None:
        """The oldest batch."""
        ...


class Timers:
    """Times in ms at which the head of a queue is due; one that is no head any more counts not."""

    def __init__(self, is_waiting: Callable[[Batch], bool]) -> None:
        self._is_waiting = is_waiting
        self._heap: list[tuple[float, int, Queue, Batch]] = []
        self._tie = itertools.count()

    def add(self, at_ms: float, queue: Queue, head: Batch) -> None:
        heapq.heappush(self._heap, (at_ms, next(self._tie), queue, head))

    def due(self, now_ms: float) -> Iterator[Queue]:
        """Takes the queues that are due."""
        while (at_ms := self.first_ms()) is not None and at_ms <= now_ms:
            yield heapq.heappop(self._heap)[2]

    def has(self, queue: Queue) -> bool:
        """Whether the head of the queue has a time."""
        return any(batch is queue.head for _, _, _, batch in self._heap)

    def first_ms(self) -> float | None:
        """The time of the next one."""
        while self._heap:
            at_ms, _, queue, batch = self._heap[0]
            if queue.head is batch and self._is_waiting(batch):
                return at_ms
            heapq.heappop(self._heap)
        return None


class ReadyQueues:
    """Queues whose head can be sent, by leader; those that wait longest come first. Beside them
    those without a leader, whose head may not be encoded yet.
    """

    def __init__(self) -> None:
        self._by_leader: dict[int, OrderedDict[TopicPartition, Queue]] = {}
        self._leaderless: dict[TopicPartition, Queue] = {}

    def add(self, queue: Queue, leader: int | None) -> None:
        """Adds a queue, if it is not there."""
        if leader is None:
            self._leaderless[queue.topic_partition] = queue
        else:
            found = self._by_leader.setdefault(leader, OrderedDict())
            found.setdefault(queue.topic_partition, queue)

    def leaders(self) -> list[int]:
        """The leaders of queues that wait."""
        return [leader for leader, queues in self._by_leader.items() if queues]

    def take(self, leader: int) -> Queue | None:
        """Takes the queue that waits longest for a leader."""
        queues = self._by_leader.get(leader)
        return queues.popitem(last=False)[1] if queues else None

    def put_back(self, queue: Queue, leader: int) -> None:
        """Undoes `take`."""
        queues = self._by_leader[leader]
        queues[queue.topic_partition] = queue
        queues.move_to_end(queue.topic_partition, last=False)

    def take_leaderless(self) -> list[Queue]:
        """Takes the queues that had no leader."""
        found, self._leaderless = self._leaderless, {}
        return list(found.values())

    def take_all(self) -> list[Queue]:
        """Takes all queues."""
        found = self.take_leaderless()
        for queues in self._by_leader.values():
            found += queues.values()
            queues.clear()
        return found

    def leaderless(self) -> list[TopicPartition]:
        """Partitions with a batch that is not under way, and no leader."""
        waiting = self._leaderless.items()
        return [key for key, q in waiting if q.head is not None and q.head.state < State.IN_FLIGHT]

    def has(self, queue: Queue) -> bool:
        """Whether the queue waits here."""
        key = queue.topic_partition
        return key in self._leaderless or any(key in found for found in self._by_leader.values())


def is_ready(head: Batch | None) -> bool:
    """Whether a batch is encoded, stamped and not under way."""
    return head is not None and head.state is State.READY and head.stamp is not None
