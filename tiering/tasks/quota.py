"""The quota of copies to the tier (KIP-956): bytes a second of the whole node."""

from __future__ import annotations


class CopyQuota:
    """Spreads copies over time, by the clock that the caller has.

    A segment is never divided. It is admitted when those before it would have passed at the rate.
    So any span of time has one segment more than the rate at most.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._free_at_s = 0.0
        self.throttles = 0
        self.throttle_s = 0.0

    def admit(self, size_bytes: int, now_s: float) -> float:
        """Admits a segment; returns the wait before its copy in seconds."""
        begin_s = max(now_s, self._free_at_s)
        self._free_at_s = begin_s + size_bytes / self._rate
        self.throttles += begin_s > now_s
        self.throttle_s += begin_s - now_s
        return begin_s - now_s
