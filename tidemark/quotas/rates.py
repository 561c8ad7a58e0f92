"""Limits on a rate, by the clock that the caller has; both kinds are paid in full.

`TokenBucket` has room for bursts: it fills at the rate, up to its capacity, and what is taken
beyond is a debt (KIP-599). `WindowedQuota` measures over the last windows as Kafka's SimpleRate
does. It gives no credit for an idle time (KIP-73, KIP-956).
"""

from __future__ import annotations

from collections import deque

_NOTHING_S = 1e-6  # rounding errors of long times are no debt


class TokenBucket:
    """A limit of `rate` units a second; begins full, with `burst_s` seconds of the rate."""

    __slots__ = ("_at_s", "_burst_s", "_tokens", "rate")

    def __init__(self, rate: float, burst_s: float, now_s: float) -> None:
        self.rate = rate
        self._burst_s = burst_s
        self._tokens = rate * burst_s
        self._at_s = now_s

    @property
    def capacity(self) -> float:
        return self.rate * self._burst_s

    def take(self, amount: float, now_s: float) -> None:
        """Takes units that were used, also more than there are."""
        self._fill(now_s)
        self._tokens -= amount

    def debt_s(self, now_s: float) -> float:
        """Returns the time until nothing is owed, in s; 0: within the limit."""
        self._fill(now_s)
        debt_s = -self._tokens / self.rate
        return debt_s if debt_s > _NOTHING_S else 0.0

    def is_full(self, now_s: float) -> bool:
        """Whether the bucket is as a new one."""
        self._fill(now_s)
        return self._tokens >= self.capacity

    def set_rate(self, rate: float, now_s: float) -> None:
        """Changes the rate; the used part of the burst stays used, and a debt is owed."""
        self._fill(now_s)
        used = self.capacity - self._tokens
        self.rate = rate
        self._tokens = self.capacity - used

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._tokens = min(self.capacity, self._tokens + self.rate * (now_s - self._at_s))
            self._at_s = now_s


class WindowedQuota:
    """A limit of `bytes_per_second` over `samples` windows of `window_s`.

    While fewer windows have bytes, the rate is over the time since the first of these, at least one
    window. A window is kept until its bytes are paid. More than all windows together may hold is
    therefore paid in full, unlike in Kafka.
    """

    def __init__(self, bytes_per_second: float, samples: int, window_s: int) -> None:
        self._rate = bytes_per_second
        self._samples = samples
        self._window_s = window_s
        self._windows: deque[tuple[float, int]] = deque()  # begin in s, bytes
        self._total_bytes = 0

    def record(self, size_bytes: int, now_s: float) -> None:
        """Counts bytes that were moved, or are about to be."""
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

    def set_rate(self, bytes_per_second: float) -> None:
        """Changes the limit; what was counted stays counted."""
        self._rate = bytes_per_second

    def _forget_paid(self, now_s: float) -> None:
        """Drops windows that are too old, unless their bytes are not paid yet."""
        windows = self._windows
        while windows and now_s - windows[0][0] >= self._samples * self._window_s:
            if self._total_bytes > self._rate * (now_s - windows[0][0]):
                return
            self._total_bytes -= windows.popleft()[1]
