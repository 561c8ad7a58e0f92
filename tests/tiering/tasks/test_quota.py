"""The quota of copies keeps the node's copies under its rate, and slows nothing below it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests import virtual_time
from tests.tiering.builders import PARTITION
from tests.tiering.world import World
from tidemark.types import TopicIdPartition
from tiering.metadata.segments import RemoteLogSegmentMetadata
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


def test_the_partition_that_waits_longest_copies_next_also_where_a_pass_is_too_short_for_one(
    tmp_path: Path,
) -> None:
    """A copy is paid in 40 s here, and a pass ends after 30 s."""
    settings: dict[str, object] = {"remote_log_manager_copy_max_bytes_per_second": 30}
    leader = World(tmp_path, settings=settings)
    copied: list[int] = []

    async def upload(metadata: RemoteLogSegmentMetadata, files: object) -> None:
        await asyncio.sleep(0.3)
        copied.append(metadata.topic_id_partition.partition)

    leader.manager._uploads.upload = upload  # type: ignore[method-assign,assignment]
    logs = {}
    for number in range(4):
        world = World(tmp_path / str(number))
        for _ in range(5):
            world.produce_segment()
        world.produce(1)
        logs[PARTITION._replace(partition=number)] = world.log, 0
    leader.manager.on_leadership_change(logs, {})

    async def repeat(partition: TopicIdPartition) -> None:
        while True:
            await leader.manager.run_once(partition)

    async def main() -> None:
        tasks = [asyncio.ensure_future(repeat(partition)) for partition in logs]
        await asyncio.sleep(500)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    virtual_time.run(main())
    assert len(copied) >= 12
    for at in range(1, len(copied) - 3, 4):  # the very first does not wait
        assert sorted(copied[at : at + 4]) == [0, 1, 2, 3], copied


def test_altered_quotas_hold_at_once_for_what_waits_too(tmp_path: Path) -> None:
    settings: dict[str, object] = {"remote_log_manager_copy_max_bytes_per_second": 1}
    world = World(tmp_path, settings=settings)
    world.lead()
    for _ in range(3):
        world.produce_segment()
    world.produce(1)

    async def upload(metadata: object, files: object) -> None:
        return None

    async def main() -> None:
        world.manager._uploads.upload = upload  # type: ignore[method-assign,assignment]
        passing = asyncio.ensure_future(world.once())
        await asyncio.sleep(5)
        assert not passing.done() and len(world.states()) == 1
        altered = replace(
            world.config,
            remote_log_manager_copy_max_bytes_per_second=1 << 40,
            remote_log_manager_fetch_max_bytes_per_second=1,
        )
        world.manager.reconfigure(altered)
        await asyncio.sleep(1)
        assert passing.done() and len(world.states()) == 3
        assert world.manager.fetch_throttle_s() == 0
        world.manager._reader.segments.quota.record(100)
        assert world.manager.fetch_throttle_s() > 50

    virtual_time.run(main())
