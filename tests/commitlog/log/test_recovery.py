"""The rest of an unclean stop beside damaged batches: an interrupted recovery, a full disk, a clock
that went back. Also checkpoints and snapshots that do not fit the log, and logs that were not
opened. The log that opens is the same in every case.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from commitlog.disk.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    CleanShutdown,
    OffsetCheckpoint,
)
from commitlog.disk.files import File
from commitlog.disk.memory_files import MemoryDirectory, MemoryFile
from commitlog.log import opening
from commitlog.log.expiration import delete_expired
from commitlog.log.log import Log
from commitlog.types import AppendOrigin
from tests.commitlog.builders import NOW, TP, batch, config, offsets_of, open_log, records_of
from tests.commitlog.manager.test_manager import manager
from tidemark.errors import StorageError
from tidemark.records import encode_control_batch
from tidemark.records.control import EndTransactionMarker

SMALL = config(segment_bytes=600, index_interval_bytes=150)


class PowerLoss(BaseException):
    """The machine lost power: nothing is cleaned up."""


class StoppingFile(MemoryFile):
    """A file whose changes count as steps of its directory."""

    step: Callable[[], None]

    def append(self, *buffers: bytes | memoryview) -> int:
        self.step()
        return super().append(*buffers)

    def truncate(self, size: int) -> None:
        self.step()
        super().truncate(size)

    def fsync(self) -> None:
        self.step()
        super().fsync()


class StoppingDirectory(MemoryDirectory):
    """Loses power at its `left`-th change or sync from now on; never while `left` is None."""

    left: int | None = None

    def step(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise PowerLoss
            self.left -= 1

    def _open(self, name: str, node: object, *, writable: bool) -> File:
        super()._open(name, node, writable=writable)
        file = StoppingFile(self.disk, node, self.path_of(name), writable=writable)  # type: ignore[arg-type]
        file.step = self.step
        return file

    def remove(self, name: str) -> None:
        self.step()
        super().remove(name)

    def rename(self, old: str, new: str) -> None:
        self.step()
        super().rename(old, new)

    def fsync(self) -> None:
        self.step()
        super().fsync()


def copy_of(directory: MemoryDirectory, seed: int = 0) -> StoppingDirectory:
    """Copies the files durably to another disk."""
    copy = StoppingDirectory(seed=seed)
    for name in directory.list():
        copy.open(name, create=True).append(directory.read(name))
    copy.disk.crash("everything")
    return copy


def marker(committed: bool, producer: int) -> bytes:
    return encode_control_batch(
        [EndTransactionMarker(committed, 0)],
        base_offset=0,
        timestamp_ms=NOW,
        partition_leader_epoch=1,
        producer_id=producer,
        producer_epoch=0,
    )


def fill(log: Log, rounds: int) -> None:
    """Appends overlapping transactions of two producers, one of them aborted, with a new epoch each
    round.
    """
    sequence = 0
    for number in range(rounds):
        for producer in (7, 8):
            options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            sent = batch(2, transactional=True, **options)
            log.append_as_leader(sent, number, NOW, verified=True)
        sequence += 2
        for producer in (7, 8):
            log.append_as_leader(
                marker(producer == 7, producer), number, NOW, origin=AppendOrigin.COORDINATOR
            )
        if number == rounds // 3:
            log.flush()
    log.update_high_watermark(log.log_end_offset)


Left = tuple[MemoryDirectory, int | None]


def torn_end() -> Left:
    """The last batch is torn."""
    disk = MemoryDirectory()
    log = open_log(disk, SMALL)
    fill(log, 8)
    active = log.active_segment
    disk.crash("everything")
    disk.cut(active.log_file, active.size_bytes - 20)
    return disk, log.recovery_point


def damaged_middle() -> Left:
    """A batch between the recovery point and the end is damaged; later segments must be removed."""
    disk, point = torn_end()
    log = open_log(copy_of(disk), SMALL)
    damaged = log.segments[-3]
    disk.flip_bit(damaged.log_file, damaged.size_bytes - 70)
    return disk, point


def lost_end_of_a_segment() -> Left:
    """The end of a segment is lost, up to the end of a batch."""
    disk, point = torn_end()
    log = open_log(copy_of(disk), SMALL)
    shorter = log.segments[-3]
    disk.cut(shorter.log_file, list(shorter.headers())[-2].end_position)
    return disk, point


def damaged_and_foreign() -> Left:
    """Segments with gaps of another broker, no recovery point, and a torn batch in the middle."""
    disk = MemoryDirectory()
    for base in (0, 10, 20, 30, 40):
        data = b"".join(batch(2, base_offset=base + 2 * i) for i in range(3))
        disk.open(f"{base:020d}.log", create=True).append(data[: -9 if base == 20 else len(data)])
    disk.crash("everything")
    return disk, None


def lost_checkpoint_of_epochs() -> Left:
    """Recovery reads no batch with the epochs below the recovery point."""
    disk, point = torn_end()
    disk.flip_bit(LEADER_EPOCH_CHECKPOINT, 0, 6)
    return disk, point


STATES = [
    torn_end,
    damaged_middle,
    lost_end_of_a_segment,
    damaged_and_foreign,
    lost_checkpoint_of_epochs,
]


def facts(log: Log) -> object:
    log.validate()
    log.update_high_watermark(log.log_end_offset)
    return (
        records_of(log),
        log.aborted_transactions(0, log.log_end_offset),
        log.epochs.entries(),
        log.last_stable_offset,
        sorted((p.producer_id, p.last_sequence) for p in log.producers.producers.values()),
    )


def recover(directory: MemoryDirectory, point: int | None) -> Log:
    return opening.open_log(directory, TP, SMALL, now_ms=NOW, recovery_point=point)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_recovery_that_loses_power_at_any_step_is_done_anew(state: Callable[[], Left]) -> None:
    disk, point = state()
    wanted = facts(recover(copy_of(disk), point))
    for steps in count():
        again = copy_of(disk, seed=steps)
        again.left = steps
        try:
            recover(again, point)
        except PowerLoss:
            again.left = None
            again.crash()
            assert facts(recover(again, point)) == wanted, f"stopped before step {steps}"
        else:
            assert steps > 3
            break


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_recovery_that_runs_out_of_space_loses_nothing(state: Callable[[], Left]) -> None:
    disk, point = state()
    wanted = facts(recover(copy_of(disk), point))
    refused = 0
    for room in range(0, 500, 41):
        again = copy_of(disk)
        for name in again.list():
            if name.endswith((".index", ".timeindex")):
                again.remove(name)  # otherwise there is nothing to write
        again.disk.crash("everything")
        again.set_capacity(again.disk.used_bytes + room)
        try:
            found = recover(again, point)
        except StorageError:
            refused += 1
            again.crash("everything" if room % 2 else "nothing")
            again.set_capacity(1 << 30)
            found = recover(again, point)
        assert facts(found) == wanted, f"with {room} bytes of room"
    assert refused


def test_epochs_below_the_recovery_point_are_found_without_their_checkpoint() -> None:
    disk, point = torn_end()
    wanted = recover(copy_of(disk), point).epochs.entries()
    assert len(wanted) == 8
    disk.remove(LEADER_EPOCH_CHECKPOINT)
    assert recover(disk, point).epochs.entries() == wanted


def test_a_log_that_could_not_be_opened_is_recovered_by_a_later_start() -> None:
    """A clean stop in between must not make it trusted."""
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    log = logs.get_or_create(TP, None, SMALL)
    fill(log, 8)
    wanted, point = log.segments[-2], log.recovery_point
    place = disk.subdirectory(str(TP))
    disk.crash("everything")
    OffsetCheckpoint(disk, RECOVERY_POINT_CHECKPOINT).write({TP: point})
    assert isinstance(place, MemoryDirectory)
    place.flip_bit(wanted.log_file, 100)
    place.write_atomic("partition.metadata", b"version: 9")
    logs = manager(disk)
    logs.open()
    assert logs.get(TP) is None
    logs.close()
    assert not CleanShutdown(disk).exists()
    place.remove("partition.metadata")
    logs = manager(disk)
    logs.open()
    found = logs.get(TP)
    assert found is not None
    assert point <= found.log_end_offset < wanted.next_offset
    assert records_of(found) == records_of(log_of(found))


def log_of(log: Log) -> Log:
    """Opens the same files as if nothing was known of them."""
    copy = MemoryDirectory()
    for name in log.directory.list():
        copy.open(name, create=True).append(log.directory.read(name))
    return opening.open_log(copy, TP, SMALL, now_ms=NOW)


def test_the_marker_of_a_clean_stop_does_not_come_back_beside_new_records() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    logs.get_or_create(TP, None, SMALL)
    logs.close()
    disk.crash("nothing")
    logs = manager(disk)
    logs.open()
    disk.crash("nothing")
    assert not CleanShutdown(disk).exists()


def test_a_log_that_begins_anew_forgets_snapshots_of_other_batches() -> None:
    """A snapshot exactly at the new start would have the wrong producers."""
    disk = MemoryDirectory()
    log = open_log(disk, SMALL)
    fill(log, 6)
    base = log.segments[3].base_offset
    log.truncate_fully_and_start_at(base, NOW)
    assert log.producers.producers == {}
    log.append_as_leader(batch(1, producer_id=7, producer_epoch=0, base_sequence=0), 9, NOW)
    disk.crash("everything")
    again = open_log(disk, SMALL, log_start_offset=base)
    assert [p.last_sequence for p in again.producers.producers.values()] == [0]


def test_what_a_killed_process_left_is_durable_once_the_log_is_open() -> None:
    """Its records were in the page cache only; the recovery point of the new start covers them."""
    disk = MemoryDirectory()
    fill(open_log(disk, SMALL), 3)
    again = open_log(disk, SMALL)
    records = records_of(again)
    assert again.recovery_point == again.log_end_offset > 0
    disk.crash("nothing")
    found = open_log(disk, SMALL, recovery_point=again.recovery_point)
    assert records_of(found) == records


def test_empty_segments_in_the_middle_of_a_foreign_log_are_read_over() -> None:
    disk = MemoryDirectory()
    for base, records in ((0, 2), (5, 0), (9, 0), (12, 3), (20, 0)):
        file = disk.open(f"{base:020d}.log", create=True)
        if records:
            file.append(batch(records, base_offset=base))
    disk.crash("everything")
    for clean in (False, True):
        log = opening.open_log(copy_of(disk), TP, config(), now_ms=NOW, clean=clean)
        assert offsets_of(log) == [0, 1, 12, 13, 14]
        assert log.log_end_offset == 20
        assert log.append_as_leader(batch(1), 1, NOW).first_offset == 20
        log.update_high_watermark(21)
        log.increment_log_start_offset(6)
        delete_expired(log, NOW)
        assert [s.base_offset for s in log.segments] == [9, 12, 20]
        assert log.truncate_to(13, NOW)
        assert offsets_of(log) == []
        assert log.log_end_offset == 12
        log.validate()


@pytest.mark.parametrize("now", [0, NOW - 86_400_000, NOW + 86_400_000])
def test_a_clock_that_jumped_changes_no_record_of_a_recovered_log(now: int) -> None:
    """The clock may expire producers, but not records or transactions."""
    disk, point = torn_end()
    wanted = recover(copy_of(disk), point)
    found = opening.open_log(disk, TP, SMALL, now_ms=now, recovery_point=point)
    assert records_of(found) == records_of(wanted)
    assert found.epochs.entries() == wanted.epochs.entries()
    assert found.aborted_transactions(0, 100) == wanted.aborted_transactions(0, 100)
    end = found.log_end_offset
    found.append_as_leader(batch(1, timestamp=max(now, 0)), 50, now)
    assert offsets_of(found)[-1] == end


def test_a_checkpointed_start_stays_where_a_crash_brings_deleted_segments_back() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    log = logs.get_or_create(TP, None, SMALL)
    fill(log, 8)
    log.flush()
    start = log.segments[3].base_offset
    log.increment_log_start_offset(start)
    assert len(delete_expired(log, NOW)) == 3
    logs.checkpoint_log_start_offsets()
    disk.crash("nothing")  # the names of the deleted files as well
    logs = manager(disk)
    logs.open()
    again = logs.get(TP)
    assert again is not None
    assert again.log_start_offset == start
    assert offsets_of(again)[0] == start


def test_indexes_epochs_and_snapshots_that_are_newer_than_the_log_count_for_nothing() -> None:
    """All small files reached the disk; the batches after the last flush did not."""
    disk = MemoryDirectory()
    log = open_log(disk, SMALL)

    def append(sequences: range) -> None:
        for sequence in sequences:
            options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
            log.append_as_leader(batch(1, size=150, **options), sequence, NOW)

    append(range(10))
    log.flush()
    wanted = facts(recover(copy_of(disk), log.recovery_point))
    append(range(10, 30))
    log.epochs.flush()
    for segment in log.segments:
        segment.write_indexes()
    for name in disk.list():
        if not name.endswith(".log"):
            disk.open(name).fsync()
    disk.fsync()
    disk.crash("nothing")
    names = disk.list()
    assert f"{max(log.producers.snapshots):020d}.snapshot" in names
    found = recover(disk, log.recovery_point)
    assert facts(found) == wanted
    options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 10}
    assert found.append_as_leader(batch(1, **options), 40, NOW).first_offset == 10


def test_damage_below_the_recovery_point_takes_nothing_of_what_is_above() -> None:
    """The header of the last batch before it claims offsets of others. Its CRC is not checked, and
    the segments behind it are valid.
    """
    disk = MemoryDirectory()
    log = open_log(disk, SMALL)
    for _ in range(40):
        log.append_as_leader(batch(2), 1, NOW)
    log.flush()
    damaged, last = log.segments[-2], list(log.segments[-2].headers())[-1]
    disk.crash("everything")
    disk.flip_bit(damaged.log_file, last.position + 23, 4)  # its last offset delta
    found = recover(disk, 80)
    assert found.log_end_offset == 80
    assert [s.base_offset for s in found.segments] == [s.base_offset for s in log.segments]
