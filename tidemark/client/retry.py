"""The retry policy of every client: a pure function of the error, the attempt and the elapsed time.

Waits grow exponentially from `backoff_ms` to `backoff_max_ms` with a random share of `jitter`
either way (KIP-580). All tries together stay within `timeout_ms` (KIP-91's delivery.timeout.ms for
the producer, default.api.timeout.ms elsewhere).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tidemark.errors import TidemarkError


def is_retriable(error: BaseException) -> bool:
    """Whether the same request may succeed when it is sent again."""
    return isinstance(error, TidemarkError) and error.retriable


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The waits between tries, in ms; `jitter` is the share of a wait that is random (0.2: +-20
    %).
    """

    timeout_ms: int = 60_000
    backoff_ms: int = 100
    backoff_max_ms: int = 1_000
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if self.timeout_ms < 0 or self.backoff_ms < 0 or self.backoff_max_ms < self.backoff_ms:
            raise ValueError(
                "a retry policy needs 0 <= backoff_ms <= backoff_max_ms, timeout_ms >= 0"
            )
        if not 0 <= self.jitter < 1:
            raise ValueError("jitter is a share: 0 <= jitter < 1")

    def backoff(self, attempt: int, rng: Random) -> int:
        """The wait in ms after failed try number `attempt` (1 is the first)."""
        # Capped, because `attempt` may be large.
        doubled = self.backoff_ms << min(attempt - 1, 30)
        spread = 1 + self.jitter * (2 * rng.random() - 1)
        return round(min(doubled, self.backoff_max_ms) * spread)

    def next_wait_ms(
        self, error: BaseException, attempt: int, elapsed_ms: float, rng: Random
    ) -> int | None:
        """The wait in ms before the next try, or None to stop.

        It is None for an error that is not retriable, and if the wait would end at or after
        `timeout_ms`.
        """
        if not is_retriable(error):
            return None
        wait_ms = self.backoff(attempt, rng)
        return None if elapsed_ms + wait_ms >= self.timeout_ms else wait_ms
