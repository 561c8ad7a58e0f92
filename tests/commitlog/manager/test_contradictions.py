"""Checkpoints, partition.metadata and files that contradict each other at an opening: nothing is
removed, and no offset is given twice.
"""

from __future__ import annotations

import logging
from uuid import UUID

import pytest

from commitlog.disk.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    OffsetCheckpoint,
    PartitionMetadata,
    format_epochs,
)
from commitlog.disk.memory_files import Keep, MemoryDirectory
from commitlog.log.claims import RecordsMissingError
from commitlog.log.expiration import delete_expired
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from commitlog.manager.ownership import ForeignLogError, is_other, is_stray
from tests.commitlog.builders import NOW, TP, batch, config, offsets_of
from tests.commitlog.manager.test_manager import manager
from tidemark.errors import StorageError
from tidemark.types import random_uuid

ID = random_uuid()
OTHER = UUID(int=ID.int ^ 1 << 20)


def written(disk: MemoryDirectory, batches: int = 40) -> LogManager:
    """Returns the manager of a log of `batches` batches of three records in several segments."""
    logs = manager(disk)
    logs.open()
    log = logs.get_or_create(TP, ID, config())
    for _ in range(batches):
        log.append_as_leader(batch(3), 1, NOW)
    log.update_high_watermark(log.log_end_offset)
    return logs


def opened(disk: MemoryDirectory) -> LogManager:
    disk.crash("everything")
    logs = manager(disk)
    logs.open()
    return logs


def found(logs: LogManager) -> Log:
    log = logs.get(TP)
    assert log is not None
    log.validate()
    return log


def set_offset(disk: MemoryDirectory, name: str, offset: int) -> None:
    OffsetCheckpoint(disk, name).write({TP: offset})


def strays(disk: MemoryDirectory) -> list[str]:
    return [name for name in disk.list() if name.endswith("-stray")]


