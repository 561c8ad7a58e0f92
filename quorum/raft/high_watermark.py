"""The commit rule, and nothing else (Raft §5.4.2, KIP-595 "High Watermark").

A record is committed when a majority of voters hold it durably *and* a majority also hold a record
of the leader's own epoch. Only then can no later leader lack it. The high watermark (exclusive)
never goes back.
"""

from __future__ import annotations

from collections.abc import Sequence


def next_high_watermark(
    current: int | None, durable_end_offsets: Sequence[int], epoch_start_offset: int
) -> int | None:
    """Returns the leader's high watermark, given the durable end offsets of its voters.

    `durable_end_offsets` has one entry per voter, -1 for one that never fetched; the leader's own
    entry is its fsynced end. `epoch_start_offset` is the offset of the epoch's first record (the
    LeaderChange record).
    """
    descending = sorted(durable_end_offsets, reverse=True)
    held_by_majority = descending[len(descending) // 2]
    if held_by_majority <= epoch_start_offset:
        return current  # only records of older epochs so far: they may still be overwritten
    if current is not None and held_by_majority <= current:
        return current
    return held_by_majority
