"""Gaps between segments after an unclean stop, whatever the cleanup.policy. A loss ends the log; a
gap left by compaction or by another broker stays.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.disk.checkpoints import RECOVERY_POINT_CHECKPOINT, OffsetCheckpoint
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.claims import RecordsMissingError
from commitlog.log.log import Log, truncation
from commitlog.manager.manager import LogManager
from tests.commitlog.builders import NOW, TP, batch, config, offsets_of, open_log
from tests.commitlog.manager.test_manager import manager
from tidemark.errors import StorageError
from tidemark.types import random_uuid

POLICIES = [("delete",), ("compact",), ("compact", "delete")]
FAR = 2**31


def new_log(logs: LogManager, policy: tuple[str, ...] = ("delete",)) -> Log:
    return logs.get_or_create(TP, None, config(cleanup_policy=policy))


def reopened(disk: MemoryDirectory) -> tuple[LogManager, Log]:
    logs = manager(disk)
    logs.open()
    log = logs.get(TP)
    assert log is not None
    log.validate()
    return logs, log


def sync(log: Log, *names: str) -> None:
    """Syncs, as the operating system may at any time."""
    for name in names:
        log.directory.open(name).fsync()


def point(disk: MemoryDirectory) -> int | None:
    return OffsetCheckpoint(disk, RECOVERY_POINT_CHECKPOINT).read().get(TP)


# --- losses


@pytest.mark.parametrize("policy", POLICIES, ids="+".join)
@pytest.mark.parametrize("flushed", [0, 3], ids=["nothing flushed", "a batch flushed"])
def test_a_segment_whose_end_was_lost_ends_the_log(policy: tuple[str, ...], flushed: int) -> None:
    """The end of the first segment never reached the disk; the second segment did."""
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    log = new_log(logs, policy)
    if flushed:
        log.append_as_leader(batch(3), 1, NOW)
        log.flush()
    log.append_as_leader(batch(3), 1, NOW)
    log.roll(NOW)
    log.append_as_leader(batch(3), 1, NOW)
    log.directory.fsync()
    sync(log, log.active_segment.log_file)
    disk.crash("nothing")
    _, again = reopened(disk)
    assert offsets_of(again) == list(range(flushed))
    assert len(again.segments) == 1


def test_a_log_is_named_in_the_checkpoint_before_it_has_a_second_segment() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    log = new_log(logs)
    log.append_as_leader(batch(3), 1, NOW)
    assert point(disk) is None
    log.roll(NOW)
    disk.crash("nothing")
    assert point(disk) == 0
    logs, log = reopened(disk)
    written = disk.disk.fsyncs
    log.append_as_leader(batch(3), 1, NOW)
    log.roll(NOW)
    assert disk.disk.fsyncs == written, "it is there already"


# --- what is no loss


def test_an_offset_too_far_for_its_segment_leaves_a_gap_that_is_no_loss() -> None:
    """A follower of a log with such a gap; its process dies at any moment around the gap."""
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    log = new_log(logs)
    log.append_as_follower(batch(3), NOW)
    log.flush()
    logs.checkpoint_recovery_points()
    log.append_as_follower(batch(2, base_offset=FAR + 7), NOW, gaps_allowed=True)
    assert [s.base_offset for s in log.segments] == [0, FAR + 7]
    assert point(disk) == FAR + 7
    disk.crash("everything")
    logs, log = reopened(disk)
    assert offsets_of(log) == [0, 1, 2, FAR + 7, FAR + 8]
    log.append_as_follower(batch(1, base_offset=3 * FAR), NOW, gaps_allowed=True)
    disk.crash("nothing")  # the segment's name, and its content
    _, log = reopened(disk)
    assert offsets_of(log) == [0, 1, 2, FAR + 7, FAR + 8]
    log.append_as_follower(batch(1, base_offset=3 * FAR), NOW, gaps_allowed=True)
    assert log.log_end_offset == 3 * FAR + 1


def test_a_far_offset_whose_checkpoint_was_refused_is_checkpointed_with_the_next_try() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    log = new_log(logs)
    log.append_as_follower(batch(3), NOW)
    disk.set_capacity(disk.disk.used_bytes + 10)
    far = batch(2, base_offset=FAR + 7)
    with pytest.raises(StorageError, match="the disk is full"):
        log.append_as_follower(far, NOW, gaps_allowed=True)
    assert offsets_of(log) == [0, 1, 2]
    disk.set_capacity(1 << 30)
    log.append_as_follower(far, NOW, gaps_allowed=True)
    assert point(disk) == FAR + 7
    disk.crash("everything")
    _, log = reopened(disk)
    assert offsets_of(log) == [0, 1, 2, FAR + 7, FAR + 8]


def test_one_fetch_with_far_offsets_fills_several_segments() -> None:
    """Each batch must be within reach of its segment's index; recovery removed those that
    were not.
    """
    disk = MemoryDirectory()
    log = open_log(disk)
    far = [i * 2 * FAR for i in range(4)]
    fetched = b"".join(batch(1, base_offset=offset) for offset in far)
    info = log.append_as_follower(fetched, NOW, gaps_allowed=True)
    assert (info.first_offset, info.last_offset) == (0, far[-1])
    assert [s.base_offset for s in log.segments] == far
    log.flush()
    again = open_log(disk, recovery_point=log.recovery_point)
    assert offsets_of(again) == far


# --- recovery points that are not this log's


def test_a_topic_made_anew_has_nothing_of_its_namesakes_checkpoints() -> None:
    """By the old recovery point torn batches would count as durable, and the old start would hide
    new records.
    """
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    old = logs.get_or_create(TP, random_uuid(), config())
    for _ in range(60):
        old.append_as_leader(batch(3), 1, NOW)
    old.update_high_watermark(180)
    old.increment_log_start_offset(50)
    old.flush()
    logs.checkpoint_recovery_points()
    logs.checkpoint_log_start_offsets()
    logs.checkpoint_high_watermarks()
    logs.delete(TP)
    new = logs.get_or_create(TP, random_uuid(), config())
    for _ in range(40):
        new.append_as_leader(batch(3), 1, NOW)
    new.directory.fsync()
    sync(new, *(s.log_file for s in new.segments[:1]), new.segments[2].log_file)
    disk.crash("nothing")
    _, again = reopened(disk)
    assert again.log_start_offset == again.high_watermark == 0
    assert offsets_of(again) == list(range(new.segments[1].base_offset))


def test_a_cut_is_in_the_checkpoint_though_nothing_else_changed_since_the_last_one() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    log = new_log(logs)
    for _ in range(60):
        log.append_as_leader(batch(3), 1, NOW)
    log.flush()
    logs.checkpoint_recovery_points()
    assert point(disk) == 180
    log.truncate_to(60, NOW)
    assert point(disk) == 60


def test_a_cut_within_a_batch_lowers_the_checkpoint_to_where_the_batch_began() -> None:
    """Otherwise the batch that replaces it would count as durable, and its loss as a gap."""
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    log = new_log(logs)
    log.append_as_leader(batch(2), 1, NOW)
    log.flush()
    logs.checkpoint_recovery_points()
    log.truncate_to(1, NOW)
    assert log.log_end_offset == point(disk) == 0
    log.append_as_leader(batch(2), 2, NOW)
    log.roll(NOW)
    log.append_as_leader(batch(2), 2, NOW)
    log.directory.fsync()
    sync(log, log.active_segment.log_file)
    disk.crash("nothing")
    _, again = reopened(disk)
    assert offsets_of(again) == []
    assert again.log_end_offset == 0


def test_a_log_that_lacks_durable_records_is_refused_and_not_touched() -> None:
    disk = MemoryDirectory()
    log = open_log(disk)
    for _ in range(60):
        log.append_as_leader(batch(3), 1, NOW)
    log.flush()
    third = log.segments[2]
    disk.flip_bit(third.log_file, 100)
    disk.cut(log.active_segment.log_file, 0)
    before = {name: disk.size_of(name) for name in disk.list()}
    for clean in (False, True):
        with pytest.raises(RecordsMissingError, match="below its recovery point 180"):
            open_log(disk, recovery_point=180, clean=clean)
    assert {name: disk.size_of(name) for name in disk.list()} == before
    again = open_log(disk, recovery_point=None)  # all is checked where it is unknown
    assert offsets_of(again) == list(range(third.base_offset))


def test_a_recovery_point_far_beyond_the_end_is_checkpointed_anew_before_a_roll() -> None:
    disk = MemoryDirectory()
    logs = manager(disk)
    logs.open()
    log = new_log(logs)
    log.append_as_leader(batch(3), 1, NOW)
    log.flush()
    OffsetCheckpoint(disk, RECOVERY_POINT_CHECKPOINT).write({TP: 1 << 40})
    disk.crash()
    _, log = reopened(disk)
    log.append_as_leader(batch(3), 1, NOW)
    log.roll(NOW)
    assert point(disk) == 3


# --- all of it at random


@settings(max_examples=60)
@given(
    gaps=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=9),
    own=st.integers(0, 12),
    flush_at=st.integers(0, 12),
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 2**16),
)
def test_gaps_of_another_broker_stay_and_losses_of_our_own_never_leave_one(
    gaps: list[tuple[int, bool]], own: int, flush_at: int, policy: tuple[str, ...], seed: int
) -> None:
    """Foreign segments with any gaps are opened without a checkpoint, more is appended, and the
    machine loses power. The log that remains is a prefix of the whole, with all flushed records.
    """
    disk = MemoryDirectory(seed=seed)
    place, offset, base, foreign = disk.subdirectory(str(TP)), 0, 0, []
    for gap, rolls in gaps:
        offset += gap
        base = offset if rolls else base
        place.open(f"{base:020d}.log", create=True).append(batch(2, base_offset=offset))
        foreign += [offset, offset + 1]
        offset += 2
    disk.crash("everything")
    logs, log = reopened(disk)
    log.config = config(cleanup_policy=policy, segment_bytes=300)
    assert offsets_of(log) == foreign
    written, durable = list(foreign), len(foreign)
    for number in range(own):
        end = log.log_end_offset
        log.append_as_leader(batch(2), 1, NOW)
        written += [end, end + 1]
        if number == flush_at:
            log.flush()
            durable = len(written)
            if seed % 2:
                logs.checkpoint_recovery_points()
    disk.crash()
    _, log = reopened(disk)
    found = offsets_of(log)
    assert found == written[: len(found)]
    assert len(found) >= durable


@pytest.mark.parametrize("policy", POLICIES, ids="+".join)
def test_a_truncation_over_segments_leaves_no_gap_at_any_crash(policy: tuple[str, ...]) -> None:
    """Segments behind the cut are gone for good before records take their place: they do not come
    back over those."""
    for seed in range(120):
        disk = MemoryDirectory(seed=seed)
        logs = manager(disk)
        logs.open()
        log = new_log(logs, policy)
        for _ in range(3):
            for _ in range(3):
                log.append_as_leader(batch(1), 1, NOW)
            log.roll(NOW)
        log.flush()
        steps, is_whole = truncation(log, 1, NOW), seed % 6 == 5
        for step, _ in zip(steps, range(99 if is_whole else seed % 6), strict=False):
            step()
        durable = 0
        if is_whole:
            for _ in range(4):
                log.append_as_leader(batch(1), 2, NOW)
            log.flush()
            logs.checkpoint_recovery_points()
            durable = 5
        disk.crash("random")
        _, again = reopened(disk)
        found = offsets_of(again)
        assert found == list(range(len(found))), seed
        assert len(found) == durable or (found and not durable), seed


def test_a_flush_amid_a_truncation_does_not_leave_the_checkpoint_above_the_cut() -> None:
    """The records that it flushed are cut next: their absence is no loss."""
    for seed in range(20):
        disk = MemoryDirectory(seed=seed)
        logs = manager(disk)
        logs.open()
        log = new_log(logs)
        for _ in range(2):
            for _ in range(3):
                log.append_as_leader(batch(1), 1, NOW)
            log.roll(NOW)
        for number, step in enumerate(truncation(log, 1, NOW)):
            step()
            if number == seed % 3:
                log.flush()
                logs.checkpoint_recovery_points()
        disk.crash("random")
        _, again = reopened(disk)
        assert offsets_of(again) == [0]
