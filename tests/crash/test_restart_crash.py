"""A follower's start from the tier is all or nothing. The process or the machine ends at any file
operation of it, in a directory of two partitions. The replica is then the old one or the new one,
the latter with its whole lineage, log start and producers. It stays so when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.files import Directory
from commitlog.disk.memory_files import Keep, MemoryDirectory
from commitlog.disk.os_files import OsDirectory
from commitlog.log.from_tier import rebuild_from_remote
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from commitlog.segment.producer_state import ProducerBatch, ProducerEntry, encode_snapshot
from tests.crash import harness
from tests.crash.harness import Ack, CrashingDirectory, CrashPlan, Job, points_of, run_jobs
from tests.crash.move_work import NOW_MS, SERVER, TOPIC_PARTITION, batch
from tidemark.config import TopicConfig
from tidemark.records import Record, encode_batch
from tidemark.types import TopicPartition

WORK = "tests.crash.test_restart_crash:restart"
CONFIG = TopicConfig(
    segment_bytes=700, retention_ms=-1, remote_storage_enable=True, file_delete_delay_ms=0
)
OTHER = TopicPartition("crash", 1)
LINEAGE = ((0, 4), (2, 30), (5, 70))
OLD, NEW = (0, 20, ((1, 0),)), (4, 100, LINEAGE)


def open_all(directory: Directory) -> tuple[LogManager, Log]:
    manager = LogManager([directory], SERVER, now_ms=lambda: NOW_MS, topic_config=lambda _: CONFIG)
    manager.open()
    manager.get_or_create(OTHER, None, CONFIG)
    return manager, manager.get_or_create(TOPIC_PARTITION, None, CONFIG)


def snapshot() -> bytes:
    entry = ProducerEntry(7, 0, last_timestamp_ms=NOW_MS)
    entry.batches.append(ProducerBatch(41, 99, 0, NOW_MS))
    return encode_snapshot([entry])


def following(log: Log, epoch: int) -> bytes:
    """The leader's batch for the end of the log."""
    end = log.log_end_offset
    return encode_batch(
        [Record(0, NOW_MS, None, b"from the leader")],
        base_offset=end,
        partition_leader_epoch=epoch,
        producer_id=7,
        producer_epoch=0,
        base_sequence=end - 58 if end >= 100 else end,
    )


def restart(directory: Directory, ack: Ack) -> None:
    manager, log = open_all(directory)
    for number in range(20):
        log.append_as_leader(batch(number), 1, NOW_MS)
    log.flush()
    log.update_high_watermark(20)
    manager.checkpoint_recovery_points()
    manager.checkpoint_log_start_offsets()
    ack("old")
    rebuild_from_remote(log, (*LINEAGE, (6, 150)), snapshot(), 100, NOW_MS, log_start_offset=4)
    ack("new")
    log.append_as_follower(following(log, 5), NOW_MS)
    log.flush()
    ack("appended")
    manager.close(True)


def state(log: Log) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    return log.log_start_offset, log.log_end_offset, log.epochs.entries()


def check(directory: Directory, acks: list[str], what: object) -> None:
    """Asserts that the replica is whole, now and after it went on and was opened again."""
    manager, log = open_all(directory)
    found = state(log)
    if "appended" in acks:
        assert found == (4, 101, LINEAGE), what
    elif "new" in acks:
        assert found in (NEW, (4, 101, LINEAGE)), what
    elif "old" in acks:
        assert found in (OLD, NEW), what
    if "old" in acks and found[0] == 4:
        assert log.producers.producers[7].last_sequence == found[1] - 59, what
        assert log.local_log_start_offset == 100, what
        log.append_as_follower(following(log, 5), NOW_MS)
        log.validate()
        manager.checkpoint_recovery_points()
        manager.close(False)
        manager, log = open_all(directory)
        assert state(log) == (4, found[1] + 1, LINEAGE), what
        assert log.producers.producers[7].last_sequence == found[1] - 58, what
    manager.close(True)
    manager, log = open_all(directory)
    assert log.log_start_offset == found[0], what
    manager.close(True)


