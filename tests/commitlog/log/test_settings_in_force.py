"""Settings of topics and logs take effect at exactly the bound that they name."""

from __future__ import annotations

from typing import Any

import pytest
from crc32c import crc32c

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.expiration import delete_expired
from commitlog.manager.manager import LogManager
from commitlog.segment.epochs import LeaderEpochCache
from commitlog.segment.producer_state import ProducerStateManager
from tests.commitlog.builders import NOW, batch, config, filled, open_log, records_of
from tidemark.config import TopicConfig, parse_server_config
from tidemark.errors import InvalidTimestampError, MessageTooLargeError
from tidemark.records.header import TIMESTAMP_TYPE_FLAG, whole_header
from tidemark.records.header import BatchHeader as Header
from tidemark.types import TopicPartition

SERVER = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.voters": "0@localhost:1",
}


def header_of(data: bytes) -> Header:
    return whole_header(memoryview(data))


def test_flush_ms_flushes_a_log_when_it_is_over_and_no_other() -> None:
    clock = [NOW]
    settings = parse_server_config(SERVER)
    logs = LogManager([MemoryDirectory()], settings, now_ms=lambda: clock[0])
    logs.open()
    soon = logs.get_or_create(TopicPartition("soon", 0), None, TopicConfig(flush_ms=500))
    never = logs.get_or_create(TopicPartition("never", 0), None, TopicConfig())
    for log in (soon, never):
        log.append_as_leader(batch(2), 1, NOW)
    clock[0] += 499
    logs.flush_due()
    logs.checkpoint_recovery_points()
    assert (soon.recovery_point, never.recovery_point) == (0, 0)
    clock[0] += 1
    logs.flush_due()
    assert (soon.recovery_point, never.recovery_point) == (2, 0)
    soon.append_as_leader(batch(1), 1, NOW)
    clock[0] += 499
    logs.checkpoint_recovery_points()
    assert soon.recovery_point == 2
    clock[0] += 1
    logs.checkpoint_recovery_points()
    assert (soon.recovery_point, never.recovery_point) == (3, 0)


@pytest.mark.parametrize(("policy", "segments"), [("compact", 2), ("delete", 1)])
def test_a_compacted_log_rolls_before_a_record_waits_longer_than_its_lag(
    policy: str, segments: int
) -> None:
    """Otherwise max.compaction.lag.ms could not hold: the active segment is never cleaned."""
    settings = config(cleanup_policy=(policy,), max_compaction_lag_ms=100)
    log = open_log(settings=settings)
    for timestamp in (NOW, NOW + 100):
        log.append_as_leader(batch(1, timestamp=timestamp), 1, NOW)
    assert len(log.segments) == 1
    log.append_as_leader(batch(1, timestamp=NOW + 101), 1, NOW)
    assert len(log.segments) == segments


def test_an_index_entry_is_due_when_more_than_the_interval_lies_behind_the_last_one() -> None:
    """Not at exactly the interval; the same for all ways of adding batches."""
    size = len(batch(1))
    settings = config(index_interval_bytes=3 * size, segment_bytes=1 << 20)
    disk = MemoryDirectory()
    log = open_log(disk, settings)
    for _ in range(30):
        log.append_as_leader(batch(1), 1, NOW)
    wanted = [(offset, offset * size) for offset in range(4, 30, 4)]
    assert list(log.active_segment.offset_index.entries()) == wanted
    log.close()
    found = open_log(disk, settings).active_segment  # recovered: many batches at once
    assert list(found.offset_index.entries()) == wanted
    follower = open_log(settings=settings)
    follower.append_as_follower(log.read(0, 1 << 20).records, NOW)
    assert list(follower.active_segment.offset_index.entries()) == wanted


def test_an_epoch_takes_away_what_contradicts_it() -> None:
    """Its leader began at the offset of a lost leader's records (KIP-101)."""
    epochs = LeaderEpochCache(MemoryDirectory())
    for epoch, start in ((1, 0), (3, 10), (4, 20), (6, 30)):
        epochs.assign(epoch, start)
    epochs.assign(7, 20)
    assert epochs.entries() == ((1, 0), (3, 10), (7, 20))
    epochs.assign(2, 40)
    assert epochs.entries() == ((1, 0), (2, 40))
    epochs.assign(2, 50)
    assert epochs.entries() == ((1, 0), (2, 40))


