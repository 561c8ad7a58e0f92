"""The retry policy as a table of cases; it is a pure function."""

from __future__ import annotations

from random import Random

import pytest

from tidemark.client.retry import RetryPolicy, is_retriable
from tidemark.errors import InvalidTopicError, NetworkError, NotLeaderOrFollowerError


def test_waits_grow_from_backoff_to_its_maximum() -> None:
    policy = RetryPolicy(timeout_ms=60_000, backoff_ms=100, backoff_max_ms=1_000, jitter=0)
    waits = [policy.next_wait_ms(NetworkError(), n, 0, Random(1)) for n in range(1, 8)]
    assert waits == [100, 200, 400, 800, 1000, 1000, 1000]
    assert policy.next_wait_ms(NetworkError(), 10_000, 0, Random(1)) == 1000


def test_jitter_stays_within_its_share_and_repeats_with_its_seed() -> None:
    policy = RetryPolicy(backoff_ms=1000, backoff_max_ms=1000, jitter=0.2)
    waits = [policy.backoff(1, rng) for rng in [Random(7)] for _ in range(200)]
    assert 800 <= min(waits) < 850 < 1150 < max(waits) <= 1200
    assert waits[0] == policy.backoff(1, Random(7))


def test_it_gives_up_on_final_errors_and_when_time_is_up() -> None:
    policy = RetryPolicy(timeout_ms=1000, backoff_ms=100, backoff_max_ms=100, jitter=0)
    assert policy.next_wait_ms(InvalidTopicError(), 1, 0, Random(1)) is None
    assert policy.next_wait_ms(ValueError(), 1, 0, Random(1)) is None
    assert policy.next_wait_ms(NetworkError(), 1, 899, Random(1)) == 100
    assert policy.next_wait_ms(NetworkError(), 1, 900, Random(1)) is None


def test_what_is_retriable_is_said_by_the_error_table() -> None:
    assert is_retriable(NotLeaderOrFollowerError())
    assert not is_retriable(InvalidTopicError())
    assert not is_retriable(OSError())


@pytest.mark.parametrize(
    "wrong", [{"timeout_ms": -1}, {"backoff_ms": 5, "backoff_max_ms": 4}, {"jitter": 1}]
)
def test_nonsense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"retry policy|jitter"):
        RetryPolicy(**wrong)  # type: ignore[arg-type]
