"""Idempotent producers: duplicates, gaps, epochs, wrapping sequences, expiry, snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.log import Log
from commitlog.log.producer_checks import add_one
from commitlog.segment.producer_state import (
    ProducerBatch,
    ProducerEntry,
    ProducerStateManager,
    decode_snapshot,
    encode_snapshot,
    in_kafkas_order,
)
from commitlog.types import AppendOrigin
from tests.commitlog.builders import NOW, batch, config, open_log
from tidemark.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceNumberError,
    StorageError,
    TransactionCoordinatorFencedError,
)
from tidemark.records import EndTransactionMarker, encode_control_batch

MAX = 2**31 - 1


def send(
    log: Log, sequence: int, count: int = 2, *, epoch: int = 0, producer: int = 7
) -> tuple[int, bool]:
    data = batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    info = log.append_as_leader(data, 1, NOW)
    return info.first_offset, info.duplicate


def test_the_last_five_batches_are_answered_again_with_their_first_offsets() -> None:
    log = open_log()
    for number in range(7):
        assert send(log, number * 2) == (number * 2, False)
    for number in range(2, 7):
        assert send(log, number * 2) == (number * 2, True)
    with pytest.raises(OutOfOrderSequenceNumberError, match="sequence 2 follows 13"):
        send(log, 2)
    assert log.log_end_offset == 14


def test_a_gap_is_refused_and_an_unknown_producer_may_begin_anywhere() -> None:
    log = open_log()
    assert send(log, 40) == (0, False)
    with pytest.raises(OutOfOrderSequenceNumberError):
        send(log, 43)
    assert send(log, 42) == (2, False)
    assert send(log, 0, producer=8) == (4, False)


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    log = open_log()
    send(log, 0)
    with pytest.raises(OutOfOrderSequenceNumberError, match="must begin at sequence 0"):
        send(log, 2, epoch=1)
    assert send(log, 0, epoch=1) == (2, False)
    with pytest.raises(InvalidProducerEpochError, match="epoch 1; 0 is old"):
        send(log, 2, epoch=0)


def test_sequences_wrap_to_zero() -> None:
    log = open_log()
    send(log, MAX - 1, 3)  # MAX-1, MAX, 0
    assert log.producers.producers[7].last_sequence == 0
    assert send(log, 1) == (3, False)
    assert send(log, MAX - 1, 3) == (0, True)
    assert (add_one(MAX), add_one(-1), add_one(5)) == (0, 0, 6)


def test_several_batches_of_one_request_are_checked_in_their_order() -> None:
    log = open_log()
    pair = [batch(2, producer_id=7, producer_epoch=0, base_sequence=s) for s in (0, 2)]
    log.append_as_leader(b"".join(pair), 1, NOW)
    with pytest.raises(OutOfOrderSequenceNumberError):
        bad = [batch(2, producer_id=7, producer_epoch=0, base_sequence=s) for s in (4, 7)]
        log.append_as_leader(b"".join(bad), 1, NOW)
    assert log.log_end_offset == 4
    assert log.producers.producers[7].last_sequence == 3


def end(log: Log, committed: bool, *, producer: int = 7, epoch: int = 0, coordinator: int) -> None:
    marker = encode_control_batch(
        [EndTransactionMarker(committed, coordinator)],
        base_offset=0,
        timestamp_ms=NOW,
        partition_leader_epoch=1,
        producer_id=producer,
        producer_epoch=epoch,
    )
    log.append_as_leader(marker, 1, NOW, origin=AppendOrigin.COORDINATOR)


def test_a_coordinator_of_an_older_epoch_is_fenced_as_by_kafka() -> None:
    log = open_log()
    end(log, True, coordinator=3)
    end(log, False, coordinator=3)
    end(log, True, producer=8, coordinator=0)
    with pytest.raises(TransactionCoordinatorFencedError, match="epoch 2 comes behind one of 3"):
        end(log, True, coordinator=2)
    assert log.log_end_offset == 3
    assert log.producers.producers[7].coordinator_epoch == 3


def test_nothing_is_sent_outside_of_an_open_transaction_as_by_kafka() -> None:
    log = open_log()
    fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    first = batch(2, base_sequence=0, transactional=True, **fields)
    log.append_as_leader(first, 1, NOW, verified=True)
    with pytest.raises(InvalidTxnStateError, match="open since offset 0"):
        log.append_as_leader(batch(1, base_sequence=2, **fields), 1, NOW)
    pair = batch(1, base_sequence=2, transactional=True, **fields)
    with pytest.raises(InvalidTxnStateError):
        log.append_as_leader(pair + batch(1, base_sequence=3, **fields), 1, NOW, verified=True)
    assert log.log_end_offset == 2
    end(log, True, coordinator=0)
    log.append_as_leader(batch(1, base_sequence=2, **fields), 1, NOW)


def test_a_client_writes_into_no_transaction_that_its_coordinator_does_not_know() -> None:
    """Nobody would end it: the last stable offset would stand still for ever (KIP-890)."""
    log = open_log()
    fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    sent = batch(2, base_sequence=0, transactional=True, **fields)
    after = batch(2, base_sequence=1, transactional=True, **fields)
    for refused in (sent, batch(1, base_sequence=0, **fields) + after):
        with pytest.raises(InvalidTxnStateError, match="no transaction that a coordinator knows"):
            log.append_as_leader(refused, 1, NOW)
    assert (log.log_end_offset, log.producers.producers) == (0, {})
    log.append_as_leader(sent, 1, NOW, verified=True)
    assert log.append_as_leader(sent, 1, NOW).duplicate
    with pytest.raises(InvalidTxnStateError):
        log.append_as_leader(batch(1, base_sequence=2, transactional=True, **fields), 1, NOW)
    followed = open_log()
    followed.append_as_follower(log.read(0, 1000).records, NOW)
    assert followed.first_unstable_offset == 0


def test_only_clients_count_sequences_as_in_kafka() -> None:
    """A group coordinator writes the offsets of a transaction without sequences."""
    log = open_log()
    fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    for sequence in (5, 5, 90):
        log.append_as_leader(
            batch(1, base_sequence=sequence, **fields), 1, NOW, origin=AppendOrigin.COORDINATOR
        )
    assert [b.last_sequence for b in log.producers.producers[7].batches] == [5, 5, 90]
    with pytest.raises(OutOfOrderSequenceNumberError):
        log.append_as_leader(batch(1, base_sequence=92, **fields), 1, NOW, verified=True)


def test_silent_producers_are_forgotten() -> None:
    log = open_log(producer_expiration_ms=1000)
    send(log, 0)
    assert log.producers.remove_expired(NOW + 999) == 0
    assert log.producers.remove_expired(NOW + 1001) == 1
    assert send(log, 77) == (2, False)


def test_a_snapshot_is_read_as_it_was_written() -> None:
    entries = [
        ProducerEntry(1, 2, 3, NOW, 40),
        ProducerEntry(5, 0, -1, NOW + 1, None),
    ]
    entries[1].batches.append(ProducerBatch(9, 100, 4, NOW + 1))
    data = encode_snapshot(entries)
    assert len(data) == 10 + 2 * 46
    assert decode_snapshot(data) == entries
    for position in range(len(data)):
        with pytest.raises(StorageError):
            decode_snapshot(data[:position])
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(StorageError):
            decode_snapshot(bytes(damaged))


def test_a_damaged_snapshot_makes_way_for_the_one_before_it() -> None:
    directory = MemoryDirectory()
    log = open_log(directory, config(segment_bytes=500))
    for number in range(20):
        send(log, number * 2)
    log.close()
    names = [n for n in directory.list() if n.endswith(".snapshot")]
    assert len(names) > 3
    for name in names[1:]:
        directory.flip_bit(name, 12)
    again = open_log(directory, config(segment_bytes=500), clean=True)
    assert again.producers.producers[7].last_sequence == 39
    assert send(again, 38) == (38, True)


def test_snapshots_without_a_segment_are_removed_but_for_the_newest() -> None:
    directory = MemoryDirectory()
    for offset in (0, 5, 10, 12):
        directory.write_atomic(f"{offset:020d}.snapshot", encode_snapshot([]))
    producers = ProducerStateManager(directory, 1000)
    producers.remove_stray({0, 10})
    assert producers.snapshots == (0, 10, 12)


def test_a_snapshot_has_its_producers_in_the_order_of_kafkas_hash_map() -> None:
    def order(*producer_ids: int) -> list[int]:
        entries = {key: ProducerEntry(key) for key in producer_ids}
        return [entry.producer_id for entry in in_kafkas_order(entries)]

    assert order(17, 3, 16, 33, 1) == [16, 17, 33, 1, 3]  # 16 buckets; entries of one bucket by age
    assert order(*range(12, 25)) == list(range(12, 25))  # 13 producers: 32 buckets
    assert order(*range(30, 43)) == [*range(32, 43), 30, 31]
    assert order(1 << 32, 2, 1 << 17) == [1 << 32, 2, 1 << 17]  # the upper bits count as well


def test_an_empty_log_has_no_snapshot() -> None:
    log = open_log()
    log.close()
    assert not [name for name in log.directory.list() if name.endswith(".snapshot")]
