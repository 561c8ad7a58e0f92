"""Room for the metadata log on a disk that partitions have filled."""

from __future__ import annotations

import logging

import pytest

from commitlog.disk.files import DiskError
from commitlog.disk.log_directory import LogDirectory
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.reserve import RESERVE_FILE, Reserve
from tests.commitlog.builders import NOW, batch, open_log

ROOM = 10_000


class Shared:
    """One disk with a partition's log and the metadata log's directory."""

    def __init__(self, capacity_bytes: int = 60_000) -> None:
        self.disk = MemoryDirectory()
        self.disk.set_capacity(capacity_bytes)
        self.changes: list[bool] = []
        self.start()
        self.place = LogDirectory(self.disk)
        self.reserve.watch(self.changed)
        self.log = open_log(self.place.subdirectory("t-0"))

    def start(self) -> None:
        self.reserve = Reserve(self.disk, ROOM)
        self.reserve.take()
        self.metadata = self.reserve.guard().subdirectory("__cluster_metadata-0")
        self.file = self.metadata.open("log", create=True)

    def changed(self, is_out: bool) -> None:
        self.changes.append(is_out)
        self.place.state.refuses_appends = is_out

    def fill(self) -> None:
        with pytest.raises(DiskError, match="the disk is full"):
            while True:
                self.log.append_as_leader(batch(1, size=1), 1, NOW)


def test_the_metadata_log_goes_on_where_partitions_have_filled_the_disk(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = Shared()
    assert shared.reserve.is_taken
    shared.fill()
    end = shared.log.log_end_offset
    for number in range(20):
        shared.file.append(bytes(300))
        shared.metadata.write_atomic("quorum-state", str(number).encode())
        with pytest.raises(DiskError, match="the disk is full"):
            shared.log.append_as_leader(batch(1, size=1), 1, NOW)
    assert shared.file.size == 6_000
    assert shared.log.log_end_offset == end
    assert shared.place.is_online
    assert shared.changes == [True]
    assert not shared.reserve.take()
    told = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(told) == 1
    shared.disk.set_capacity(120_000)
    assert shared.reserve.take()
    assert shared.changes == [True, False]
    shared.log.append_as_leader(batch(1, size=1), 1, NOW)
    shared.fill()
    shared.file.append(bytes(300))
    assert shared.changes == [True, False, True]


def test_a_metadata_log_that_used_up_its_room_gets_the_disks_error() -> None:
    shared = Shared()
    shared.fill()
    with pytest.raises(DiskError, match=r"can not append to .*log: the disk is full"):
        while True:
            shared.file.append(bytes(300))
    assert shared.file.size >= ROOM - 600


def test_the_room_of_the_last_process_is_kept_on_a_disk_that_is_full_now() -> None:
    shared = Shared()
    shared.fill()
    shared.disk.crash("everything")
    shared.disk.set_capacity(60_000)
    shared.start()
    assert shared.reserve.is_taken
    shared.file.append(bytes(300))
    assert shared.disk.size_of(RESERVE_FILE) == 0


def test_partitions_take_no_records_after_a_restart_on_a_disk_whose_room_was_given_back() -> None:
    shared = Shared()
    shared.fill()
    shared.file.append(bytes(300))
    shared.disk.set_capacity(60_000 + ROOM)  # half of what the room is taken again at
    shared.changes.clear()
    shared.start()
    shared.place = LogDirectory(shared.disk)
    log = open_log(shared.place.subdirectory("t-0"), recovery_point=None)
    shared.reserve.watch(shared.changed)
    assert (shared.reserve.is_taken, shared.changes) == (False, [True])
    with pytest.raises(DiskError, match="the disk is full"):
        log.append_as_leader(batch(1, size=1), 1, NOW)
    shared.file.append(bytes(300))
    shared.disk.set_capacity(60_000 + 2 * ROOM)
    assert shared.reserve.take()
    assert shared.changes == [True, False]
    log.append_as_leader(batch(1, size=1), 1, NOW)


def test_no_room_is_taken_of_a_disk_with_hardly_any() -> None:
    shared = Shared(2 * ROOM - 1)
    assert not shared.reserve.is_taken
    assert not shared.disk.exists(RESERVE_FILE)


def test_other_errors_give_nothing_back() -> None:
    shared = Shared()
    shared.disk.fail_writes("*/log")
    with pytest.raises(DiskError, match="input/output error"):
        shared.file.append(b"x")
    assert shared.reserve.is_taken
