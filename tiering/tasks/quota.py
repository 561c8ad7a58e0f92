"""The quotas of copies to the tier and of reads from it (KIP-956): bytes a second of the node.

The rate is measured as Kafka does it (SimpleRate): over the last windows. While fewer have bytes,
it is over the time since the first of these, at least one window. Unlike there, a window is kept
until its bytes are paid, so a segment larger than all windows together is paid in full.
"""

from __future__ import annotations

from collections import deque

from tiering.metrics import ThrottleTime


class RateQuota:
    """A limit on bytes a second, by the clock that the caller has."""

    def __init__(
        self,
        bytes_per_second: int,
        samples: int,
        window_s: int,
        throttle_time: ThrottleTime | None = None,
    ) -> None:
        self._rate = bytes_per_second
        self._samples = samples
        self._window_s = window_s
        self._windows: deque[tuple[float, int]] = deque()  # begin in s, bytes
        self._total_bytes = 0
        self.throttle_time = throttle_time or ThrottleTime()

    def record(self, size_bytes: int, now_s: float) -> None:
        """Counts bytes that were copied or read, or are about to be."""
        self._forget_paid(now_s)
        self._total_bytes += size_bytes
        windows = self._windows
        full = len(windows) > self._samples  # more is recorded while the quota is exceeded
        if windows and (full or now_s - windows[-1][0] < self._window_s):
            begin_s, known_bytes = windows.pop()
            windows.append((begin_s, known_bytes + size_bytes))
        else:
            windows.append((now_s, size_bytes))

    def throttle_s(self, now_s: float) -> float:
        """Returns the time until the rate is within the quota, in s; 0: go on."""
        self._forget_paid(now_s)
        if not self._windows:
            return 0.0
        begin_s = self._windows[0][0]
        if self._total_bytes <= self._rate * max(now_s - begin_s, self._window_s):
            return 0.0
        return max(0.0, begin_s + self._total_bytes / self._rate - now_s)

    def _forget_paid(self, now_s: float) -> None:
        """Drops windows that are too old, unless their bytes are not paid yet."""
        windows = self._windows
        while windows and now_s - windows[0][0] >= self._samples * self._window_s:
            if self._total_bytes > self._rate * (now_s - windows[0][0]):
                return
            self._total_bytes -= windows.popleft()[1]
