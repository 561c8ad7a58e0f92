"""A log that continues elsewhere with a history from the tier: failures on the way."""

from __future__ import annotations

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.from_tier import rebuild_from_remote
from commitlog.log.log import Log
from commitlog.log.restart import RESTART_FILE
from commitlog.segment.producer_state import ProducerBatch, ProducerEntry, encode_snapshot
from tests.commitlog.builders import NOW, batch, config, filled, open_log
from tidemark.errors import StorageError

LINEAGE = ((0, 4), (2, 30), (5, 70))
TIERED = config(remote_storage_enable=True)


def snapshot() -> bytes:
    entry = ProducerEntry(9, 0, last_timestamp_ms=NOW)
    entry.batches.append(ProducerBatch(35, 99, 0, NOW))
    return encode_snapshot([entry])


def rebuild(log: Log) -> None:
    rebuild_from_remote(log, LINEAGE, snapshot(), 100, NOW, log_start_offset=4)


def following() -> bytes:
    return batch(
        1,
        base_offset=100,
        partition_leader_epoch=5,
        producer_id=9,
        producer_epoch=0,
        base_sequence=36,
    )


def is_whole(log: Log, end: int, sequence: int) -> bool:
    return (
        (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (4, 100, end)
        and log.epochs.entries() == LINEAGE
        and log.producers.producers[9].last_sequence == sequence
    )


def test_on_a_full_disk_the_log_is_the_old_one_or_finishes_before_its_next_append() -> None:
    outcomes = []
    for free in range(0, 700, 10):
        directory = MemoryDirectory()
        log = filled(directory, 0, TIERED)  # nothing to remove, which would free space
        before = (log.log_end_offset, log.epochs.entries())
        directory.set_capacity(directory.disk.used_bytes + free)
        try:
            rebuild(log)
        except StorageError:
            outcomes.append("old" if log.log_end_offset == before[0] else "new")
        else:
            outcomes.append("done")
        if outcomes[-1] == "old":
            assert (log.log_end_offset, log.epochs.entries()) == before
            assert not directory.exists(RESTART_FILE)
            continue
        assert is_whole(log, 100, 35), free
        if outcomes[-1] == "new":
            directory.set_capacity(0)
            with pytest.raises(StorageError):
                log.append_as_follower(following(), NOW)
            directory.set_capacity(1 << 30)
        log.append_as_follower(following(), NOW)
        assert not directory.exists(RESTART_FILE)
        assert is_whole(log, 101, 36), free
        log.flush()
        directory.crash(keep="nothing")
        again = open_log(directory, TIERED, log_start_offset=4, recovery_point=101)
        assert is_whole(again, 101, 36), free
    assert set(outcomes) == {"old", "new", "done"}


def test_an_empty_log_that_was_rebuilt_keeps_its_history_over_restarts() -> None:
    """The checkpoint of log starts is not written by these openings: the file tells it."""
    directory = MemoryDirectory()
    log = filled(directory, 3, TIERED)
    directory.fail_writes("*leader-epoch-checkpoint*")
    with pytest.raises(StorageError):
        rebuild(log)
    for clean in (False, True):
        directory.crash(keep="nothing")
        log = open_log(directory, TIERED, recovery_point=9, clean=clean)
        assert is_whole(log, 100, 35)
    log.append_as_follower(following(), NOW)
    assert not directory.exists(RESTART_FILE)


def test_a_later_truncation_is_not_undone_by_the_next_start() -> None:
    directory = MemoryDirectory()
    log = filled(directory, 3, TIERED)
    directory.fail_writes("*leader-epoch-checkpoint*")
    with pytest.raises(StorageError):
        rebuild(log)
    directory.crash(keep="nothing")
    log = open_log(directory, TIERED)
    log.truncate_fully_and_start_at(7, NOW)
    directory.crash(keep="nothing")
    log = open_log(directory, TIERED, log_start_offset=7)
    assert (log.log_start_offset, log.log_end_offset, log.epochs.entries()) == (7, 7, ())


def test_a_damaged_file_opens_no_log_with_half_a_history() -> None:
    directory = MemoryDirectory()
    log = filled(directory, 3, TIERED)
    directory.fail_writes("*leader-epoch-checkpoint*")
    with pytest.raises(StorageError):
        rebuild(log)
    directory.crash(keep="nothing")
    size = directory.size_of(RESTART_FILE)
    for bit in range(0, 8 * (size - 1), 7):
        directory.flip_bit(RESTART_FILE, bit // 8, bit % 8)
        with pytest.raises(StorageError, match="is damaged"):
            open_log(directory, TIERED)
        directory.flip_bit(RESTART_FILE, bit // 8, bit % 8)
    assert is_whole(open_log(directory, TIERED), 100, 35)


def test_what_the_tier_gave_is_checked_before_the_log_is_emptied() -> None:
    log = filled(batches=3, settings=TIERED)
    before = (log.log_end_offset, log.epochs.entries())
    for epochs, data in [
        (LINEAGE, b"\x00" * 20),
        (((2, 0), (1, 5)), snapshot()),
        (((1, 5), (2, 5)), snapshot()),
    ]:
        with pytest.raises(StorageError):
            rebuild_from_remote(log, epochs, data, 100, NOW, log_start_offset=0)
        assert (log.log_end_offset, log.epochs.entries()) == before


def test_a_truncation_below_the_local_log_keeps_the_history_that_remains() -> None:
    """A follower's lineage up to where histories part is its leader's as well."""
    directory = MemoryDirectory()
    log = filled(directory, 3, TIERED)
    rebuild(log)
    log.truncate_to(60, NOW)
    assert (log.log_start_offset, log.log_end_offset) == (4, 60)
    assert log.epochs.entries() == LINEAGE[:2]
