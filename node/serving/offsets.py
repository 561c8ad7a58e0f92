"""Lookup of offsets: ListOffsets by timestamp or special value, and the end offset of an epoch.

Special values are Kafka's: -1 latest, -2 earliest, -3 largest timestamp, -4 earliest local, -5
latest tiered, -6 earliest not yet tiered (KIP-1023). Timestamps are looked up in the local log and
in the tier.

A consumer's "latest" is the high watermark (read committed: the last stable offset); a follower's
is the log's end. A new leader whose high watermark has not reached the start of its own epoch
answers OFFSET_NOT_AVAILABLE. So no reader sees offsets move back (KIP-207).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from commitlog.log.log import Log
from commitlog.types import TimestampOffset
from node.partition.hosted import HostedPartition
from node.partition.registry import PartitionRegistry
from tidemark.errors import (
    InvalidRequestError,
    OffsetNotAvailableError,
    RequestTimedOutError,
)
from tidemark.types import OffsetSpec, TopicIdPartition
from tiering.errors import NoTierError


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """The result of a lookup; None for what was not found."""

    offset: int | None = None
    timestamp_ms: int | None = None
    leader_epoch: int | None = None


class RemoteTimestamps(Protocol):
    """The call of the remote log manager that is used here."""

    async def offset_for_timestamp(
        self, partition: TopicIdPartition, log: Log, timestamp_ms: int
    ) -> TimestampOffset | None: ...


class OffsetFinder:
    """The lookup side of a node's partitions.

    `remote` is None without a tier. `remote_timeout_ms` limits its answer
    (remote.list.offsets.request.timeout.ms).
    """

    def __init__(
        self,
        partitions: PartitionRegistry,
        remote: RemoteTimestamps | None,
        remote_timeout_ms: int = 30_000,
    ) -> None:
        self._partitions = partitions
        self._remote = remote
        self._remote_timeout_ms = remote_timeout_ms

    async def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        *,
        current_leader_epoch: int | None = None,
        from_replica: bool = False,
        read_committed: bool = False,
    ) -> FoundOffset:
        """Returns the offset for a timestamp in ms or a special value. Raises the errors of the
        leader checks."""
        hosted = self._partitions.get(topic, partition)
        hosted.core.check_leader_epoch(current_leader_epoch)
        hosted.core.check_leader()
        log = hosted.log
        if timestamp == OffsetSpec.EARLIEST:
            return _at(log, log.log_start_offset)
        if timestamp == OffsetSpec.EARLIEST_LOCAL:
            return _at(log, log.local_log_start_offset)
        if timestamp == OffsetSpec.LATEST_TIERED:
            highest = log.highest_remote_offset
            return FoundOffset() if highest < 0 else _at(log, highest)
        if timestamp == OffsetSpec.EARLIEST_PENDING_UPLOAD:
            return _pending_upload(hosted)
        end = _visible_end(hosted, from_replica, read_committed)
        if timestamp == OffsetSpec.LATEST:
            _check_settled(hosted, end, from_replica)
            return FoundOffset(end, None, hosted.core.leader_epoch)
        if timestamp == OffsetSpec.MAX_TIMESTAMP:
            newest = log.offset_of_max_timestamp()
            if newest is None or newest.offset >= end:
                return FoundOffset()
            return FoundOffset(newest.offset, newest.timestamp_ms, newest.leader_epoch)
        if timestamp < 0:
            raise InvalidRequestError(
                f"ListOffsets: {timestamp} is no timestamp and no special value"
            )
        return await self._by_timestamp(hosted, timestamp, end, from_replica)

    async def _by_timestamp(
        self, hosted: HostedPartition, timestamp: int, end: int, from_replica: bool
    ) -> FoundOffset:
        found = None
        log = hosted.log
        tiered = hosted.config.remote_storage_enable
        if tiered and log.local_log_start_offset > log.log_start_offset:
            if self._remote is None:
                raise NoTierError(f"the start of {hosted.topic_partition}")
            asked = self._remote.offset_for_timestamp(hosted.core.identity, log, timestamp)
            try:
                found = await asyncio.wait_for(asked, self._remote_timeout_ms / 1000)
            except TimeoutError:
                raise RequestTimedOutError(
                    f"the tier did not find {timestamp} of {hosted.topic_partition} in"
                    f" {self._remote_timeout_ms} ms (remote.list.offsets.request.timeout.ms)"
                ) from None
        if found is None:
            found = log.offset_for_timestamp(timestamp)
        if found is None:
            return FoundOffset()
        if found.offset >= end:
            _check_settled(hosted, end, from_replica)
            return FoundOffset()
        return FoundOffset(found.offset, found.timestamp_ms, found.leader_epoch)

    def epoch_end(
        self, topic: str, partition: int, current_leader_epoch: int | None, leader_epoch: int
    ) -> tuple[int, int] | None:
        """(epoch, end offset) of the largest epoch not above `leader_epoch`; None if unknown
        (KIP-101, KIP-279)."""
        hosted = self._partitions.get(topic, partition)
        hosted.core.check_leader_epoch(current_leader_epoch)
        hosted.core.check_leader()
        return hosted.log.end_offset_for_epoch(leader_epoch)


def _at(log: Log, offset: int) -> FoundOffset:
    return FoundOffset(offset, None, log.epochs.epoch_for_offset(offset))


def _pending_upload(hosted: HostedPartition) -> FoundOffset:
    """Finds nothing without a tier, and while a new leader does not know its content yet."""
    log, highest = hosted.log, hosted.log.highest_remote_offset
    if not hosted.config.remote_storage_enable:
        return FoundOffset()
    if highest < 0 and log.local_log_start_offset > log.log_start_offset:
        return FoundOffset()
    return _at(log, max(highest + 1, log.log_start_offset))


def _visible_end(hosted: HostedPartition, from_replica: bool, read_committed: bool) -> int:
    if from_replica:
        return hosted.log.log_end_offset
    if read_committed:
        return min(hosted.log.last_stable_offset, hosted.core.high_watermark)
    return hosted.core.high_watermark


def _check_settled(hosted: HostedPartition, end: int, from_replica: bool) -> None:
    start = hosted.core.leader_epoch_start_offset
    if not from_replica and start is not None and end < start:
        raise OffsetNotAvailableError(
            f"{hosted.topic_partition}: the new leader's high watermark {end} has not "
            f"reached {start} yet"
        )
