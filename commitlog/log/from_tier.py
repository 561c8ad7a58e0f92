"""A follower whose leader has older records in the tier only starts where the leader's local log
does. Earlier leader epochs and producers come from the tier (KIP-405).
"""

from __future__ import annotations

from collections.abc import Iterable

from commitlog.log.log import Log


def rebuild_from_remote(
    log: Log,
    epoch_entries: Iterable[tuple[int, int]],
    producer_snapshot: bytes | None,
    start_offset: int,
    now_ms: int,
    *,
    log_start_offset: int | None = None,
) -> None:
    """Empties the log; the next record gets `start_offset`. `log_start_offset` is the leader's;
    None keeps the present one. Raises StorageError if the snapshot is damaged.
    """
    start = log.log_start_offset if log_start_offset is None else log_start_offset
    log.truncate_fully_and_start_at(start_offset, now_ms, min(start, start_offset))
    log.epochs.replace(epoch_entries)
    log.epochs.truncate_from_end(start_offset)
    if producer_snapshot is not None:
        # Expired producers are removed by a later pass.
        log.producers.install(producer_snapshot, start_offset, 0)
