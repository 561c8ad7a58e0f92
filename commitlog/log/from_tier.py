"""A follower whose leader has older records in the tier only starts where the leader's local log
does. Earlier leader epochs and producers come from the tier (KIP-405).
"""

from __future__ import annotations

from collections.abc import Iterable

from commitlog.log.log import Log, Work, restarting
from commitlog.log.restart import Restart
from commitlog.segment.producer_replay import NO_PRODUCERS


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
    None keeps the present one. No snapshot: there are no producers.

    Atomic over a crash. Raises StorageError: if epochs or snapshot are damaged, nothing was
    changed; otherwise the log is the new one, and its next append finishes its files.
    """
    for work in rebuilding(
        log,
        epoch_entries,
        producer_snapshot,
        start_offset,
        now_ms,
        log_start_offset=log_start_offset,
    ):
        work()


def rebuilding(
    log: Log,
    epoch_entries: Iterable[tuple[int, int]],
    producer_snapshot: bytes | None,
    start_offset: int,
    now_ms: int,
    *,
    log_start_offset: int | None = None,
) -> Work:
    """The steps of `rebuild_from_remote`, as `commitlog.log.log.truncation` has them."""
    start = log.log_start_offset if log_start_offset is None else log_start_offset
    snapshot = NO_PRODUCERS if producer_snapshot is None else producer_snapshot
    restart = Restart.of(start_offset, start, epoch_entries, snapshot)
    return restarting(log, start_offset, now_ms, restart)
