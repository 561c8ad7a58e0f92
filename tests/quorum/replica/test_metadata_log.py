"""The metadata log on disk: what a start accepts of a broken directory, and what it refuses."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from commitlog.disk.files import DiskError, storage_error
from commitlog.disk.memory_files import MemoryDirectory
from quorum.raft.effects import ElectionState
from quorum.raft.log_view import Valid, validate_offset_and_epoch
from quorum.raft.voters import VoterSet
from quorum.replica import metadata_log as replicated_log
from quorum.replica.metadata_log import MetadataLogConfig, ReplicatedLog
from quorum.replica.quorum_state import QuorumStateStore
from snapshot import SnapshotId
from snapshot.cleaning import DAMAGED_MAX, DAMAGED_SUFFIX, delete_snapshot
from snapshot.writer import SnapshotWriter
from tests.sim.disk_faults import copy_disk
from tidemark.errors import FatalError, InvalidRequestError, StorageError
from tidemark.types import Endpoint

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.0" / "__cluster_metadata-0"
CONFIG = MetadataLogConfig(segment_bytes=300, retention_bytes=500)
ONE_SEGMENT = MetadataLogConfig(segment_bytes=16_000)


def open_log(directory):
    return ReplicatedLog(directory, CONFIG, 0)


def fill(log, batches, epoch=1):
    for number in range(batches):
        log.append_values([b"value %d" % number] * 3, epoch, 1000)
    log.flush()
    log.update_high_watermark(log.end_offset)


def make_snapshot(log):
    snapshot_id = log.snapshot_id_for(log.end_offset, log.end_offset)
    writer = log.snapshot_writer(snapshot_id, log.last_timestamp_ms(log.end_offset))
    writer.append([b"state"])
    writer.freeze()
    log.snapshot_frozen(snapshot_id)
    return snapshot_id


def cleaned_log(directory):
    log = open_log(directory)
    fill(log, 8)
    first = make_snapshot(log)
    fill(log, 8)
    second = make_snapshot(log)
    assert log.clean(0)
    assert log.start_offset > 0
    log.close()
    return first, second


def test_a_torn_newest_checkpoint_is_not_used():
    directory = MemoryDirectory()
    log = open_log(directory)
    fill(log, 4)
    good = make_snapshot(log)
    fill(log, 4)
    torn = make_snapshot(log)
    log.close()
    directory.write_atomic(torn.name, directory.read(torn.name)[:-5])
    assert open_log(directory).latest_snapshot == good
    assert directory.exists(f"{torn.name}.damaged") and not directory.exists(torn.name)


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_the_newest():
    directory = MemoryDirectory()
    log = open_log(directory)
    fill(log, 4)
    good = make_snapshot(log)
    fill(log, 4)
    bad = make_snapshot(log)
    assert log.drop_snapshot(bad)
    assert log.latest_snapshot == good
    assert not directory.exists(bad.name) and directory.exists(f"{bad.name}.damaged")
    assert log.drop_snapshot(bad), "it is gone already"
    assert log.drop_snapshot(good), "the log begins at 0: it has everything"
    assert log.latest_snapshot is None


def test_of_damaged_checkpoints_the_last_ones_are_kept():
    directory = MemoryDirectory()
    log = open_log(directory)
    bad = []
    for _ in range(DAMAGED_MAX + 3):
        fill(log, 4)
        bad.append(make_snapshot(log))
        assert log.drop_snapshot(bad[-1])
    kept = [name for name in directory.list() if name.endswith(DAMAGED_SUFFIX)]
    assert kept == [f"{one.name}{DAMAGED_SUFFIX}" for one in bad[-DAMAGED_MAX - 1 :]]


def test_where_the_first_checkpoint_is_damaged_the_log_begins_at_the_next_one():
    directory = MemoryDirectory()
    cleaned_log(directory)
    log = open_log(directory)
    first = log.earliest_snapshot
    fill(log, 4)
    later = make_snapshot(log)
    assert log.drop_snapshot(first)
    assert log.earliest_snapshot == later
    assert log.start_offset == later.end_offset


@pytest.mark.parametrize("more", [0, 4])
def test_the_only_checkpoint_of_a_cleaned_log_stays_its_beginning_until_it_is_made_again(more):
    directory = MemoryDirectory()
    cleaned_log(directory)
    log = open_log(directory)
    only = log.latest_snapshot
    if more == 0:
        log.truncate_to(only.end_offset, 0)
    assert not log.drop_snapshot(only)
    assert log.earliest_snapshot == only, "followers are not sent back to offset 0"
    fill(log, more)
    made = make_snapshot(log)
    assert (made == only) == (more == 0)
    assert log.clean(0, made) == (more > 0)
    assert log.earliest_snapshot == made
    log.close()
    again = open_log(directory)
    assert again.latest_snapshot == made
    assert again.open_snapshot(made).verify() == 1


def test_a_log_that_begins_above_0_needs_a_checkpoint():
    directory = MemoryDirectory()
    cleaned_log(directory)
    for name in [n for n in directory.list() if n.endswith(".checkpoint")]:
        directory.remove(name)
    with pytest.raises(FatalError, match="no whole checkpoint"):
        open_log(directory)


def test_the_log_start_is_found_again():
    directory = MemoryDirectory()
    cleaned_log(directory)
    log = open_log(directory)
    assert log.earliest_snapshot is not None
    assert log.start_offset in (0, log.earliest_snapshot.end_offset)
    assert log.end_offset == 48
    assert log.last_epoch == 1


def test_a_checkpoint_must_be_committed_at_a_batch_boundary_and_new():
    log = open_log(MemoryDirectory())
    fill(log, 4)
    assert log.snapshot_id_for(9, 9) == SnapshotId(9, 1)
    with pytest.raises(InvalidRequestError, match="cut the batch"):
        log.snapshot_id_for(10, 12)
    with pytest.raises(InvalidRequestError):
        log.snapshot_id_for(12, 9)
    make_snapshot(log)
    assert log.snapshot_id_for(9, 12) is None


def test_a_broken_quorum_state_stops_the_start():
    directory = MemoryDirectory()
    directory.write_atomic("quorum-state", b'{"leaderId":1')
    with pytest.raises(StorageError, match="quorum-state is broken"):
        QuorumStateStore(directory).read()


def test_kafkas_quorum_state_is_read():
    directory = MemoryDirectory()
    directory.write_atomic("quorum-state", (GOLDEN / "quorum-state").read_bytes())
    assert QuorumStateStore(directory).read() == ElectionState(1, 1, None)


def test_a_full_disk_ends_a_cleaning_with_the_log_at_its_earliest_checkpoint():
    directory = MemoryDirectory()
    log = open_log(directory)
    fill(log, 8)
    make_snapshot(log)
    fill(log, 8, epoch=2)
    second = make_snapshot(log)
    room = directory.disk.capacity_bytes
    directory.set_capacity(0)
    with pytest.raises(StorageError):  # a new segment and the epochs file both need room
        log.clean(0)
    assert (log.earliest_snapshot, log.start_offset) == (second, second.end_offset)
    size_bytes = log._log.size_bytes
    directory.set_capacity(room)
    assert not log.clean(0)  # nothing more to choose; the leftovers are deleted now
    assert log._log.size_bytes < size_bytes
    directory.crash("everything")
    again = open_log(directory)
    assert again.earliest_snapshot == second
    assert again.end_offset == second.end_offset


def test_a_cleaning_that_stops_between_checkpoints_leaves_a_log_that_begins_at_one(monkeypatch):
    directory = MemoryDirectory()
    log = open_log(directory)
    made = []
    for epoch in (1, 2, 3):
        fill(log, 4, epoch)
        made.append(make_snapshot(log))

    def remove(where, snapshot_id):
        if snapshot_id == made[1]:
            raise storage_error("remove", snapshot_id.name, OSError(errno.EDQUOT, "full"))
        delete_snapshot(where, snapshot_id)

    with monkeypatch.context() as patch:
        patch.setattr(replicated_log, "delete_snapshot", remove)
        with pytest.raises(DiskError, match="full"):
            log.clean(0)
    assert (log.earliest_snapshot, log.start_offset) == (made[1], made[1].end_offset)
    directory.crash("everything")
    again = open_log(directory)
    assert again.earliest_snapshot == made[1]  # no segment was deleted: the log begins at 0 again
    assert again.clean(0)
    assert again.earliest_snapshot == made[2]


def test_an_own_checkpoint_that_a_fetched_one_overtook_is_dropped():
    directory = MemoryDirectory()
    log = open_log(directory)
    fill(log, 2)
    late = log.snapshot_id_for(log.end_offset, log.end_offset)
    writer = log.snapshot_writer(late, 1000)
    writer.append([b"state"])
    fetched = SnapshotId(30, 2)
    other = SnapshotWriter(directory, fetched, 1000)
    other.append([b"newer state"])
    other.freeze()
    log.start_at_fetched_snapshot(fetched, 1000)
    assert log.start_offset == 30
    writer.freeze()
    log.snapshot_frozen(late)
    assert log.earliest_snapshot == fetched == log.latest_snapshot
    fill(log, 1, epoch=3)
    # A replica that loaded this checkpoint gets the records after it, not the checkpoint again.
    assert validate_offset_and_epoch(log, 30, 2) == Valid()
    log.close()
    assert open_log(directory).earliest_snapshot == fetched


def with_a_new_epochs_tail(log, directory):
    """Leaves the first records of an epoch, with a voter change among them, but not the epoch's
    entry."""
    fill(log, 3)
    log.append_values([b"of a new leader"], 2, 1000)
    endpoints = {n: Endpoint("voter", 9000 + n) for n in (1, 2)}
    log.append_voters(VoterSet.static(endpoints), 2, 1000)


def with_a_lost_tail(log, directory):
    """Leaves the entry of an epoch without its records."""
    fill(log, 3)
    size = directory.size_of(log._log.active_segment.log_file)
    fill(log, 1, epoch=2)
    directory.cut(log._log.active_segment.log_file, size)


def without_an_index(log, directory):
    for number in range(8):
        log.append_values([b"%d" % number * 1000], 1, 1000)
    log.flush()
    name = log._log.active_segment.file_names[1]
    assert name.endswith(".index")
    assert directory.size_of(name) > 0
    directory.remove(name)


def with_a_checkpoint_behind_the_logs_end(log, directory):
    """Leaves a fetched checkpoint frozen, with a log that does not begin there yet."""
    fill(log, 3)
    writer = SnapshotWriter(directory, SnapshotId(30, 2), 1000)
    writer.append([b"state"])
    writer.freeze()


def what_it_holds(log):
    start, end = log.start_offset, log.end_offset
    return (
        start,
        end,
        log.read(start, 1 << 20) if start < end else b"",
        log._log.epochs.entries(),
        log.latest_snapshot,
        log.voters,
    )


def left_behind(leave):
    """Returns the disk after a crash, and the result of a start with room on it."""
    directory = MemoryDirectory()
    leave(ReplicatedLog(directory, ONE_SEGMENT, 0), directory)
    directory.crash("everything")
    return directory, what_it_holds(ReplicatedLog(copy_disk(directory, 0), ONE_SEGMENT, 0))


@pytest.mark.parametrize("leave", [with_a_new_epochs_tail, with_a_lost_tail, without_an_index])
def test_a_start_on_a_full_disk_is_refused_loses_nothing_and_goes_well_with_room(leave):
    directory, wanted = left_behind(leave)
    for keep in ("everything", "nothing", "everything"):
        directory.set_capacity(directory.disk.used_bytes)
        with pytest.raises(StorageError, match="the disk is full"):
            ReplicatedLog(directory, ONE_SEGMENT, 0)
        directory.crash(keep)
    directory.set_capacity(1 << 20)
    again = ReplicatedLog(directory, ONE_SEGMENT, 0)
    assert what_it_holds(again) == wanted
    directory.crash("nothing")
    assert what_it_holds(ReplicatedLog(directory, ONE_SEGMENT, 0)) == wanted


def test_a_start_on_a_full_disk_that_gives_room_first_goes_well():
    directory, wanted = left_behind(with_a_checkpoint_behind_the_logs_end)
    directory.set_capacity(directory.disk.used_bytes)
    assert what_it_holds(ReplicatedLog(directory, ONE_SEGMENT, 0)) == wanted
    assert wanted[:2] == (30, 30)
