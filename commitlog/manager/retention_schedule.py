"""Schedule of the logs for retention: those that changed, and those whose oldest segment expires.

No other log can be due, so a pass is as cheap with many logs as with few.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from commitlog.log.log import Log
from commitlog.log.retention import next_due_ms
from commitlog.manager.changes import ChangeReader
from tidemark.types import TopicPartition


class RetentionSchedule:
    """Schedule of the retention passes; belongs to the thread that owns the logs."""

    def __init__(self, changed: ChangeReader) -> None:
        """`changed`: a reader of the logs' changes for this schedule alone."""
        self._changed = changed
        self._due: dict[TopicPartition, int] = {}  # the only valid entry in the heap
        self._heap: list[tuple[int, TopicPartition]] = []

    def __len__(self) -> int:
        """Number of logs that wait for their oldest segment to expire."""
        return len(self._due)

    def take(self, now_ms: int, logs: Mapping[TopicPartition, Log]) -> list[Log]:
        """Returns the logs that are due, sorted by name; `logs` has all that are open.

        The caller passes each of them to `looked_at` or to `put_back`.
        """
        due = {log.topic_partition for log in self._changed.take()}
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, topic_partition = heapq.heappop(self._heap)
            if self._due.get(topic_partition) == due_ms:
                due.add(topic_partition)
                del self._due[topic_partition]
        for gone in due - logs.keys():
            self._due.pop(gone, None)
        if len(self._heap) > 2 * len(self._due) + 16:  # most entries are outdated
            self._heap = [(due_ms, tp) for tp, due_ms in self._due.items()]
            heapq.heapify(self._heap)
        return [logs[topic_partition] for topic_partition in sorted(due & logs.keys())]

    def looked_at(self, log: Log, now_ms: int) -> None:
        """Reschedules a log after its pass: for its next change, and for its next expiration if it
        has one.
        """
        due_ms = next_due_ms(log, now_ms)
        topic_partition = log.topic_partition
        if due_ms is None:
            self._due.pop(topic_partition, None)
        elif due_ms < self._due.get(topic_partition, due_ms + 1):
            # An earlier entry stays, so that a busy log has one entry and not one for each pass.
            self._due[topic_partition] = due_ms
            heapq.heappush(self._heap, (due_ms, topic_partition))

    def put_back(self, log: Log) -> None:
        """Adds a log that could not be processed to the next pass."""
        self._changed.put_back((log,))
