"""Costs of idle logs: a clean start opens only the ends of logs, and passes over logs that did not
change touch no file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commitlog.disk import os_files
from commitlog.disk.files import Directory, File
from commitlog.disk.open_files import OpenFiles
from commitlog.disk.os_files import OsDirectory
from commitlog.log.expiration import delete_expired
from commitlog.manager.manager import LogManager
from tests.commitlog.builders import NOW, batch, config
from tests.commitlog.manager.test_manager import manager as manager_of
from tidemark.types import TopicPartition

LOGS = 60


class CountingDirectory(OsDirectory):
    """Records every file below it that is opened, read or synced."""

    def __init__(self, path: Path | str, seen: list[tuple[str, str]]) -> None:
        super().__init__(path)
        self.seen = seen

    def open(self, name: str, *, create: bool = False) -> File:
        self.seen.append(("open", name))
        return super().open(name, create=create)

    def read(self, name: str) -> bytes:
        self.seen.append(("read", name))
        return super().read(name)

    def fsync(self) -> None:
        self.seen.append(("fsync", ""))
        super().fsync()

    def subdirectory(self, name: str, *, create: bool = True) -> Directory:
        return CountingDirectory(f"{self.path}/{name}", self.seen)


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Returns what a manager did to many logs that were closed cleanly; they have two rolled
    segments each.
    """
    monkeypatch.setattr(os_files, "OPEN_FILES", OpenFiles(64))
    return []


def manager(path: Path, seen: list[tuple[str, str]]) -> LogManager:
    return manager_of(CountingDirectory(path, seen))


def fill(path: Path) -> None:
    first = manager(path, [])
    first.open()
    for number in range(LOGS):
        log = first.get_or_create(TopicPartition("idle", number), None, config())
        if number % 10 == 0:
            for step in range(3):
                log.append_as_leader(batch(2, timestamp=NOW + step), 1, NOW)
                log.roll(NOW)
    first.close()


def test_a_clean_start_opens_only_the_ends_of_logs(
    tmp_path: Path, seen: list[tuple[str, str]]
) -> None:
    fill(tmp_path)
    second = manager(tmp_path, seen)
    second.open()
    opened = [name for kind, name in seen if kind == "open"]
    assert len(second.logs()) == LOGS
    assert [name for name in opened if not name.endswith(".log")] == []
    assert opened == []  # the newest segments are empty, the rolled ones are not needed
    for work in _passes(second):
        work()  # retention reads the oldest segment of a log, once
    seen.clear()
    for work in _passes(second):
        work()
    assert {name for kind, name in seen if kind != "fsync"} <= _checkpoints()
    assert sum(kind == "fsync" for kind, _ in seen) <= 3
    second.close(clean=False)


def test_a_clean_stop_syncs_only_logs_that_something_happened_to(
    tmp_path: Path, seen: list[tuple[str, str]]
) -> None:
    fill(tmp_path)
    second = manager(tmp_path, seen)
    second.open()
    changed = second.get(TopicPartition("idle", 7))
    assert changed is not None
    changed.append_as_leader(batch(2), 1, NOW)
    seen.clear()
    second.close()
    of_logs = [kind for kind, name in seen if kind == "fsync"]
    assert len(of_logs) <= 1 + 10  # the log's own directory, and those of checkpoints and marker
    third = manager(tmp_path, [])
    third.open()
    ends = {log.topic_partition.partition: log.log_end_offset for log in third.logs()}
    assert ends == {n: 6 if n % 10 == 0 else 2 if n == 7 else 0 for n in range(LOGS)}
    third.close()


def test_a_clean_stop_of_new_logs_that_nobody_used_makes_their_indexes_once_and_syncs_nothing(
    tmp_path: Path, seen: list[tuple[str, str]]
) -> None:
    """Kafka complains of a clean segment without indexes."""
    first = manager(tmp_path, seen)
    first.open()
    for number in range(LOGS):
        log = first.get_or_create(TopicPartition("new", number), None, config())
        log.epochs.assign(3, 0)  # as a leader does: no record has that epoch yet
    seen.clear()
    first.close()
    checkpoints = {
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        ".kafka_cleanshutdown",
    }
    indexes = {f"{0:020d}.index", f"{0:020d}.timeindex"}
    files_of = {name.removesuffix(".tmp") for kind, name in seen if name}
    assert files_of == checkpoints | indexes
    assert sum(kind == "fsync" for kind, _ in seen) == len(checkpoints)
    for number in range(LOGS):
        folder = tmp_path / f"new-{number}"
        assert [(folder / name).stat().st_size for name in sorted(indexes)] == [0, 0]
    second = manager(tmp_path, seen)
    second.open()
    assert len(second.logs()) == LOGS
    seen.clear()
    second.close()
    assert {name.removesuffix(".tmp") for _, name in seen if name} <= checkpoints
    second = manager(tmp_path, [])
    second.open()
    for log in second.logs():
        log.append_as_leader(batch(2), 3, NOW)
    second.close()
    third = manager(tmp_path, [])
    third.open()
    assert {log.log_end_offset for log in third.logs()} == {2}
    assert {log.epochs.entries() for log in third.logs()} == {((3, 0),)}
    third.close()


def _passes(manager: LogManager) -> list[Any]:
    return [
        manager.checkpoint_recovery_points,
        manager.checkpoint_log_start_offsets,
        manager.checkpoint_high_watermarks,
        lambda: [delete_expired(log, NOW) for log in manager.logs()],
        lambda: manager.purge_deleted(NOW),
    ]


def _checkpoints() -> set[str]:
    names = ("recovery-point-offset", "log-start-offset", "replication-offset")
    return {f"{name}-checkpoint.tmp" for name in names}
