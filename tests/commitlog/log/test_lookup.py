"""Look-ups by timestamp against a scan of all records, whatever is cached about a log."""

from __future__ import annotations

import random

import pytest

from commitlog.disk.files import DiskError
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.log import Log
from commitlog.segment.segment import Segment
from tests.commitlog.builders import NOW, batch, config, filled, open_log, records_of
from tidemark.records import arrow, facts


@pytest.fixture(autouse=True, params=["plain", "kernel"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both implementations: the decoder's loop, and the kernels."""
    way: str = request.param
    monkeypatch.setattr(arrow, "takes_plain_path", lambda _: way == "plain")
    monkeypatch.setattr(facts, "_walk_kernel", None)
    monkeypatch.setattr(facts, "_find_kernel", None)
    return way


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
            log.truncate_to(rng.randint(log.log_end_offset // 2, log.log_end_offset), NOW)
        if step % 10 == 9:
            assert_agrees(log)
    assert len(log.segments) > 3


def test_a_segment_that_was_cut_and_rolled_again_is_found_by_its_new_timestamps() -> None:
    log = filled(None, 6, config(segment_bytes=10_000))
    log.roll(NOW)
    log.append_as_leader(batch(1, timestamp=NOW), 1, NOW)
    assert log.offset_for_timestamp(NOW + 1000) is None  # caches the first segment's timestamp
    log.truncate_to(12, NOW)
    log.append_as_leader(batch(2, timestamp=NOW + 1000), 1, NOW)
    log.roll(NOW)
    log.append_as_leader(batch(1, timestamp=NOW + 2000), 1, NOW)
    found = log.offset_for_timestamp(NOW + 1000)
    assert found is not None
    assert found.offset == 12


def test_a_segment_whose_truncation_failed_is_found_by_its_new_timestamps() -> None:
    directory = MemoryDirectory()
    log = filled(directory, 6, config(segment_bytes=10_000))
    log.roll(NOW)
    log.append_as_leader(batch(1, timestamp=NOW), 1, NOW)
    assert log.offset_for_timestamp(NOW + 1000) is None  # caches the first segment's timestamp
    directory.fail_writes("*.log")
    with pytest.raises(DiskError):
        log.truncate_to(12, NOW)
    directory.disk.failing_writes.clear()
    appended = log.append_as_leader(batch(2, timestamp=NOW + 1000), 1, NOW)
    log.roll(NOW)
    log.append_as_leader(batch(1, timestamp=NOW + 2000), 1, NOW)
    found = log.offset_for_timestamp(NOW + 1000)
    assert found is not None
    assert found.offset == appended.first_offset


def test_a_look_up_by_time_reads_a_header_and_one_batch_where_the_index_tells_all(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(None, config(segment_bytes=1 << 20, index_interval_bytes=120))
    for step in range(20):
        log.append_as_leader(batch(3, timestamp=NOW + 10 * step, step=1, size=200), 1, NOW)
    assert_agrees(log)
    read: list[int] = []
    file = log.segments[0].file
    pread = file.pread

    def noting(size: int, position: int) -> bytes:
        read.append(size)
        return pread(size, position)

    monkeypatch.setattr(file, "pread", noting)
    found = log.offset_for_timestamp(NOW + 101)
    assert found is not None
    assert found.offset == 31
    short = [61, log.segments[0].header_at(0).size_bytes]
    assert read == [*short, *(short if path == "plain" else []), 61]  # the last by this test


def test_an_index_that_does_not_fit_is_made_anew_and_the_record_found() -> None:
    log = open_log(None, config(segment_bytes=1 << 20, index_interval_bytes=120))
    for step in range(20):
        log.append_as_leader(batch(3, timestamp=NOW + 10 * step, step=1, size=200), 1, NOW)
    segment = log.segments[0]
    for row in range(len(segment.offset_index)):  # each entry has the position of the batch before
        segment.offset_index._positions[row] -= segment.header_at(0).size_bytes
    rebuilds = Segment.rebuilds
    assert_agrees(log)
    assert Segment.rebuilds == rebuilds + 1


@pytest.mark.parametrize("interval", [1, 120, 300, 700])
def test_batches_between_two_index_entries_are_found(interval: int) -> None:
    rng = random.Random(interval)
    log = open_log(None, config(segment_bytes=1 << 20, index_interval_bytes=interval))
    for step in range(40):
        size = rng.choice((0, 5, 200))
        log.append_as_leader(batch(1, timestamp=NOW + 10 * step, size=size), 1, NOW)
    assert_agrees(log)


def test_the_record_with_the_greatest_timestamp_has_its_epoch_below_the_logs_start_too() -> None:
    """As Kafka answers ListOffsets -3 after DeleteRecords, while the segment exists."""
    log = filled(batches=3)
    log.append_as_leader(batch(1, timestamp=NOW + 900), 4, NOW)
    log.append_as_leader(batch(1, timestamp=NOW), 5, NOW)
    log.update_high_watermark(log.log_end_offset)
    log.increment_log_start_offset(10)
    assert log.offset_of_max_timestamp() == (NOW + 900, 9, 4)
    assert log.epochs.epoch_for_offset(9) is None
