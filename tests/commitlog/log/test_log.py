"""Scenarios of one log: appends and their refusals, rolls, look-ups, retention, truncation."""

from __future__ import annotations

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.events import UNTRACKED
from commitlog.log.expiration import delete_expired
from commitlog.log.from_tier import rebuild_from_remote
from commitlog.log.log import Log
from commitlog.types import AppendOrigin, UnexpectedAppendOffsetError
from tests.commitlog.builders import NOW, batch, config, filled, offsets_of, open_log, records_of
from tidemark.errors import (
    CorruptMessageError,
    InconsistentTopicIdError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    RecordListTooLargeError,
)
from tidemark.records import EndTransactionMarker, encode_control_batch, read_header, verify_crc
from tidemark.types import random_uuid

# --- appends


def test_a_leader_gives_offsets_and_its_epoch_to_every_batch_of_a_request() -> None:
    log = open_log()
    log.append_as_leader(batch(2), 3, NOW)
    info = log.append_as_leader(batch(3) + batch(1), 3, NOW)
    again = log.append_as_leader([batch(1), memoryview(batch(2))], 4, NOW)
    assert (info.first_offset, info.last_offset, info.batches) == (2, 5, 2)
    assert (again.first_offset, again.last_offset) == (6, 8)
    assert offsets_of(log) == list(range(9))
    assert log.epochs.entries() == ((3, 0), (4, 6))
    data = log.read(6, 1000).records
    assert read_header(data).partition_leader_epoch == 4
    verify_crc(data, 0, read_header(data))


def test_append_time_is_stamped_by_the_leader_with_a_crc_that_fits() -> None:
    log = open_log(settings=config(message_timestamp_type="LogAppendTime"))
    info = log.append_as_leader(batch(3, timestamp=1), 1, NOW + 5)
    assert (info.log_append_time_ms, info.max_timestamp_ms) == (NOW + 5, NOW + 5)
    data = log.read(0, 1000).records
    verify_crc(data, 0, read_header(data))
    assert {r.timestamp_ms for r in records_of(log)} == {NOW + 5}
    hit = log.offset_for_timestamp(NOW)
    assert hit is not None
    assert hit == (NOW + 5, 0, 1)


def marker(*, committed: bool) -> bytes:
    """The end of producer 1's transaction."""
    return encode_control_batch(
        [EndTransactionMarker(committed, 4)],
        base_offset=0,
        timestamp_ms=NOW,
        partition_leader_epoch=0,
        producer_id=1,
        producer_epoch=0,
    )


def corrupt(data: bytes) -> bytes:
    """Flips one bit of the last value: the record is otherwise valid, only the CRC shows it."""
    return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


