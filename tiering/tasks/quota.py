"""The quotas of copies to the tier and of reads from it (KIP-956): bytes a second of the node."""

from __future__ import annotations

from tidemark.quotas import rates
from tiering.metrics import ThrottleTime


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
