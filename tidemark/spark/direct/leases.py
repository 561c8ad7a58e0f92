"""Leases of a plan: renewed while tasks of the job run, by any of them.

Spark tells no source of batches that a job has ended. So a lease is short, and each worker renews
those of the partitions that it reads, and of those that wait for a task. They end by themselves
after the last task.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from tidemark.client import forks
from tidemark.errors import TidemarkError
from tidemark.spark.direct.pieces import DirectRead, ReadLease, Waiting
from tidemark.spark.direct.plans import renew_lease
from tidemark.spark.offsets import OffsetRange
from tidemark.spark.options import SourceOptions
from tidemark.types import TopicPartition

logger = logging.getLogger(__name__)

_KNOWN_MAX = 10_000
_FAILURES_MAX = 3  # of one round: each may take seconds, and the next round is due soon

RenewLease = Callable[[SourceOptions, OffsetRange, ReadLease], None]


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="tidemark-lease", daemon=True).start()


class KeptLeases:
    """Renews leases when a third of their time has passed; for any thread.

    Those of partitions that wait come after up to two thirds: all workers renew them, and not at
    once. A renewal that fails is tried again after another third: the read itself needs no broker.
    """

    def __init__(
        self,
        renew: RenewLease = renew_lease,
        now_ms: Callable[[], float] = lambda: time.time() * 1000,
        start: Callable[[Callable[[], None]], None] = _in_background,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._renew = renew
        self._now_ms = now_ms
        self._start = start
        self._spread = spread
        self._lock = threading.Lock()
        self._due_ms: dict[tuple[str, TopicPartition], float] = {}
        forks.watch(self)

    def forked(self) -> None:
        """A lock that another thread held is the parent's."""
        self._lock = threading.Lock()

    def touch(self, options: SourceOptions, offsets: OffsetRange) -> None:
        """Notes that a slice is being read; starts the renewal of its lease if that is due."""
        if offsets.direct is None:
            return
        due, now_ms = [], self._now_ms()
        with self._lock:
            if len(self._due_ms) >= _KNOWN_MAX:
                self._due_ms.clear()
            lease = offsets.direct.lease
            if lease is not None and self._is_due(offsets, lease, now_ms, 0):
                due.append((offsets, lease))
            for one in self._to_look_at(offsets.direct, now_ms):
                topic_id = UUID(bytes=one.topic_id) if one.topic_id else None
                held = OffsetRange(
                    one.topic, one.partition, one.lease.start, one.lease.end, topic_id
                )
                if self._is_due(held, one.lease, now_ms, self._spread()):
                    due.append((held, one.lease))
        if due:
            self._start(lambda: self._renew_all(options, due))

    def _to_look_at(self, direct: DirectRead, now_ms: float) -> Sequence[Waiting]:
        """Those that wait, from time to time: a slice is touched at each of its chunks."""
        if not direct.waiting:
            return ()
        first = direct.waiting[0]
        key = (first.lease.id, TopicPartition("", first.partition))
        if now_ms < self._due_ms.get(key, 0):
            return ()
        self._due_ms[key] = now_ms + first.lease.lease_ms / 30
        return direct.waiting

    def _is_due(self, offsets: OffsetRange, lease: ReadLease, now_ms: float, later: float) -> bool:
        key, third_ms = (lease.id, offsets.topic_partition), lease.lease_ms / 3
        due_ms = self._due_ms.setdefault(key, lease.granted_ms + third_ms * (1 + later))
        if now_ms < due_ms:
            return False
        self._due_ms[key] = now_ms + third_ms * (1 + later)
        return True

    def _renew_all(
        self, options: SourceOptions, due: Sequence[tuple[OffsetRange, ReadLease]]
    ) -> None:
        failures = 0
        for offsets, lease in due:
            try:
                self._renew(options, offsets, lease)
            except TidemarkError as error:
                logger.info("%s: the lease was not renewed: %s", offsets.topic_partition, error)
                failures += 1
                if failures == _FAILURES_MAX:
                    return


LEASES = KeptLeases()
"""Those of this process."""
