"""Work on the tier that failed at its last try, by task and partition.

A failure counts until a try of the same task succeeds, or this node has the task no more.
`tidemark cluster health` tells those that fail again and again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import NamedTuple

from tidemark.surroundings import surroundings
from tidemark.types import TopicIdPartition

COPY, DELETE, HISTORY, REMOVE = "copy", "delete", "history", "remove"
_ERROR_CHARS_MAX = 500


class TaskFailure(NamedTuple):
    """Failures in a row of one task."""

    task: str
    partition: TopicIdPartition
    failures: int
    since_ms: int
    """Wall-clock time of the first of them."""
    error: str


class FailedTasks:
    """Those of one node: at most one for each task of a partition."""

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self._now_ms = now_ms or surroundings().wall_ms
        self._failed: dict[tuple[str, TopicIdPartition], TaskFailure] = {}

    def fail(self, task: str, partition: TopicIdPartition, error: Exception) -> None:
        """Counts a failure."""
        key, text = (task, partition), (str(error) or repr(error))[:_ERROR_CHARS_MAX]
        known = self._failed.get(key)
        failures, since_ms = (
            (0, self._now_ms()) if known is None else (known.failures, known.since_ms)
        )
        self._failed[key] = TaskFailure(task, partition, failures + 1, since_ms, text)

    def succeed(self, task: str, partition: TopicIdPartition) -> None:
        """Forgets the failures of a task."""
        self._failed.pop((task, partition), None)

    def forget(self, partition: TopicIdPartition) -> None:
        """Forgets the failures of a partition whose role is another one here from now on."""
        for task in (COPY, DELETE, HISTORY):
            self.succeed(task, partition)

    def keep(self, task: str, partitions: Collection[TopicIdPartition]) -> None:
        """Forgets the failures of a task of all other partitions."""
        for key in [k for k in self._failed if k[0] == task and k[1] not in partitions]:
            del self._failed[key]

    def worst(self, count: int) -> list[TaskFailure]:
        """Those that failed most often."""
        return heapq.nlargest(count, self._failed.values(), key=lambda one: one.failures)
