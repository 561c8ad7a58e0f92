"""Appends of the leader's client, before they are written to the log.

Records appended within one turn of the event loop become one batch, as in Kafka's BatchAccumulator
with the turn as its linger. A batch costs every replica the same, whether it holds one record or a
hundred. An append stays atomic, since it is within one batch. Its offsets are promised on `add`,
and void if the leadership ends before the write.
"""

from __future__ import annotations

from collections.abc import Sequence

from snapshot.values import ValuesBatch
from tidemark.errors import RecordListTooLargeError
from tidemark.records import HEADER_BYTES

MAX_BATCH_BYTES = 8 << 20
"""Largest batch of the metadata log in bytes (Kafka's constant)."""
SHARED_RECORDS_MAX = 1_000
"""Most records that several appends share in one batch; a larger append has its own. A batch is
applied at once, and delays heartbeats meanwhile."""
_RECORD_OVERHEAD_BYTES = 20  # upper bound: two lengths, the offset delta, four single bytes


class Appends:
    """Batches of one leader epoch that wait to be written."""

    def __init__(self) -> None:
        self._epoch = -1
        self._batches: list[ValuesBatch] = []
        self.count = 0

    @property
    def epoch(self) -> int:
        """The leader epoch of the waiting batches."""
        return self._epoch

    def add(self, values: Sequence[bytes], epoch: int, log_end: int, now_ms: int) -> int:
        """Adds records after the waiting ones, or at `log_end`; returns the last offset. Raises
        RecordListTooLargeError beyond 8 MiB, and adds none."""
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
        """Removes and returns the encoded batches."""
        batches, self._batches, self.count = self._batches, [], 0
        return [batch.finish() for batch in batches]
