"""A coordinator's log that ends at any byte: the outcomes that it has stand, and are told."""

from __future__ import annotations

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.segment.names import log_name
from coordinator.records.transactions import TRANSACTION_RECORDS, TransactionState
from coordinator.runtime.batches import Replayed, decode
from coordinator.runtime.now import Now
from coordinator.transactions.shard import TransactionSettings, TransactionShard
from coordinator.transactions.transaction import PREPARED
from tests.commitlog.builders import NOW, config, open_log
from tests.coordinator.transactions.driver import P0, P1, Driver
from tidemark.records import encode_batch, iter_batches
from tidemark.records.plain import Record

_SETTINGS = config(segment_bytes=1 << 20)


def history() -> Driver:
    """Two producers: commits, an abort, a fence, and a transaction that is open."""
    driver = Driver()
    one = driver.init(transactional_id="one")
    driver.add(one, P0, P1, transactional_id="one")
    one = driver.end(one, True, transactional_id="one")
    driver.written(P0)
    driver.written()
    two = driver.init(transactional_id="two")
    driver.add(two, P1, transactional_id="two")
    two = driver.end(two, False, transactional_id="two")
    driver.written()
    driver.add(one, P1, transactional_id="one")
    assert driver.try_init(transactional_id="one") is None
    driver.written()
    one = driver.init(transactional_id="one")
    driver.add(two, P0, transactional_id="two")
    return driver


def loaded(records: list[tuple[bytes, bytes | None]]) -> TransactionShard:
    """The state after some records."""
    shard = TransactionShard(TransactionSettings())
    for offset, (key, value) in enumerate(records):
        shard.replay(*TRANSACTION_RECORDS.decode(key, value), offset, -1)
    shard.loaded(7, Now(NOW, 1))
    return shard


def test_each_prefix_of_the_bytes_is_a_prefix_of_the_decisions() -> None:
    driver = history()
    written = open_log(settings=_SETTINGS)
    ends = []
    for key, value in driver.log:
        written.append_as_leader(encode_batch([Record(0, NOW, key, value)]), 1, NOW)
        ends.append(written.active_segment.size_bytes)
    data = written.active_segment.file.pread(ends[-1], 0)
    undecided = 0
    edges = {end + by for end in ends for by in (-1, 0, 1)} & set(range(ends[-1] + 1))
    for size in sorted(edges | set(range(0, ends[-1], 11))):
        directory = MemoryDirectory()
        directory.open(log_name(0), create=True).append(data[:size])
        log = open_log(directory, _SETTINGS)
        found = TransactionShard(TransactionSettings())
        records = bytes(log.read(0, 1 << 20).records) if log.log_end_offset else b""
        for each in decode(TRANSACTION_RECORDS, records):
            assert isinstance(each, Replayed)
            found.replay(each.key, each.value, each.offset, each.producer_id)
        found.loaded(7, Now(NOW, 1))
        count = sum(end <= size for end in ends)
        expected = loaded(driver.log[:count])
        assert log.log_end_offset == count
        assert found.transactions == expected.transactions
        assert found.pending_markers() == expected.pending_markers()
        decided = {
            name
            for name, state in found.transactions.items()
            if TransactionState(state.transaction_status) in PREPARED
        }
        assert {markers.transactional_id for markers in found.pending_markers()} == decided
        assert set(found.take_moved()) == decided, "each of them is told again"
        undecided += bool(decided)
    assert undecided > 20, "the history has outcomes that are not told yet"
    assert len(list(iter_batches(data))) == len(ends)
