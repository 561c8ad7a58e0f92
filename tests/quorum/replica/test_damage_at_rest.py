"""Every single flipped bit of a metadata log at rest: the log ends before it, and is known to have
lost records. The other voters heal it.
"""

from __future__ import annotations

import contextlib
import logging
from uuid import UUID

import pytest

from commitlog.disk.checkpoints import LEADER_EPOCH_CHECKPOINT, format_epochs
from commitlog.disk.memory_files import MemoryDirectory
from quorum.raft.effects import ElectionState, LeaderChange
from quorum.raft.voters import ReplicaKey
from quorum.replica.metadata_log import MetadataLogConfig, ReplicatedLog
from quorum.replica.quorum_state import QUORUM_STATE_FILE, QuorumStateStore
from snapshot.cleaning import DAMAGED_MAX, DAMAGED_SUFFIX
from tests.quorum.replica.test_log_bounds import metadata_of, stopped_cluster
from tests.sim.disk_faults import copy_disk
from tidemark.errors import CorruptMessageError, StorageError
from tidemark.records import iter_batches

CONFIG = MetadataLogConfig(segment_bytes=16_000)
LOG_FILE = "00000000000000000000.log"


@pytest.fixture(autouse=True)
def quiet_logs():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def begin_epoch(log, epoch):
    log.append_leader_change(LeaderChange(1, epoch, (1, 2, 3), (1, 2)), 1000)


def whole_log():
    """A log of epochs 1 and 6; the last one has a LeaderChange record alone."""
    directory = MemoryDirectory()
    log = ReplicatedLog(directory, CONFIG, 0)
    log.quorum_state.write(ElectionState(7, 2))
    begin_epoch(log, 1)
    log.append_values([b"a", b"b"], 1, 1000)
    log.append_values([b"c"], 1, 1000)
    begin_epoch(log, 6)
    log.flush()
    log.update_high_watermark(log.end_offset)
    log.close()
    return directory


