"""A new segment whose file cannot be created, for want of descriptors: the log stays usable."""

from __future__ import annotations

import errno

import pytest

from commitlog.disk.files import DiskError, File, storage_error
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.log import Log
from tests.commitlog.builders import NOW, batch, config, offsets_of, open_log
from tidemark.types import TopicPartition

TP = TopicPartition("events", 0)
FAR = 2**31


class NoDescriptors(MemoryDirectory):
    """A disk on which no file can be created while `exhausted`."""

    exhausted = False

    def open(self, name: str, *, create: bool = False) -> File:
        if self.exhausted and create and not self.exists(name):
            raise storage_error("open", name, OSError(errno.EMFILE, "Too many open files"))
        return super().open(name, create=create)


def filled(disk: NoDescriptors) -> Log:
    log = open_log(disk)
    for number in range(40):
        log.append_as_leader(
            batch(3, producer_id=7, producer_epoch=0, base_sequence=3 * number), 1, NOW
        )
    log.update_high_watermark(log.log_end_offset)
    log.flush()
    return log


def test_a_log_that_can_not_begin_anew_is_empty_and_takes_records_later() -> None:
    disk = NoDescriptors()
    log = filled(disk)
    disk.exhausted = True
    with pytest.raises(DiskError, match="too many open files"):
        log.truncate_fully_and_start_at(500, NOW)
    log.validate()
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (500, 500, 500)
    assert log.producers.producers == {}
    with pytest.raises(DiskError):
        log.append_as_leader(batch(3), 2, NOW)
    assert log.read(500, 1000).records == b""
    disk.exhausted = False
    log.append_as_leader(batch(3), 2, NOW)
    assert offsets_of(log) == [500, 501, 502]
    log.flush()
    disk.crash("nothing")
    assert offsets_of(open_log(disk, recovery_point=503)) == [500, 501, 502]


def test_a_second_attempt_to_begin_anew_succeeds() -> None:
    disk = NoDescriptors()
    log = filled(disk)
    disk.exhausted = True
    for _ in range(2):
        with pytest.raises(DiskError):
            log.truncate_fully_and_start_at(500, NOW)
    disk.exhausted = False
    log.truncate_fully_and_start_at(600, NOW)
    log.append_as_leader(batch(1), 2, NOW)
    assert offsets_of(log) == [600]


def test_an_empty_segment_too_far_from_its_records_is_replaced_by_the_next_append() -> None:
    disk = NoDescriptors()
    log = open_log(disk, config())
    disk.exhausted = True
    far = batch(1, base_offset=FAR + 5)
    with pytest.raises(DiskError):
        log.append_as_follower(far, NOW, gaps_allowed=True)
    log.validate()
    disk.exhausted = False
    log.append_as_follower(far, NOW, gaps_allowed=True)
    log.validate()
    assert offsets_of(log) == [FAR + 5]


def test_a_crash_within_a_fresh_start_leaves_an_empty_log_that_opens() -> None:
    """The recovery point is lowered first: otherwise the missing files would count as lost."""
    disk = NoDescriptors()
    log = filled(disk)
    disk.exhausted = True
    with pytest.raises(DiskError):
        log.truncate_fully_and_start_at(500, NOW)
    assert log.recovery_point == 0
    disk.crash("everything")
    disk.exhausted = False
    assert open_log(disk, recovery_point=log.recovery_point).log_end_offset == 0
