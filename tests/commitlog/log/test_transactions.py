"""Transactions of a log: unstable offsets, truncation, and crashes."""

from __future__ import annotations

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.log import Log
from commitlog.segment.names import snapshot_name
from commitlog.segment.producer_state import decode_snapshot
from commitlog.types import AppendOrigin
from tests.commitlog.builders import NOW, batch, config, open_log
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