def test_a_silent_producer_with_an_open_transaction_is_not_forgotten() -> None:
    producers = ProducerStateManager(MemoryDirectory(), expiration_ms=1000)
    for producer, transactional in ((7, True), (8, False)):
        options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
        data = batch(1, transactional=transactional, base_offset=producer, **options)
        producers.update(header_of(data), None)
    assert producers.remove_expired(NOW + 999) == 0
    assert producers.remove_expired(NOW + 1000) == 1
    assert producers.remove_expired(NOW + 1_000_000) == 0
    assert producers.first_unstable_offset == 7
    producers.take_snapshot()
    producers.reload(0, producers.end_offset, NOW + 1_000_000)
    assert list(producers.producers) == [7]


def test_the_first_of_several_records_with_the_greatest_timestamp_is_told() -> None:
    log = open_log()
    for timestamp in (NOW, NOW + 9, NOW + 3):
        log.append_as_leader(batch(1, timestamp=timestamp), 1, NOW)
    log.roll(NOW)
    log.append_as_leader(batch(1, timestamp=NOW + 9), 1, NOW)
    found = log.offset_of_max_timestamp()
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (1, NOW + 9)


@pytest.mark.parametrize("policy", [("compact",), ()])
def test_retention_by_time_and_size_is_for_logs_that_are_deleted(policy: tuple[str, ...]) -> None:
    """cleanup.policy=compact, or none at all, keeps everything; DeleteRecords still deletes."""
    log = filled(settings=config(cleanup_policy=policy, retention_ms=1, retention_bytes=1))
    before = records_of(log)
    assert len(log.segments) > 2
    assert delete_expired(log, NOW + 1_000_000_000) == []
    assert records_of(log) == before
    log.increment_log_start_offset(log.segments[1].base_offset)
    assert [gone.reason for gone in delete_expired(log, NOW)] == ["log start offset"]


def test_retention_by_size_counts_what_is_left_at_its_very_bound() -> None:
    log = filled()
    sizes = [segment.size_bytes for segment in log.segments]
    log.config = config(retention_bytes=sum(sizes) - sizes[0] + 1)
    assert delete_expired(log, NOW) == []
    log.config = config(retention_bytes=sum(sizes) - sizes[0])
    assert [gone.size_bytes for gone in delete_expired(log, NOW)] == sizes[:1]


def test_retention_by_time_takes_what_is_older_than_its_bound_and_not_what_is_as_old() -> None:
    log = open_log(settings=config(retention_ms=1000))
    log.append_as_leader(batch(1, timestamp=NOW), 1, NOW)
    log.roll(NOW)
    log.append_as_leader(batch(1, timestamp=NOW + 5000), 1, NOW)
    log.update_high_watermark(2)
    assert delete_expired(log, NOW + 1000) == []
    assert [gone.next_offset for gone in delete_expired(log, NOW + 1001)] == [1]


def test_a_segment_without_timestamps_is_as_old_as_its_file() -> None:
    disk = MemoryDirectory()
    disk.disk.now_ms = NOW
    log = open_log(disk, config(retention_ms=1000))
    log.append_as_leader(batch(1, timestamp=-1), 1, NOW)
    log.roll(NOW)
    log.append_as_leader(batch(1, timestamp=NOW), 1, NOW)
    log.update_high_watermark(2)
    assert log.segments[0].max_timestamp_ms == -1
    assert delete_expired(log, NOW + 1000) == []
    assert [gone.next_offset for gone in delete_expired(log, NOW + 1001)] == [1]


def test_a_segment_is_filled_to_its_very_size() -> None:
    size = len(batch(1))
    for limit, segments in ((3 * size, 1), (3 * size - 1, 2)):
        log = open_log(settings=config(segment_bytes=limit))
        for _ in range(3):
            log.append_as_leader(batch(1), 1, NOW)
        assert len(log.segments) == segments


