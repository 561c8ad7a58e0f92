"""Look-ups by timestamp against a walk over all records, whatever was learnt of a log before."""

from __future__ import annotations

import random

import pytest

from commitlog.log import Log
from tests.commitlog.builders import NOW, batch, config, filled, open_log, records_of
from tidemark.records import arrow


@pytest.fixture(autouse=True, params=["plain", "kernel"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: the decoder's loop, and the kernel."""
    monkeypatch.setattr(arrow, "takes_plain_path", lambda _: request.param == "plain")


def assert_agrees(log: Log) -> None:
    records = records_of(log)
    times = {record.timestamp_ms for record in records}
    for time_ms in sorted(times | {time + 1 for time in times} | {0}):
        wanted = next((r for r in records if r.timestamp_ms >= time_ms), None)
        found = log.offset_for_timestamp(time_ms)
        assert (wanted is None) == (found is None)
        if wanted is not None and found is not None:
            assert (found.timestamp_ms, found.offset) == (wanted.timestamp_ms, wanted.offset)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_random_timestamps_sizes_and_cuts_give_what_a_walk_over_all_records_gives(
    codec: str,
) -> None:
    rng = random.Random(11)
    log = open_log(None, config(segment_bytes=900, index_interval_bytes=120))
    for step in range(60):
        log.append_as_leader(
            batch(
                rng.randint(1, 4),
                timestamp=NOW + step * 5 + rng.randint(-40, 40),
                step=rng.randint(-2, 3),
                size=rng.randint(0, 90),
                compression=codec,
            ),
            1,
            NOW,
        )
        if step % 12 == 7:
            log.truncate_to(rng.randint(log.log_end_offset // 2, log.log_end_offset))
        if step % 10 == 9:
            assert_agrees(log)
    assert len(log.segments) > 3


def test_a_segment_that_was_cut_and_rolled_again_is_found_by_its_new_timestamps() -> None:
    log = filled(None, 6, config(segment_bytes=10_000))
    log.roll()
    log.append_as_leader(batch(1, timestamp=NOW), 1, NOW)
    assert log.offset_for_timestamp(NOW + 1000) is None  # learns of the first segment
    log.truncate_to(12)
    log.append_as_leader(batch(2, timestamp=NOW + 1000), 1, NOW)
    log.roll()
    log.append_as_leader(batch(1, timestamp=NOW + 2000), 1, NOW)
    found = log.offset_for_timestamp(NOW + 1000)
    assert found is not None
    assert found.offset == 12
