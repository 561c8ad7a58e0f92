"""The scrubber finds damage in rolled segments, at its rate, and rebuilds indexes."""

from __future__ import annotations

import asyncio
import random

import pytest

from commitlog.disk.checkpoints import LEADER_EPOCH_CHECKPOINT, format_epochs
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from commitlog.types import CorruptLogError
from node.upkeep.scrubber import FIRST_PASS_MS, Scrubber
from tests.commitlog.builders import NOW, TP, batch, config
from tests.inline import Inline
from tests.node.upkeep.test_background import settings
from tests.virtual_time import run
from tidemark.types import TopicPartition


class Node:
    """Logs of small segments with a scrubber, and the damage that it reported."""

    def __init__(self, **more: str) -> None:
        self.logs = LogManager([MemoryDirectory()], settings(**more), now_ms=lambda: NOW)
        self.logs.open()
        self.damage: list[tuple[TopicPartition, CorruptLogError]] = []
        self.scrubber = Scrubber(
            settings(**more),
            self.logs,
            lambda log, error: self.damage.append((log.topic_partition, error)),
            Inline(),
            random.Random(7),
        )

    def filled(self, partition: int = 0) -> Log:
        log = self.logs.get_or_create(TopicPartition(TP.topic, partition), None, config())
        for number in range(60):
            log.append_as_leader(batch(3, timestamp=NOW + number), leader_epoch=0, now_ms=NOW)
        assert len(log.segments) > 3
        return log


def damaged(log: Log, name: str, byte: int) -> None:
    data = bytearray(log.directory.read(name))
    data[byte] ^= 1
    file = log.directory.open(name)
    file.pwrite(bytes(data), 0)
    file.close()


def test_a_sound_log_is_read_whole_but_for_its_active_segment() -> None:
    node = Node()
    log = node.filled()
    run(node.scrubber.scrub_all())
    assert node.scrubber.scrubbed_bytes == sum(s.size_bytes for s in log.segments[:-1])
    assert (node.damage, node.scrubber.passes, node.scrubber.rebuilt_indexes) == ([], 1, 0)


@pytest.mark.parametrize("byte", [3, 13, 30, 70], ids=["offset", "epoch", "header", "record"])
def test_a_flipped_bit_of_a_rolled_segment_is_reported_with_its_file(byte: int) -> None:
    node = Node()
    log = node.filled()
    node.filled(1)
    segment = log.segments[1]
    damaged(log, segment.log_file, byte)
    run(node.scrubber.scrub_all())
    ((partition, error),) = node.damage
    assert partition == TP
    assert error.base_offset == segment.base_offset
    assert node.scrubber.damaged_segments == 1


def test_a_segment_cut_at_a_batch_is_reported() -> None:
    node = Node()
    log = node.filled()
    segment = log.segments[2]
    first = next(iter(segment.headers()))
    file = log.directory.open(segment.log_file)
    file.truncate(first.end_position)
    file.close()
    run(node.scrubber.scrub_all())
    assert [error.base_offset for _, error in node.damage] == [segment.base_offset]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_does_not_fit_its_segment_is_rebuilt(suffix: str) -> None:
    node = Node()
    log = node.filled()
    name = f"{log.segments[1].base_offset:020d}{suffix}"
    whole = log.directory.read(name)
    damaged(log, name, 7)
    run(node.scrubber.scrub_all())
    assert (node.scrubber.rebuilt_indexes, node.damage) == (1, [])
    assert log.directory.read(name) == whole


def test_a_rolled_segment_whose_file_is_gone_is_reported() -> None:
    node = Node()
    log = node.filled()
    segment = log.segments[1]
    log.directory.remove(segment.log_file)
    run(node.scrubber.scrub_all())
    assert [error.base_offset for _, error in node.damage] == [segment.base_offset]


def test_a_snapshot_that_is_gone_keeps_no_segment_from_its_check() -> None:
    node = Node()
    log = node.filled()
    segment = log.segments[1]
    gone = next(name for name in log.directory.list() if name.endswith(".snapshot"))
    log.directory.remove(gone)
    damaged(log, segment.log_file, 30)
    run(node.scrubber.scrub_all())
    assert node.scrubber.repaired_files == 1
    assert [error.base_offset for _, error in node.damage] == [segment.base_offset]


def lineage(log: Log, *entries: tuple[int, int]) -> None:
    log.epochs.replace(entries)


@pytest.mark.parametrize("wrong", [((1, 0),), ((0, 0), (1, 20)), ((0, 0), (1, 40))])
def test_batches_that_contradict_the_lineage_are_reported(
    wrong: tuple[tuple[int, int], ...],
) -> None:
    """The lineage answers followers, who cut their logs there."""
    node = Node()
    log = node.filled()
    end = log.log_end_offset
    for number in range(60):
        log.append_as_leader(batch(3, timestamp=NOW + number), leader_epoch=1, now_ms=NOW)
    assert log.epochs.entries() == ((0, 0), (1, end))
    run(node.scrubber.scrub_all())
    assert node.damage == []
    lineage(log, *wrong)
    run(node.scrubber.scrub_all())
    ((_, error),) = node.damage
    assert "leader epoch" in str(error)


@pytest.mark.parametrize("damage", ["forged", "gone"])
def test_a_leader_epoch_checkpoint_that_changed_on_disk_is_written_anew(damage: str) -> None:
    node = Node()
    log = node.filled()
    log.flush()
    whole = log.directory.read(LEADER_EPOCH_CHECKPOINT)
    if damage == "gone":
        log.directory.remove(LEADER_EPOCH_CHECKPOINT)
    else:
        log.directory.write_atomic(LEADER_EPOCH_CHECKPOINT, format_epochs([(0, 0), (3, 60)]))
    run(node.scrubber.scrub_all())
    assert log.directory.read(LEADER_EPOCH_CHECKPOINT) == whole
    assert (node.scrubber.repaired_files, node.damage) == (1, [])


def test_segments_deleted_meanwhile_are_no_damage() -> None:
    node = Node()
    log = node.filled()

    async def scenario() -> None:
        scrub = asyncio.create_task(node.scrubber.scrub_all())
        await asyncio.sleep(0.0001)
        assert 0 < node.scrubber.scrubbed_bytes < log.size_bytes / 2
        log.truncate_fully_and_start_at(1000, NOW)
        await scrub

    run(scenario())
    assert node.damage == []


def test_passes_keep_to_their_rate_and_their_times_and_can_be_switched_off() -> None:
    node = Node(log_scrubber_io_max_bytes_per_second="1000", log_scrubber_interval_ms="900000")
    log = node.filled()
    size = sum(s.size_bytes for s in log.segments[:-1])

    async def scenario() -> None:
        passes = asyncio.create_task(node.scrubber.run())
        await asyncio.sleep(FIRST_PASS_MS / 1000 - 1)
        assert node.scrubber.scrubbed_bytes == 0
        await asyncio.sleep(size / 1000)
        assert node.scrubber.passes == 0
        await asyncio.sleep(2)
        assert node.scrubber.passes == 1
        node.scrubber.reconfigure(settings(log_scrubber_interval_ms="-1"))
        await asyncio.sleep(3600)
        assert node.scrubber.passes == 2, "the wait under way was the old one's"
        await asyncio.sleep(86_400)
        assert node.scrubber.passes == 2
        passes.cancel()

    run(scenario())
