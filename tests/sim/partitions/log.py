"""A partition's log as a list of records. A record is (leader epoch, number), and its offset is its
index. What was not flushed is lost with the power.
"""

from __future__ import annotations

from uuid import UUID

Record = tuple[int, int]


class ModelLog:
    """One replica's log in one directory, with its leader epoch lineage and its checkpoint."""

    def __init__(self, directory: UUID) -> None:
        self.directory = directory
        self.records: list[Record] = []
        self.epochs: list[tuple[int, int]] = []  # (epoch, start offset), as in the epoch cache
        self.durable = 0
        self.checkpoint = 0  # replication-offset-checkpoint

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def last_epoch(self) -> int | None:
        return self.epochs[-1][0] if self.epochs else None

    def begin_epoch(self, epoch: int) -> None:
        """Notes that records of `epoch` begin at the end."""
        if not self.epochs or self.epochs[-1][0] < epoch:
            self.epochs.append((epoch, self.end))

    def append(self, records: list[Record]) -> None:
        for record in records:
            self.begin_epoch(record[0])
            self.records.append(record)

    def truncate(self, end: int) -> None:
        del self.records[end:]
        self.epochs = [entry for entry in self.epochs if entry[1] < end]
        self.durable = min(self.durable, end)
        self.checkpoint = min(self.checkpoint, end)

    def flush(self) -> None:
        self.durable = self.end

    def lose_power(self) -> int:
        """Drops what was not flushed; returns how many records that were."""
        lost = self.end - self.durable
        self.truncate(self.durable)
        return lost

    def end_of_epoch(self, epoch: int) -> tuple[int, int] | None:
        """(newest epoch up to `epoch`, its end), as `LeaderEpochCache.end_offset_for` answers."""
        if not self.epochs or epoch > self.epochs[-1][0] or epoch < 0:
            return None
        found = (epoch, self.epochs[0][1])
        ends = [start for _, start in self.epochs[1:]] + [self.end]
        for (known, _), end in zip(self.epochs, ends, strict=True):
            if known <= epoch:
                found = (known, end)
        return found
