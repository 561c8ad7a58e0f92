"""Openings on a full disk wait for space; nothing counts as damaged."""

from __future__ import annotations

import logging
import threading

import pytest

from commitlog.disk.files import DiskError
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.manager.manager import LogManager
from tests.commitlog.builders import NOW, batch, config, offsets_of
from tests.commitlog.manager.test_manager import manager
from tidemark.types import TopicPartition, random_uuid

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
IDS = [random_uuid() for _ in PARTITIONS]


def killed_on_a_full_disk(count: int = 3) -> MemoryDirectory:
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    for partition, topic_id in zip(PARTITIONS[:count], IDS[:count], strict=True):
        log = logs.get_or_create(partition, topic_id, config())
        for _ in range(40):
            log.append_as_leader(batch(3), 1, NOW)
    disk.crash("everything")
    for partition in PARTITIONS[:count]:
        home = disk.subdirectory(str(partition))
        for name in home.list():
            if "index" in name:
                home.remove(name)
    disk.set_capacity(disk.disk.used_bytes)
    return disk


def check(logs: LogManager, count: int = 3) -> None:
    for partition in PARTITIONS[:count]:
        log = logs.get(partition)
        assert log is not None
        assert offsets_of(log) == list(range(120))


def test_an_opening_on_a_full_disk_goes_on_when_there_is_space(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = killed_on_a_full_disk(1)
    logs = manager(disk)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if sum(pauses) > 150:
            disk.set_capacity(1 << 30)

    logs.full_disk.pause = pause
    logs.open()
    check(logs, 1)
    assert pauses == sorted(pauses)
    assert pauses[0] < 1 < pauses[-1] == 10
    told = [r for r in caplog.records if "waits for space" in r.message]
    assert [r.levelno for r in told] == [logging.ERROR] * 3
    logs.close()
    check_again = manager(disk)
    check_again.open()
    check(check_again, 1)


def test_a_node_that_stops_does_not_wait_and_the_next_start_recovers() -> None:
    disk = killed_on_a_full_disk()
    logs = manager(disk)
    logs.full_disk.pause = lambda _: logs.full_disk.stop()
    logs.open()
    assert [logs.get(partition) for partition in PARTITIONS] == [None] * 3
    for partition, topic_id in zip(PARTITIONS, IDS, strict=True):
        with pytest.raises(DiskError, match="the disk is full"):
            logs.get_or_create(partition, topic_id, config())  # it is not set aside for that
    logs.close()
    disk.set_capacity(1 << 30)
    logs = manager(disk)
    logs.open()
    check(logs)


def test_of_several_logs_that_wait_one_is_told(caplog: pytest.LogCaptureFixture) -> None:
    disk = killed_on_a_full_disk()
    logs = manager(disk)
    both_wait = threading.Barrier(2, timeout=10)

    def pause(_: float) -> None:
        both_wait.wait()
        disk.set_capacity(1 << 30)

    logs.full_disk.pause = pause
    logs.open()
    check(logs)
    assert len([r for r in caplog.records if "waits for space" in r.message]) == 1


def test_a_stop_in_order_on_a_full_disk_is_one_that_is_recovered_from() -> None:
    """It raised, so the process ended with a traceback and other logs were not closed."""
    full, roomy = MemoryDirectory("full"), MemoryDirectory("roomy")
    logs = manager(full, roomy)
    logs.open()
    homes = {}
    for partition, topic_id in zip(PARTITIONS, IDS, strict=True):
        log = logs.get_or_create(partition, topic_id, config(index_interval_bytes=1))
        for _ in range(40):
            log.append_as_leader(batch(3), 1, NOW)
        homes[partition] = logs.directory_of(partition)
    full.set_capacity(full.disk.used_bytes)
    logs.close(clean=True, broker_epoch=7)
    markers = [directory.exists(".kafka_cleanshutdown") for directory in (full, roomy)]
    assert markers == [False, True]

    full.set_capacity(1 << 30)
    again = manager(full, roomy)
    again.open()
    for partition in PARTITIONS:
        found = again.get(partition)
        assert found is not None
        assert offsets_of(found) == list(range(120))
    again.close()
