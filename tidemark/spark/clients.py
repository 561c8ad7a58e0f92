"""The consumers of a Spark worker: kept between slices, because a task reads one after another.

One that nobody borrows for `_IDLE_S` is closed. A forked child of the process begins with none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidemark.client import Consumer, forks
from tidemark.config.security import ClientSecurity
from tidemark.spark.options import SourceOptions

_IDLE_S = 30.0
_IDLE_MAX = 4
_FETCH_BYTES = 8 << 20  # a task reads one partition: fewer and larger answers suit it

_Key = tuple[str, str, ClientSecurity | None]


def _open(key: _Key) -> Consumer:
    servers, isolation_level, security = key
    return Consumer(
        servers,
        auto_offset_reset="none",
        isolation_level=isolation_level,
        max_partition_fetch_bytes=_FETCH_BYTES,
        security=security,
    )


class WorkerClients:
    """Consumers by cluster, isolation level and security; for any thread."""

    def __init__(
        self,
        make: Callable[[_Key], Consumer] = _open,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._now_s = now_s
        self._lock = threading.Lock()
        self._idle: list[tuple[_Key, Consumer, float]] = []
        self._timer: threading.Timer | None = None
        forks.watch(self)

    def forked(self) -> None:
        """The consumers, and a lock that another thread held, are the parent's."""
        self._lock = threading.Lock()
        self._idle, self._timer = [], None

    @contextmanager
    def borrowed(self, options: SourceOptions) -> Iterator[Consumer]:
        """A consumer for one slice. One whose slice failed is closed, and not used again."""
        key = options.bootstrap_servers, options.isolation_level, options.security
        consumer = self._take(key) or self._make(key)
        try:
            yield consumer
        except GeneratorExit:  # Spark has rows enough
            self._give_back(key, consumer)
            raise
        except BaseException:
            consumer.close()
            raise
        self._give_back(key, consumer)

    def _take(self, key: _Key) -> Consumer | None:
        with self._lock:
            for index, (known, consumer, _) in enumerate(self._idle):
                if known == key:
                    del self._idle[index]
                    return consumer
        return None

    def _give_back(self, key: _Key, consumer: Consumer) -> None:
        consumer.assign([])  # ends fetches ahead, and frees what they brought
        with self._lock:
            self._idle.append((key, consumer, self._now_s()))
            surplus = [item[1] for item in self._idle[:-_IDLE_MAX]]
            del self._idle[:-_IDLE_MAX]
            self._watch()
        for each in surplus:
            each.close()

    def _watch(self) -> None:
        """Looks again when the consumer that is idle for longest is due. The lock is held."""
        if self._timer is not None or not self._idle:
            return
        wait_s = max(0.0, self._idle[0][2] + _IDLE_S - self._now_s())
        self._timer = threading.Timer(wait_s, self.close_idle)
        self._timer.daemon = True
        self._timer.start()

    def close_idle(self) -> None:
        """Closes consumers that were idle for `_IDLE_S`."""
        with self._lock:
            self._timer = None
            last_s = self._now_s() - _IDLE_S
            due = [consumer for _, consumer, since_s in self._idle if since_s <= last_s]
            self._idle = [item for item in self._idle if item[2] > last_s]
            self._watch()
        for consumer in due:
            consumer.close()

    def close(self) -> None:
        """Closes all that are idle."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            idle, self._idle, self._timer = self._idle, [], None
        for _, consumer, _ in idle:
            consumer.close()


CLIENTS = WorkerClients()
"""Those of this process."""
