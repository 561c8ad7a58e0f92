"""Which logs a pass of retention has to look at: those that changed, and those whose oldest segment
expires by then. Nothing else can be due, whatever the number of logs."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from commitlog.log.log import Log
from commitlog.log.retention import next_due_ms
from commitlog.manager.changes import ChangeReader
from tidemark.types import TopicPartition


class RetentionSchedule:
    """The logs that the next pass of retention looks at; on the owner of the logs."""

    def __init__(self, changed: ChangeReader) -> None:
        """`changed`: a reader of its own of the logs' changes."""
        self._changed = changed
        self._due: dict[TopicPartition, int] = {}  # the one entry in the heap that counts
        self._heap: list[tuple[int, TopicPartition]] = []

    def __len__(self) -> int:
        """Logs that wait for their oldest segment to expire."""
        return len(self._due)

    def take(self, now_ms: int, logs: Mapping[TopicPartition, Log]) -> list[Log]:
        """What is due, in the order of names; `logs` are all there are. Each of them is to be given
        to `looked_at` or to `again`."""
        due = {log.topic_partition for log in self._changed.take()}
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, topic_partition = heapq.heappop(self._heap)
            if self._due.get(topic_partition) == due_ms:
                due.add(topic_partition)
                del self._due[topic_partition]
        for gone in due - logs.keys():
            self._due.pop(gone, None)
        if len(self._heap) > 2 * len(self._due) + 16:  # most are of logs that are gone
            self._heap = [(due_ms, tp) for tp, due_ms in self._due.items()]
            heapq.heapify(self._heap)
        return [logs[topic_partition] for topic_partition in sorted(due & logs.keys())]

    def looked_at(self, log: Log, now_ms: int) -> None:
        """The pass is over for this log: it comes again when it changed, or its time is up."""
        due_ms = next_due_ms(log, now_ms)
        topic_partition = log.topic_partition
        if due_ms is None:
            self._due.pop(topic_partition, None)
        elif due_ms < self._due.get(topic_partition, due_ms + 1):
            # An entry that is earlier stays: so a busy log has one, not one for each pass.
            self._due[topic_partition] = due_ms
            heapq.heappush(self._heap, (due_ms, topic_partition))

    def put_back(self, log: Log) -> None:
        """It could not be looked at: it comes with the next pass."""
        self._changed.put_back((log,))
