"""Work on many logs in a few threads, as long as there is some.

One queue per disk, so that a slow one holds up nobody else's work. The threads take from the queue
what is next: nothing is made for each of ten thousand logs to be handed to a pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def work_off(
    queues: Sequence[Sequence[T]], work: Callable[[T], None], threads: int, name: str
) -> None:
    """Calls `work` with every item, `threads` at a time of each queue; in this very thread where
    one is enough. The first error is raised, and no further item is begun then."""
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

    if len(waiting) * threads <= 1:
        for queue in waiting:
            drain(queue)
        return
    with ThreadPoolExecutor(len(waiting) * threads, name) as pool:
        running = [pool.submit(drain, queue) for queue in waiting for _ in range(threads)]
    for each in running:
        each.result()
