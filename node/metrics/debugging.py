"""Stacks of a node's tasks and threads, and the places where its loop spends its time.

The paths `/debug/stacks` and `/debug/top` of the metrics listener answer to the same host alone.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter

from node.runtime.loop_lag import places

TOP_S = 3.0
_SAMPLE_S = 0.01
_SHOWN = 25


def stacks() -> str:
    """Each task with the place where it waits, and each thread with its stack."""
    lines = []
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    for task in tasks:
        frames = task.get_stack(limit=1)
        where = places(frames[0])[0] if frames else "done"
        lines.append(f"task {task.get_name()}: {where}")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        lines.append(f"thread {names.get(ident, ident)}: {' < '.join(places(frame))}")
    return "\n".join(lines) + "\n"


def top(thread_id: int, seconds: float = TOP_S) -> str:
    """The places where a thread was seen most, by samples; runs in another thread."""
    inner: Counter[str] = Counter()
    samples, end_s = 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        found = places(sys._current_frames().get(thread_id))
        if found:
            samples += 1
            inner[" < ".join(found[:3])] += 1
        time.sleep(_SAMPLE_S)
    lines = [f"{100 * n / samples:5.1f} %  {place}" for place, n in inner.most_common(_SHOWN)]
    return "\n".join([f"{samples} samples in {seconds:g} s", *lines]) + "\n"
