"""The quotas of copies to the tier and of reads from it (KIP-956): bytes a second of the node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.quotas import rates
from tiering.metrics import ThrottleTime
from tiering.tasks.partition import TieredPartition

_TURN_S = 0.05


class RateQuota(rates.WindowedQuota):
    """A limit over windows, with the time that it had others wait."""

    def __init__(
        self,
        bytes_per_second: int,
        samples: int,
        window_s: int,
        throttle_time: ThrottleTime | None = None,
    ) -> None:
        super().__init__(bytes_per_second, samples, window_s)
        self.throttle_time = throttle_time or ThrottleTime()


class CopyTurns:
    """The order of partitions that wait for the quota of copies: who waits longest is next.

    A wait goes on in the next pass: a quota may allow fewer copies than passes.
    """

    def __init__(self) -> None:
        self._waiting: set[TieredPartition] = set()
        self._next: TieredPartition | None = None
        self._numbers = itertools.count()

    @contextmanager
    def waiting(self, hosted: TieredPartition) -> Iterator[None]:
        """Takes part in the order, from the first wait since the last copy on."""
        if hosted.turn is None:
            hosted.turn = next(self._numbers)
        self._waiting.add(hosted)
        self._next = None
        try:
            yield
        finally:
            self._waiting.discard(hosted)
            self._next = None

    def wait_s(self, hosted: TieredPartition, throttle_s: float) -> float:
        """Returns the time until the partition may look again, in s; 0: it is its turn."""
        if throttle_s > 0:
            return throttle_s
        if self._next is None:  # found once, however many look
            self._next = min(self._waiting, key=lambda waiting: waiting.turn or 0)
        return 0.0 if hosted is self._next else _TURN_S

    def copies(self, hosted: TieredPartition) -> None:
        """Notes that the partition begins a copy; the next one waits behind all others."""
        hosted.turn = None