# --- log starts


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("start", [121, 1 << 40])
def test_a_log_start_beyond_the_end_removes_nothing(
    clean: bool, start: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDirectory()
    logs = written(disk)
    if clean:
        logs.close(True, 17)
    else:
        found(logs).flush()
        logs.checkpoint_recovery_points()
        logs.checkpoint_high_watermarks()
    set_offset(disk, LOG_START_OFFSET_CHECKPOINT, start)
    files = disk.subdirectory(str(TP)).list()
    again = opened(disk)
    assert offsets_of(found(again)) == list(range(120))
    assert found(again).log_start_offset == 0
    assert set(files) <= set(disk.subdirectory(str(TP)).list())
    assert [r for r in caplog.records if r.levelno == logging.ERROR and "believed" in r.message]
    again.checkpoint_log_start_offsets()
    assert OffsetCheckpoint(disk, LOG_START_OFFSET_CHECKPOINT).read() == {}


def test_a_log_whose_end_was_lost_below_its_start_begins_anew_and_its_files_are_kept() -> None:
    """Records were deleted up to the high watermark, and the power failed before they were
    synced."""
    disk = MemoryDirectory()
    logs = written(disk, batches=5)
    log = found(logs)
    log.flush()
    for _ in range(5):
        log.append_as_leader(batch(3), 1, NOW)
    log.update_high_watermark(30)
    log.increment_log_start_offset(30)
    logs.checkpoint_log_start_offsets()
    disk.crash("nothing")
    again = manager(disk)
    again.open()
    log = found(again)
    assert (log.log_start_offset, log.log_end_offset, log.topic_id) == (30, 30, ID)
    (aside,) = strays(disk)
    assert disk.subdirectory(aside).size_of(f"{0:020d}.log") > 0
    log.append_as_leader(batch(1), 1, NOW)
    again.close(True, 18)
    disk.crash("nothing")
    assert offsets_of(found(opened(disk))) == [30]


def test_a_start_that_no_high_watermark_reached_is_not_believed_after_a_crash() -> None:
    disk = MemoryDirectory()
    logs = written(disk)
    logs.checkpoint_high_watermarks()
    set_offset(disk, LOG_START_OFFSET_CHECKPOINT, 200)
    assert offsets_of(found(opened(disk))) == list(range(120))
    set_offset(disk, HIGH_WATERMARK_CHECKPOINT, 200)
    set_offset(disk, LOG_START_OFFSET_CHECKPOINT, 200)
    set_offset(disk, RECOVERY_POINT_CHECKPOINT, 0)
    assert found(opened(disk)).log_end_offset == 200
    assert strays(disk)


# --- records that were durable


@pytest.mark.parametrize("damage", ["cut at a batch", "cut within a batch", "gone", "all gone"])
def test_a_log_that_ends_below_its_recovery_point_is_not_opened(damage: str) -> None:
    """Its offsets would be given to new records. It stays so over restarts until it is mended."""
    disk = MemoryDirectory()
    logs = written(disk, batches=44)
    segments = found(logs).segments
    last = segments[-1]
    cut_at = [header.position for header in last.headers()][1] + (damage == "cut within a batch")
    logs.close(True, 17)
    home = disk.subdirectory(str(TP))
    assert isinstance(home, MemoryDirectory)
    gone = {s.log_file: home.read(s.log_file) for s in segments}
    if "cut" in damage:
        home.cut(last.log_file, cut_at)
    else:
        for segment in segments if damage == "all gone" else segments[-1:]:
            home.remove(segment.log_file)
    reason = "without its segment" if "gone" in damage else "below its recovery point 132"
    for _ in range(2):
        again = opened(disk)
        assert again.get(TP) is None
        with pytest.raises(RecordsMissingError, match=reason):
            again.get_or_create(TP, ID, config(), may_hold_data=True)
        again.close(True, 18)
        assert OffsetCheckpoint(disk, RECOVERY_POINT_CHECKPOINT).read() == {TP: 132}
    for name, content in gone.items():
        home.write_atomic(name, content)
    assert offsets_of(found(opened(disk))) == list(range(132))


@pytest.mark.parametrize("which", range(5))
def test_a_segment_that_is_gone_after_an_unclean_stop_is_noticed(which: int) -> None:
    """The first one above all: the log would begin later, and followers would delete theirs."""
    disk = MemoryDirectory()
    logs = written(disk)
    found(logs).flush()
    logs.checkpoint_recovery_points()
    segments = found(logs).segments
    home = disk.subdirectory(str(TP))
    home.remove(segments[which if which < 4 else -1].log_file)
    again = opened(disk)
    with pytest.raises(RecordsMissingError):
        again.get_or_create(TP, ID, config(), may_hold_data=True)


def test_a_first_segment_that_is_gone_is_noticed_before_the_first_recovery_point() -> None:
    disk = MemoryDirectory()
    logs = written(disk)
    logs.checkpoint_recovery_points()
    set_offset(disk, RECOVERY_POINT_CHECKPOINT, 0)
    disk.subdirectory(str(TP)).remove(found(logs).segments[0].log_file)
    with pytest.raises(RecordsMissingError, match="without its segment"):
        opened(disk).get_or_create(TP, ID, config(), may_hold_data=True)


@pytest.mark.parametrize("keep", ["everything", "random"])
@pytest.mark.parametrize("seed", range(15))
def test_deleted_and_truncated_segments_are_never_taken_for_missing_ones(
    seed: int, keep: Keep
) -> None:
    """At every crash within a deletion, a truncation, and within the opening after it."""
    disk = MemoryDirectory(seed=seed)
    logs = written(disk)
    log = found(logs)
    log.flush()
    logs.checkpoint_recovery_points()
    if seed % 3 == 0:
        log.increment_log_start_offset(log.segments[2].base_offset)
        delete_expired(log, NOW)
    elif seed % 3 == 1:
        log.truncate_to(log.segments[2].base_offset + 3, NOW)
    else:
        log.truncate_fully_and_start_at(500, NOW)
    for _ in range(3):
        disk.crash(keep)
        again = manager(disk)
        again.open()
        assert offsets_of(found(again)) is not None


def test_a_log_without_durable_records_is_copied_anew_where_nothing_counts_on_it() -> None:
    disk = MemoryDirectory()
    written(disk).close(True, 17)
    home = disk.subdirectory(str(TP))
    assert isinstance(home, MemoryDirectory)
    home.remove([name for name in home.list() if name.endswith(".log")][-1])
    logs = opened(disk)
    assert logs.get(TP) is None
    log = logs.get_or_create(TP, ID, config())
    assert (log.log_end_offset, log.topic_id) == (0, ID)
    (aside,) = strays(disk)
    assert disk.subdirectory(aside).list()
    logs.close(True, 18)
    assert opened(disk).get(TP) is not None


def test_without_its_recovery_point_a_log_is_opened_with_what_is_left() -> None:
    """The advice of the error, for who wants to continue without the missing records."""
    disk = MemoryDirectory()
    logs = written(disk)
    last = found(logs).active_segment
    logs.close(True, 17)
    disk.subdirectory(str(TP)).remove(last.log_file)
    assert opened(disk).get(TP) is None
    disk.remove(RECOVERY_POINT_CHECKPOINT)
    assert offsets_of(found(opened(disk))) == list(range(last.base_offset))


# --- another topic's id


def with_id(disk: MemoryDirectory, topic_id: UUID) -> None:
    PartitionMetadata(topic_id).write(disk.subdirectory(str(TP)))


@pytest.mark.parametrize("bit", range(0, 128, 9))
def test_a_log_with_an_unknown_topic_id_is_refused_where_the_metadata_counts_on_it(
    bit: int,
) -> None:
    disk = MemoryDirectory()
    written(disk).close(True, 17)
    with_id(disk, UUID(int=ID.int ^ 1 << bit))
    for _ in range(2):
        logs = opened(disk)
        for _ in range(2):
            with pytest.raises(ForeignLogError, match="do not remove it"):
                logs.get_or_create(TP, ID, config(), may_hold_data=True, leader_epoch=1)
        assert logs.get(TP) is None
        assert not strays(disk)
        logs.close(True, 18)
    with_id(disk, ID)
    logs = opened(disk)
    log = logs.get_or_create(TP, ID, config(), may_hold_data=True, leader_epoch=1)
    assert offsets_of(log) == list(range(120))


def test_a_refused_log_is_set_aside_as_soon_as_nothing_counts_on_it() -> None:
    disk = MemoryDirectory()
    written(disk).close(True, 17)
    with_id(disk, OTHER)
    logs = opened(disk)
    with pytest.raises(ForeignLogError):
        logs.get_or_create(TP, ID, config(), may_hold_data=True, leader_epoch=1)
    assert logs.get_or_create(TP, ID, config(), leader_epoch=2).log_end_offset == 0
    assert len(strays(disk)) == 1


@pytest.mark.parametrize("starts", [1, 2])
def test_a_log_whose_id_is_no_damaged_one_is_set_aside(starts: int) -> None:
    """Ids of two topics differ in half of their bits. The log of a topic that was deleted must not
    hold up its namesake, for which nothing was written here.
    """
    disk = MemoryDirectory()
    logs = written(disk)
    logs.checkpoint_high_watermarks()
    logs.close(True, 17)
    namesake = UUID(int=ID.int ^ (1 << 64) - 1)
    for _ in range(starts):
        logs = opened(disk)
        log = logs.get_or_create(
            TP, namesake, config(), may_hold_data=True, is_placed=False, leader_epoch=1
        )
        assert (log.log_end_offset, log.topic_id) == (0, namesake)
        logs.close(False)
        disk.crash("nothing")
    (aside,) = strays(disk)
    assert [n for n in disk.subdirectory(aside).list() if n.endswith(".log")]


def test_ids_tell_damage_from_another_topic() -> None:
    bits = [1 << bit for bit in range(128)]
    for flipped in range(129):
        found = UUID(int=ID.int ^ sum(bits[:flipped]))
        assert is_other(found, ID) == (flipped >= 32)
    assert all(is_other(random_uuid(), random_uuid()) for _ in range(1000))


def test_a_log_is_a_stray_by_what_the_metadata_knows() -> None:
    def stray(known: bool = False, latest: int | None = 3, epoch: int = 3, on: bool = True) -> bool:
        return is_stray(
            found_is_known=known, latest_epoch=latest, leader_epoch=epoch, counts_on_it=on
        )

    assert not stray()
    assert not stray(latest=None)
    assert stray(known=True)
    assert stray(latest=4)
    assert stray(on=False)


def test_a_log_of_a_topic_that_exists_under_another_name_is_set_aside() -> None:
    disk = MemoryDirectory()
    written(disk).close(True, 17)
    disk.crash("everything")
    settings = manager(disk)._config
    logs = LogManager([disk], settings, now_ms=lambda: NOW, is_topic=lambda found: found == ID)
    logs.open()
    with pytest.raises(StorageError, match="is not made anew"):
        logs.get_or_create(TP, OTHER, config(), may_hold_data=True, leader_epoch=1)
    assert len(strays(disk)) == 1
    assert logs.get_or_create(TP, OTHER, config()).log_end_offset == 0


# --- leader epochs


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("wrong", [[(0, 0)], [(1, 0), (2, 100)], [(7, 0)]])
def test_a_wrong_leader_epoch_checkpoint_gives_way_to_the_batches(
    clean: bool, wrong: list[tuple[int, int]]
) -> None:
    """A follower whose newest epoch is wrong would cut committed records."""
    disk = MemoryDirectory()
    logs = written(disk)
    if clean:
        logs.close(True, 17)
    home = disk.subdirectory(str(TP))
    home.write_atomic(LEADER_EPOCH_CHECKPOINT, format_epochs(wrong))
    assert found(opened(disk)).epochs.entries() == ((1, 0),)
