"""Retention: the oldest segments go first, and none goes after one that stays."""

from __future__ import annotations

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.expiration import delete_expired
from commitlog.log.log import Log
from commitlog.log.opening import open_log
from tests.commitlog.builders import NOW, TP, batch, config


def rolled(*ages_ms: int, retention_ms: int = 1000) -> Log:
    """A log of one segment per age; the active one is empty."""
    settings = config(retention_ms=retention_ms)
    log = open_log(MemoryDirectory(), TP, settings, now_ms=NOW)
    for age_ms in ages_ms:
        log.append_as_leader(batch(1, timestamp=NOW - age_ms), 1, NOW)
        log.roll(NOW)
    log.update_high_watermark(log.log_end_offset)
    return log


def test_a_young_segment_keeps_the_old_ones_behind_it() -> None:
    log = rolled(5000, 4000, 10, 5000, 5000)
    assert len(delete_expired(log, NOW)) == 2
    assert log.log_start_offset == 2
    assert delete_expired(log, NOW) == []
    assert len(delete_expired(log, NOW + 2000)) == 3


def test_the_largest_timestamp_of_a_segment_counts() -> None:
    log = open_log(MemoryDirectory(), TP, config(retention_ms=1000), now_ms=NOW)
    for age_ms in (5000, 500, 4000):
        log.append_as_leader(batch(1, timestamp=NOW - age_ms), 1, NOW)
    log.roll(NOW)
    log.update_high_watermark(3)
    assert delete_expired(log, NOW + 499) == []
    assert [d.next_offset for d in delete_expired(log, NOW + 501)] == [3]


def test_what_goes_by_size_makes_way_for_what_expired_behind_it_in_one_pass() -> None:
    """As in Kafka, whose order is log start, size, time."""
    log = rolled(0, 5000, 0)
    log.config = config(retention_ms=1000, retention_bytes=2 * len(batch(1)))
    assert [d.reason for d in delete_expired(log, NOW)] == ["retention.bytes", "retention.ms"]
    assert [segment.base_offset for segment in log.segments] == [2, 3]


def test_an_expired_active_segment_is_rolled_first_and_goes_with_the_next_pass() -> None:
    log = rolled(5000)
    log.append_as_leader(batch(1, timestamp=NOW - 3000), 1, NOW)
    log.update_high_watermark(2)
    assert len(delete_expired(log, NOW)) == 1
    assert log.active_segment.base_offset == 2, "rolled"
    assert len(delete_expired(log, NOW)) == 1
    assert log.log_start_offset == log.log_end_offset == 2


def test_deleted_records_take_the_segments_that_lie_wholly_below_the_start() -> None:
    log = rolled(0, 0, 0)
    log.increment_log_start_offset(2)
    assert [d.reason for d in delete_expired(log, NOW)] == ["log start offset"] * 2
    assert log.local_log_start_offset == 2
