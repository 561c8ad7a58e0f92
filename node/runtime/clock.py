"""The clocks of a node: wall time for timestamps, monotonic time for durations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidemark.surroundings import surroundings


@dataclass(frozen=True, slots=True)
class Clock:
    """`wall_ms` stamps records and ages segments; `mono_ms` measures lag and sessions. Tests pass
    their own clocks."""

    wall_ms: Callable[[], int] = field(default_factory=lambda: surroundings().wall_ms)
    mono_ms: Callable[[], int] = field(default_factory=lambda: surroundings().mono_ms)
