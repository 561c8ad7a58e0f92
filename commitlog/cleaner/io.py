"""Limits that all cleaners of a node share: their rate, the sign to stop, and the early ends of a
cleaning.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tidemark.errors import TidemarkError


class CleaningAbortedError(TidemarkError):
    """The log was cut, deleted or paused during its cleaning; the log is intact."""


class SegmentDoesNotFitError(TidemarkError):
    """The keys of one segment need more map memory than a cleaner has."""


class Throttle:
    """Limits reads and writes of all cleaners together to log.cleaner.io.max.bytes.per.second."""

    def __init__(
        self,
        bytes_per_second: float,
        clock_s: Callable[[], float] = time.monotonic,
        sleep_s: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock_s = clock_s
        self._sleep_s = sleep_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def set_rate(self, bytes_per_second: float) -> None:
        """Changes the rate; waits under way keep the old one."""
        with self._lock:
            self._rate = bytes_per_second

    def spend(self, size_bytes: int) -> None:
        """Waits until this many more bytes are within the rate."""
        with self._lock:
            now = self._clock_s()
            self._free_at_s = max(self._free_at_s, now) + size_bytes / self._rate
            wait_s = self._free_at_s - now
        if wait_s > 0.001:
            self._sleep_s(wait_s)


@dataclass(slots=True)
class CleanerIo:
    """Limits of one cleaner: its buffer, the shared rate, and the sign to stop."""

    buffer_bytes: int
    throttle: Throttle
    must_stop: Callable[[], bool] = lambda: False

    def check(self) -> None:
        if self.must_stop():
            raise CleaningAbortedError("the cleaning was called off")
