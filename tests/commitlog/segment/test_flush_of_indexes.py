"""A flush syncs the log, and those indexes that changed since the last flush. Most appends add no
index entry, and syncing a clean file costs a commit of the metadata quorum as much as its own sync.
"""

from __future__ import annotations

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log import opening
from commitlog.log.log import Log
from commitlog.segment.indexes import _IndexFile
from tests.commitlog.builders import filled, open_log
from tidemark.config import TopicConfig
from tidemark.records import Record, encode_batch
from tidemark.types import TopicPartition

LOG, INDEX, TIME_INDEX = (f"{0:020d}.{kind}" for kind in ("log", "index", "timeindex"))


def batch(size_bytes: int, timestamp_ms: int) -> bytes:
    return encode_batch([Record(0, timestamp_ms, None, b"x" * size_bytes)])


def opened() -> Log:
    config = TopicConfig(index_interval_bytes=100)
    log = opening.open_log(MemoryDirectory(seed=1), TopicPartition("t", 0), config, now_ms=1)
    flushed(log)  # new files are synced whole, once
    return log


def flushed(log: Log) -> set[str]:
    """Flushes the log; returns the names of the synced files."""
    pending = log.prepare_flush()
    if pending is None:
        return set()
    names = {file.name.rpartition("/")[2] for file in pending.files}
    pending.run()
    log.complete_flush(pending)
    return names


def test_an_append_without_index_entries_syncs_the_log_alone():
    log = opened()
    log.append_as_leader(batch(10, 1), 0, now_ms=1)
    assert LOG in flushed(log)
    log.append_as_leader(batch(10, 1), 0, now_ms=1)
    assert flushed(log) == {LOG}


def test_a_changed_index_is_synced_with_the_log():
    log = opened()
    for timestamp_ms in (1, 2, 3):
        log.append_as_leader(batch(200, timestamp_ms), 0, now_ms=timestamp_ms)
        found = flushed(log)
    assert found == {LOG, INDEX, TIME_INDEX}


def test_a_truncated_index_is_synced_with_the_next_flush():
    log = opened()
    for timestamp_ms in range(1, 9):
        log.append_as_leader(batch(200, timestamp_ms), 0, now_ms=timestamp_ms)
    flushed(log)
    log.truncate_to(4, 9)
    log.append_as_leader(batch(200, 1), 0, now_ms=9)  # an old timestamp: no new time entry
    assert flushed(log) == {LOG, INDEX, TIME_INDEX}


def test_a_flush_that_overtakes_another_syncs_the_names_too():
    """The later flush makes everything below its end durable, including the file that holds it."""
    disk = MemoryDirectory(seed=1)
    config = TopicConfig()
    log = opening.open_log(disk, TopicPartition("t", 0), config, now_ms=1)
    log.append_as_leader(batch(10, 1), 0, now_ms=1)
    log.flush()
    log.roll(2)
    log.append_as_leader(batch(10, 2), 0, now_ms=2)
    slow = log.prepare_flush()
    assert slow is not None
    log.append_as_leader(batch(10, 3), 0, now_ms=3)
    log.flush()
    assert log.recovery_point == 3
    disk.crash(keep="nothing")
    again = opening.open_log(disk, TopicPartition("t", 0), config, now_ms=4, recovery_point=3)
    assert again.log_end_offset == 3


def test_names_that_could_not_be_synced_are_synced_with_the_next_flush():
    log = opened()
    log.append_as_leader(batch(10, 1), 0, now_ms=1)
    log.roll(2)
    given_up = log.prepare_flush()
    assert given_up is not None
    log.append_as_leader(batch(10, 1), 0, now_ms=3)
    following = log.prepare_flush()
    assert following is not None
    assert following.names > 0
    following.run()
    log.complete_flush(following)
    assert log.prepare_flush() is None


def written_by_recovery(directory: MemoryDirectory, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Recovers the log; returns the names of the rewritten files."""
    written: list[str] = []
    write, write_atomic = _IndexFile._write_pending, MemoryDirectory.write_atomic

    def noting(index: _IndexFile) -> None:
        written.append(index.name)
        write(index)

    def noting_atomic(where: MemoryDirectory, name: str, data: bytes) -> None:
        written.append(name)
        write_atomic(where, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(_IndexFile, "_write_pending", noting)
        patch.setattr(MemoryDirectory, "write_atomic", noting_atomic)
        log = open_log(directory)
    log.validate()
    return written


def test_recovery_writes_only_what_is_not_on_disk_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = MemoryDirectory()
    log = filled(directory, 40)
    assert len(log.segments) > 2
    log.flush()
    names = [name for segment in log.segments for name in segment.file_names[1:3]]
    good = {name: directory.read(name) for name in names}
    written_by_recovery(directory, monkeypatch)  # the active one gets its last entries
    assert written_by_recovery(directory, monkeypatch) == []
    for name in names:
        for bad in (b"", good[name] + good[name][:12], bytes(len(good[name]))):
            directory.remove(name)
            file = directory.open(name, create=True)
            file.append(bad)
            file.close()
            wanted = [] if bad == good[name] else [name]
            assert written_by_recovery(directory, monkeypatch) == wanted
            assert directory.read(name) == good[name]
