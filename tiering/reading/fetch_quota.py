"""The quota of reads from the tier (KIP-956): remote.log.manager.fetch.max.bytes.per.second.

Bytes of logs count when they are asked of the store, also those that are read ahead. Those of the
cache do not: the quota is for the store and the way to it. Above it no read begins, and none is
read ahead; those under way end.
"""

from __future__ import annotations

import asyncio

from tidemark.config import ServerConfig
from tiering.metrics import RemoteMetrics
from tiering.tasks.quota import RateQuota


class FetchQuota:
    """The quota of one node's reads, by the time of its event loop."""

    def __init__(self, config: ServerConfig, metrics: RemoteMetrics) -> None:
        self._quota = RateQuota(
            config.remote_log_manager_fetch_max_bytes_per_second,
            config.remote_log_manager_fetch_quota_window_num,
            config.remote_log_manager_fetch_quota_window_size_seconds,
            metrics.remote_fetch_throttle_time,
        )
        self.throttle_time = self._quota.throttle_time

    def reconfigure(self, config: ServerConfig) -> None:
        """Applies an altered quota."""
        self._quota.set_rate(config.remote_log_manager_fetch_max_bytes_per_second)

    def record(self, size_bytes: int) -> None:
        """Counts bytes that are asked of the store."""
        self._quota.record(size_bytes, _now_s())

    def is_exceeded(self) -> bool:
        """Reports whether nothing may be read ahead."""
        return self._quota.throttle_s(_now_s()) > 0

    def throttle_s(self) -> float:
        """Returns the wait of a read that wants to begin, in s, and counts it; 0: it begins."""
        wait_s = self._quota.throttle_s(_now_s())
        if wait_s > 0:
            self.throttle_time.add(wait_s)
        return wait_s


def _now_s() -> float:
    return asyncio.get_running_loop().time()
