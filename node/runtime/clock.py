"""The clocks of a node: wall time for timestamps, monotonic time for durations."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _mono_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """`wall_ms` stamps records and ages segments; `mono_ms` measures lag and sessions. Tests pass
    their own clocks."""

    wall_ms: Callable[[], int] = _wall_ms
    mono_ms: Callable[[], int] = _mono_ms
