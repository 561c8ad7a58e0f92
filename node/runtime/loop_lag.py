"""How late the event loop is: a histogram, and the place of each long turn.

A timer that is due each few milliseconds notes how late it comes: a turn of the loop that took long
made it wait. A thread looks at the timer from outside. When it is overdue by `event.loop.stall.ms`,
the thread logs where the loop's thread stands, once a minute for each place. uvloop has no such
aid, and asyncio's own debug mode costs too much to be always on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from types import FrameType

logger = logging.getLogger(__name__)

BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
"""Upper bounds of the histogram's buckets; a last one has all above."""

_BEAT_MAX_S = 0.1
_SILENCE_S = 60.0
_DEPTH_MAX = 15
_PLACES_MAX = 1_000


class LoopLag:
    """Histogram of the timer's delays; belongs to the event loop."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._longest_ms = 0.0

    def note(self, late_ms: float) -> None:
        """Counts one delay."""
        self._counts[bisect_left(BOUNDS_MS, late_ms)] += 1
        self._longest_ms = max(self._longest_ms, late_ms)

    def metrics(self) -> dict[str, float]:
        """The number of delays up to each bound in ms, their number, and the longest in ms."""
        found: dict[str, float] = {}
        total = 0
        for bound, count in zip(BOUNDS_MS, self._counts, strict=False):
            total += count
            found[f"event-loop-lag-ms-le-{bound}"] = float(total)
        found["event-loop-lag-count"] = float(total + self._counts[-1])
        found["event-loop-lag-ms-max"] = self._longest_ms
        return found

    def __str__(self) -> str:
        counts = zip((*BOUNDS_MS, None), self._counts, strict=True)
        known = [(bound, count) for bound, count in counts if count]
        told = [f"{n} over {BOUNDS_MS[-1]} ms" if b is None else f"{n} to {b} ms" for b, n in known]
        return f"{', '.join(told) or 'none'} late; the longest {self._longest_ms:.0f} ms"


class Stalls:
    """Decides which stalls are logged: each place once a minute; belongs to the watching thread."""

    def __init__(self) -> None:
        self._told_at_s: dict[str, float] = {}

    def tell(self, late_s: float, stack: list[str], now_s: float) -> str | None:
        """Returns the line for the log, or None. `stack`: places, the innermost first."""
        place = stack[0] if stack else "?"
        told_at_s = self._told_at_s.get(place)
        if told_at_s is not None and now_s - told_at_s < _SILENCE_S:
            return None
        if len(self._told_at_s) >= _PLACES_MAX:
            self._told_at_s.clear()
        self._told_at_s[place] = now_s
        return f"the event loop stands for {late_s * 1000:.0f} ms at {' < '.join(stack)}"


def places(frame: FrameType | None) -> list[str]:
    """The innermost places of a stack, each as `file:line function`."""
    found: list[str] = []
    while frame is not None and len(found) < _DEPTH_MAX:
        code = frame.f_code
        file = "/".join(code.co_filename.rsplit("/", 3)[1:])
        found.append(f"{file}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return found


class LoopWatch:
    """The timer of the calling thread's running loop, and the thread that looks at it."""

    def __init__(self, stall_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Logs stalls of at least `stall_ms`; 0: none. `clock` gives seconds."""
        self.lag = LoopLag()
        self._stall_s = stall_ms / 1000
        self._beat_s = min(_BEAT_MAX_S, self._stall_s / 4) if stall_ms else _BEAT_MAX_S
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._due_s = 0.0
        self._timer: asyncio.Handle | None = None
        self._stalls = Stalls()
        self._stopped = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="loop-watch", daemon=True)

    def start(self) -> None:
        """Begins to measure."""
        self._arm()
        if self._stall_s:
            self._watcher.start()

    def stop(self) -> None:
        """Ends it; waits for the thread."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher.ident is not None:
            self._watcher.join()

    def _arm(self) -> None:
        self._due_s = self._clock() + self._beat_s
        self._timer = self._loop.call_later(self._beat_s, self._beat)

    def _beat(self) -> None:
        self.lag.note(max(0.0, self._clock() - self._due_s) * 1000)
        self._arm()

    def _watch(self) -> None:
        seen_s = 0.0
        while not self._stopped.wait(self._stall_s / 2):
            due_s = self._due_s
            if due_s != seen_s and self._clock() - due_s >= self._stall_s:
                seen_s = due_s  # one look at each stall
                self.look()

    def look(self) -> None:
        """Logs where the loop's thread stands."""
        now_s = self._clock()
        stack = places(sys._current_frames().get(self._thread_id))
        line = self._stalls.tell(now_s - self._due_s, stack, now_s)
        if line is not None:
            logger.warning(line)
