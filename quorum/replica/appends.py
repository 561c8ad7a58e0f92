"""Appends of the leader's client on their way into the log.

What is appended within one turn of the event loop goes into the log as one batch (Kafka's
BatchAccumulator, whose linger is here the turn itself): a batch costs every replica the same,
whether it holds one record or a hundred. Each append stays atomic, since a batch is; its offsets
are promised when it is taken, and the log holds nobody to them if the leadership goes first.
"""

from __future__ import annotations

from collections.abc import Sequence

from snapshot.values import ValuesBatch
from tidemark.errors import RecordListTooLargeError
from tidemark.records import HEADER_BYTES

MAX_BATCH_BYTES = 8 << 20
"""The largest batch of the metadata log (Kafka's constant)."""
SHARED_RECORDS_MAX = 1_000
"""What several appends put into one batch; a larger one has its own. A batch is applied in one go,
and heartbeats wait meanwhile."""
_RECORD_OVERHEAD_BYTES = 20  # at most: two lengths, the offset delta, four single bytes


class Appends:
    """Batches that wait to be written, of one leader epoch."""

    def __init__(self) -> None:
        self._epoch = -1
        self._batches: list[ValuesBatch] = []
        self.count = 0

    @property
    def epoch(self) -> int:
        """The leader epoch of what waits."""
        return self._epoch

    def add(self, values: Sequence[bytes], epoch: int, log_end: int, now_ms: int) -> int:
        """Takes records that go behind those that wait, or at `log_end`; gives the last offset.
        RecordListTooLargeError beyond 8 MiB, and nothing of them is taken."""
        if epoch != self._epoch:
            self.take()
            self._epoch = epoch
        limit = MAX_BATCH_BYTES - HEADER_BYTES
        most = sum(map(len, values)) + _RECORD_OVERHEAD_BYTES * len(values)
        batch = self._batches[-1] if self._batches else None
        if (
            batch is None
            or batch.count + len(values) > SHARED_RECORDS_MAX
            or batch.size_bytes + most > limit
        ):
            batch = ValuesBatch(log_end + self.count, epoch, now_ms)
            for value in values:
                batch.add(value)
            if batch.size_bytes > limit:
                raise RecordListTooLargeError(
                    f"a metadata batch of {batch.size_bytes + HEADER_BYTES} bytes is over the "
                    f"limit of {MAX_BATCH_BYTES}"
                )
            self._batches.append(batch)
        else:
            for value in values:
                batch.add(value)
        self.count += len(values)
        return log_end + self.count - 1

    def take(self) -> list[bytes]:
        """The batches that waited; nothing waits any more."""
        batches, self._batches, self.count = self._batches, [], 0
        return [batch.finish() for batch in batches]
