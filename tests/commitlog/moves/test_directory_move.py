"""Moves between log directories: the log, moves under way, and the remains of a stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.cleaner.manager import LogCleaner
from commitlog.disk.checkpoints import OffsetCheckpoint
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.names import parse_future_name, unique_name
from commitlog.disk.os_files import OsDirectory
from commitlog.log.expiration import delete_expired
from commitlog.log.from_tier import rebuild_from_remote
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from commitlog.moves.future_log import PIECE_BYTES, Lineage, SourceError
from commitlog.segment.producer_state import ProducerEntry, encode_snapshot
from commitlog.types import AppendOrigin
from tests.commitlog.builders import NOW, TP, batch, config, offsets_of, records_of
from tests.commitlog.moves.moving import (
    SERVER,
    TOPIC_ID,
    add,
    begin_move,
    copy_all,
    filled,
    home_of,
    manager,
    move,
    names,
    other_home,
)
from tidemark.errors import CorruptMessageError, StorageError
from tidemark.records import Record, encode_batch, encode_control_batch
from tidemark.records.control import EndTransactionMarker
from tidemark.types import TopicPartition


def test_a_moved_log_is_the_same_log_in_another_directory() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    log = filled(logs)
    log.increment_log_start_offset(20)
    delete_expired(log, NOW)
    before = records_of(log), log.epochs.entries(), [s.base_offset for s in log.segments]
    move(logs)
    assert home_of(logs) == "b"
    assert logs.get(TP) is log
    assert (records_of(log), log.epochs.entries(), [s.base_offset for s in log.segments]) == before
    assert log.log_start_offset == 20
    assert log.recovery_point == log.log_end_offset
    add(log, 30, epoch=2)
    log.roll(NOW)
    log.truncate_to(150, NOW)
    log.validate()
    assert offsets_of(log) == list(range(log.local_log_start_offset, 150))
    assert names(disk, "b") == [str(TP)]
    (left,) = names(disk, "a")
    assert left.endswith("-delete")
    logs.purge_deleted(NOW)
    assert names(disk, "a") == []


def test_producers_transactions_and_unstable_offsets_move_along() -> None:
    logs = manager(MemoryDirectory())
    log = logs.get_or_create(TP, None, config())

    def write(producer_id: int, sequence: int, transactional: bool) -> bytes:
        data = encode_batch(
            [Record(0, NOW, b"k", b"v" * 200)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )
        log.append_as_leader(data, 1, NOW, verified=transactional)
        return data

    sent = [write(7, sequence, False) for sequence in range(20)]
    for sequence in range(10):
        write(8, sequence, True)
    marker = encode_control_batch(
        [EndTransactionMarker(False, 0)],
        base_offset=0,
        timestamp_ms=NOW,
        partition_leader_epoch=1,
        producer_id=8,
        producer_epoch=0,
    )
    log.append_as_leader(marker, 1, NOW, origin=AppendOrigin.COORDINATOR)
    aborted = log.aborted_transactions(0, log.log_end_offset)
    assert len(aborted) == 1
    log.update_high_watermark(25)
    move(logs)
    assert log.aborted_transactions(0, log.log_end_offset) == aborted
    assert log.last_stable_offset == 20, "the marker is not replicated yet"
    for data in sent[-5:]:
        assert log.append_as_leader(data, 1, NOW).duplicate


def test_what_is_written_during_a_move_is_moved_too() -> None:
    logs = manager(MemoryDirectory())
    log = filled(logs)
    future = begin_move(logs)
    for _ in range(5):
        piece = future.next_piece()
        assert piece is not None
        add(log, 2)
        future.take(piece, piece.run())
    assert future.lag > 0
    copy_all(future)
    assert (future.lag, future.bytes_left) == (0, 0)
    add(log, 1)
    assert (future.lag, future.end_offset) == (3, log.log_end_offset - 3)
    assert future.size_bytes < log.size_bytes
    logs.moves.swap(TP)
    assert offsets_of(log) == list(range(153))


def test_a_cut_log_is_copied_again_from_the_cut_segment_on() -> None:
    logs = manager(MemoryDirectory())
    log = filled(logs)
    future = begin_move(logs)
    copy_all(future)
    log.truncate_to(30, NOW)
    assert future.end_offset <= 30
    for _ in range(30):  # other records of the same size at the same place
        log.append_as_leader(batch(3, timestamp=NOW + 9000 + log.log_end_offset), 2, NOW)
    before = records_of(log)
    logs.moves.swap(TP)
    assert records_of(log) == before


def test_a_piece_that_was_read_while_its_segment_was_cut_does_not_count() -> None:
    logs = manager(MemoryDirectory())
    log = filled(logs, batches=5)
    future = begin_move(logs)
    piece = future.next_piece()
    assert piece is not None
    result = piece.run()
    log.truncate_to(0, NOW)
    add(log, 5, epoch=2)
    assert not future.still_fits(piece)
    future.take(piece, result)
    before = records_of(log)
    copy_all(future)
    logs.moves.swap(TP)
    assert records_of(log) == before


def test_a_deleted_or_cleaned_segment_is_taken_out_of_the_copy() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    log = filled(logs)
    future = begin_move(logs)
    copy_all(future)
    log.increment_log_start_offset(60)
    delete_expired(log, NOW)
    logs.moves.swap(TP)
    bases = {f"{segment.base_offset:020d}.log" for segment in log.segments}
    assert bases == {n for n in log.directory.list() if n.endswith(".log")}
    again = manager_of(disk, logs)
    assert offsets_of(again) == list(range(60, 120))


def manager_of(disk: MemoryDirectory, logs: LogManager) -> Log:
    """Returns the logs after a clean restart."""
    logs.close()
    found = manager(disk).get(TP)
    assert found is not None
    return found


def test_a_cancelled_move_leaves_the_log_where_it_is() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    log = filled(logs)
    copy_all(begin_move(logs))
    assert parse_future_name(names(disk, "b")[0]) == TP
    logs.moves.cancel(TP)
    logs.moves.cancel(TP)
    assert logs.moves.all() == []
    assert home_of(logs) == "a"
    logs.purge_deleted(NOW)
    assert names(disk, "b") == []
    assert offsets_of(log) == list(range(120))


def test_deleting_the_log_deletes_its_future_log() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    filled(logs)
    copy_all(begin_move(logs))
    logs.delete(TP)
    assert logs.moves.get(TP) is None
    logs.purge_deleted(NOW + 10_000)
    assert (names(disk, "a"), names(disk, "b")) == ([], [])


@pytest.mark.parametrize("batches", [2, 30])
def test_what_a_log_has_of_the_tier_moves_along(batches: int) -> None:
    disk = MemoryDirectory()
    settings = config(remote_storage_enable=True)
    logs = manager(disk, topic_config=lambda _: settings)
    log = logs.get_or_create(TP, TOPIC_ID, settings)
    epochs = [(0, 0), (1, 60), (4, 90)]
    snapshot = encode_snapshot([ProducerEntry(7, 3, -1, NOW)])
    rebuild_from_remote(log, epochs, snapshot, 100, NOW, log_start_offset=20)
    add(log, batches, epoch=4)
    log.highest_remote_offset = 99
    move(logs)
    assert log.highest_remote_offset == 99
    disk.crash(keep="nothing")
    found = manager(disk, topic_config=lambda _: settings).get(TP)
    assert found is not None
    assert found.epochs.entries() == ((0, 20), (1, 60), (4, 90))
    assert (found.log_start_offset, found.local_log_start_offset) == (20, 100)
    assert found.log_end_offset == 100 + 3 * batches
    assert found.producers.producers[7].producer_epoch == 3


def test_a_swap_that_fails_leaves_the_log_and_outranks_what_may_be_in_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    log = filled(logs)
    copy_all(begin_move(logs))
    target = other_home(logs).inner
    assert isinstance(target, MemoryDirectory)

    def rename_and_fail(old: str, new: str) -> None:
        MemoryDirectory.rename(target, old, new)
        if old.endswith("-future"):
            disk.fail_fsync("b")

    monkeypatch.setattr(target, "rename", rename_and_fail)
    with pytest.raises(StorageError):
        logs.moves.swap(TP)
    assert home_of(logs) == "a"
    lineage = Lineage.read(log.directory)
    assert lineage is not None
    assert lineage.count == 2
    assert logs.moves.all() == []
    add(log, 10)
    log.flush()
    disk.crash(keep="everything")  # the name in `b` became durable nevertheless
    again = manager(disk)
    found = again.get(TP)
    assert found is not None
    assert home_of(again) == "a"
    assert found.log_end_offset == 150


def test_damage_stops_a_move_instead_of_being_copied() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    log = filled(logs)
    future = begin_move(logs)
    path = disk.subdirectory("a").subdirectory(str(TP))
    assert isinstance(path, MemoryDirectory)
    path.flip_bit(log.segments[1].log_file, 100)
    with pytest.raises(CorruptMessageError, match="CRC"):
        copy_all(future)
    with pytest.raises(CorruptMessageError):
        logs.moves.swap(TP)
    assert home_of(logs) == "a"
    assert logs.moves.all() == []


def test_a_source_that_can_not_be_read_is_told_from_a_copy_that_can_not_be_written() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    filled(logs)
    future = begin_move(logs)
    piece = future.next_piece()
    assert piece is not None
    disk.fail_reads("*.log")
    with pytest.raises(SourceError):
        piece.run()


def test_a_failed_destination_ends_only_the_move() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    log = filled(logs)
    copy_all(begin_move(logs))
    other_home(logs).state.fail("test")
    assert logs.drop_offline() == []
    assert logs.moves.all() == []
    add(log, 1)
    assert offsets_of(log) == list(range(123))


def test_a_new_log_goes_where_it_was_asked_for_and_moves_count_as_logs() -> None:
    logs = manager(MemoryDirectory())
    filled(logs)
    begin_move(logs)
    wanted = TopicPartition("wanted", 0)
    logs.moves.preferred[wanted] = logs.directories[1]
    logs.get_or_create(wanted, None, config())
    assert logs.directory_of(wanted) is logs.directories[1]
    assert logs.moves.preferred == {}
    logs.get_or_create(TopicPartition("next", 0), None, config())
    assert logs.directory_of(TopicPartition("next", 0)) is logs.directories[0]


def test_the_cleaner_s_checkpoint_moves_and_a_cleaning_under_way_has_no_effect() -> None:
    disk = MemoryDirectory()
    compacted = config(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
    logs = manager(disk, topic_config=lambda _: compacted)
    log = logs.get_or_create(TP, None, compacted)
    cleaner = LogCleaner(logs, SERVER, now_ms=lambda: NOW)
    add(log, 40)
    log.roll(NOW)
    while cleaner.clean_once() is not None:
        assert cleaner.uncleanable == {}
    clean_until = cleaner.checkpoint_of(TP)
    add(log, 40)
    log.roll(NOW)
    copy_all(begin_move(logs))
    cleaning = cleaner.choose()
    assert cleaning is not None
    cleaning.build_map(cleaner.new_map())
    before = records_of(log)
    logs.moves.swap(TP)
    with pytest.raises(Exception, match="called off"):
        cleaning.next_group()
    cleaner.finish(cleaning, None)
    assert records_of(log) == before
    assert cleaner.checkpoint_of(TP) == clean_until
    cleaner.save()
    name = "cleaner-offset-checkpoint"
    assert OffsetCheckpoint(disk.subdirectory("b"), name).read() == {TP: clean_until}
    assert OffsetCheckpoint(disk.subdirectory("a"), name).read() == {}


def test_a_batch_larger_than_a_piece_is_copied_whole() -> None:
    logs = manager(MemoryDirectory())
    settings = config(segment_bytes=1 << 30, max_message_bytes=1 << 30)
    log = logs.get_or_create(TP, None, settings)
    add(log, 1)
    log.append_as_leader(batch(1, size=PIECE_BYTES + 10), 1, NOW)
    add(log, 1)
    before = records_of(log)
    move(logs)
    assert records_of(log) == before


def test_a_flush_under_way_when_the_log_moves_has_nothing_to_do(tmp_path: Path) -> None:
    logs = LogManager([OsDirectory(tmp_path / name) for name in "ab"], SERVER, now_ms=lambda: NOW)
    logs.open()
    log = filled(logs)
    pending = log.prepare_flush()
    assert pending is not None
    copy_all(begin_move(logs))
    logs.moves.swap(TP)
    add(log, 1)
    pending.run()
    log.complete_flush(pending)
    assert log.recovery_point == log.log_end_offset - 3
    assert all(directory.is_online for directory in logs.directories)
    logs.close()


def test_names_of_future_logs_are_kafka_s() -> None:
    name = unique_name(TopicPartition("a.b-c", 12), "0" * 32, "-future")
    assert name == "a.b-c-12." + "0" * 32 + "-future"
    assert parse_future_name(name) == TopicPartition("a.b-c", 12)
    for other in ("t-0", "t-0.0-future", "t-0." + "0" * 32 + "-delete"):
        assert parse_future_name(other) is None
    assert len(unique_name(TopicPartition("t" * 249, 12), "0" * 32, "-future")) == 255
