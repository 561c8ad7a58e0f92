"""The quotas of copies to the tier and of reads from it (KIP-956): bytes a second of the node."""

from __future__ import annotations

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

    @contextmanager
    def waiting(self, hosted: TieredPartition, now_s: float) -> Iterator[None]:
        """Takes part in the order, with the time of the first wait since the last copy."""
        if hosted.waits_since_s is None:
            hosted.waits_since_s = now_s
        self._waiting.add(hosted)
        try:
            yield
        finally:
            self._waiting.discard(hosted)

    def wait_s(self, hosted: TieredPartition, throttle_s: float) -> float:
        """Returns the time until the partition may look again, in s; 0: it is its turn."""
        if throttle_s > 0:
            return throttle_s
        mine = _since(hosted)
        return _TURN_S if any(_since(other) < mine for other in self._waiting) else 0.0

    def copies(self, hosted: TieredPartition) -> None:
        """Notes that the partition begins a copy; the next one waits behind all others."""
        hosted.waits_since_s = None


def _since(hosted: TieredPartition) -> float:
    return hosted.waits_since_s or 0.0
