"""The times of fsyncs: of all files and directories of this process.

Kafka has the flushes of logs as kafka.log:type=LogFlushStats.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds of the histogram's buckets, in s; a last one has all above."""


class SyncTimes:
    """A histogram that any thread adds to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.spent_s = 0.0
        self.failures = 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts one fsync; one that raises OSError counts as a failure, too."""
        began_s = time.perf_counter()
        failed = False
        try:
            yield
        except OSError:
            failed = True
            raise
        finally:
            spent_s = time.perf_counter() - began_s
            with self._lock:
                self.counts[bisect_left(BOUNDS_S, spent_s)] += 1
                self.spent_s += spent_s
                self.failures += failed


SYNC_TIMES = SyncTimes()