def test_killed_at_any_point_the_replica_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    points = points_of(WORK, Job(tmp_path / "dry-run"))
    assert {"rename:restart:1", "remove:restart:1"} <= set(points)
    jobs = [
        Job(tmp_path / f"{index}{mode}", point + mode)
        for index, point in enumerate(points)
        for mode in ("", "+")
    ]
    for result in run_jobs(WORK, jobs):
        check(OsDirectory(result.job.path), result.acks, result.job.crash_at)


class Died(BaseException):
    """Ends the work at a point, in this process."""


class DyingPlan(CrashPlan):
    """Nothing more reaches the disk after the point."""

    is_dead = False

    def before(self, operation: str, name: str) -> str:
        if self.is_dead:
            raise Died
        return super().before(operation, name)


def die_anywhere(
    work: Callable[[Directory, Ack], None],
    check_after: Callable[[Directory, list[str], object], None],
    keep: Keep,
    monkeypatch: pytest.MonkeyPatch,
) -> set[str]:
    """Ends the work at each of its points in turn, and checks what the disk then has; returns the
    points.
    """
    points: list[str] = []
    whole: Any = CrashingDirectory(MemoryDirectory(), CrashPlan(None, points))
    work(whole, lambda _: None)
    for number, point in enumerate(points):
        plan = DyingPlan(point)

        def die(plan: DyingPlan = plan) -> None:
            plan.is_dead = True
            raise Died

        monkeypatch.setattr(harness, "die", die)
        disk, acks = MemoryDirectory("memory", seed=number), list[str]()
        dying: Any = CrashingDirectory(disk, plan)
        with pytest.raises(Died):
            work(dying, acks.append)
        disk.crash(keep=keep)
        check_after(disk, acks, point)
    return set(points)


@pytest.mark.parametrize("keep", ["nothing", "random", "everything"])
def test_the_power_fails_at_any_point(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    die_anywhere(restart, check, keep, monkeypatch)


def restore(directory: Directory, ack: Ack) -> None:
    """A leader without a record is restored from the tier, and goes on in its own epoch."""
    manager, log = open_all(directory)
    manager.new_logs.save()
    ack("empty")
    restored(log)
    ack("restored")
    log.append_as_leader(of_producer(log), 7, NOW_MS)
    log.flush()
    ack("appended")
    manager.close(True)


def of_producer(log: Log) -> bytes:
    """The next batch of the producer that the snapshot names."""
    records = [Record(0, NOW_MS, None, b"after the restore")]
    return encode_batch(
        records, producer_id=7, producer_epoch=0, base_sequence=log.log_end_offset - 58
    )


def restored(log: Log) -> None:
    rebuild_from_remote(log, LINEAGE, snapshot(), 100, NOW_MS, log_start_offset=4)
    log.epochs.assign(7, 100)
    log.update_high_watermark(100)


def check_restored(directory: Directory, acks: list[str], what: object) -> None:
    """Asserts that the leader is empty, so that it is restored again, or whole."""
    manager, log = open_all(directory)
    found = state(log)
    if found[1] == 0:
        assert found == (0, 0, ()), what
        assert "restored" not in acks, what
        restored(log)
    assert log.log_start_offset == 4, what
    assert log.local_log_start_offset == 100, what
    assert log.epochs.entries()[:3] == LINEAGE, what
    end = log.log_end_offset
    assert end == 101 if "appended" in acks else end in (100, 101), what
    assert log.producers.producers[7].last_sequence == end - 59, what
    log.append_as_leader(of_producer(log), 8, NOW_MS)
    log.validate()
    manager.close(True)
    manager, log = open_all(directory)
    assert (log.log_start_offset, log.log_end_offset) == (4, end + 1), what
    manager.close(True)


@pytest.mark.parametrize("keep", ["nothing", "random", "everything"])
def test_a_restore_that_ends_at_any_point_is_done_again_or_whole(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a kill the disk keeps everything, of a power failure less."""
    reached = die_anywhere(restore, check_restored, keep, monkeypatch)
    assert {"rename:restart:1", "remove:restart:1"} <= reached