def test_every_flipped_bit_ends_the_log_before_it():
    source = whole_log()
    data = source.read(LOG_FILE)
    undetected = []
    for bit in range(8 * len(data)):
        directory = copy_disk(source, 1)
        directory.flip_bit(LOG_FILE, bit // 8, bit % 8)
        log = ReplicatedLog(directory, CONFIG, 0)
        left = directory.read(LOG_FILE)
        if not log.bounds.lost or not data.startswith(left) or len(left) > bit // 8:
            undetected.append(bit)
    assert not undetected


def test_a_whole_log_is_opened_as_it_is_also_with_a_flipped_epoch_checkpoint():
    source = whole_log()
    data, file = source.read(LOG_FILE), LEADER_EPOCH_CHECKPOINT
    for bit in range(8 * source.size_of(file)):
        directory = copy_disk(source, 1)
        directory.flip_bit(file, bit // 8, bit % 8)
        log = ReplicatedLog(directory, CONFIG, 0)
        kept = directory.read(LOG_FILE)
        assert data.startswith(kept)
        assert log.end_offset >= 4, "only the LeaderChange record that ends the log is in doubt"
        assert log.bounds.lost == (log.end_offset < 5)


def test_no_flipped_bit_of_quorum_state_makes_another_vote():
    directory = MemoryDirectory()
    store, state = QuorumStateStore(directory), ElectionState(9, None, ReplicaKey(2, UUID(int=7)))
    store.write(state)
    refused = 0
    for bit in range(8 * directory.size_of(QUORUM_STATE_FILE)):
        directory.flip_bit(QUORUM_STATE_FILE, bit // 8, bit % 8)
        try:
            assert store.read() == state
        except StorageError:
            refused += 1
        directory.flip_bit(QUORUM_STATE_FILE, bit // 8, bit % 8)
    assert refused > 800
    assert store.read() == state


def test_no_flipped_bit_of_an_older_quorum_state_cuts_the_log():
    source = whole_log()
    data, opened = source.read(QUORUM_STATE_FILE), 0
    data = data[: data.index(b',"crc"')] + b"}"  # as Kafka and older versions write it
    source.write_atomic(QUORUM_STATE_FILE, data)
    for bit in range(8 * len(data)):
        directory = copy_disk(source, 1)
        directory.flip_bit(QUORUM_STATE_FILE, bit // 8, bit % 8)
        with contextlib.suppress(StorageError):  # a file that cannot be read stops the start
            log = ReplicatedLog(directory, CONFIG, 0)
            assert (log.end_offset, log.bounds.lost) == (5, False)
            opened += 1
    assert opened > 100


@pytest.mark.parametrize("starts", [{}, {4: 5}, {4: 3}], ids=["none", "lower", "older"])
def test_an_epoch_beyond_quorum_state_is_damage_unless_the_checkpoint_names_it(starts):
    directory = whole_log()
    entries = [(1, 0), *((epoch, start) for start, epoch in starts.items())]
    directory.write_atomic(LEADER_EPOCH_CHECKPOINT, format_epochs(entries))
    QuorumStateStore(directory).write(ElectionState(5, 2))
    assert ReplicatedLog(directory, CONFIG, 0).end_offset == 4


def test_a_batch_beyond_quorum_state_is_damage_without_a_leader_change_even_if_it_is_named():
    directory = MemoryDirectory()
    log = ReplicatedLog(directory, CONFIG, 0)
    begin_epoch(log, 1)
    log.append_values([b"a", b"b"], 1, 1000)
    for value in (b"c", b"d"):
        log.append_values([value], 9, 1000)
    log.close()
    assert b"9 3" in directory.read(LEADER_EPOCH_CHECKPOINT)
    QuorumStateStore(directory).write(ElectionState(7, 2))
    assert ReplicatedLog(directory, CONFIG, 0).end_offset == 3


def test_batches_that_follow_in_an_epoch_beyond_quorum_state_are_kept():
    directory = whole_log()
    log = ReplicatedLog(directory, CONFIG, 0)
    log.append_values([b"d"], 6, 1000)
    log.close()
    QuorumStateStore(directory).write(ElectionState(5, 2))
    assert ReplicatedLog(directory, CONFIG, 0).end_offset == 6


def test_the_damaged_segment_is_kept():
    directory = whole_log()
    directory.flip_bit(LOG_FILE, 15, 0)  # the first batch's epoch: 1 becomes 0
    damaged = directory.read(LOG_FILE)
    ReplicatedLog(directory, CONFIG, 0)
    assert directory.read(LOG_FILE + DAMAGED_SUFFIX) == damaged


def test_of_damaged_segments_the_last_ones_are_kept():
    directory = whole_log()
    older = [f"{base:020d}.log{DAMAGED_SUFFIX}" for base in range(1000, 1000 + DAMAGED_MAX + 3)]
    for name in older:
        directory.write_atomic(name, b"")
    directory.flip_bit(LOG_FILE, 15, 0)
    ReplicatedLog(directory, CONFIG, 0)
    kept = sorted(name for name in directory.list() if name.endswith(DAMAGED_SUFFIX))
    assert kept == [LOG_FILE + DAMAGED_SUFFIX, *older[-DAMAGED_MAX:]]


@pytest.mark.parametrize("number", range(24))
def test_a_voter_with_a_damaged_log_is_healed_by_the_others(number):
    cluster, _ = stopped_cluster()
    directory = metadata_of(cluster, 2)
    bits = 8 * directory.size_of(LOG_FILE)
    bit = number * bits // 24 + (7 * number) % 128  # often within the bytes that no CRC covers
    directory.flip_bit(LOG_FILE, bit % bits // 8, bit % 8)
    committed = cluster.checks.committed_end
    for node_id in cluster.nodes:
        cluster.start(node_id)
    assert cluster.nodes[2].replica.state.lost_tail
    assert cluster.run_until_leader() != 2
    cluster.run_until_equal()
    assert {n.incarnation for n in cluster.nodes.values()} == {2}
    assert all(n.log.end_offset > committed for n in cluster.nodes.values())
    assert cluster.nodes[2].image.values[b"key8"] == b"value"


def test_a_truncation_does_not_end_the_log_at_a_damaged_base_offset_before_it():
    source = whole_log()
    data = source.read(LOG_FILE)
    positions = [position for position, _ in iter_batches(data)]
    for flipped in positions[:3]:
        for bit in range(64):
            directory = copy_disk(source, 1)
            log = ReplicatedLog(directory, CONFIG, 0)
            directory.flip_bit(LOG_FILE, flipped + bit // 8, bit % 8)
            log._log.segments[0]._forget_positions()  # as those of a longer log are
            with contextlib.suppress(CorruptMessageError):  # the process ends: the next one heals
                log.truncate_to(4, 0)
                assert log.end_offset == 4
            assert directory.size_of(LOG_FILE) >= positions[3]
