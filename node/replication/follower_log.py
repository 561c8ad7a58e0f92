"""Changes to a follower's log by a leader's answer: append, truncate where histories part, restart.

These are decisions over a `Log`, without network. Truncation follows the epochs (KIP-101, KIP-279,
KIP-595). The leader names the epoch and end offset at which the follower's last epoch ended. The
follower truncates to the smaller of both ends. If it does not know that epoch, it truncates to the
end of its own previous epoch, and the next fetch asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from commitlog.log.log import Work, restarting, truncation
from node.partition.hosted import HostedPartition
from tidemark.records import iter_batches
from tidemark.wire import FetchPartitionData

Payload = bytes | bytearray | memoryview

logger = logging.getLogger(__name__)


def last_fetched_epoch(hosted: HostedPartition) -> int | None:
    """The epoch of the last record of the follower's log, for the divergence check."""
    epoch: int | None = hosted.log.epochs.latest_epoch
    return epoch


def append(
    hosted: HostedPartition, answer: FetchPartitionData, request_epoch: int, now_ms: int
) -> int:
    """Appends whole batches of the leader's answer and takes over its high watermark; returns the
    bytes appended.

    Batches of a newer epoch than the request's are left for a later fetch (KAFKA-18723).
    """
    payload = answer.payload
    appended = 0
    if payload:
        _make_room(hosted, payload, request_epoch, now_ms)
        # A log that was ever compacted keeps its gaps, whatever its policy is now.
        info = hosted.log.append_as_follower(
            payload,
            now_ms,
            gaps_allowed=True,
            epoch_max=request_epoch,
            end_offset=answer.next_offset or None,
        )
        appended = info.size_bytes
        hosted.traffic.replication_bytes_in += appended
    core = hosted.core
    core.log_end_offset = hosted.log.log_end_offset
    hosted.leader_committed(answer.high_watermark)
    start = min(answer.log_start_offset, core.high_watermark)
    if start > hosted.log.log_start_offset:
        hosted.log.increment_log_start_offset(start)
    return appended


def _make_room(hosted: HostedPartition, payload: Payload, request_epoch: int, now_ms: int) -> None:
    """Restarts an empty log where the first batch begins.

    After DeleteRecords the leader's start, to which an empty log was set, may be within a batch.
    The answer then sets the start again.
    """
    end = hosted.log.log_end_offset
    if hosted.log.log_start_offset != end:
        return
    for _, header in iter_batches(payload):
        if header.partition_leader_epoch <= request_epoch and (
            header.base_offset < end <= header.last_offset
        ):
            logger.info("%s: starting anew at %d", hosted.topic_partition, header.base_offset)
            hosted.log.truncate_fully_and_start_at(header.base_offset, now_ms)
            settle(hosted)
        return


def divergence(hosted: HostedPartition, epoch: int, end_offset: int) -> int:
    """Returns the offset to truncate to: where histories part, as far as the answer tells."""
    local_end = hosted.log.log_end_offset
    if end_offset < 0:
        target = hosted.core.high_watermark
    elif epoch < 0:
        target = min(end_offset, local_end)
    else:
        own = hosted.log.end_offset_for_epoch(epoch)
        if own is None:
            target = min(end_offset, local_end)
        elif own[0] == epoch:
            target = min(own[1], end_offset, local_end)
        else:
            target = min(own[1], local_end)  # an epoch that only the leader has: ask again
    return target


def needs_tier(hosted: HostedPartition, offset: int) -> bool:
    """Returns whether a log that is cut to `offset` keeps nothing, and its history is in the tier.

    What begins anew there needs epochs and producers of the tier. Without them it would be in sync
    with a history that begins at `offset`.
    """
    return hosted.config.remote_storage_enable and offset < hosted.log.local_log_start_offset


def truncate(hosted: HostedPartition, offset: int, now_ms: int) -> Work:
    """The steps that truncate the follower's log to end at `offset`, or below its start empty it
    there; for `carry_out`."""
    note_loss(hosted, offset)
    if offset < hosted.log.local_log_start_offset:
        return restarting(hosted.log, offset, now_ms)
    return truncation(hosted.log, offset, now_ms)


def restart(hosted: HostedPartition, offset: int, now_ms: int) -> Work:
    """The steps that empty the log and restart it at `offset`, where the leader's log begins; for
    `carry_out`."""
    logger.info("%s: starting anew at %d", hosted.topic_partition, offset)
    return restarting(hosted.log, offset, now_ms)


async def carry_out(
    hosted: HostedPartition, steps: Work, pool: Executor | None, is_current: Callable[[], bool]
) -> bool:
    """Takes the steps of a truncation: those of the disk in `pool`, if there is one. Returns false
    if the replica got another role, or left, meanwhile: the rest is given up then."""
    for work in steps:
        settle(hosted)
        if pool is None:
            work()
            continue
        await asyncio.get_running_loop().run_in_executor(pool, work)
        if not is_current():
            return False
    settle(hosted)
    return True


def note_loss(hosted: HostedPartition, offset: int) -> None:
    """Logs that the leader's history ends at `offset`, if that is below the high watermark."""
    watermark = hosted.core.high_watermark
    if offset < watermark:
        logger.error(
            "%s: truncating to %d, below the high watermark %d: the leader lacks records that were"
            " committed",
            hosted.topic_partition,
            offset,
            watermark,
        )


def settle(hosted: HostedPartition) -> None:
    """Sets the core's offsets after the log was truncated or rebuilt."""
    core = hosted.core
    core.on_truncate(hosted.log.log_end_offset, core.high_watermark)
    if core.high_watermark < hosted.log.log_start_offset:
        core.high_watermark = min(hosted.log.log_start_offset, core.log_end_offset)
    hosted.log.update_high_watermark(core.high_watermark)
