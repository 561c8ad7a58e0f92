"""Jitter spreads rolls over time; a segment without timestamps ages by its file's time."""

from __future__ import annotations

from itertools import pairwise

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.expiration import delete_expired
from commitlog.log.jitter import roll_jitter_ms
from commitlog.log.opening import open_log
from tests.commitlog.builders import NOW, batch, config
from tidemark.records import Record, encode_batch
from tidemark.types import TopicPartition


def rolled_after_ms(partition: int, jitter_ms: int) -> int:
    settings = config(segment_ms=1000, segment_jitter_ms=jitter_ms)
    log = open_log(MemoryDirectory(), TopicPartition("t", partition), settings, now_ms=NOW)
    step = 0
    while len(log.segments) == 1:
        log.append_as_leader(batch(1, timestamp=NOW + step), 1, NOW)
        step += 50
    return step - 50


def test_jitter_rolls_earlier_by_less_than_its_bound_and_not_all_at_once() -> None:
    assert {rolled_after_ms(n, 0) for n in range(4)} == {1050}
    times = {rolled_after_ms(n, 800) for n in range(12)}
    assert len(times) > 4
    assert all(200 < time <= 1050 for time in times)


def test_jitter_never_takes_all_of_a_segments_time() -> None:
    """Kafka bounds it by segment.ms; beyond that every append would roll."""
    times = {rolled_after_ms(n, 1_000_000) for n in range(12)}
    assert len(times) > 4
    assert all(0 < time <= 1050 for time in times)


def test_each_segment_has_a_share_of_its_own_and_new_settings_count_at_once() -> None:
    log = open_log(MemoryDirectory(), TopicPartition("t", 0), config(segment_ms=10), now_ms=NOW)
    log.config = config(segment_ms=1000, segment_jitter_ms=800, segment_bytes=1 << 20)
    first = (1000 - roll_jitter_ms(log.config, log.topic_partition, 0)) // 10 + 1
    bases, step = set(), 0
    while len(log.segments) < 8:
        log.append_as_leader(batch(1, timestamp=NOW + step), 1, NOW)
        bases.add(log.active_segment.base_offset)
        step += 10
    lengths = {later - base for base, later in pairwise(sorted(bases))}
    assert sorted(bases)[1] == first < 101
    assert len(lengths) > 3
    assert all(20 < length <= 101 for length in lengths)


def test_a_segment_without_timestamps_ages_by_its_files_time() -> None:
    directory = MemoryDirectory()
    log = open_log(directory, TopicPartition("t", 0), config(retention_ms=1000), now_ms=NOW)
    log.append_as_leader(encode_batch([Record(0, -1, b"k", b"v")]), 1, NOW)
    log.roll(NOW)
    log.append_as_leader(batch(1), 1, NOW)
    log.update_high_watermark(2)
    written = directory.modified_ms(log.segments[0].log_file)
    assert log.segments[0].retention_timestamp_ms == written
    assert delete_expired(log, written + 1000) == []
    assert [s.base_offset for s in delete_expired(log, written + 1001)] == [0]