@pytest.mark.parametrize(
    ("records", "error", "says"),
    [
        (corrupt(batch(3)), CorruptMessageError, "CRC"),
        (corrupt(batch(3, compression="gzip")), CorruptMessageError, "CRC"),  # not walked
        (batch(3)[:-1], CorruptMessageError, "bytes"),
        (batch(3) + b"\0", CorruptMessageError, "no batch"),
        (b"", CorruptMessageError, "no record batch"),
        (batch(3)[:16] + b"\1" + batch(3)[17:], CorruptMessageError, "magic 1"),
        (batch(1, size=1100), MessageTooLargeError, "max.message.bytes 1000"),
        (b"".join(batch(3, size=200) for _ in range(3)), RecordListTooLargeError, "segment.bytes"),
        (batch(1, timestamp=NOW + 60_001), InvalidTimestampError, "after.max.ms"),
        (batch(1, timestamp=NOW - 30_001), InvalidTimestampError, "before.max.ms"),
        (batch(1, producer_id=1, producer_epoch=0), InvalidRecordError, "no sequence"),
        (batch(1, transactional=True), InvalidRecordError, "no producer id"),
        (
            marker(committed=True),
            InvalidRecordError,
            "control",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_refused_and_nothing_of_it_is_kept(
    records: bytes, error: type[Exception], says: str
) -> None:
    log = open_log(
        settings=config(
            max_message_bytes=1000,
            message_timestamp_after_max_ms=60_000,
            message_timestamp_before_max_ms=30_000,
        )
    )
    log.append_as_leader(batch(1), 1, NOW)
    with pytest.raises(error, match=says):
        log.append_as_leader(records, 1, NOW)
    assert offsets_of(log) == [0]
    assert log.size_bytes == len(batch(1))


def test_a_bad_batch_behind_good_ones_refuses_the_whole_request() -> None:
    log = open_log()
    with pytest.raises(CorruptMessageError):
        log.append_as_leader(batch(1) + batch(1) + corrupt(batch(1)), 1, NOW)
    assert log.log_end_offset == 0


def test_a_follower_takes_the_leaders_bytes_as_they_are() -> None:
    leader, follower = filled(batches=20), open_log()
    while follower.log_end_offset < leader.log_end_offset:
        follower.append_as_follower(leader.read(follower.log_end_offset, 700).records, NOW)
    assert records_of(follower) == records_of(leader)
    assert follower.epochs.entries() == leader.epochs.entries()
    first = follower.read(0, 700).records
    assert bytes(first) == bytes(leader.read(0, 700).records)


def test_a_follower_refuses_offsets_that_go_back_or_leave_a_gap() -> None:
    leader, follower = filled(batches=5), open_log()
    follower.append_as_follower(leader.read(0, 100).records, NOW)
    with pytest.raises(UnexpectedAppendOffsetError, match="does not follow offset 3"):
        follower.append_as_follower(leader.read(0, 100).records, NOW)
    with pytest.raises(UnexpectedAppendOffsetError):
        follower.append_as_follower(leader.read(6, 100).records, NOW)
    with pytest.raises(CorruptMessageError):
        follower.append_as_follower(corrupt(bytes(leader.read(3, 100).records)), NOW)
    assert follower.log_end_offset == 3
    gappy = open_log()
    gappy.append_as_follower(leader.read(6, 100).records, NOW, gaps_allowed=True)
    assert offsets_of(gappy) == [6, 7, 8]


def test_a_large_fetch_fills_several_segments_of_a_follower() -> None:
    leader, follower = filled(batches=60, settings=config(segment_bytes=1 << 20)), open_log()
    info = follower.append_as_follower(leader.read(0, 1 << 20).records, NOW)
    assert (info.first_offset, info.last_offset, info.batches) == (0, 179, 60)
    assert len(follower.segments) > 3
    assert all(segment.size_bytes <= 2000 for segment in follower.segments)
    assert records_of(follower) == records_of(leader)


def test_a_directory_of_another_topic_of_the_same_name_is_refused() -> None:
    directory, mine = MemoryDirectory(), random_uuid()
    open_log(directory, topic_id=mine).close()
    assert open_log(directory).topic_id == mine
    with pytest.raises(InconsistentTopicIdError, match="created anew"):
        open_log(directory, topic_id=random_uuid())


# --- rolls


def test_a_segment_is_rolled_by_size_before_it_would_grow_beyond_it() -> None:
    log = filled(batches=40)
    assert len(log.segments) > 2
    assert all(s.size_bytes <= 2000 for s in log.segments)
    assert all(s.size_bytes + len(batch(3)) > 2000 for s in log.segments[:-1])
    assert [s.next_offset for s in log.segments[:-1]] == [s.base_offset for s in log.segments[1:]]


def test_a_segment_is_rolled_by_the_time_between_its_first_and_the_next_record() -> None:
    log = open_log(settings=config(segment_ms=1000))
    log.append_as_leader(batch(timestamp=NOW), 1, NOW)
    log.append_as_leader(batch(timestamp=NOW + 1000), 1, NOW)
    log.append_as_leader(batch(timestamp=NOW - 5000), 1, NOW + 999_999)
    assert len(log.segments) == 1
    log.append_as_leader(batch(timestamp=NOW + 1001), 1, NOW)
    assert [s.base_offset for s in log.segments] == [0, 3]


def test_a_segment_is_rolled_when_an_index_is_full() -> None:
    settings = config(segment_bytes=1 << 20, index_interval_bytes=0, segment_index_bytes=60)
    log = filled(batches=20, settings=settings)
    # 60 bytes: 7 offset entries, or 5 time entries, one of them reserved for the roll
    assert [len(s.time_index) for s in log.segments[:-1]] == [4, 4, 4]
    assert offsets_of(log) == list(range(60))


def test_a_segment_is_rolled_before_a_relative_offset_outgrows_31_bits() -> None:
    log = open_log()
    log.append_as_follower(at_offset(0), NOW, gaps_allowed=True)
    log.append_as_follower(at_offset(2**31 - 1), NOW, gaps_allowed=True)
    log.append_as_follower(at_offset(2**31), NOW, gaps_allowed=True)
    assert [s.base_offset for s in log.segments] == [0, 2**31]
    assert offsets_of(log) == [0, 2**31 - 1, 2**31]
    empty = open_log()
    empty.append_as_follower(at_offset(2**40), NOW, gaps_allowed=True)
    assert [s.base_offset for s in empty.segments] == [2**40]


def at_offset(offset: int) -> bytes:
    return batch(1, base_offset=offset, partition_leader_epoch=1)


# --- reads and look-ups


def test_reads_give_whole_batches_below_the_offset_asked_for() -> None:
    log = filled(batches=10, settings=config(segment_bytes=1 << 20))
    size = len(batch(3))
    assert log.read(4, size * 2).base_offset == 3
    assert len(log.read(0, size * 2 + 5).records) == 2 * size
    assert len(log.read(0, 1).records) == size
    assert log.read(0, 1, min_one=False).records == b""
    assert log.read(0, 1 << 20, max_offset=8).next_offset == 6
    assert log.read(9, 1 << 20, max_offset=9).records == b""
    assert log.read(30, 100).records == b""
    for outside in (-1, 31):
        with pytest.raises(OffsetOutOfRangeError, match="not within 0 to 30"):
            log.read(outside, 100)


def test_timestamps_out_of_order_still_find_the_first_record_at_or_after() -> None:
    log = open_log(settings=config(segment_bytes=600, index_interval_bytes=100))
    stamps = [50, 10, 40, 90, 20, 60, 5, 95, 80, 120, 30, 110]
    for stamp in stamps:
        log.append_as_leader(batch(1, timestamp=NOW + stamp), 1, NOW)
    for wanted in range(121):
        hit = log.offset_for_timestamp(NOW + wanted)
        first = next(i for i, stamp in enumerate(stamps) if stamp >= wanted)
        assert hit == (NOW + stamps[first], first, 1)
    assert log.offset_for_timestamp(NOW + 121) is None
    assert log.offset_of_max_timestamp() == (NOW + 120, 9, 1)
    assert open_log().offset_of_max_timestamp() is None


def test_epochs_answer_where_another_leaders_history_parts() -> None:
    log = open_log()
    for epoch in (1, 1, 3, 6):
        log.append_as_leader(batch(2), epoch, NOW)
    ends = {epoch: log.end_offset_for_epoch(epoch) for epoch in range(8)}
    assert ends == {
        0: (0, 0),
        1: (1, 4),
        2: (1, 4),
        3: (3, 6),
        4: (3, 6),
        5: (3, 6),
        6: (6, 8),
        7: None,
    }
    assert [log.epochs.epoch_for_offset(o) for o in (0, 3, 4, 7)] == [1, 1, 3, 6]


# --- retention


def test_retention_by_time_deletes_whole_old_segments_but_never_the_active_one() -> None:
    log = filled(batches=40, settings=config(retention_ms=100))
    count = len(log.segments)
    deleted = delete_expired(log, NOW + 300)
    assert [d.reason for d in deleted] == ["retention.ms"] * len(deleted)
    assert 0 < len(deleted) < count
    assert log.segments[0].max_timestamp_ms >= NOW + 200
    assert log.log_start_offset == log.segments[0].base_offset == deleted[-1].next_offset
    with pytest.raises(OffsetOutOfRangeError):
        log.read(0, 100)
    delete_expired(log, NOW + 100_000)
    delete_expired(log, NOW + 100_000)
    assert log.log_start_offset == log.log_end_offset == log.active_segment.base_offset
    log.append_as_leader(batch(1), 1, NOW)
    assert offsets_of(log) == [120]


def test_retention_by_size_keeps_at_least_that_much() -> None:
    log = filled(batches=40, settings=config(retention_bytes=2500))
    delete_expired(log, NOW)
    assert log.size_bytes >= 2500
    assert log.size_bytes - log.segments[0].size_bytes < 2500


def test_retention_stops_at_the_high_watermark() -> None:
    log = filled(batches=40, settings=config(retention_ms=0))
    follower = open_log(settings=config(retention_ms=0))
    follower.append_as_follower(log.read(0, 1900).records, NOW)
    follower.append_as_follower(log.read(follower.log_end_offset, 1900).records, NOW)
    follower.update_high_watermark(1)
    assert delete_expired(follower, NOW + 10_000) == []


def test_a_tiered_log_gives_up_only_what_the_tier_has_and_keeps_its_start() -> None:
    settings = config(remote_storage_enable=True, local_retention_bytes=0)
    log = filled(batches=40, settings=settings)
    assert delete_expired(log, NOW) == []
    third = log.segments[3].base_offset
    log.highest_remote_offset = third - 1
    assert len(delete_expired(log, NOW)) == 3
    assert (log.log_start_offset, log.local_log_start_offset) == (0, third)
    assert log.epochs.entries() == ((1, 0),)
    with pytest.raises(OffsetOutOfRangeError):
        log.read(third - 1, 100)
    log.close()
    again = open_log(log.directory, settings, clean=True)
    assert (again.log_start_offset, again.local_log_start_offset) == (0, third)


def test_the_active_segment_of_a_tiered_log_is_rolled_when_it_outlives_local_retention() -> None:
    log = filled(batches=3, settings=config(remote_storage_enable=True, local_retention_ms=100))
    assert len(log.segments) == 1
    assert delete_expired(log, NOW + 5000) == []
    assert [s.base_offset for s in log.segments] == [0, 9]


def test_deleted_files_stay_for_the_delay_and_then_go() -> None:
    log = filled(batches=40, settings=config(retention_ms=0))
    delete_expired(log, NOW + 10_000)
    marked = [n for n in log.directory.list() if n.endswith(".deleted")]
    assert marked
    assert log.deleted_files.purge(NOW + 10_999) == 0
    assert log.deleted_files.purge(NOW + 11_000) > 0
    assert not [n for n in log.directory.list() if n.endswith(".deleted")]


def test_records_below_the_log_start_are_not_served_and_go_with_their_segments() -> None:
    log = filled(batches=40)
    assert log.increment_log_start_offset(50)
    assert not log.increment_log_start_offset(50)
    with pytest.raises(OffsetOutOfRangeError):
        log.read(49, 100)
    hit = log.offset_for_timestamp(NOW)
    assert hit is not None
    assert hit.offset == 50
    assert all(d.next_offset <= 50 for d in delete_expired(log, NOW))
    with pytest.raises(OffsetOutOfRangeError, match="high watermark"):
        log.increment_log_start_offset(10_000)


# --- truncation, restart, tier bootstrap


def test_truncation_cuts_whole_batches_and_forgets_epochs_and_producers_behind() -> None:
    log = open_log()
    for number in range(30):
        data = batch(3, producer_id=9, producer_epoch=0, base_sequence=number * 3)
        log.append_as_leader(data, 1 + number // 10, NOW)
    log.flush()
    assert log.truncate_to(40, NOW)
    assert (log.log_end_offset, log.recovery_point) == (39, 39)
    assert log.epochs.entries() == ((1, 0), (2, 30))
    assert log.producers.producers[9].last_sequence == 38
    assert not log.truncate_to(39, NOW)
    log.append_as_leader(batch(1, producer_id=9, producer_epoch=0, base_sequence=39), 4, NOW)
    assert offsets_of(log) == list(range(40))
    log.validate()


class Checkpoints:
    """Records the state of a log at the time its truncation is announced."""

    unread = UNTRACKED

    def __init__(self, told: list[tuple[int, int]]) -> None:
        self._told = told

    def truncating(self, log: Log) -> None:
        self._told.append((log.recovery_point, log.log_end_offset))

    def cut(self, log: Log) -> None:
        self._told.append((log.recovery_point, log.log_end_offset))

    def rolling(self, log: Log, is_gap: bool) -> None:
        pass


def test_a_truncation_tells_the_checkpoint_before_it_cuts() -> None:
    told: list[tuple[int, int]] = []
    log = filled(batches=20, events=Checkpoints(told))
    log.flush()
    log.truncate_to(30, NOW)
    assert told == [(30, 60), (30, 60)]


def test_a_flush_that_overlaps_a_truncation_does_not_move_the_recovery_point() -> None:
    log = filled(batches=20)
    pending = log.prepare_flush()
    assert pending is not None
    log.truncate_to(9, NOW)
    log.append_as_leader(batch(3), 2, NOW)
    pending.run()
    log.complete_flush(pending)
    assert log.recovery_point <= 9


def test_a_follower_begins_above_the_tier_with_its_epochs_and_producers() -> None:
    source = open_log()
    for number in range(12):
        data = batch(3, producer_id=9, producer_epoch=0, base_sequence=number * 3)
        source.append_as_leader(data, 1 + number // 5, NOW)
    source.roll(NOW)
    snapshot = source.directory.read(f"{36:020d}.snapshot")
    log = filled(batches=3)
    rebuild_from_remote(log, source.epochs.entries(), snapshot, 36, NOW, log_start_offset=0)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 36, 36)
    assert log.epochs.entries() == ((1, 0), (2, 15), (3, 30))
    assert log.producers.producers[9].last_sequence == 35
    following = batch(
        1,
        base_offset=36,
        partition_leader_epoch=3,
        producer_id=9,
        producer_epoch=0,
        base_sequence=36,
    )
    log.append_as_follower(following, NOW)
    log.close()
    settings = config(remote_storage_enable=True)
    again = open_log(log.directory, settings, clean=True)
    assert (again.log_start_offset, again.log_end_offset) == (0, 37)
    assert again.epochs.entries() == ((1, 0), (2, 15), (3, 30))


def test_a_clean_restart_replays_nothing_and_an_unclean_one_finds_the_same() -> None:
    def state(log: Log) -> tuple[object, ...]:
        producers = {
            k: (v.last_sequence, v.producer_epoch) for k, v in log.producers.producers.items()
        }
        return (offsets_of(log), log.epochs.entries(), producers)

    directory = MemoryDirectory()
    log = open_log(directory)
    for number in range(25):
        data = batch(2, producer_id=number % 3, producer_epoch=1, base_sequence=(number // 3) * 2)
        log.append_as_leader(data, 1, NOW)
    expected = state(log)
    log.close()
    assert state(open_log(directory, clean=True)) == expected
    assert state(open_log(directory)) == expected
    directory.crash(keep="nothing")
    assert state(open_log(directory)) == expected


def test_a_coordinator_may_write_markers() -> None:
    log = open_log()
    sent = batch(2, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_as_leader(sent, 1, NOW, verified=True)
    log.update_high_watermark(2)
    assert (log.first_unstable_offset, log.last_stable_offset) == (0, 0)
    log.append_as_leader(marker(committed=False), 1, NOW, origin=AppendOrigin.COORDINATOR)
    assert log.last_stable_offset == 0  # the marker is not replicated yet
    log.update_high_watermark(3)
    assert (log.first_unstable_offset, log.last_stable_offset) == (None, 3)
    (aborted,) = log.aborted_transactions(0, 3)
    assert (aborted.first_offset, aborted.last_offset) == (0, 2)
