"""A token bucket allows its burst and the rate, and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.quotas.rates import TokenBucket


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5_000)), min_size=1, max_size=50),
    st.integers(1, 2_000),
    st.integers(1, 12),
)
def test_no_time_has_more_than_the_rate_the_burst_and_one_request(
    arrivals: list[tuple[float, int]], rate: int, burst_s: int
) -> None:
    bucket, now_s, taken = TokenBucket(rate, burst_s, 0.0), 0.0, []
    for pause_s, size in arrivals:
        now_s += pause_s
        while wait_s := bucket.debt_s(now_s):
            now_s += wait_s
        bucket.take(size, now_s)
        taken.append((now_s, size))
    for first, (from_s, _) in enumerate(taken):
        for last in range(first, len(taken)):
            allowed = rate * (taken[last][0] - from_s + burst_s) + taken[last][1]
            assert sum(size for _, size in taken[first : last + 1]) <= allowed * (1 + 1e-6) + 1e-3


def test_a_greedy_client_comes_to_the_rate() -> None:
    bucket, now_s, total = TokenBucket(1_000, 10, 0.0), 0.0, 0
    while now_s < 1_000:
        bucket.take(700, now_s)
        total += 700
        now_s += bucket.debt_s(now_s) or 0.01
    assert 1_000 * 1_000 <= total <= 1_000 * 1_010 + 700


def test_what_is_below_the_rate_never_waits_and_idle_time_is_credit_up_to_the_burst() -> None:
    bucket = TokenBucket(100, 10, 0.0)
    for now_s in range(1, 100):
        bucket.take(100, now_s)
        assert bucket.debt_s(now_s) == 0
    bucket.take(1_000, 1_000)
    assert bucket.debt_s(1_000) == 0
    bucket.take(300, 1_000)
    assert bucket.debt_s(1_000) == 3
    assert not bucket.is_full(1_012)
    assert bucket.is_full(1_013)


def test_a_new_rate_keeps_what_is_owed() -> None:
    bucket = TokenBucket(100, 10, 0.0)
    bucket.take(1_600, 0)
    assert bucket.debt_s(0) == 6
    bucket.set_rate(50, 0)
    assert bucket.capacity == 500
    assert bucket.debt_s(0) == 22, "1,600 were used, and 500 are allowed at once"
    bucket.set_rate(200, 0)
    assert bucket.debt_s(0) == 0


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(100, 1, 10.0)
    bucket.take(200, 10.0)
    assert bucket.debt_s(9.0) == 1
    assert bucket.debt_s(10.5) == 0.5
