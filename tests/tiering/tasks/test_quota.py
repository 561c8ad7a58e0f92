"""The quota of copies keeps the node's copies under its rate, and slows nothing below it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.tiering.world import World
from tiering.tasks.quota import RateQuota


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5_000)), min_size=1, max_size=50),
    st.integers(1, 2_000),
    st.integers(1, 4),
)
def test_no_time_has_more_than_the_rate_its_windows_and_one_segment(
    arrivals: list[tuple[float, int]], rate: int, samples: int
) -> None:
    quota, now_s, begun = RateQuota(rate, samples, 1), 0.0, []
    for pause_s, size in arrivals:
        now_s += pause_s
        while wait_s := quota.throttle_s(now_s):
            now_s += wait_s
        quota.record(size, now_s)
        begun.append((now_s, size))
    for first, (from_s, _) in enumerate(begun):
        for last in range(first, len(begun)):
            copied = sum(size for _, size in begun[first:last])
            allowed = rate * (begun[last][0] - from_s + samples) + begun[first][1]
            assert copied <= allowed * (1 + 1e-6) + 1e-6


def test_what_is_below_the_rate_does_not_wait_and_an_idle_time_is_no_credit() -> None:
    quota = RateQuota(100, 11, 1)
    for now_s in range(5):
        assert quota.throttle_s(now_s) == 0
        quota.record(100, now_s)
    assert quota.throttle_s(4) == 1
    quota.record(300, 1_000)
    assert quota.throttle_s(1_000) == 3


def test_a_segment_larger_than_all_windows_is_paid_in_full() -> None:
    quota = RateQuota(100, 11, 1)
    quota.record(10_000, 0)
    assert quota.throttle_s(11) == 89
    assert quota.throttle_s(100) == 0


def test_a_pass_waits_for_the_quota_and_no_longer_than_it_leads(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lead()
    world.produce_segment()
    world.produce_segment()
    world.produce(1)

    class Noticed(RateQuota):
        def throttle_s(self, now_s: float) -> float:
            wait_s = super().throttle_s(now_s)
            if wait_s:
                waits.set()
            return wait_s

    async def scenario() -> None:
        passing = asyncio.ensure_future(world.once())
        await waits.wait()
        assert not passing.done()
        world.follow()
        await passing
        assert world.tier_logs() == [0]
        assert world.manager._copier._quota.throttle_time.count == 1

    waits = asyncio.Event()
    world.manager._copier._quota = Noticed(1, 11, 1)
    asyncio.run(scenario())


def test_the_quota_and_its_windows_are_settings(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "remote_log_manager_copy_max_bytes_per_second": 7,
        "remote_log_manager_copy_quota_window_num": 3,
        "remote_log_manager_copy_quota_window_size_seconds": 2,
    }
    quota = World(tmp_path, settings=settings).manager._copier._quota
    quota.record(14, 0)
    assert quota.throttle_s(0) == 0
    quota.record(7, 1)
    assert quota.throttle_s(1) == 2
    assert quota.throttle_s(6) == 0
    quota.record(15, 7)
    assert quota.throttle_s(7) > 0
