"""Leases of the slices that a worker reads: renewed while tasks of the job run, by any of them.

Spark tells no source of batches that a job has ended. So a lease is short, each worker renews those
of the partitions that it reads, and it ends by itself after the last task.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tidemark.client import forks
from tidemark.errors import TidemarkError
from tidemark.spark.direct.pieces import ReadLease
from tidemark.spark.direct.plans import renew_lease
from tidemark.spark.offsets import OffsetRange
from tidemark.spark.options import SourceOptions
from tidemark.types import TopicPartition

logger = logging.getLogger(__name__)

_KNOWN_MAX = 10_000

RenewLease = Callable[[SourceOptions, OffsetRange, ReadLease], None]


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="tidemark-lease", daemon=True).start()


class KeptLeases:
    """Renews leases when a third of their time has passed; for any thread.

    A renewal that fails is tried again after another third: the read itself needs no broker.
    """

    def __init__(
        self,
        renew: RenewLease = renew_lease,
        now_ms: Callable[[], float] = lambda: time.time() * 1000,
        start: Callable[[Callable[[], None]], None] = _in_background,
    ) -> None:
        self._renew = renew
        self._now_ms = now_ms
        self._start = start
        self._lock = threading.Lock()
        self._due_ms: dict[tuple[str, TopicPartition], float] = {}
        forks.watch(self)

    def forked(self) -> None:
        """A lock that another thread held is the parent's."""
        self._lock = threading.Lock()

    def touch(self, options: SourceOptions, offsets: OffsetRange) -> None:
        """Notes that a slice is being read; starts the renewal of its lease if that is due."""
        lease = offsets.direct.lease if offsets.direct is not None else None
        if lease is None:
            return
        key, now_ms = (lease.id, offsets.topic_partition), self._now_ms()
        with self._lock:
            if now_ms < self._due_ms.get(key, lease.granted_ms + lease.lease_ms / 3):
                return
            if len(self._due_ms) >= _KNOWN_MAX:
                self._due_ms.clear()
            self._due_ms[key] = now_ms + lease.lease_ms / 3
        self._start(lambda: self._renew_once(options, offsets, lease))

    def _renew_once(self, options: SourceOptions, offsets: OffsetRange, lease: ReadLease) -> None:
        try:
            self._renew(options, offsets, lease)
        except TidemarkError as error:
            logger.info("%s: the lease was not renewed: %s", offsets.topic_partition, error)


LEASES = KeptLeases()
"""Those of this process."""
