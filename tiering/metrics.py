"""Counters of the tier, as plain attributes: Kafka's names in snake_case, published by the node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class CopyLag(NamedTuple):
    """Rolled segments that are not in the tier yet."""

    bytes: int
    segments: int


NO_LAG = CopyLag(0, 0)


@dataclass(slots=True)
class RemoteMetrics:
    """Counts since the start of the process; bytes are those of log segments alone."""

    remote_copy_bytes: int = 0
    remote_copy_requests: int = 0
    remote_copy_errors: int = 0
    remote_copy_refusals: int = 0
    remote_fetch_bytes: int = 0
    remote_fetch_requests: int = 0
    remote_fetch_errors: int = 0
    remote_fetch_busy: int = 0
    remote_fetch_timeouts: int = 0
    remote_fetch_corrupt: int = 0  # chunks and sidecars that were wrong twice
    remote_delete_requests: int = 0
    remote_delete_errors: int = 0
    task_errors: int = 0
    build_remote_log_aux_state_requests: int = 0
    build_remote_log_aux_state_errors: int = 0
    reader_pending_tasks: int = 0
    chunk_cache_hits: int = 0
    chunk_cache_misses: int = 0
    chunk_prefetches: int = 0
    index_cache_refetches: int = 0
