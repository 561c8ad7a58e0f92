"""Arguments and results of a log's calls: append information, fetched records, timestamp
look-ups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tidemark.errors import CorruptMessageError, InvalidRequestError, TidemarkError

Records = bytes | bytearray | memoryview
"""One or more whole record batches, one after the other."""

RecordsList = Records | Sequence[Records]
"""The records of an append: one buffer of whole batches, or several of them."""


class AppendOrigin(Enum):
    """The writer of a leader's append; decides which checks apply (Kafka's AppendOrigin)."""

    CLIENT = "client"  # everything is checked; control batches are refused
    COORDINATOR = "coordinator"  # control batches (transaction markers) are allowed
    RAFT_LEADER = "raft_leader"  # the metadata quorum: control batches, no timestamp bounds


class AppendInfo(NamedTuple):
    """The result of an append. Offsets are those of the whole call's first and last record.

    A `duplicate` (an idempotent producer sent a batch again) is not written; the offsets are those
    of the first time. `log_append_time_ms` is -1 with CreateTime.
    """

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    size_bytes: int = 0
    batches: int = 0

    @classmethod
    def of_all(
        cls, infos: Sequence[AppendInfo], log_end_offset: int, log_start_offset: int
    ) -> AppendInfo:
        """Sums up consecutive appends; without any, the result has these offsets."""
        if not infos:
            return cls(log_end_offset, log_end_offset - 1, -1, -1, log_start_offset)
        if len(infos) == 1:
            return infos[0]
        return infos[-1]._replace(
            first_offset=infos[0].first_offset,
            max_timestamp_ms=max(info.max_timestamp_ms for info in infos),
            size_bytes=sum(info.size_bytes for info in infos),
            batches=sum(info.batches for info in infos),
        )


class FetchResult(NamedTuple):
    """Whole batches read from one segment.

    The first batch may begin below the requested offset, because the batch that holds it is
    returned whole. `records` is empty at the log end. `next_offset` is the offset after the last
    record returned, or the requested offset if there is none.
    """

    records: bytes | memoryview
    base_offset: int
    next_offset: int
    segment_base_offset: int
    position: int
    first_entry_incomplete: bool = False
    first_epoch: int = -1
    last_epoch: int = -1

    @property
    def size_bytes(self) -> int:
        return len(self.records)


class TimestampOffset(NamedTuple):
    """A record's timestamp and offset, and the epoch of the leader that appended it (None:
    unknown).
    """

    timestamp_ms: int
    offset: int
    leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class DeletedSegment:
    """A segment that left the log; its files are removed after the delete delay."""

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction of the transaction index; `last_offset` is its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class CorruptLogError(CorruptMessageError):
    """A log file that is damaged at byte `position`, by its own bytes or by its neighbours.

    The other records are served, or another replica is: the node gives this one up and copies it
    anew (`node.replication.hosting`).
    """

    def __init__(self, file: str, position: int, problem: str) -> None:
        super().__init__(f"{file} is damaged at byte {position}: {problem}")
        self.file = file
        self.position = position

    @property
    def base_offset(self) -> int:
        """The base offset of the damaged segment."""
        return int(self.file.rpartition("/")[2][:20])


class TransactionsUncheckedError(TidemarkError):
    """A transaction index is being checked, piece by piece: ask again after other work."""


class NotCachedError(TidemarkError):
    """A read would wait for the disk: have `load` run in another thread, then read again."""

    def __init__(self, load: Callable[[], None]) -> None:
        super().__init__("the records are not in the page cache")
        self.load = load


class UnexpectedAppendOffsetError(InvalidRequestError):
    """A follower's batches that do not continue its log."""
