"""The quota of copies keeps the node's copies under its rate, and slows nothing below it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.tiering.world import World
from tiering.tasks.quota import CopyQuota


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5_000)), min_size=1, max_size=50),
    st.integers(1, 2_000),
)
def test_no_time_has_more_than_the_rate_and_one_segment(
    arrivals: list[tuple[float, int]], rate: int
) -> None:
    quota, now_s, begun = CopyQuota(rate), 0.0, []
    for pause_s, size in arrivals:
        now_s += pause_s
        wait_s = quota.admit(size, now_s)
        assert wait_s >= 0
        begun.append((now_s + wait_s, size))
    for first, (from_s, _) in enumerate(begun):
        for last in range(first, len(begun)):
            copied = sum(size for _, size in begun[first:last])
            assert copied <= rate * (begun[last][0] - from_s) * (1 + 1e-6) + 1e-6


def test_copies_below_the_rate_do_not_wait() -> None:
    quota = CopyQuota(100)
    assert [quota.admit(100, now_s) for now_s in range(5)] == [0.0] * 5
    assert quota.admit(1, 4.5) == 0.5


def test_a_pass_waits_for_the_quota_and_no_longer_than_it_leads(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lead()
    world.produce_segment()
    world.produce_segment()
    world.produce(1)

    class Noticed(CopyQuota):
        def admit(self, size_bytes: int, now_s: float) -> float:
            wait_s = super().admit(size_bytes, now_s)
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
        assert world.manager._copier._quota.throttles == 1

    waits = asyncio.Event()
    world.manager._copier._quota = Noticed(1)
    asyncio.run(scenario())


def test_the_quota_is_a_setting(tmp_path: Path) -> None:
    world = World(tmp_path, settings={"remote_log_manager_copy_max_bytes_per_second": 7})
    assert world.manager._copier._quota.admit(14, 0) == 0
    assert world.manager._copier._quota.admit(1, 0) == 2
