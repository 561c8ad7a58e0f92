"""Transactions of a log: unstable offsets, truncation, and crashes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.log import Log
from commitlog.segment import txn_recovery
from commitlog.segment.names import snapshot_name
from commitlog.segment.producer_state import decode_snapshot
from commitlog.types import AppendOrigin, TransactionsUncheckedError
from tests.commitlog.builders import NOW, batch, config, open_log
from tidemark.errors import InvalidTxnStateError
from tidemark.records import EndTransactionMarker, encode_control_batch


def send(log: Log, producer: int, sequence: int) -> None:
    options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
    log.append_as_leader(batch(1, transactional=True, **options), 1, NOW, verified=True)


def end(log: Log, producer: int, *, committed: bool) -> None:
    marker = encode_control_batch(
        [EndTransactionMarker(committed, 1)],
        base_offset=0,
        timestamp_ms=NOW,
        partition_leader_epoch=1,
        producer_id=producer,
        producer_epoch=0,
    )
    log.append_as_leader(marker, 1, NOW, origin=AppendOrigin.COORDINATOR)


def test_the_stable_part_ends_at_the_oldest_transaction_that_is_open() -> None:
    log = open_log()
    send(log, 5, 0)
    send(log, 6, 0)
    log.append_as_leader(batch(1), 1, NOW)
    log.update_high_watermark(3)
    assert (log.first_unstable_offset, log.last_stable_offset) == (0, 0)
    end(log, 5, committed=True)
    log.update_high_watermark(3)
    assert log.last_stable_offset == 0, "its marker is not replicated yet"
    log.update_high_watermark(4)
    assert (log.first_unstable_offset, log.last_stable_offset) == (1, 1)
    end(log, 6, committed=False)
    log.update_high_watermark(5)
    assert (log.first_unstable_offset, log.last_stable_offset) == (None, 5)
    log.append_as_leader(batch(1), 1, NOW)
    assert log.last_stable_offset == 5, "nor is this record"


def test_the_stable_part_never_ends_below_the_logs_start() -> None:
    log = open_log()
    send(log, 5, 0)
    log.append_as_leader(batch(4), 1, NOW)
    log.update_high_watermark(5)
    log.increment_log_start_offset(3)
    assert (log.first_unstable_offset, log.last_stable_offset) == (3, 3)


def test_a_cut_takes_the_aborts_behind_it_back() -> None:
    log = open_log(settings=config(segment_bytes=1 << 20))
    send(log, 5, 0)
    end(log, 5, committed=False)
    send(log, 6, 0)
    end(log, 6, committed=False)
    log.update_high_watermark(4)
    aborted = [
        (a.producer_id, a.first_offset, a.last_offset) for a in log.aborted_transactions(0, 4)
    ]
    assert aborted == [(5, 0, 1), (6, 2, 3)]
    log.truncate_to(3, NOW)
    assert [entry.producer_id for entry in log.active_segment.txn_index.entries()] == [5]
    assert log.first_unstable_offset == 2
    end(log, 6, committed=True)
    log.update_high_watermark(4)
    assert [a.producer_id for a in log.aborted_transactions(0, 4)] == [5]


def reopened_unchecked(monkeypatch: pytest.MonkeyPatch, transactions: int = 6) -> Log:
    """A log of before a restart. Its index has a wrong producer; a check reads it in pieces."""
    monkeypatch.setattr(txn_recovery, "_CHUNK_BYTES", len(batch(1)) * 2)
    disk = MemoryDirectory()
    log = open_log(disk, settings=config(segment_bytes=1 << 20))
    for number in range(transactions):
        send(log, 5, number)
        end(log, 5, committed=False)
    log.update_high_watermark(log.log_end_offset)
    log.close()
    name = log.active_segment.txn_index.name
    data = bytearray(disk.read(name))
    data[9] ^= 1
    disk.write_atomic(name, bytes(data))
    log = open_log(disk, settings=config(segment_bytes=1 << 20), clean=True)
    log.update_high_watermark(log.log_end_offset)
    assert not log.active_segment.txn_index.is_checked
    return log


def paced(log: Log, between: Callable[[], None] = lambda: None) -> tuple[list[int], int]:
    """The first offsets of aborted transactions, and the turns that others had meanwhile."""
    turns = 0
    while True:
        try:
            found = log.aborted_transactions(0, log.log_end_offset, paced=True)
            assert {one.producer_id for one in found} <= {5}
            return [one.first_offset for one in found], turns
        except TransactionsUncheckedError:
            turns += 1
            between()


def test_an_index_of_before_the_restart_is_checked_by_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = reopened_unchecked(monkeypatch)
    wanted = [0, 2, 4, 6, 8, 10]
    found, turns = paced(log)
    assert found == wanted
    assert turns > 3
    assert paced(log) == (wanted, 0), "once is enough"


def test_two_readers_share_the_check_of_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = paced(reopened_unchecked(monkeypatch))[1]
    log = reopened_unchecked(monkeypatch)

    def other() -> None:
        with suppress(TransactionsUncheckedError):
            log.aborted_transactions(0, 2, paced=True)

    assert paced(log, other)[1] <= alone // 2 + 1


def test_appends_and_cuts_between_the_pieces_of_a_check_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = reopened_unchecked(monkeypatch)
    steps = iter(
        (
            lambda: send(log, 5, 6),
            lambda: end(log, 5, committed=False),
            lambda: log.truncate_to(5, NOW),  # the marker of the third
            lambda: end(log, 5, committed=False),
        )
    )
    found, _ = paced(log, lambda: next(steps, lambda: None)())
    assert list(steps) == [], "all of it happened during the check"
    assert found == [0, 2, 4]
    assert [one.last_offset for one in log.active_segment.txn_index.entries()] == [1, 3, 5]


def test_a_check_that_failed_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    log = reopened_unchecked(monkeypatch)
    file = log.active_segment.file
    with pytest.raises(TransactionsUncheckedError):
        log.aborted_transactions(0, 12, paced=True)

    def broken(size: int, position: int) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(file, "pread", broken)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                log.aborted_transactions(0, 12)
    assert paced(log)[0] == [0, 2, 4, 6, 8, 10]


def test_the_state_at_a_roll_is_durable_with_the_next_flush() -> None:
    disk = MemoryDirectory()
    log = open_log(disk)
    send(log, 5, 0)
    log.roll(NOW)
    send(log, 5, 1)
    log.flush()
    disk.crash(keep="nothing")
    (found,) = decode_snapshot(disk.read(snapshot_name(1)))
    assert (found.producer_id, found.current_txn_first_offset) == (5, 0)
    again = open_log(disk, recovery_point=2)
    assert again.first_unstable_offset == 0
    assert again.producers.producers[5].last_sequence == 1


def test_no_transaction_begins_in_one_whose_end_was_lost() -> None:
    """Its end would decide about the records of both."""
    log = open_log()
    send(log, 5, 0)
    following = batch(1, transactional=True, producer_id=5, producer_epoch=1, base_sequence=0)
    for origin in (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR):
        with pytest.raises(InvalidTxnStateError, match="epoch 0 open since offset 0"):
            log.append_as_leader(following, 1, NOW, origin=origin, verified=True)
    end(log, 5, committed=False)
    log.append_as_leader(following, 1, NOW, verified=True)