SENT = [{}, {"compression": "lz4"}, {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}]


@pytest.mark.parametrize("options", SENT, ids=["plain", "compressed", "idempotent"])
def test_a_batch_of_just_max_message_bytes_is_taken(options: dict[str, Any]) -> None:
    data = batch(3, **options)
    log = open_log(settings=config(max_message_bytes=len(data)))
    assert log.append_as_leader(data, 1, NOW).last_offset == 2
    log = open_log(settings=config(max_message_bytes=len(data) - 1))
    with pytest.raises(MessageTooLargeError, match=r"raise max\.message\.bytes"):
        log.append_as_leader(data, 1, NOW)


@pytest.mark.parametrize("options", SENT, ids=["plain", "compressed", "idempotent"])
def test_timestamps_may_lie_at_their_bounds_and_not_beyond(options: dict[str, Any]) -> None:
    settings = config(message_timestamp_before_max_ms=50, message_timestamp_after_max_ms=20)
    for timestamp in (NOW - 50, NOW + 19):
        log = open_log(settings=settings)
        assert log.append_as_leader(batch(2, timestamp=timestamp, **options), 1, NOW).batches == 1
    for timestamp, named in ((NOW - 51, "before"), (NOW + 20, "after")):
        with pytest.raises(InvalidTimestampError, match=rf"message\.timestamp\.{named}\.max\.ms"):
            open_log(settings=settings).append_as_leader(
                batch(2, timestamp=timestamp, **options), 1, NOW
            )


@pytest.mark.parametrize("options", SENT, ids=["plain", "compressed", "idempotent"])
def test_with_log_append_time_the_producers_clock_does_not_matter(options: dict[str, Any]) -> None:
    bounds = {"message_timestamp_before_max_ms": 0, "message_timestamp_after_max_ms": 0}
    log = open_log(settings=config(message_timestamp_type="LogAppendTime", **bounds))
    for timestamp in (-1, 5, NOW + 10**9):
        log.append_as_leader(batch(2, timestamp=timestamp, **options), 1, NOW)
        options = options and {k: v + 2 if k == "base_sequence" else v for k, v in options.items()}
    assert {record.timestamp_ms for record in records_of(log)} == {NOW}
    assert {header.attributes & TIMESTAMP_TYPE_FLAG for header in log.segments[0].headers()} == {8}


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_a_client_may_not_say_that_its_time_is_the_servers(kind: str) -> None:
    data = bytearray(batch(2))
    data[22] |= TIMESTAMP_TYPE_FLAG
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    log = open_log(settings=config(message_timestamp_type=kind))
    with pytest.raises(InvalidTimestampError, match=r"message\.timestamp\.type=LogAppendTime"):
        log.append_as_leader(bytes(data), 1, NOW)
    assert log.log_end_offset == 0


def test_a_torn_tail_is_cut_even_after_a_clean_stop() -> None:
    disk = MemoryDirectory()
    log = filled(disk, batches=3)
    end, size, name = log.log_end_offset, log.active_segment.size_bytes, log.active_segment.log_file
    log.close()
    for tail in (b"\x00" * 70, batch(2, base_offset=end)[:-1], b"x"):
        file = disk.open(name)
        file.append(tail)
        file.close()
        again = open_log(disk, clean=True)
        assert again.log_end_offset == end
        assert (disk.size_of(name), again.active_segment.size_bytes) == (size, size)
        again.close()


def test_what_lay_behind_a_bad_byte_is_gone_from_the_disk_too() -> None:
    """Otherwise it would come back with the next start, behind other records."""
    disk = MemoryDirectory()
    log = filled(disk, batches=60)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 3
    log.close()
    disk.flip_bit(f"{bases[1]:020d}.log", 100)
    again = open_log(disk)
    assert again.log_end_offset <= bases[2]
    assert {int(name[:20]) for name in disk.list() if name.endswith(".log")} == set(bases[:2])
    assert records_of(open_log(disk)) == records_of(again)
