"""Runs per-log work on a small thread pool.

There is one queue per disk, so that a slow disk delays only its own work. The threads take items
from the queue, so no task object is made for each of ten thousand logs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidemark.surroundings import surroundings

T = TypeVar("T")


def work_off(
    queues: Sequence[Sequence[T]], work: Callable[[T], None], threads: int, name: str
) -> None:
    """Calls `work` with every item, `threads` at a time of each queue. Uses the calling thread if
    one is enough, or if the surroundings have no others. Raises the first error, and starts no
    further item after it.
    """
    waiting = [deque(queue) for queue in queues if queue]
    failed = False

    def drain(queue: deque[T]) -> None:
        nonlocal failed
        while not failed:
            try:
                item = queue.popleft()
            except IndexError:
                return
            try:
                work(item)
            except BaseException:
                failed = True
                raise

    if len(waiting) * threads <= 1 or not surroundings().has_threads:
        for queue in waiting:
            drain(queue)
        return
    with ThreadPoolExecutor(len(waiting) * threads, name) as pool:
        running = [pool.submit(drain, queue) for queue in waiting for _ in range(threads)]
    for each in running:
        each.result()
