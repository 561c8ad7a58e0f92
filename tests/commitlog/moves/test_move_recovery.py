"""Recovery of moves at a start: copies that are resumed, logs that exist twice, copies whose log is
missing.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from commitlog.disk.checkpoints import OffsetCheckpoint, PartitionMetadata
from commitlog.disk.log_directory import LogDirectory, LogDirectoryOfflineError
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
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
    two_directories,
)
from tidemark.errors import StorageError
from tidemark.types import TopicPartition


def test_a_power_loss_after_the_swap_loses_nothing_of_it() -> None:
    disk = MemoryDirectory(seed=5)
    logs = manager(disk)
    log = filled(logs)
    log.increment_log_start_offset(7)
    log.epochs.assign(9, log.log_end_offset)
    move(logs)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        assert OffsetCheckpoint(disk.subdirectory("b"), name).read() == {TP: 120}
    disk.crash(keep="nothing")
    again = manager(disk)
    found = again.get(TP)
    assert found is not None
    assert home_of(again) == "b"
    assert (found.log_start_offset, found.log_end_offset, found.high_watermark) == (7, 120, 120)
    assert offsets_of(found) == list(range(7, 120))
    assert found.topic_id == TOPIC_ID


@pytest.mark.parametrize("clean", [True, False])
def test_a_move_goes_on_after_a_restart_with_what_was_copied(clean: bool) -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    log = filled(logs)
    log.flush()
    future = begin_move(logs)
    copy_all(future)
    future.directory.fsync()
    copied = future.size_bytes - log.active_segment.size_bytes
    if clean:
        logs.close()
    disk.crash(keep="nothing")
    again = manager(disk)
    resumed = again.moves.get(TP)
    assert resumed is not None
    assert resumed.size_bytes == copied > 0, "finished segments are kept, the active one is not"
    copy_all(resumed)
    again.moves.swap(TP)
    assert home_of(again) == "b"
    found = again.get(TP)
    assert found is not None
    assert offsets_of(found) == list(range(120))


def test_copies_that_do_not_fit_the_recovered_log_are_made_again() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    log = filled(logs)
    future = begin_move(logs)
    copy_all(future)
    future.directory.fsync()
    disk.crash(keep="nothing")  # nothing of the log was flushed
    again = manager(disk)
    resumed, found = again.moves.get(TP), again.get(TP)
    assert resumed is not None
    assert found is not None
    assert found.log_end_offset < log.log_end_offset
    for _ in range(40):
        found.append_as_leader(batch(3, timestamp=NOW + 7000), 2, NOW)
    before = records_of(found)
    again.moves.swap(TP)
    assert records_of(found) == before


def test_a_copy_of_the_same_size_is_not_taken_for_the_same_segment() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    log = filled(logs)
    future = begin_move(logs)
    copy_all(future)
    future.directory.fsync()
    log.truncate_to(0, NOW)
    for _ in range(40):
        log.append_as_leader(batch(3, timestamp=NOW + 9000 + log.log_end_offset), 2, NOW)
    log.flush()
    before = records_of(log)
    disk.crash(keep="nothing")
    again = manager(disk)
    resumed, found = again.moves.get(TP), again.get(TP)
    assert resumed is not None
    assert found is not None
    assert resumed.size_bytes == 0
    again.moves.swap(TP)
    assert records_of(found) == before


def test_of_two_logs_of_a_partition_the_one_that_moved_counts() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    log = filled(logs)
    begin_move(logs)
    kept = {name: log.directory.read(name) for name in log.directory.list()}
    logs.moves.swap(TP)
    add(log, 10)
    log.flush()
    old = disk.subdirectory("a").subdirectory(str(TP))  # a disk that comes back
    for name, data in kept.items():
        old.write_atomic(name, data)
    disk.subdirectory("a").fsync()
    disk.crash(keep="nothing")
    again = manager(disk)
    assert home_of(again) == "b"
    found = again.get(TP)
    assert found is not None
    assert found.log_end_offset == 150
    assert names(disk, "a") == []


def test_a_log_that_was_made_anew_is_not_taken_for_one_that_moved_less() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    filled(logs)
    move(logs)
    log = filled(logs)
    log.flush()
    logs.close()
    anew = disk.subdirectory("a").subdirectory(str(TP))
    PartitionMetadata(TOPIC_ID).write(anew)
    disk.subdirectory("a").fsync()
    disk.crash(keep="nothing")
    with pytest.raises(StorageError, match="is in a and in b"):
        manager(disk)  # the metadata decides


def test_two_logs_of_which_none_moved_are_refused() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    log = filled(logs)
    log.flush()
    disk.subdirectory("b").subdirectory(str(TP))
    disk.subdirectory("b").fsync()
    disk.crash(keep="nothing")
    with pytest.raises(StorageError, match="is in a and in b"):
        manager(disk)


def test_a_failed_source_takes_the_log_and_its_copy_waits_for_it() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    log = filled(logs)
    log.flush()
    copy_all(begin_move(logs))
    home = logs.directory_of(TP)
    assert home is not None
    home.state.fail("test")
    assert logs.drop_offline() == [TP]
    assert logs.moves.all() == []
    disk.crash(keep="nothing")
    again = manager(disk)
    assert again.moves.get(TP) is not None, "its move goes on"
    again.moves.swap(TP)
    found = again.get(TP)
    assert found is not None
    assert offsets_of(found) == list(range(120))


def in_ids(disk: MemoryDirectory, *, missing: str = "", known: UUID | None = None) -> LogManager:
    """Returns the logs in `a` and `b` with ids 1 and 2; one directory is `missing`. The metadata
    has the directory id `known`.
    """
    directories = [
        LogDirectory(d, UUID(int=n), failure="not mounted" if d.path == missing else "")
        for n, d in enumerate(two_directories(disk), 1)
    ]
    logs = LogManager(
        directories, SERVER, now_ms=lambda: NOW, known_replica=lambda _: (TOPIC_ID, known)
    )
    logs.open()
    return logs


@pytest.mark.parametrize("replaced", [True, False])
def test_an_empty_log_never_takes_the_place_of_one_whose_move_was_promised(replaced: bool) -> None:
    target = UUID(int=2)
    disk = MemoryDirectory()
    logs = in_ids(disk)
    filled(logs)
    disk.fsync()
    copy_all(begin_move(logs))
    logs.close()
    if replaced:
        disk.subdirectory("a").remove_tree(str(TP))
    missing = "" if replaced else "a"
    for _ in range(2):  # another start changes nothing
        again = in_ids(disk, missing=missing, known=target)
        with pytest.raises(StorageError, match="it was being moved to b"):
            again.get_or_create(TP, TOPIC_ID, config(), assigned=target, may_hold_data=True)
        again.close()
    if not replaced:
        back = in_ids(disk, known=target)
        assert back.moves.get(TP) is not None
        back.close()
    again = in_ids(disk, missing=missing, known=target)
    log = again.get_or_create(TP, TOPIC_ID, config(), assigned=target, may_hold_data=False)
    assert log.log_end_offset == 0, "others have its records"
    assert again.moves.all() == []
    again.purge_deleted(NOW)
    assert names(disk, "b") == [str(TP)]


def test_a_wish_for_a_directory_makes_no_empty_log_of_one_whose_directory_is_away() -> None:
    """A directory may be preferred before the node has its replicas."""
    disk = MemoryDirectory()
    logs = in_ids(disk)
    filled(logs)
    logs.close()
    source = UUID(int=1)
    again = in_ids(disk, missing="a", known=source)
    again.moves.preferred[TP] = again.directories[1]
    with pytest.raises(StorageError, match="not made anew"):
        again.get_or_create(TP, TOPIC_ID, config(), assigned=source, may_hold_data=True)
    assert names(disk, "b") == []


class FailingSource:
    """Fails the directory that a log has left."""

    def log_cut(self, log: Log) -> None:
        pass

    def save(self) -> None:
        """Keeps nothing."""

    def log_removed(self, topic_partition: TopicPartition) -> None:
        pass

    def log_moved(self, topic_partition: TopicPartition, left: LogDirectory) -> None:
        left.state.fail("test")


def moved_while_the_source_fails(disk: MemoryDirectory) -> None:
    """Moves the log to `b`; `a` keeps it as it was, under its name."""
    logs = in_ids(disk)
    log = filled(logs)
    disk.fsync()
    logs.listen(FailingSource())
    move(logs)
    add(log, 5)
    logs.close()


def test_a_log_that_was_left_behind_is_not_taken_for_the_one_that_went_on_elsewhere() -> None:
    target = UUID(int=2)
    disk = MemoryDirectory()
    moved_while_the_source_fails(disk)
    for _ in range(2):
        again = in_ids(disk, missing="b", known=target)
        with pytest.raises(StorageError, match="went on in a log directory that is missing"):
            again.get_or_create(TP, TOPIC_ID, config(), assigned=target, may_hold_data=True)
        again.close()
    back = in_ids(disk, known=target)
    log = back.get_or_create(TP, TOPIC_ID, config(), assigned=target, may_hold_data=True)
    assert (home_of(back), log.log_end_offset) == ("b", 135)


def test_a_log_that_was_left_behind_serves_a_follower_and_counts_from_then_on() -> None:
    target = UUID(int=2)
    disk = MemoryDirectory()
    moved_while_the_source_fails(disk)
    again = in_ids(disk, missing="b", known=target)
    log = again.get_or_create(TP, TOPIC_ID, config(), assigned=target, may_hold_data=False)
    add(log, 20, epoch=2)
    again.close()
    for known, missing in ((UUID(int=1), "b"), (UUID(int=1), "")):
        back = in_ids(disk, missing=missing, known=known)
        log = back.get_or_create(TP, TOPIC_ID, config(), assigned=known, may_hold_data=True)
        assert (home_of(back), log.log_end_offset) == ("a", 180)
        back.close()


def test_a_replica_that_leaves_the_node_takes_its_copy_along() -> None:
    disk = MemoryDirectory()
    logs = in_ids(disk)
    filled(logs)
    copy_all(begin_move(logs))
    logs.close()
    again = in_ids(disk, missing="a")
    again.forget_lost(TP)
    again.purge_deleted(NOW)
    assert names(disk, "b") == []


def test_a_future_log_without_its_log_is_removed_at_start() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    filled(logs)
    begin_move(logs)
    disk.subdirectory("a").remove_tree(str(TP))
    disk.crash(keep="everything")
    again = manager(disk)
    assert again.moves.all() == []
    again.purge_deleted(NOW)
    assert names(disk, "b") == []


def test_a_log_in_another_directory_than_the_noted_one_counts_only_after_a_move() -> None:
    """The noted directory is gone: the log may be an old disk's, unless a move was ever begun."""
    disk = MemoryDirectory()
    logs = manager(disk)
    log = filled(logs)
    gone = UUID(int=99)
    assert logs.get_or_create(TP, TOPIC_ID, config(), assigned=gone, may_hold_data=False) is log
    with pytest.raises(LogDirectoryOfflineError, match="does not have any more"):
        logs.get_or_create(TP, TOPIC_ID, config(), assigned=gone, may_hold_data=True)
    begin_move(logs)
    logs.moves.cancel(TP)
    assert logs.get_or_create(TP, TOPIC_ID, config(), assigned=gone, may_hold_data=True) is log
