"""What a log's calls take and give: append information, fetched records, timestamp look-ups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tidemark.errors import InvalidRequestError

Records = bytes | bytearray | memoryview
"""One or more whole record batches, one after the other."""

RecordsList = Records | Sequence[Records]
"""What an append takes: one buffer of whole batches, or several of them."""


class AppendOrigin(Enum):
    """Who appends as leader; decides which checks apply (Kafka's AppendOrigin)."""

    CLIENT = "client"  # everything is checked; control batches are refused
    COORDINATOR = "coordinator"  # control batches (transaction markers) are allowed
    RAFT_LEADER = "raft_leader"  # the metadata quorum: control batches, no timestamp bounds


class AppendInfo(NamedTuple):
    """What an append did. Offsets are those of the whole call's first and last record.

    For a `duplicate` (an idempotent producer sent a batch again) nothing was written and the
    offsets are those of the first time. `log_append_time_ms` is -1 with CreateTime.
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
        """Sums up appends that follow one another; of none of them, with these offsets."""
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

    The first batch may begin below the offset asked for (the batch that holds it is returned
    whole). `records` is empty at the end of the log. `next_offset` is the offset after the last
    record returned; where nothing was returned, the offset asked for.
    """

    records: bytes | memoryview
    base_offset: int
    next_offset: int
    segment_base_offset: int
    position: int
    first_entry_incomplete: bool = False

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
    """A segment that left the log; its files are gone once the delete delay is over."""

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


class UnexpectedAppendOffsetError(InvalidRequestError):
    """A follower was given batches that do not go on where its log ends."""
