"""The small files beside the segments, truncated and flipped at every byte: repaired or refused
with a typed error. The log never serves another record, offset or producer state than was written.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from commitlog.disk.checkpoints import (
    RECOVERY_POINT_CHECKPOINT,
    MetaProperties,
    OffsetCheckpoint,
    PartitionMetadata,
)
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.log import Log
from commitlog.types import AppendOrigin
from tests.commitlog.builders import NOW, TP, batch, config, open_log, records_of
from tidemark.errors import StorageError, TidemarkError
from tidemark.records import EndTransactionMarker, encode_control_batch
from tidemark.types import TopicPartition

SETTINGS = config(segment_bytes=900, index_interval_bytes=100)
TOPIC_ID = UUID(int=7)


def written() -> MemoryDirectory:
    """A closed log with two epochs, an idempotent producer and an aborted transaction."""
    directory = MemoryDirectory()
    log = open_log(directory, SETTINGS, topic_id=TOPIC_ID)
    for number in range(6):
        producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number * 2}
        log.append_as_leader(batch(2, timestamp=NOW + number, **producer), 1 + number // 3, NOW)
        ours = {"producer_id": 6, "producer_epoch": 0, "base_sequence": number}
        epoch = 2 if number > 2 else 1
        log.append_as_leader(batch(1, transactional=True, **ours), epoch, NOW, verified=True)
    marker = encode_control_batch(
        [EndTransactionMarker(False, 1)],
        base_offset=0,
        timestamp_ms=NOW,
        partition_leader_epoch=2,
        producer_id=6,
        producer_epoch=0,
    )
    log.append_as_leader(marker, 2, NOW, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)
    log.close()
    return directory


def facts(log: Log) -> object:
    return (
        records_of(log, 300),
        log.epochs.entries(),
        log.aborted_transactions(0, log.log_end_offset),
        {
            key: (entry.producer_epoch, entry.last_sequence, entry.current_txn_first_offset)
            for key, entry in log.producers.producers.items()
        },
    )


def damages(directory: MemoryDirectory, name: str) -> list[Callable[[MemoryDirectory], None]]:
    def cutter(end: int) -> Callable[[MemoryDirectory], None]:
        return lambda disk: disk.cut(name, end)

    def flipper(at: int, bit: int) -> Callable[[MemoryDirectory], None]:
        return lambda disk: disk.flip_bit(name, at, bit)

    size = directory.size_of(name)
    return [*map(cutter, range(size)), *(flipper(at, at % 8) for at in range(size))]


def copy_of(directory: MemoryDirectory) -> MemoryDirectory:
    copy = MemoryDirectory()
    for name in directory.list():
        copy.write_atomic(name, directory.read(name))
    return copy


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_a_damaged_producer_snapshot_is_made_again_from_the_log(clean: bool) -> None:
    directory = written()
    wanted = facts(open_log(copy_of(directory), SETTINGS, clean=clean))
    name = max(n for n in directory.list() if n.endswith(".snapshot"))
    for damage in damages(directory, name):
        disk = copy_of(directory)
        damage(disk)
        assert facts(open_log(disk, SETTINGS, clean=clean)) == wanted


def test_a_damaged_epoch_checkpoint_is_made_again_or_refused_after_a_crash() -> None:
    directory = written()
    wanted = facts(open_log(copy_of(directory), SETTINGS))
    for damage in damages(directory, "leader-epoch-checkpoint"):
        disk = copy_of(directory)
        damage(disk)
        assert facts(open_log(disk, SETTINGS)) == wanted


def test_a_cut_epoch_checkpoint_is_made_again_after_a_clean_stop_too() -> None:
    directory = written()
    name = "leader-epoch-checkpoint"
    wanted = facts(open_log(copy_of(directory), SETTINGS, clean=True))
    for end in range(directory.size_of(name)):
        disk = copy_of(directory)
        disk.cut(name, end)
        assert facts(open_log(disk, SETTINGS, clean=True)) == wanted, end


def test_a_cut_checkpoint_of_offsets_is_refused_at_every_byte() -> None:
    directory = MemoryDirectory()
    checkpoint = OffsetCheckpoint(directory, RECOVERY_POINT_CHECKPOINT)
    checkpoint.write({TP: 1234, TopicPartition("other", 12): 5678})
    size = directory.size_of(RECOVERY_POINT_CHECKPOINT)
    for end in reversed(range(size)):
        directory.cut(RECOVERY_POINT_CHECKPOINT, end)
        with pytest.raises(StorageError, match=r"malformed|unknown version"):
            checkpoint.read()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_damaged_partition_metadata_is_refused_or_another_topic_s(clean: bool) -> None:
    directory = written()
    wanted = facts(open_log(copy_of(directory), SETTINGS, clean=clean))
    for damage in damages(directory, "partition.metadata"):
        disk = copy_of(directory)
        damage(disk)
        try:
            log = open_log(disk, SETTINGS, clean=clean, topic_id=TOPIC_ID)
        except TidemarkError:
            continue
        assert facts(log) == wanted


def test_damaged_directory_files_are_refused_or_read_as_written() -> None:
    directory = MemoryDirectory()
    properties = MetaProperties("cluster-of-this-test-1", 3, UUID(int=8))
    properties.write(directory)
    PartitionMetadata(TOPIC_ID).write(directory)
    offsets = {TP: 42, TopicPartition("other", 1): 7}
    OffsetCheckpoint(directory, RECOVERY_POINT_CHECKPOINT).write(offsets)
    for name in ("meta.properties", RECOVERY_POINT_CHECKPOINT):
        for damage in damages(directory, name):
            disk = copy_of(directory)
            damage(disk)
            try:
                MetaProperties.read(disk)
                OffsetCheckpoint(disk, RECOVERY_POINT_CHECKPOINT).read()
            except TidemarkError:
                continue  # any other exception fails the test


@pytest.mark.parametrize("kind", ["cut", "removed"])
def test_a_transaction_index_that_is_cut_or_gone_is_made_again_after_a_crash(kind: str) -> None:
    directory = written()
    wanted = facts(open_log(copy_of(directory), SETTINGS))
    name = next(n for n in directory.list() if n.endswith(".txnindex"))
    for end in range(directory.size_of(name)):
        disk = copy_of(directory)
        if kind == "cut":
            disk.cut(name, end)
        else:
            disk.remove(name)
        assert facts(open_log(disk, SETTINGS)) == wanted, end
